// The page: conversations, the answers that run in them, and what keys and buttons do. docs/page.md says what it wants from the server.
import {Answer, emptyAnswer, isWhole, resultsOf} from "./answer.js";
import {apiKey, curl, getJson, setApiKey} from "./api.js";
import {button, download, el} from "./dom.js";
import {Panel} from "./panel.js";
import {problem, requestOf} from "./settings.js";
import * as store from "./store.js";
import {MessageView} from "./view.js";

const $ = (id) => document.getElementById(id);
const {body} = document, log = $("log"), messages = $("messages"), input = $("input"), settings = $("settings");
const wide = matchMedia("(min-width: 1100px)");

let talks = store.loadAll();
let current = null;        // the talk that is shown
let views = [];            // of its messages; tool messages have none
let editing = false;       // the message field holds the last user message
let model = "";            // as the server names it
let askedForKey = false;
const answers = new Map(); // talk -> its running Answer
const unsaved = new Set();

const notice = (text) => { $("notice").textContent = text; };
const newestFirst = () => talks.sort((a, b) => b.updated - a.updated);

// --- dialog

// Resolves to the field's value (true without a field), or null if the user cancels.
function ask(title, text, yes, label = "", value = "", type = "text") {
  const dialog = $("ask"), field = $("ask-value");
  if (dialog.open)
    return null;
  for (const [id, words] of Object.entries({title, text, yes, label}))
    $(`ask-${id}`).textContent = words;
  $("ask-field").hidden = !label;
  Object.assign(field, {type, value});
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    resolve(dialog.returnValue ? label ? field.value : true : null);
    field.value = "";
  }, {once: true}));
}

async function askKey(text) {
  const key = await ask("API key", text, "Use it", "Key", apiKey(), "password");
  if (key === null)
    return false;
  setApiKey(key.trim());
  loadModel();
  panel.poll();
  return true;
}

function keyIsWanted() {
  if (!askedForKey)
    askKey("The server wants an API key. It is kept in this tab only.");
  askedForKey = true;
}

// --- keeping

function save(talk) {
  unsaved.delete(talk);
  const {saved, dropped} = store.save(talk);
  if (dropped.length) {
    talks = talks.filter((other) => !dropped.includes(other.id));
    drawList();
    notice("The oldest conversations were deleted to make room.");
  }
  if (!saved)
    notice("This conversation is too large to be kept. Export it if you need it.");
}

function saveLater(talk) {
  if (!unsaved.size)
    setTimeout(saveAll, 2000);
  unsaved.add(talk);
}

const saveAll = () => [...unsaved].forEach(save);

// --- the list

function drawList() {
  $("conversations").replaceChildren(...talks.filter((talk) => talk.messages.length || talk.title).map((talk) => {
    const here = talk === current, title = talk.title || "Untitled";
    const action = (label, act) => button(label, () => act(talk), {class: "quiet"});
    return el("li", {class: here && "here"},
      button(title, () => { open(talk); showList(false); }, {class: "title", "aria-current": here && "true", title}),
      here ? el("div", {class: "actions"}, action("Rename", rename), action("Export", exportOne), action("Delete", remove)) : null);
  }));
}

async function rename(talk) {
  const title = await ask("Rename the conversation", "", "Rename", "Title", talk.title);
  if (title === null)
    return;
  talk.title = title.trim().slice(0, 200);
  save(talk);
  drawList();
}

const exportOne = (talk) => download(`${talk.title || "conversation"}.json`, JSON.stringify(talk, null, 2));

async function remove(talk) {
  if (!await ask("Delete the conversation?", talk.title, "Delete"))
    return;
  talks = talks.filter((other) => other !== talk);
  answers.get(talk)?.stop();
  unsaved.delete(talk);
  store.remove(talk);
  if (talks.length)
    open(talks[0]);
  else
    startNew();
}

function startNew() {
  if (current?.messages.length !== 0 || !talks.includes(current)) {
    talks.unshift(store.create(current?.settings ?? store.DEFAULTS));
    open(talks[0]);
  }
  showList(false);
  input.focus();
}

// --- the conversation

function open(talk) {
  current = talk;
  stopEditing();
  fillSettings();
  drawList();
  drawMessages();
  toEnd();
}

