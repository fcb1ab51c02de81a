// One answer on its way: streams it into a message and says when there is something new to draw.
import {ApiError, chat} from "./api.js";

export const emptyAnswer = () => ({role: "assistant", content: "", reasoning_content: "", tool_calls: [], meta: {}});

// Whether the model itself ended its answer, so that its tool calls are complete.
export const isWhole = ({error, finish}) => !error && finish !== "stopped" && finish !== "length";

// The results of an answer's tool calls, by id: the tool messages that follow it. Ids need not be unique in a conversation.
export function resultsOf(messages, answer) {
  const results = new Map();
  for (let i = messages.indexOf(answer) + 1; messages[i]?.role === "tool"; i++)
    results.set(messages[i].tool_call_id, messages[i].content);
  return results;
}

function addCall(calls, {index = calls.length - 1, id, function: part}) {
  if (!(index >= 0 && index <= calls.length))
    throw new RangeError();
  calls[index] ??= {id: "", type: "function", function: {name: "", arguments: ""}};
  calls[index].id ||= id ?? "";
  calls[index].function.name += part?.name ?? "";
  calls[index].function.arguments += part?.arguments ?? "";
}

// Returns whether the chunk has something that the model wrote.
function addChunk(message, {usage, choices}) {
  const {delta = {}, finish_reason} = choices?.[0] ?? {};
  const text = delta.content ?? "", reasoning = delta.reasoning_content ?? delta.reasoning ?? "", calls = delta.tool_calls ?? [];
  message.content += text;
  message.reasoning_content += reasoning;
  for (const call of calls)
    addCall(message.tool_calls, call);
  message.meta.finish = finish_reason ?? message.meta.finish;
  if (usage)
    message.meta.usage = {prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens,
      completion: usage.completion_tokens, reasoning: usage.completion_tokens_details?.reasoning_tokens};
  return text || reasoning || calls.length;
}

export class Answer {
  // onChange(): at most once a frame. onEnd(error): at the end; error is an ApiError, or null also after stop().
  constructor(message, request, onChange, onEnd) {
    Object.assign(this, {message, request, onChange, onEnd, abort: new AbortController()});
  }

  stop() {
    this.abort.abort();
  }

  async run() {
    const {meta} = this.message, {signal} = this.abort, start = performance.now();
    const seconds = () => (performance.now() - start) / 1000;
    let error = null;
    try {
      for await (const chunk of chat(this.request, signal)) {
        if (addChunk(this.message, chunk))
          meta.first ??= seconds();
        this.frame ??= document.hidden ? setTimeout(() => this.#draw(), 500) : requestAnimationFrame(() => this.#draw());
      }
    } catch (caught) {
      if (signal.aborted)
        meta.finish = "stopped";
      else
        error = caught instanceof ApiError ? caught : new ApiError("The server's answer could not be read.");
    }
    meta.seconds = seconds();
    meta.error = error?.message;
    this.over = true;
    this.onEnd(error);
  }

  #draw() {
    this.frame = null;
    if (!this.over)
      this.onChange();
  }
}
