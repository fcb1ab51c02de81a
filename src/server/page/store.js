// Conversations and settings in this browser's localStorage. What is read back may have been written by anybody: each field is checked.
//
// A conversation: {id, title, updated, settings, messages}. A message has the shape of the chat API, role user, assistant or tool, and an answer
// also `meta`: {finish, error, seed, seconds, first, usage}. Each conversation has a key of its own, so that tabs do not overwrite each other.

const PREFIX = "deepinfer.conversation.";
const THEME = "deepinfer.theme";
export const MOST_CONVERSATIONS = 60;
export const MOST_CHARACTERS = 4_000_000; // browsers allow about 5 million

export const DEFAULTS = Object.freeze({system: "", thinking: true, effort: "high", temperature: "", top_p: "", top_k: "", min_p: "",
  max_tokens: "", seed: "", stop: "", tools: ""});

const text = (value) => typeof value === "string" ? value : "";
const number = (value) => Number.isFinite(value) ? value : undefined;

function checkSettings(raw) {
  const settings = {...DEFAULTS};
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (typeof raw?.[name] === typeof value)
      settings[name] = raw[name];
  }
  if (!["low", "high", "max"].includes(settings.effort))
    settings.effort = DEFAULTS.effort;
  return settings;
}

function checkMeta(raw) {
  const meta = {finish: text(raw?.finish), error: text(raw?.error), seed: number(raw?.seed), seconds: number(raw?.seconds), first: number(raw?.first)};
  if (raw?.usage && typeof raw.usage === "object")
    meta.usage = Object.fromEntries(["prompt", "cached", "completion", "reasoning"].map((name) => [name, number(raw.usage[name])]));
  return meta;
}

function checkMessage(raw) {
  if (raw?.role === "user")
    return {role: "user", content: text(raw.content)};
  if (raw?.role === "tool")
    return {role: "tool", tool_call_id: text(raw.tool_call_id), content: text(raw.content)};
  if (raw?.role !== "assistant")
    return null;
  const calls = (Array.isArray(raw.tool_calls) ? raw.tool_calls : []).filter((call) => call?.function).map((call) => ({
    id: text(call.id), type: "function", function: {name: text(call.function.name), arguments: text(call.function.arguments)}}));
  return {role: "assistant", content: text(raw.content), reasoning_content: text(raw.reasoning_content), tool_calls: calls, meta: checkMeta(raw.meta)};
}

function checkConversation(raw) {
  if (!raw || typeof raw !== "object" || !/^[\w-]{1,64}$/.test(text(raw.id)))
    return null;
  return {id: raw.id, title: text(raw.title).slice(0, 200), updated: number(raw.updated) ?? 0, settings: checkSettings(raw.settings),
    messages: (Array.isArray(raw.messages) ? raw.messages : []).map(checkMessage).filter(Boolean)};
}

function keys() {
  return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
}

// All conversations, the latest first.
export function loadAll() {
  const found = [];
  for (const key of keys()) {
    try {
      const conversation = checkConversation(JSON.parse(localStorage.getItem(key)));
      if (conversation && key === PREFIX + conversation.id)
        found.push(conversation);
    } catch {
      // not ours, or damaged: left alone
    }
  }
  return found.sort((a, b) => b.updated - a.updated);
}

export function create(settings) {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return {id, title: "", updated: Date.now(), settings: {...settings}, messages: []};
}

// Returns {saved, dropped}: whether it is kept now, and the ids of the oldest conversations that made room for it.
export function save(conversation) {
  const key = PREFIX + conversation.id;
  const value = JSON.stringify(conversation);
  const dropped = [];
  while (value.length <= MOST_CHARACTERS) {
    const others = keys().filter((other) => other !== key);
    const size = others.reduce((sum, other) => sum + localStorage.getItem(other).length, value.length);
    if (others.length < MOST_CONVERSATIONS && size <= MOST_CHARACTERS) {
      try {
        localStorage.setItem(key, value);
        return {saved: true, dropped};
      } catch {
        // full, whatever fills it: make room as below
      }
    }
    const oldest = loadAll().filter((other) => other.id !== conversation.id).pop();
    const gone = oldest ? PREFIX + oldest.id : others[0];
    if (!gone)
      break;
    localStorage.removeItem(gone);
    dropped.push(gone.slice(PREFIX.length));
  }
  return {saved: false, dropped};
}

export function remove(conversation) {
  localStorage.removeItem(PREFIX + conversation.id);
}

// Whether a storage event is about conversations (null: everything was cleared).
export const isConversationKey = (key) => key === null || key.startsWith(PREFIX);

export function theme() {
  const value = localStorage.getItem(THEME);
  return value === "light" || value === "dark" ? value : "";
}

export function setTheme(value) {
  if (value)
    localStorage.setItem(THEME, value);
  else
    localStorage.removeItem(THEME);
}
