// One message on the page. A running answer is drawn by what is new, never again from its beginning.
import {isWhole} from "./answer.js";
import {button, copyButton, el, prettyJson, region} from "./dom.js";
import {Markdown} from "./markdown.js";

const FINISHES = {length: "It reached the limit of tokens.", stopped: "Stopped."};

const whole = (n) => n.toLocaleString("en");
const tokens = (n) => `${whole(n)} token${n === 1 ? "" : "s"}`;

function metaLine({usage = {}, seconds, first, seed}) {
  const {prompt, cached, completion} = usage;
  return [completion >= 0 && tokens(completion),
    completion > 1 && seconds > first + 0.1 && `${((completion - 1) / (seconds - first)).toFixed(1)} tokens/s`,
    first >= 0 && `first after ${first.toFixed(2)} s`,
    prompt >= 0 && `prompt ${whole(prompt)}${cached ? `, ${whole(cached)} of it cached` : ""}`,
    seed >= 0 && `seed ${seed}`].filter(Boolean).join(" · ");
}

// Text that grows. show() draws what is new.
class Growing {
  constructor(root) {
    this.markdown = new Markdown(root);
    this.shown = 0;
  }

  show(text, finished) {
    this.markdown.push(text.slice(this.shown));
    this.shown = text.length;
    if (finished)
      this.markdown.finish();
  }
}

class CallView {
  constructor(call) {
    this.call = call;
    this.name = el("code");
    this.arguments = el("code");
    this.result = el("div");
    this.root = el("section", {class: "call", "aria-label": "Tool call"},
      el("div", {class: "bar"}, el("span", {}, "Tool call ", this.name), copyButton("Copy", () => call.function.arguments)),
      region("pre", "Arguments", this.arguments), this.result);
    this.shown = 0;
  }

  update(finished) {
    const {name, arguments: text} = this.call.function;
    this.name.textContent = name;
    if (finished)
      this.arguments.textContent = prettyJson(text);
    else
      this.arguments.append(text.slice(this.shown));
    this.shown = text.length;
  }

  // A field for the result, if it is asked for; returns it.
  settle(result, asked) {
    const field = el("textarea", {rows: 2, class: "mono", spellcheck: "false"});
    if (result !== undefined)
      this.result.replaceChildren(el("div", {class: "bar"}, "Result"), region("pre", "Result", el("code", {}, prettyJson(result))));
    else
      this.result.replaceChildren(...(asked ? [el("label", {class: "result"}, `Result of ${this.call.function.name}`, field)] : []));
    return field;
  }
}

// handlers: {edit, regenerate, curl, results}; results(texts) gets a text for each call.
export class MessageView {
  constructor(message, handlers) {
    Object.assign(this, {message, handlers, calls: [], running: false, state: ""});
    this.actions = el("div", {class: "actions"});
    this.body = el("div", {class: "body"});
    if (message.role === "user") {
      this.root = el("article", {class: "user"}, el("h2", {class: "hidden"}, "You"), this.body, this.actions);
      this.body.append(message.content);
      return;
    }
    const thoughts = el("div", {class: "body"});
    this.text = new Growing(this.body);
    this.reasoning = new Growing(thoughts);
    this.summary = el("summary");
    this.details = el("details", {hidden: true, ontoggle: () => this.update(this.running)}, this.summary, thoughts);
    this.callList = el("div");
    this.foot = el("div");
    this.root = el("article", {class: "answer"}, el("h2", {class: "hidden"}, "Answer"), this.details, this.body, this.callList, this.foot,
      this.actions);
  }

  // running: more may come.
  update(running) {
    const {content, reasoning_content, tool_calls, meta} = this.message;
    const thinks = running && !content && !tool_calls.length;
    this.running = running;
    this.state = "";
    this.root.classList.toggle("waiting", thinks && !reasoning_content);
    this.root.classList.toggle("thinking", thinks);
    this.details.hidden = !reasoning_content;
    this.summary.textContent = thinks ? "Reasoning…" : "Reasoning" + (meta.usage?.reasoning ? `, ${tokens(meta.usage.reasoning)}` : "");
    if (this.details.open) // it costs nothing before somebody looks
      this.reasoning.show(reasoning_content, !running);
    this.text.show(content, !running);
    for (const call of tool_calls.slice(this.calls.length)) {
      this.calls.push(new CallView(call));
      this.callList.append(this.calls.at(-1).root);
    }
    for (const call of this.calls)
      call.update(!running);
  }

  // Nothing more comes. last: nothing but results of its calls follows it. results: of its calls, by id.
  settle(last, results) {
    const state = `${last} ${results.size}`;
    if (state === this.state)
      return;
    if (this.message.role === "user") {
      this.actions.replaceChildren(...(last ? [button("Edit", this.handlers.edit, {class: "quiet"})] : []));
    } else {
      this.update(false);
      this.#settleAnswer(last, results);
    }
    this.state = state;
  }

  #settleAnswer(last, results) {
    const {content, meta, tool_calls} = this.message, {regenerate, curl} = this.handlers;
    const again = last && button(meta.error ? "Try again" : "Regenerate", regenerate, {class: meta.error ? null : "quiet"});
    const foot = [];
    if (meta.error)
      foot.push(el("p", {class: "error", role: "alert"}, meta.error, " ", again || ""));
    else if (FINISHES[meta.finish])
      foot.push(el("p", {class: "note"}, FINISHES[meta.finish]));
    const asked = last && isWhole(meta) && !results.size;
    const fields = this.calls.map((call, i) => call.settle(results.get(tool_calls[i].id), asked));
    if (asked && fields.length)
      foot.push(button(fields.length > 1 ? "Send the results" : "Send the result",
        () => this.handlers.results(fields.map(({value}) => value)), {class: "primary"}));
    this.foot.replaceChildren(...foot);
    this.actions.replaceChildren(...[content && copyButton("Copy", () => content), !meta.error && again, copyButton("Copy as curl", curl),
      el("span", {class: "note"}, metaLine(meta))].filter(Boolean));
  }
}
