// The page of `deepinfer serve`: chat with the model, watch the engine. Plain modules without a build step.
//
//   app.js       conversations, the answer that runs in each, what the keys and buttons do      api.js       HTTP and server-sent events
//   view.js      one message on the page            markdown.js  text to DOM nodes               settings.js  settings to a request
//   panel.js     live figures of the engine         store.js     what the browser keeps           dom.js       helpers
//
// The server gives index.html at / and each other file at /NAME, and may forbid everything else:
//   Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';
//     form-action 'none'; frame-ancestors 'none'
// The page uses v1/models, v1/chat/completions and api/status. With API keys all three may answer 401 (the files themselves must not).
//
// GET /api/status: {"model": name, "context": tokens of one request, "uptime_s": seconds,
//   "running": requests, "waiting": requests, "prompt_tokens": counter, "generation_tokens": counter,
//   "kv_used_blocks": blocks, "kv_blocks": blocks, "cached_tokens": counter, "lookup_tokens": counter, "drafted": counter, "accepted": counter,
//   "memory": {"weights_packed", "weights_mapped", "cache", "activations", "scratch", "total": bytes}}
// All are numbers but the model's name; what does not exist is 0 or left out.
import {Answer, emptyAnswer, isWhole, resultsOf} from "./answer.js";
import {apiKey, curl, getJson, setApiKey} from "./api.js";
import {button, download, el} from "./dom.js";
import {Panel} from "./panel.js";
import {problem, requestOf} from "./settings.js";
import * as store from "./store.js";
import {MessageView} from "./view.js";

const $ = (id) => document.getElementById(id);
const log = $("log"), messages = $("messages"), input = $("input"), settings = $("settings");
const wide = matchMedia("(min-width: 1100px)");

let conversations = store.loadAll();
let current = null;          // the conversation that is shown
let views = [];              // of its messages; tool messages have none
let editing = false;         // the message field holds the last user message
let model = "";              // as the server names it
let unsaved = new Set();
const answers = new Map();   // id of a conversation -> its running Answer

// ---- dialog ----

// Resolves to the value of the field (or true without one), or to null if the user cancels.
function ask({title, text = "", label = "", value = "", secret = false, yes}) {
  const dialog = $("ask"), field = $("ask-value");
  if (dialog.open)
    return Promise.resolve(null);
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-text").hidden = !text;
  $("ask-label").hidden = !label;
  $("ask-label").firstElementChild.textContent = label;
  $("ask-yes").textContent = yes;
  field.type = secret ? "password" : "text";
  field.value = value;
  dialog.returnValue = "no";
  dialog.showModal();
  (label ? field : $("ask-yes")).focus();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    const answer = field.value;
    field.value = "";
    resolve(dialog.returnValue === "yes" ? label ? answer : true : null);
  }, {once: true}));
}

async function askKey(text) {
  const key = await ask({title: "API key", text, label: "Key", value: apiKey(), secret: true, yes: "Use it"});
  if (key === null)
    return false;
  setApiKey(key.trim());
  loadModel();
  panel.poll();
  return true;
}

let askedForKey = false;
function keyIsWanted() {
  if (!askedForKey)
    askKey("The server wants an API key. It is kept in this tab only.");
  askedForKey = true;
}

function notice(text) {
  $("notice").textContent = text;
}

// ---- announcing answers ----

// Screen readers get whole lines of an answer, at most every four seconds, and the rest at the end.
const announcer = {said: 0, time: 0,
  begin() {
    Object.assign(this, {said: 0, time: performance.now()});
    $("announce").textContent = "The model answers.";
  },
  update(text, ended) {
    const end = ended ? text.length : text.lastIndexOf("\n") + 1;
    if (end <= this.said || (!ended && performance.now() - this.time < 4000))
      return;
    $("announce").textContent = text.slice(this.said, end);
    Object.assign(this, {said: end, time: performance.now()});
  }};

// ---- keeping ----

function save(conversation) {
  unsaved.delete(conversation);
  const {saved, dropped} = store.save(conversation);
  if (dropped.length) {
    conversations = conversations.filter((other) => !dropped.includes(other.id));
    drawList();
    notice("The oldest conversations were deleted to make room.");
  }
  if (!saved)
    notice("This conversation is too large for the browser to keep. Export it if you need it.");
}