function drawMessages() {
  views = [];
  messages.replaceChildren();
  current.messages.forEach(show);
  if (!views.length)
    messages.append(el("div", {class: "welcome"}, el("p", {}, `Ask ${model || "the model"} something.`),
      el("p", {class: "note"}, "What you write goes to this server only and is kept in this browser.")));
  settle();
}

function show(message) {
  if (message.role === "tool")
    return;
  messages.querySelector(".welcome")?.remove();
  views.push(new MessageView(message, {edit: startEditing, regenerate, results: sendResults,
    curl: () => curl(requestFor(current.messages.indexOf(message), message.meta.seed))}));
  messages.append(views.at(-1).root);
}

// Take away the messages from `at` on.
function cut(at) {
  const gone = new Set(current.messages.splice(at));
  views = views.filter((view) => !gone.has(view.message) || view.root.remove());
}

// The buttons depend on what is last and whether it is on its way.
function settle() {
  const running = answers.get(current)?.message;
  const last = [views.at(-1), views.findLast((view) => view.message.role === "user")];
  for (const view of views) {
    if (view.message === running)
      view.update(true);
    else
      view.settle(!running && last.includes(view), resultsOf(current.messages, view.message));
  }
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
}

const requestFor = (end, seed) => requestOf({model, settings: current.settings, messages: current.messages.slice(0, end), seed});

// Let the model go on after the messages of the present conversation.
function answer() {
  const talk = current, message = emptyAnswer();
  const request = requestFor(undefined, crypto.getRandomValues(new Uint32Array(1))[0]);
  message.meta.seed = request.seed;
  talk.messages.push(message);
  talk.updated = Date.now();
  const run = new Answer(message, request, () => {
    saveLater(talk);
    if (talk === current)
      views.at(-1).update(true);
    announceLines(message.content);
  }, (error) => ended(talk, message, error));
  answers.set(talk, run);
  show(message);
  notice("");
  said = 0;
  announce("The model answers.");
  said = 0;
  settle();
  newestFirst();
  drawList();
  save(talk);
  toEnd();
  run.run();
}

async function ended(talk, message, error) {
  answers.delete(talk);
  talk.updated = Date.now();
  if (talks.includes(talk))
    save(talk);
  announce(message.content);
  if (talk === current) {
    settle();
    if (document.activeElement === input && !input.value)
      views.at(-1).root.querySelector(".result textarea")?.focus(); // what is typed now is the result of the call
  }
  if (error?.status === 401 && await askKey(error.message) && talk === current)
    regenerate();
}

// Nothing runs here and the settings are right; else the user is told.
function mayAnswer() {
  const wrong = problem(settings);
  notice(wrong);
  return !wrong && !answers.has(current);
}

function send() {
  const content = input.value, list = current.messages;
  if (!content.trim() || !mayAnswer())
    return;
  if (editing) {
    cut(list.findLastIndex(({role}) => role === "user"));
  } else {
    list.push(...openCalls().map(({id}) => ({role: "tool", tool_call_id: id, content: "No result was given."})));
    if (list.at(-1)?.meta?.error && !list.at(-1).content)
      cut(list.length - 1);
  }
  stopEditing();
  list.push({role: "user", content});
  show(list.at(-1));
  current.title ||= content.trim().replace(/\s+/g, " ").slice(0, 60);
  answer();
}

// Calls of the last answer that have no result yet.
function openCalls() {
  const last = current.messages.at(-1);
  return last?.role === "assistant" && isWhole(last.meta) ? last.tool_calls : [];
}

function sendResults(texts) {
  if (!mayAnswer())
    return;
  current.messages.push(...openCalls().map(({id}, i) => ({role: "tool", tool_call_id: id, content: texts[i]})));
  answer();
}

function regenerate() {
  if (!mayAnswer())
    return;
  cut(current.messages.findLastIndex(({role}) => role === "assistant"));
  answer();
}

function startEditing() {
  editing = true;
  input.value = current.messages.findLast(({role}) => role === "user").content;
  notice("What follows this message will be replaced. Esc cancels.");
  fitInput();
  input.focus();
}

function stopEditing() {
  editing = false;
  input.value = "";
  notice("");
  fitInput();
}

// Screen readers get whole lines of an answer, at most every four seconds, and the rest at the end.
let said = 0, sayAt = 0;

function announce(text, end = text.length) {
  $("announce").textContent = text.slice(said, end);
  said = end;
  sayAt = performance.now() + 4000;
}

