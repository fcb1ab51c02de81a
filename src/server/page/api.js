// The server's HTTP interface as the page uses it. Addresses are relative to the page, so that it works behind a path prefix too.

const KEY = "deepinfer.key";

// The API key lives as long as the tab.
export const apiKey = () => sessionStorage.getItem(KEY) ?? "";
export function setApiKey(key) {
  if (key)
    sessionStorage.setItem(KEY, key);
  else
    sessionStorage.removeItem(KEY);
}

const address = (path) => new URL(path, document.baseURI).href;
const headers = () => apiKey() ? {Authorization: `Bearer ${apiKey()}`} : {};

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
  let message = "";
  try {
    const body = JSON.parse((await response.text()).slice(0, 100000));
    message = body.error?.message ?? body.message ?? "";
  } catch {
    // not JSON: the status says what there is to say
  }
  const wait = Number(response.headers.get("Retry-After"));
  const text = typeof message === "string" && message ? sentence(message) : `The server answered with status ${response.status}.`;
  return new ApiError(text + (wait > 0 ? ` Try again in ${wait} s.` : ""), response.status);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(address(path), {...options, headers: {...headers(), ...options.headers}, cache: "no-store", credentials: "same-origin"});
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError("The server cannot be reached.");
  }
  if (!response.ok)
    throw await refusal(response);
  return response;
}

export async function getJson(path, signal) {
  const response = await request(path, {signal});
  try {
    return await response.json();
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError("The server's answer could not be read.", response.status);
  }
}

// The data of each server-sent event.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", data = [];
  for (;;) {
    const {value, done} = await reader.read();
    if (done)
      return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:"))
        data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

// The chunks of a streamed answer. Ends normally only when the server said that the answer is complete.
export async function* chat(body, signal) {
  const response = await request("v1/chat/completions", {method: "POST", signal, body: JSON.stringify(body),
    headers: {"Content-Type": "application/json"}});
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]")
        return;
      const chunk = JSON.parse(data);
      if (chunk.error)
        throw new ApiError(sentence(String(chunk.error.message ?? "The server reported an error")), response.status);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError)
      throw error;
    throw new ApiError(error instanceof SyntaxError ? "The server's answer could not be read." : "The connection broke before the answer was complete.");
  }
  throw new ApiError("The connection ended before the answer was complete.");
}

// The same request as a command for a shell.
export function curl(body) {
  const quote = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
  const auth = apiKey() ? ` \\\n  -H "Authorization: Bearer $DEEPINFER_API_KEY"` : "";
  return `curl -N ${quote(address("v1/chat/completions"))} \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d ${quote(JSON.stringify(body, null, 2))}`;
}