function saveLater(conversation) {
  if (!unsaved.size)
    setTimeout(saveAll, 2000);
  unsaved.add(conversation);
}

function saveAll() {
  for (const conversation of [...unsaved])
    save(conversation);
}

// ---- the list ----

function drawList() {
  const items = conversations.map((conversation) => {
    const here = conversation === current;
    const title = conversation.title || "New conversation";
    return el("li", {class: here ? "here" : null},
      button(title, () => { open(conversation); showList(false); }, {class: "title", "aria-current": here ? "true" : null, title}),
      here ? el("div", {class: "actions"}, button("Rename", () => rename(conversation), {class: "quiet"}),
        button("Export", () => exportOne(conversation), {class: "quiet"}), button("Delete", () => remove(conversation), {class: "quiet"})) : null);
  });
  $("conversations").replaceChildren(...items);
}

async function rename(conversation) {
  const title = await ask({title: "Rename the conversation", label: "Title", value: conversation.title, yes: "Rename"});
  if (title === null)
    return;
  conversation.title = title.trim().slice(0, 200);
  save(conversation);
  drawList();
}

function exportOne(conversation) {
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60);
  download(`${name || "conversation"}.json`, JSON.stringify(conversation, null, 2));
}

async function remove(conversation) {
  if (await ask({title: "Delete the conversation?", text: conversation.title, yes: "Delete"}) === null)
    return;
  answers.get(conversation.id)?.stop();
  unsaved.delete(conversation);
  store.remove(conversation);
  conversations = conversations.filter((other) => other !== conversation);
  if (conversations.length)
    open(conversations[0]);
  else
    startNew();
}

function startNew() {
  if (!current || current.messages.length || !conversations.includes(current)) {
    const conversation = store.create(current?.settings ?? conversations[0]?.settings ?? store.DEFAULTS);
    conversations.unshift(conversation);
    open(conversation);
  }
  showList(false);
  input.focus();
}

// ---- the conversation ----

function open(conversation) {
  if (editing)
    stopEditing();
  current = conversation;
  fillSettings();
  drawList();
  drawMessages();
  drawComposer();
  notice("");
  toEnd();
}

const visible = () => current.messages.filter((message) => message.role !== "tool");

function viewOf(message) {
  return new MessageView(message, {edit: startEditing, regenerate, results: sendResults,
    curl: () => curl(requestFor(current, current.messages.indexOf(message), message.meta.seed))});
}

function drawMessages() {
  views = visible().map(viewOf);
  messages.replaceChildren(...views.map((view) => view.root));
  if (!views.length)
    messages.append(el("div", {class: "welcome"}, el("p", {}, `Ask ${model || "the model"} something.`),
      el("p", {class: "note"}, "What you write goes to this server only. The conversation stays in this browser.")));
  settle();
}

function show(message) {
  messages.querySelector(".welcome")?.remove();
  views.push(viewOf(message));
  messages.append(views.at(-1).root);
}

// Take away the messages from `at` on.
function cut(at) {
  const gone = new Set(current.messages.splice(at));
  views = views.filter((view) => !gone.has(view.message) || view.root.remove());
}

// The buttons below the messages depend on which is the last.
function settle() {
  const running = answers.get(current.id)?.message;
  const last = views.at(-1)?.message, lastUser = views.findLast((view) => view.message.role === "user")?.message;
  for (const view of views) {
    if (view.message === running)
      view.update(true);
    else
      view.settle({last: !running && (view.message === last || view.message === lastUser), results: resultsOf(current.messages, view.message)});
  }
}

function drawComposer() {
  const running = answers.has(current.id);
  $("send").hidden = running;
  $("stop").hidden = !running;
  log.setAttribute("aria-busy", String(running));
}

function requestFor(conversation, end, seed) {
  return requestOf({model, settings: conversation.settings, messages: conversation.messages.slice(0, end), seed});
}

