// The live figures of the engine, from GET api/status. Rates come from the differences of counters.
import {el} from "./dom.js";
import {ApiError, getJson} from "./api.js";

const PERIOD = 1000, POINTS = 60;

const whole = (n) => Math.round(n || 0).toLocaleString("en");
const share = (part, all, of) => part >= 0 && all > 0 ? `${(100 * part / all).toFixed(1)} % of ${of}` : "";

function bytes(n) {
  const unit = Math.min(4, Math.max(0, Math.floor(Math.log2(n) / 10)));
  return `${(n / 1024 ** unit).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// Label and text of a row; without text it is not shown.
const ROWS = {
  "Requests": (s) => `${whole(s.running)} running, ${whole(s.waiting)} waiting`,
  "Prefill": (s, rate) => `${whole(rate)} tokens/s`,
  "KV cache": (s) => share(s.kv_used_blocks, s.kv_blocks, `${whole(s.kv_blocks)} blocks`),
  "Hit rate": (s) => share(s.cached_tokens, s.lookup_tokens, "prompt tokens"),
  "Acceptance": (s) => share(s.accepted, s.drafted, "drafts"),
  "Tokens": (s) => `${whole(s.prompt_tokens)} in, ${whole(s.generation_tokens)} out`,
  "Context": (s) => s.context > 0 && `${whole(s.context)} tokens`,
  "Up": (s) => s.uptime_s >= 5400 ? `${(s.uptime_s / 3600).toFixed(1)} h` : s.uptime_s >= 0 && `${whole(s.uptime_s / 60)} min`,
};
const MEMORY = {weights_packed: "Weights, packed", weights_mapped: "Weights, mapped", cache: "Cache", activations: "Activations",
  scratch: "Scratch", total: "Total"};

const list = (rows) => rows.filter(([, text]) => text).map(([label, text]) => el("div", {}, el("dt", {}, label), el("dd", {}, text)));

export class Panel {
  // onStatus(text): for the page's header. onKey(): the server wants an API key.
  constructor(root, onStatus, onKey) {
    Object.assign(this, {onStatus, onKey, last: null, history: []});
    for (const part of root.querySelectorAll("[data-part]"))
      this[part.dataset.part] = part; // note, live, rate, line, rows, memory, more, regions
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
      this.#show(await getJson("api/status"));
    } catch (error) {
      this.#fail(error);
    }
    this.asking = false;
    this.timer = setTimeout(() => this.poll(), this.last ? PERIOD : 4 * PERIOD);
  }

  #fail(error) {
    this.last = null;
    this.live.hidden = true;
    this.note.hidden = false;
    this.note.textContent = error.status === 404 ? "This server gives no live figures." : error instanceof ApiError ? error.message :
      "The server's figures could not be read.";
    this.onStatus("");
    if (error.status === 401)
      this.onKey();
  }

  #show(raw) {
    const status = Object.fromEntries(Object.entries(raw).filter(([, value]) => value >= 0 && value !== null));
    const now = performance.now(), {last} = this;
    const rate = (name) => last ? Math.max(0, (status[name] - last[name]) * 1000 / (now - this.time) || 0) : 0;
    const written = rate("generation_tokens");
    this.history = [...this.history, written].slice(-POINTS);
    const highest = Math.max(1, ...this.history), from = POINTS - this.history.length;
    this.note.hidden = true;
    this.live.hidden = false;
    this.rate.textContent = whole(written);
    this.line.setAttribute("points", this.history.map((y, i) => `${2 * (from + i)},${30 - 28 * y / highest}`).join(" "));
    this.rows.replaceChildren(...list(Object.entries(ROWS).map(([label, text]) => [label, text(status, rate("prompt_tokens"))])));
    const {memory = {}} = raw;
    this.memory.replaceChildren(...list(Object.entries(MEMORY).map(([name, label]) => [label, memory[name] > 0 && bytes(memory[name])])));
    const regions = (Array.isArray(memory.regions) ? memory.regions : []).filter((r) => r?.bytes > 0);
    this.more.hidden = !regions.length;
    this.regions.replaceChildren(...list(regions.map((r) => [r.name, r.place === "file" ? "in the file" : bytes(r.bytes)])));
    Object.assign(this, {last: status, time: now});
    this.onStatus(status.running ? `${ROWS.Requests(status)} · ${whole(written)} tokens/s` : "idle");
  }
}
