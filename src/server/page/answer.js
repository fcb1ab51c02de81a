// One answer on its way: streams it into a message and says when there is something new to draw.
import {ApiError, chat} from "./api.js";

// Whether the model itself ended its answer, so that its tool calls are complete.
export const isWhole = ({error, finish}) => !error && finish !== "stopped" && finish !== "length";

// The results of an answer's tool calls, by id: the tool messages that follow it. Ids need not be unique in a conversation.
export function resultsOf(messages, answer) {
  const results = new Map();
  for (let i = messages.indexOf(answer) + 1; messages[i]?.role === "tool"; i++)
    results.set(messages[i].tool_call_id, messages[i].content);
  return results;
}

export const emptyAnswer = () => ({role: "assistant", content: "", reasoning_content: "", tool_calls: [], meta: {}});

function addCalls(message, deltas) {
  for (const delta of deltas) {
    const index = delta.index ?? message.tool_calls.length - 1;
    if (!(index >= 0 && index <= message.tool_calls.length))
      throw new ApiError("The server's answer has a tool call out of order.");
    message.tool_calls[index] ??= {id: "", type: "function", function: {name: "", arguments: ""}};
    const call = message.tool_calls[index];
    call.id ||= delta.id ?? "";
    call.function.name += delta.function?.name ?? "";
    call.function.arguments += delta.function?.arguments ?? "";
  }
}

// Returns whether the chunk brought something that the model wrote.
function addChunk(message, chunk) {
  const {usage} = chunk, choice = chunk.choices?.[0], delta = choice?.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  message.content += delta.content ?? "";
  message.reasoning_content += reasoning;
  addCalls(message, delta.tool_calls ?? []);
  if (choice?.finish_reason)
    message.meta.finish = choice.finish_reason;
  if (usage)
    message.meta.usage = {prompt: usage.prompt_tokens, completion: usage.completion_tokens, cached: usage.prompt_tokens_details?.cached_tokens,
      reasoning: usage.completion_tokens_details?.reasoning_tokens};
  return Boolean(delta.content || reasoning || delta.tool_calls);
}

export class Answer {
  // onChange(): at most once a frame. onEnd(error): at the end; error is an ApiError, or null also after stop().
  constructor(message, body, onChange, onEnd) {
    Object.assign(this, {message, body, onChange, onEnd, frame: 0, abort: new AbortController()});
  }

  stop() {
    this.abort.abort();
  }

  async run() {
    const {message} = this, {meta} = message, start = performance.now();
    const seconds = () => (performance.now() - start) / 1000;
    let error = null;
    try {
      for await (const chunk of chat(this.body, this.abort.signal)) {
        if (addChunk(message, chunk))
          meta.first ??= seconds();
        this.frame ||= document.hidden ? setTimeout(() => this.#draw(), 500) : requestAnimationFrame(() => this.#draw());
      }
    } catch (caught) {
      if (this.abort.signal.aborted)
        meta.finish = "stopped";
      else
        error = caught instanceof ApiError ? caught : new ApiError("The page met an unexpected answer of the server.");
    }
    meta.seconds = seconds();
    if (error)
      meta.error = error.message;
    this.over = true;
    this.onEnd(error);
  }

  #draw() {
    this.frame = 0;
    if (!this.over)
      this.onChange();
  }
}
