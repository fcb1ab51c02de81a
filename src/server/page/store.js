// Conversations in this browser's localStorage. What is read back may have been written by anybody: each field is checked.
//
// A conversation: {id, title, updated, settings, messages}. Messages have the shape of the chat API; an answer also has `meta`: {finish,
// error, seed, seconds, first, usage}. Each conversation has its own key, so that tabs do not overwrite each other.

// Where the browser forbids storage, the page keeps everything in memory.
export function storage(name) {
  try {
    return window[name];
  } catch {
    return Object.create({
      getItem(key) { return this[key] ?? null; },
      setItem(key, value) { this[key] = value; },
      removeItem(key) { delete this[key]; },
    });
  }
}

const local = storage("localStorage");
const PREFIX = "deepinfer.conversation.";
const THEME = "deepinfer.theme";
export const MOST_TALKS = 60;
export const MOST_CHARACTERS = 4_000_000; // browsers allow about 5 million

export const DEFAULTS = {system: "", thinking: true, effort: "high", temperature: "", top_p: "", top_k: "", min_p: "", max_tokens: "",
  seed: "", stop: "", tools: ""};

const text = (value) => typeof value === "string" ? value : "";
const list = (value) => Array.isArray(value) ? value : [];
const numbers = (raw, names) => Object.fromEntries(names.filter((name) => Number.isFinite(raw?.[name])).map((name) => [name, raw[name]]));

function checkSettings(raw) {
  const same = Object.entries(DEFAULTS).map(([name, value]) => [name, typeof raw?.[name] === typeof value ? raw[name] : value]);
  const settings = Object.fromEntries(same);
  return {...settings, effort: ["low", "high", "max"].includes(settings.effort) ? settings.effort : DEFAULTS.effort};
}

function checkMessage(raw) {
  const role = raw?.role, content = text(raw?.content);
  if (role === "user")
    return {role, content};
  if (role === "tool")
    return {role, content, tool_call_id: text(raw.tool_call_id)};
  if (role !== "assistant")
    return null;
  const meta = {finish: text(raw.meta?.finish), error: text(raw.meta?.error), ...numbers(raw.meta, ["seed", "seconds", "first"]),
    usage: numbers(raw.meta?.usage, ["prompt", "cached", "completion", "reasoning"])};
  const tool_calls = list(raw.tool_calls).map((call) => ({id: text(call?.id), type: "function",
    function: {name: text(call?.function?.name), arguments: text(call?.function?.arguments)}}));
  return {role, content, reasoning_content: text(raw.reasoning_content), tool_calls, meta};
}

function read(key) {
  try {
    const raw = JSON.parse(local.getItem(key));
    return key === PREFIX + text(raw.id) ? {id: raw.id, title: text(raw.title).slice(0, 200), ...numbers({updated: 0, ...raw}, ["updated"]),
      settings: checkSettings(raw.settings), messages: list(raw.messages).map(checkMessage).filter(Boolean)} : null;
  } catch {
    return null; // not ours, or damaged: left alone
  }
}

const keys = () => Object.keys(local).filter((key) => key.startsWith(PREFIX));

// All conversations, the latest first.
export const loadAll = () => keys().map(read).filter(Boolean).sort((a, b) => b.updated - a.updated);

export const create = (settings) => ({id: Date.now().toString(36) + Math.random().toString(36).slice(2), title: "", updated: Date.now(),
  settings: {...settings}, messages: []});

// Returns {saved, dropped}: whether it is kept now, and the ids of the oldest conversations that made room for it.
export function save(talk) {
  const key = PREFIX + talk.id, value = JSON.stringify(talk), dropped = [];
  while (value.length <= MOST_CHARACTERS) {
    const others = keys().filter((other) => other !== key);
    const size = others.reduce((sum, other) => sum + local.getItem(other).length, value.length);
    if (others.length < MOST_TALKS && size <= MOST_CHARACTERS) {
      try {
        local.setItem(key, value);
        return {saved: true, dropped};
      } catch {} // full, whatever fills it: make room
    }
    const oldest = loadAll().findLast(({id}) => id !== talk.id);
    const gone = oldest ? PREFIX + oldest.id : others[0];
    if (!gone)
      break;
    local.removeItem(gone);
    dropped.push(gone.slice(PREFIX.length));
  }
  return {saved: false, dropped};
}

export const remove = ({id}) => local.removeItem(PREFIX + id);

// "light", "dark", or "" for what the system prefers.
export const theme = () => ["light", "dark"].find((name) => name === local.getItem(THEME)) ?? "";
export const setTheme = (name) => local.setItem(THEME, name);