// Let the model go on after the messages of the present conversation.
function answer() {
  const conversation = current;
  const wrong = problem(settings);
  if (wrong) {
    showSettingsError(wrong);
    notice(wrong);
    return;
  }
  notice("");
  const message = emptyAnswer();
  const body = requestFor(conversation, conversation.messages.length, crypto.getRandomValues(new Uint32Array(1))[0]);
  message.meta.seed = body.seed;
  conversation.messages.push(message);
  conversation.updated = Date.now();
  const run = new Answer(message, body, () => {
    saveLater(conversation);
    if (conversation === current)
      views.at(-1).update(true);
    announcer.update(message.content, false);
  }, (error) => ended(conversation, message, error));
  answers.set(conversation.id, run);
  conversations.sort((a, b) => b.updated - a.updated);
  show(message);
  announcer.begin();
  settle();
  drawList();
  drawComposer();
  save(conversation);
  toEnd();
  run.run();
}

function ended(conversation, message, error) {
  answers.delete(conversation.id);
  if (!message.content && !message.reasoning_content && !message.tool_calls.length && message.meta.finish === "stopped")
    message.meta.error = "Stopped before the answer began.";
  conversation.updated = Date.now();
  if (conversations.includes(conversation))
    save(conversation);
  if (conversation === current) {
    settle();
    drawComposer();
    announcer.update(message.content, true);
  }
  if (error?.status === 401)
    askKey(error.message).then((given) => { if (given && conversation === current && !answers.has(conversation.id)) regenerate(); });
}

function send(text) {
  if (editing) {
    const at = current.messages.findLastIndex((message) => message.role === "user");
    cut(at);
    stopEditing();
  } else {
    const open = openCalls();
    current.messages.push(...open.map((call) => ({role: "tool", tool_call_id: call.id, content: "No result was given."})));
    if (current.messages.at(-1)?.meta?.error && !current.messages.at(-1).content)
      cut(current.messages.length - 1);
  }
  const message = {role: "user", content: text};
  current.messages.push(message);
  show(message);
  current.title ||= text.trim().replace(/\s+/g, " ").slice(0, 60);
  answer();
}

// Calls of the last answer that have no result yet.
function openCalls() {
  const last = current.messages.findLast((message) => message.role === "assistant");
  const results = resultsOf(current.messages, last);
  return last && current.messages.at(-1).role !== "user" && isWhole(last.meta) ? last.tool_calls.filter((call) => !results.has(call.id)) : [];
}

function sendResults(results) {
  const open = new Set(openCalls().map((call) => call.id));
  current.messages.push(...results.filter(({id}) => open.has(id)).map(({id, text}) => ({role: "tool", tool_call_id: id, content: text})));
  answer();
}

function regenerate() {
  if (answers.has(current.id))
    return;
  cut(current.messages.findLastIndex((message) => message.role === "assistant"));
  answer();
}

function startEditing() {
  editing = true;
  input.value = current.messages.findLast((message) => message.role === "user").content;
  notice("You edit your last message. What followed it will be replaced. Esc cancels.");
  fitInput();
  input.focus();
}

function stopEditing() {
  editing = false;
  input.value = "";
  notice("");
  fitInput();
}

// ---- scrolling ----

// The end stays in sight while something grows, unless the user scrolls up.
let sticks = true, top = 0;
const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;

function toEnd() {
  sticks = true;
  log.scrollTop = log.scrollHeight;
}

function onScroll() {
  sticks = atEnd() || (sticks && log.scrollTop >= top);
  top = log.scrollTop;
  $("latest").hidden = sticks;
}

// ---- settings ----

function fillSettings() {
  for (const field of settings.elements) {
    if (field.name)
      field[field.type === "checkbox" ? "checked" : "value"] = current.settings[field.name];
  }
  settings.elements.effort.disabled = !current.settings.thinking;
  showSettingsError(problem(settings));
}

