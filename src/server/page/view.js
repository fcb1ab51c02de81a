// One message on the page. A running answer is drawn by what was added since the last call of update(), never again from its beginning.
import {isWhole} from "./answer.js";
import {button, copyButton, el, prettyJson} from "./dom.js";
import {Markdown} from "./markdown.js";

const FINISHES = {length: "It reached the limit of tokens.", stopped: "Stopped.", content_filter: "It was withheld."};

const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function metaLine({usage, seconds, first, seed}) {
  const parts = [];
  if (usage?.completion !== undefined)
    parts.push(count(usage.completion, "token"));
  if (usage?.completion > 1 && seconds > first)
    parts.push(`${((usage.completion - 1) / (seconds - first)).toFixed(1)} tokens/s`);
  if (first !== undefined)
    parts.push(`first after ${first.toFixed(2)} s`);
  if (usage?.prompt !== undefined)
    parts.push(`prompt ${usage.prompt.toLocaleString("en")}` + (usage.cached ? `, ${usage.cached.toLocaleString("en")} of it cached` : ""));
  if (seed !== undefined)
    parts.push(`seed ${seed}`);
  return parts.join(" · ");
}

// Text that is drawn as it comes, or not before it is seen.
class Streamed {
  constructor(root) {
    this.markdown = new Markdown(root);
    this.shown = 0;
  }

  show(text, finished) {
    if (text.length > this.shown)
      this.markdown.push(text.slice(this.shown));
    this.shown = text.length;
    if (finished)
      this.markdown.finish();
  }
}

class CallView {
  constructor(call) {
    this.name = el("code", {class: "name"});
    this.arguments = el("code");
    this.place = el("div");
    this.root = el("section", {class: "call", "aria-label": "Tool call"},
      el("div", {class: "bar"}, el("span", {}, "Tool call ", this.name), copyButton("Copy", () => call.function.arguments)),
      el("pre", {tabindex: 0, role: "region", "aria-label": "Arguments"}, this.arguments), this.place);
    this.shown = 0;
  }

  update(call, finished) {
    this.name.textContent = call.function.name;
    const text = call.function.arguments;
    if (finished)
      this.arguments.textContent = prettyJson(text);
    else if (text.length > this.shown)
      this.arguments.append(text.slice(this.shown));
    this.shown = text.length;
  }
}

// handlers: {edit, regenerate, curl, results}; results(texts) gets one text for each call.
export class MessageView {
  constructor(message, handlers) {
    this.message = message;
    this.handlers = handlers;
    this.error = null;
    this.actions = el("div", {class: "actions"});
    if (message.role === "user") {
      this.root = el("article", {class: "user"}, el("h2", {class: "hidden"}, "You"), el("div", {class: "body plain"}, message.content), this.actions);
      return;
    }
    this.body = el("div", {class: "body"});
    this.calls = el("div", {class: "calls"});
    this.callViews = [];
    this.foot = el("div");
    this.text = new Streamed(this.body);
    this.#makeReasoning();
    this.root = el("article", {class: "answer"}, el("h2", {class: "hidden"}, "Answer"), this.details, this.body, this.calls, this.foot, this.actions);
  }

  #makeReasoning() {
    const inner = el("div", {class: "body"});
    this.reasoning = new Streamed(inner);
    this.summary = el("summary", {}, "Reasoning");
    this.details = el("details", {class: "reasoning", hidden: true, ontoggle: () => this.update()}, this.summary, inner);
  }

  // running: more may come.
  update(running = this.running) {
    const {content, reasoning_content, tool_calls, meta} = this.message;
    this.running = running;
    this.root.classList.toggle("running", running);
    this.root.classList.toggle("empty", running && !content && !reasoning_content && !tool_calls.length);
    if (reasoning_content) {
      const thinking = running && !content && !tool_calls.length;
      this.details.hidden = false;
      this.summary.textContent = thinking ? "Reasoning…" : "Reasoning" + (meta.usage?.reasoning ? `, ${count(meta.usage.reasoning, "token")}` : "");
      this.details.classList.toggle("thinking", thinking);
      if (this.details.open)
        this.reasoning.show(reasoning_content, !running);
    }
    this.text.show(content, !running);
    tool_calls.forEach((call, i) => {
      if (!this.callViews[i]) {
        this.callViews[i] = new CallView(call);
        this.calls.append(this.callViews[i].root);
      }
      this.callViews[i].update(call, !running);
    });
  }

  // What stands below a message that is complete. last: nothing but results of its calls follows it. results: of its calls, by id.
  settle({last, results}) {
    if (this.message.role === "user") {
      this.actions.replaceChildren(copyButton("Copy", () => this.message.content), ...(last ? [button("Edit", this.handlers.edit, {class: "quiet"})] : []));
      return;
    }
    this.update(false);
    const {content, meta} = this.message;
    const again = () => this.handlers.regenerate();
    this.foot.replaceChildren(...this.#remarks(last && meta.error ? button("Try again", again) : null));
    this.#settleCalls(last, results);
    this.actions.replaceChildren(...(content ? [copyButton("Copy", () => content)] : []),
      ...(last && !meta.error ? [button("Regenerate", again, {class: "quiet"})] : []),
      copyButton("Copy as curl", () => this.handlers.curl()), el("span", {class: "meta"}, metaLine(meta)));
  }

  #remarks(retry) {
    const {error, finish} = this.message.meta;
    if (error)
      return [el("p", {class: "error", role: "alert"}, error, " ", retry)];
    return FINISHES[finish] ? [el("p", {class: "note"}, FINISHES[finish])] : [];
  }

  #settleCalls(last, results) {
    const calls = this.message.tool_calls;
    const open = last && isWhole(this.message.meta) ? calls.filter((call) => !results.has(call.id)) : [];
    const fields = new Map();
    calls.forEach((call, i) => {
      const {place} = this.callViews[i];
      if (results.has(call.id)) {
        place.replaceChildren(el("div", {class: "bar"}, el("span", {}, "Result")),
          el("pre", {tabindex: 0, role: "region", "aria-label": "Result"}, el("code", {}, prettyJson(results.get(call.id)))));
      } else if (open.includes(call)) {
        const field = el("textarea", {rows: 2, class: "mono", spellcheck: "false", placeholder: "What the tool returned"});
        fields.set(call.id, field);
        place.replaceChildren(el("label", {class: "result"}, `Result of ${call.function.name}`, field));
      } else {
        place.replaceChildren();
      }
    });
    if (open.length) {
      const send = () => this.handlers.results(calls.map((call) => ({id: call.id, text: fields.get(call.id)?.value ?? ""})));
      this.foot.append(button(open.length === 1 ? "Send the result" : "Send the results", send, {class: "primary"}));
    }
  }
}
