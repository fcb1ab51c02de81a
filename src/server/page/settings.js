// From a conversation's settings and messages to a request of v1/chat/completions.
import {resultsOf} from "./answer.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens"];
const stops = (text) => text.split("\n").filter(Boolean);

function checkTools(text) {
  let list;
  try {
    list = JSON.parse(text);
  } catch (error) {
    return `Tools is not JSON: ${error.message}.`;
  }
  return Array.isArray(list) && list.every((tool) => tool?.function?.name) ? "" :
    'Tools is a list of {"type": "function", "function": {…}}.';
}

// One sentence about what is wrong with a field, or "".
function checkField({name, value, dataset, labels}) {
  const {min, max, whole} = dataset, number = Number(value);
  if (!value.trim())
    return "";
  if (min && (!(number >= min && number <= max) || (whole && !Number.isInteger(number))))
    return `${labels[0].firstChild.textContent.trim()} is a ${whole ? "whole number" : "number"} from ${min} to ${max}.`;
  if (name === "stop" && stops(value).length > 16)
    return "There can be 16 stop strings.";
  return name === "tools" ? checkTools(value) : "";
}

// Marks the fields that are wrong. Returns what is wrong with the first of them, or "".
export function problem(form) {
  const wrong = [...form.elements].map((field) => [field, checkField(field)]);
  for (const [field, text] of wrong)
    field.ariaInvalid = text ? "true" : null;
  return wrong.find(([, text]) => text)?.[1] ?? "";
}

// What the model gets to see: no empty answers, and no calls that broke off (those have no result).
function history(messages) {
  return messages.map((message) => {
    if (message.role !== "assistant")
      return message;
    const {role, content, reasoning_content} = message, results = resultsOf(messages, message);
    const tool_calls = message.tool_calls.filter(({id}) => results.has(id));
    return {role, content, ...(reasoning_content && {reasoning_content}), ...(tool_calls.length && {tool_calls})};
  }).filter(({role, content, tool_calls}) => role !== "assistant" || content || tool_calls);
}

// messages: those that the answer follows.
export function requestOf({model, settings, messages, seed}) {
  const {system, thinking, effort, stop, tools} = settings;
  const request = {model, messages: history(messages), stream: true, stream_options: {include_usage: true},
    thinking: {type: thinking ? "enabled" : "disabled"}, ...(thinking && {reasoning_effort: effort}),
    seed: settings.seed.trim() ? Number(settings.seed) : seed};
  if (system.trim())
    request.messages.unshift({role: "system", content: system});
  for (const name of NUMBERS.filter((number) => settings[number].trim()))
    request[name] = Number(settings[name]);
  if (stops(stop).length)
    request.stop = stops(stop);
  if (tools.trim())
    request.tools = JSON.parse(tools);
  return request;
}
