// From a conversation's settings and messages to a request of /v1/chat/completions.

import {resultsOf} from "./answer.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens"];

function tools(text) {
  let list;
  try {
    list = JSON.parse(text);
  } catch (error) {
    throw new Error(`Tools is not JSON: ${error.message}.`);
  }
  if (!Array.isArray(list) || list.some((tool) => !tool?.function?.name))
    throw new Error('Tools is a list of {"type": "function", "function": {"name": …, "parameters": {…}}}.');
  return list;
}

function checkNumber(field) {
  const {name} = field, value = Number(field.value), {min, max} = field.dataset;
  if (!(value >= Number(min) && value <= Number(max)) || ("whole" in field.dataset && !Number.isInteger(value)))
    throw new Error(`${field.labels[0].firstChild.textContent.trim()} is a${"whole" in field.dataset ? " whole" : ""} number from ${min} to ${max}.`);
  return {name, value};
}

// Marks the fields that are wrong. Returns one sentence about the first of them, or "".
export function problem(form) {
  let first = "";
  for (const field of form.elements) {
    let wrong = "";
    try {
      if ("min" in field.dataset && field.value.trim())
        checkNumber(field);
      if (field.name === "tools" && field.value.trim())
        tools(field.value);
      if (field.name === "stop" && field.value.split("\n").filter(Boolean).length > 16)
        throw new Error("There can be 16 stop strings.");
    } catch (error) {
      wrong = error.message;
    }
    if (wrong)
      field.setAttribute("aria-invalid", "true");
    else
      field.removeAttribute("aria-invalid");
    first ||= wrong;
  }
  return first;
}

// What the model gets to see: no empty answers, and no calls that broke off (those have no result).
function history(messages) {
  return messages.map((message) => {
    if (message.role !== "assistant")
      return message;
    const {role, content, reasoning_content} = message;
    const results = resultsOf(messages, message);
    const tool_calls = message.tool_calls.filter((call) => results.has(call.id));
    return {role, content, ...(reasoning_content && {reasoning_content}), ...(tool_calls.length && {tool_calls})};
  }).filter((message) => message.role !== "assistant" || message.content || message.tool_calls);
}

// messages: those that the answer follows.
export function requestOf({model, settings, messages, seed}) {
  const body = {model, messages: history(messages), stream: true, stream_options: {include_usage: true}};
  if (settings.system.trim())
    body.messages.unshift({role: "system", content: settings.system});
  body.thinking = {type: settings.thinking ? "enabled" : "disabled"};
  if (settings.thinking)
    body.reasoning_effort = settings.effort;
  for (const name of NUMBERS) {
    if (settings[name].trim())
      body[name] = Number(settings[name]);
  }
  body.seed = settings.seed.trim() ? Number(settings.seed) : seed;
  const stop = settings.stop.split("\n").filter(Boolean);
  if (stop.length)
    body.stop = stop;
  if (settings.tools.trim())
    body.tools = tools(settings.tools);
  return body;
}
