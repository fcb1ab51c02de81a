// The live figures of the engine, from GET api/status (its shape is described in app.js). Rates come from the differences of counters.
import {el} from "./dom.js";
import {ApiError, getJson} from "./api.js";

const PERIOD = 1000, POINTS = 60;
const SVG = "http://www.w3.org/2000/svg";

const whole = (n) => Math.round(n).toLocaleString("en");
const percent = (part, all) => all > 0 ? `${(100 * part / all).toFixed(part < all ? 1 : 0)} %` : "–";

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++)
    n /= 1024;
  return `${i && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

function duration(s) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = Math.max(0, parts.findIndex(([length]) => s >= length));
  return parts.slice(at, at + 2).map(([length, name], i, two) => `${Math.floor(i ? s % two[0][0] / length : s / length)} ${name}`).join(" ");
}

// [label, text of (status, rates)]; a row whose text is null is not shown.
const ROWS = [
  ["Requests", (s) => `${whole(s.running)} running, ${whole(s.waiting)} waiting`],
  ["Prompts", (s, rates) => `${whole(rates.prompt)} tokens/s`],
  ["KV cache", (s) => s.kv_blocks > 0 ? `${percent(s.kv_used_blocks, s.kv_blocks)} of ${whole(s.kv_blocks)} blocks` : null],
  ["Hit rate", (s) => s.lookup_tokens > 0 ? `${percent(s.cached_tokens, s.lookup_tokens)} of prompt tokens` : null],
  ["Acceptance", (s) => s.drafted > 0 ? `${percent(s.accepted, s.drafted)} of drafts` : null],
  ["In all", (s) => `${whole(s.prompt_tokens)} in, ${whole(s.generation_tokens)} out`],
  ["Context", (s) => s.context > 0 ? `${whole(s.context)} tokens` : null],
  ["Up", (s) => duration(s.uptime_s)],
];
const MEMORY = [["weights_packed", "Weights, packed"], ["weights_mapped", "Weights, mapped"], ["cache", "Cache"], ["activations", "Activations"],
  ["scratch", "Scratch"], ["total", "Total"]];
const NUMBERS = ["context", "uptime_s", "running", "waiting", "prompt_tokens", "generation_tokens", "kv_used_blocks", "kv_blocks", "cached_tokens",
  "lookup_tokens", "drafted", "accepted"];

export class Panel {
  // onStatus(status or null, rate): for the page's header. onKey(): the server wants an API key.
  constructor(root, onStatus, onKey) {
    Object.assign(this, {onStatus, onKey, last: null, history: []});
    this.rate = el("strong", {}, "–");
    this.line = document.createElementNS(SVG, "polyline");
    const spark = document.createElementNS(SVG, "svg");
    for (const [name, value] of [["viewBox", "0 0 120 32"], ["preserveAspectRatio", "none"], ["class", "spark"], ["aria-hidden", "true"]])
      spark.setAttribute(name, value);
    spark.append(this.line);
    this.note = el("p", {class: "note"}, "Asking the server…");
    this.rows = ROWS.map(([label]) => ({value: el("dd"), label: el("dt", {}, label)}));
    this.fill = el("div");
    this.memory = el("table", {class: "memory"}, el("caption", {}, "Memory plan"));
    this.live = el("div", {hidden: true}, el("p", {class: "rate"}, this.rate, " tokens/s"), spark,
      el("dl", {}, ...this.rows.map((row) => el("div", {}, row.label, row.value, ...(row.label.textContent === "KV cache" ? [el("div", {class: "fill", "aria-hidden": "true"}, this.fill)] : [])))),
      this.memory);
    root.append(this.note, this.live);
    document.addEventListener("visibilitychange", () => this.poll());
    this.poll();
  }

  // Ask now, and then again and again while the page is seen.
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden || this.asking)
      return;
    this.asking = true;
    try {
      this.#show(await getJson("api/status", AbortSignal.timeout(5000)));
    } catch (error) {
      this.#fail(error);
    }
    this.asking = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), this.last ? PERIOD : 4 * PERIOD);
  }

  #fail(error) {
    const status = error instanceof ApiError ? error.status : 0;
    if (status === 401)
      this.onKey();
    this.last = null;
    this.live.hidden = true;
    this.note.hidden = false;
    this.note.textContent = status === 404 ? "This server gives no live figures." : status === 401 ? "The server wants an API key." :
      error instanceof ApiError ? error.message : "The server does not answer.";
    this.onStatus(null, 0);
  }

  #show(raw) {
    const status = {memory: raw?.memory ?? {}, model: String(raw?.model ?? "")};
    for (const name of NUMBERS)
      status[name] = Number.isFinite(raw?.[name]) ? raw[name] : 0;
    const now = performance.now();
    const elapsed = (now - this.time) / 1000;
    const rate = (name) => this.last && elapsed > 0 ? Math.max(0, (status[name] - this.last[name]) / elapsed) : 0;
    const rates = {prompt: rate("prompt_tokens"), generation: rate("generation_tokens")};
    Object.assign(this, {last: status, time: now});
    this.history = [...this.history, rates.generation].slice(-POINTS);
    this.#draw(status, rates);
    this.onStatus(status, rates.generation);
  }

  #draw(status, rates) {
    this.note.hidden = true;
    this.live.hidden = false;
    this.rate.textContent = rates.generation < 10 && rates.generation > 0 ? rates.generation.toFixed(1) : whole(rates.generation);
    const highest = Math.max(1, ...this.history);
    const step = 120 / (POINTS - 1), from = POINTS - this.history.length;
    this.line.setAttribute("points", this.history.map((y, i) => `${((from + i) * step).toFixed(1)},${(30 - 28 * y / highest).toFixed(1)}`).join(" "));
    ROWS.forEach(([, text], i) => {
      const value = text(status, rates);
      this.rows[i].label.parentNode.hidden = value === null;
      if (this.rows[i].value.textContent !== value)
        this.rows[i].value.textContent = value;
    });
    this.fill.style.width = status.kv_blocks > 0 ? `${Math.min(100, 100 * status.kv_used_blocks / status.kv_blocks)}%` : "0";
    const shape = JSON.stringify(status.memory);
    if (shape !== this.shape) {
      this.shape = shape;
      const known = MEMORY.filter(([name]) => status.memory[name] > 0);
      this.memory.hidden = !known.length;
      this.memory.querySelector("tbody")?.remove();
      this.memory.append(el("tbody", {}, ...known.map(([name, label]) => el("tr", {}, el("th", {scope: "row"}, label), el("td", {}, bytes(status.memory[name]))))));
    }
  }
}