function readSettings() {
  for (const field of settings.elements) {
    if (field.name)
      current.settings[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  settings.elements.effort.disabled = !current.settings.thinking;
  showSettingsError(problem(settings));
  saveLater(current);
}

function showSettingsError(text) {
  $("settings-error").textContent = text;
  $("settings-error").hidden = !text;
}

// ---- the frame ----

// On narrow screens the two sides lie over the conversation, one at a time.
function showSide(id, shown) {
  document.body.classList.toggle(`${id}-open`, shown);
  $(`toggle-${id}`).setAttribute("aria-expanded", String(shown));
  $(id).inert = !shown;
  const over = !wide.matches && (document.body.classList.contains("list-open") || document.body.classList.contains("side-open"));
  $("shade").hidden = !over;
  document.querySelector("main").inert = over;
}

const isShown = (id) => document.body.classList.contains(`${id}-open`);

function showList(shown) {
  if (!wide.matches)
    showSide("list", shown);
}

function toggle(id) {
  const shown = !isShown(id);
  if (shown && !wide.matches)
    showSide(id === "list" ? "side" : "list", false);
  showSide(id, shown);
  if (shown && !wide.matches)
    $(id).focus({preventScroll: true});
}

function closeSides() {
  const id = isShown("list") ? "list" : "side";
  showSide("list", false);
  showSide("side", false);
  $(`toggle-${id}`).focus();
}

function layout() {
  showSide("list", wide.matches);
  showSide("side", wide.matches);
}

function applyTheme() {
  const theme = store.theme();
  document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const dark = store.theme() ? store.theme() === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  store.setTheme(dark ? "light" : "dark");
  applyTheme();
}

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.4)}px`;
}

async function loadModel() {
  try {
    model = String((await getJson("v1/models")).data?.[0]?.id ?? "");
  } catch (error) {
    if (error.status === 401)
      keyIsWanted();
    return;
  }
  $("model").textContent = model || "deepinfer";
  document.title = model ? `${model} · deepinfer` : "deepinfer";
  if (!current.messages.length)
    drawMessages();
}

function onEscape(event) {
  if ($("ask").open)
    return;
  if (!wide.matches && (isShown("list") || isShown("side")))
    closeSides();
  else if (answers.has(current.id))
    answers.get(current.id).stop();
  else if (editing)
    stopEditing();
  else
    return;
  event.preventDefault();
}

function submit() {
  const text = input.value;
  if (!text.trim() || answers.has(current.id))
    return;
  const wrong = problem(settings);
  if (wrong)
    return notice(wrong);
  input.value = "";
  fitInput();
  send(text);
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
input.addEventListener("input", fitInput);
$("stop").addEventListener("click", () => { answers.get(current.id)?.stop(); input.focus(); });
$("ask-no").addEventListener("click", () => $("ask").close("no"));
$("new").addEventListener("click", startNew);
$("latest").addEventListener("click", () => { toEnd(); input.focus(); });
$("toggle-list").addEventListener("click", () => toggle("list"));
$("toggle-side").addEventListener("click", () => toggle("side"));
$("shade").addEventListener("click", closeSides);
$("theme").addEventListener("click", switchTheme);
$("key").addEventListener("click", () => askKey("It is kept in this tab only and sent with each request."));
$("reset").addEventListener("click", () => { current.settings = {...store.DEFAULTS}; fillSettings(); saveLater(current); });
settings.addEventListener("input", readSettings);
settings.addEventListener("submit", (event) => event.preventDefault());
log.addEventListener("scroll", onScroll, {passive: true});
new ResizeObserver(() => { if (sticks) toEnd(); }).observe(messages);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") onEscape(event); });
addEventListener("pagehide", saveAll);
addEventListener("storage", (event) => {
  if (!store.isConversationKey(event.key))
    return;
  const mine = conversations.filter((conversation) => conversation === current || answers.has(conversation.id));
  conversations = [...mine, ...store.loadAll().filter((other) => !mine.some(({id}) => id === other.id))].sort((a, b) => b.updated - a.updated);
  drawList();
});
wide.addEventListener("change", layout);

applyTheme();
layout();
if (conversations.length)
  open(conversations[0]);
else
  startNew();
const panel = new Panel($("engine"), (status, rate) => {
  $("summary").textContent = !status ? "" : status.running + status.waiting ? `${status.running} running, ${status.waiting} waiting · ${Math.round(rate)} tokens/s` : "idle";
}, keyIsWanted);
loadModel();