function announceLines(text) {
  const end = text.lastIndexOf("\n") + 1;
  if (end > said && performance.now() > sayAt)
    announce(text, end);
}

// --- scrolling: the end stays in sight while something grows, unless the user scrolls up

let sticks = true, top = 0;

function toEnd() {
  sticks = true;
  log.scrollTop = log.scrollHeight;
}

function onScroll() {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  sticks = atEnd || (sticks && log.scrollTop >= top);
  top = log.scrollTop;
  $("latest").hidden = sticks;
}

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

// --- settings

const property = (field) => field.type === "checkbox" ? "checked" : "value";
const fields = [...settings.elements].filter((field) => field.name);

function fillSettings() {
  for (const field of fields)
    field[property(field)] = current.settings[field.name];
  checkSettings();
}

function readSettings() {
  for (const field of fields)
    current.settings[field.name] = field[property(field)];
  checkSettings();
  saveLater(current);
}

function checkSettings() {
  $("settings-error").textContent = problem(settings);
  settings.elements.effort.disabled = !current.settings.thinking;
}

// --- the frame

const isShown = (id) => body.classList.contains(`${id}-open`);

// On narrow screens the sides lie over the conversation, one at a time.
function showSide(id, shown) {
  body.classList.toggle(`${id}-open`, shown);
  $(`toggle-${id}`).ariaExpanded = String(shown);
  $(id).inert = !shown;
  const over = !wide.matches && (isShown("list") || isShown("side"));
  $("shade").hidden = !over;
  $("main").inert = over;
}

const showList = (shown) => wide.matches || showSide("list", shown);

function toggle(id) {
  const shown = !isShown(id);
  if (!wide.matches)
    layout();
  showSide(id, shown);
  if (shown)
    $(id).focus();
}

function layout() {
  showSide("list", wide.matches);
  showSide("side", wide.matches);
}

function closeSides() {
  const id = isShown("list") ? "list" : "side";
  layout();
  $(`toggle-${id}`).focus();
}

const applyTheme = () => { document.documentElement.dataset.theme = store.theme(); };

function switchTheme() {
  const dark = store.theme() ? store.theme() === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  store.setTheme(dark ? "light" : "dark");
  applyTheme();
}

async function loadModel() {
  try {
    model = String((await getJson("v1/models")).data[0].id);
  } catch (error) {
    return error.status === 401 && keyIsWanted();
  }
  $("model").textContent = model;
  document.title = `${model} · deepinfer`;
  if (!current.messages.length)
    drawMessages();
}

function onKey(event) {
  if (event.key === "Enter" && event.target === input && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
  if (event.key !== "Escape" || $("ask").open)
    return;
  if (!$("shade").hidden)
    closeSides();
  else if (answers.has(current))
    answers.get(current).stop();
  else if (editing)
    stopEditing();
}

// Another tab has changed something.
function onStorage() {
  const mine = talks.filter((talk) => talk === current || answers.has(talk));
  talks = [...mine, ...store.loadAll().filter((other) => !mine.some(({id}) => id === other.id))];
  newestFirst();
  drawList();
}

for (const [id, action] of Object.entries({
  new: startNew,
  stop: () => { answers.get(current)?.stop(); input.focus(); },
  latest: () => { toEnd(); input.focus(); },
  theme: switchTheme,
  shade: closeSides,
  key: () => askKey("It is kept in this tab only and sent with each request."),
  reset: () => { current.settings = {...store.DEFAULTS}; fillSettings(); saveLater(current); },
  "ask-no": () => $("ask").close(""),
  "toggle-list": () => toggle("list"),
  "toggle-side": () => toggle("side"),
}))
  $(id).onclick = action;
$("composer").onsubmit = () => { send(); return false; };
settings.onsubmit = () => false;
settings.oninput = readSettings;
input.oninput = fitInput;
log.onscroll = onScroll;
new ResizeObserver(() => { if (sticks) toEnd(); }).observe(messages);
Object.assign(window, {onkeydown: onKey, onpagehide: saveAll, onstorage: onStorage});
wide.onchange = layout;

applyTheme();
layout();
if (talks.length)
  open(talks[0]);
else
  startNew();
const panel = new Panel($("engine"), (summary) => {
  $("summary").textContent = summary;
  if (summary && !model)
    loadModel(); // it was not there yet
}, keyIsWanted);
loadModel();
