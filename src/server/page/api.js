// The server's HTTP interface as the page uses it. Addresses are relative to the page, so that it works behind a path prefix too.

import {storage} from "./store.js";

const KEY = "deepinfer.key";
const session = storage("sessionStorage");

// The API key lives as long as the tab.
export const apiKey = () => session.getItem(KEY) ?? "";
export const setApiKey = (key) => session.setItem(KEY, key);

const CHAT = "v1/chat/completions";
const address = (path) => new URL(path, document.baseURI).href;

// `message` is one sentence for the user. status: of HTTP, 0 if there was no answer.
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function sentence(text) {
  const line = text.trim().replace(/\s+/g, " ").slice(0, 500);
  return line.slice(0, 1).toUpperCase() + line.slice(1) + (/[.!?…]$/.test(line) ? "" : ".");
}

async function refusal(response) {
  const {status, headers} = response, wait = headers.get("Retry-After");
  let text = `the server answered with status ${status}`;
  try {
    text = String((await response.json()).error.message);
  } catch {} // not our kind of body
  return new ApiError(sentence(text) + (wait > 0 ? ` Try again in ${wait} s.` : ""), status);
}

async function request(path, options, headers = {}) {
  if (apiKey())
    headers.Authorization = `Bearer ${apiKey()}`;
  const response = await fetch(address(path), {...options, headers, cache: "no-store"}).catch(() => {
    throw new ApiError("The server cannot be reached.");
  });
  if (!response.ok)
    throw await refusal(response);
  return response;
}

export const getJson = async (path) => (await request(path, {signal: AbortSignal.timeout(5000)})).json();

// The data of each server-sent event.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", data = [];
  for (let part; !(part = await reader.read()).done;) {
    const lines = (rest + part.value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:"))
        data.push(line.slice(5).replace(/^ /, ""));
      else if (!line && data.length)
        yield data.splice(0).join("\n");
    }
  }
}

// The chunks of a streamed answer. Ends normally only when the server said that the answer is complete.
export async function* chat(body, signal) {
  const response = await request(CHAT, {method: "POST", signal, body: JSON.stringify(body)}, {"Content-Type": "application/json"});
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]")
        return;
      const chunk = JSON.parse(data);
      if (chunk.error)
        throw new ApiError(sentence(String(chunk.error.message)));
      yield chunk;
    }
  } catch (error) {
    throw error instanceof TypeError ? new ApiError("The connection broke before the answer was complete.") : error;
  }
  throw new ApiError("The connection ended before the answer was complete.");
}

// The same request as a command for a shell.
export function curl(body) {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const auth = apiKey() && ' \\\n  -H "Authorization: Bearer $DEEPINFER_API_KEY"';
  const data = quote(JSON.stringify(body, null, 2));
  return `curl -N ${quote(address(CHAT))} \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d ${data}`;
}
