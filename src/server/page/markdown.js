// Markdown as it streams in, made of DOM nodes and text nodes only, so that nothing in the text can become markup. A line is final once its
// end has come; the last one is drawn again at each push and cut when it grows long. So a push costs the same however much is there.
import {colour} from "./code.js";
import {copyButton, el, region} from "./dom.js";

const LONGEST_LINE = 2000; // the patterns below take at most the square of it
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;
const FENCE = /^( *)(`{3,}|~{3,}) *([^`]*)$/;
const TASK = /^\[([ xX])\] +(.+)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,}$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const MATH = /^(?:\\\[(?!.*\\\])|\$\$(?!.*\$\$))/; // begins lines of mathematics
const INLINE = new RegExp([
  /\\\(.+?\\\)|\\\[.+?\\\]|\$\$.+?\$\$|(?<![\w$])\$(?=[^\s$])[^$]*[^\s$\\]\$(?![\w$])/, // mathematics stays as it was written
  /\\([\\`*_{}[\]()#+\-.!~|>$])/, // 1 escape
  /(?<!`)(`+)(?!`)(.+?)(?<!`)\2(?!`)/, // 2, 3 code
  /(\*\*|__|~~)(?=\S)(.+?)(?<=\S)\4/, // 4, 5 strong, struck out
  /([*_])(?=\S)(.+?)(?<=\S)\6(?![\w*])/, // 6, 7 emphasis
  /!?\[([^\]]+)\]\(<?([^\s)>]+)>?(?: +"[^"]*")?\)/, // 8, 9 link; an image is shown as a link: nothing is fetched
  /(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_])/, // 10 address
].map((part) => part.source).join("|"), "g");

const link = (href, label) => /^(https?:\/\/|mailto:)/i.test(href) ?
  el("a", {href, target: "_blank", rel: "noopener noreferrer", title: href}, ...label) : null;

// Nodes and strings of one line of text.
function inline(text, depth = 0) {
  const nodes = [], pattern = new RegExp(INLINE);
  const inner = (part) => inline(part, depth + 1);
  let from = 0;
  for (let m; depth < 8 && (m = pattern.exec(text));) {
    const mark = m[4] ?? m[6], inWord = mark?.[0] === "_" && /\w/.test(text[m.index - 1] ?? "");
    const node = m[1] ? "()[]".includes(m[1]) ? m[0] : m[1] // TeX's, if its end is missing
      : m.slice(1).every((part) => part === undefined) ? m[0]
      : m[3] ? el("code", {}, m[3].replace(/^ (.*) $/, "$1"))
      : inWord ? null
      : m[5] ? el(m[4] === "~~" ? "del" : "strong", {}, ...inner(m[5]))
      : m[7] ? el("em", {}, ...inner(m[7]))
      : m[9] ? link(m[9], inner(m[8])) : link(m[10], [m[10]]);
    const end = node ? pattern.lastIndex : m.index + (mark ?? m[0]).length; // not markup here: its first characters are text
    nodes.push(text.slice(from, node ? m.index : end), node ?? "");
    from = pattern.lastIndex = end;
  }
  return [...nodes, text.slice(from)].filter(Boolean);
}

export class Markdown {
  constructor(root) {
    this.root = root;
    this.tail = "";    // the unfinished line
    this.trial = null; // while it is drawn: the nodes that go again
    // lists: open ones, outermost first, {indent, root, item}. block: what takes the next line of text. fence: open code {mark, indent,
    // language, code, open}. math: open mathematics. row: the last line, if it may be a table's head, {line, nodes}. table: body of the
    // open one. glued: the last line goes on.
    this.state = {lists: [], block: null, fence: null, math: false, quote: null, row: null, table: null};
  }

  push(text) {
    this.#undo();
    const lines = (this.tail + text).replaceAll("\r", "").split("\n");
    const last = lines.pop();
    for (const line of lines)
      this.#line(this.#cut(line));
    this.tail = this.#cut(last);
    if (this.tail) {
      this.kept = {...this.state, lists: [...this.state.lists]};
      this.trial = [];
      this.#line(this.tail);
    }
  }

  finish() {
    this.#undo();
    if (this.tail)
      this.#line(this.tail);
    this.tail = "";
  }

  // Draw all but the end of a long line; returns that end.
  #cut(line) {
    while (line.length > LONGEST_LINE) {
      const space = line.lastIndexOf(" ", LONGEST_LINE);
      const length = space > 0 ? space + 1 : LONGEST_LINE;
      this.#line(line.slice(0, length), true);
      line = line.slice(length);
    }
    return line;
  }

  #undo() {
    if (!this.trial)
      return;
    for (const node of this.trial)
      node.remove();
    this.trial = null;
    this.state = this.kept;
  }

  #add(parent, node) {
    parent.append(node);
    this.trial?.push(node);
    return node;
  }

  // `open`: the line goes on, its end has not come yet.
  #line(raw, open = false) {
    const s = this.state, {glued} = s;
    s.glued = open;
    if (s.fence)
      return this.#fenceLine(raw, open);
    if (glued && s.block)
      return this.#text(raw, true);
    let line = raw.replaceAll("\t", "    ");
    if (!open)
      line = line.trimEnd();
    const quote = QUOTE.exec(line);
    if (!quote !== !s.quote) {
      s.quote = null;
      this.#close();
      s.quote = quote && this.#add(this.root, el("blockquote"));
    }
    if (quote)
      line = quote[1];
    if (s.table && line.includes("|"))
      return this.#row(s.table, "td", line);
    s.table = null;
    if (!line)
      s.block = s.row = s.math = null;
    else if (s.math)
      this.#text(line.trimStart(), false);
    else if (s.row && !this.trial && line.includes("|") && TABLE.test(line))
      this.#table();
    else
      this.#block(line);
  }

  #block(line) {
    const s = this.state;
    let m;
    if ((m = FENCE.exec(line)))
      return this.#fence(m[1].length, m[2], m[3].trim());
    if (RULE.test(line))
      return void this.#add(this.#close(), el("hr"));
    if ((m = HEADING.exec(line)))
      return void this.#add(this.#close(), el(`h${Math.min(6, m[1].length + 2)}`, {}, ...inline(m[2])));
    if ((m = ITEM.exec(line)))
      return this.#item(m[1].length, m[2], m[3]);
    if (!s.block) {
      const indent = line.length - line.trimStart().length;
      while (s.lists.length && indent <= s.lists.at(-1).indent)
        s.lists.pop();
      s.block = this.#add(this.#target(), el("p"));
    }
    this.#text(line.trimStart(), false);
  }

  #target() {
    return this.state.lists.at(-1)?.item ?? this.state.quote ?? this.root;
  }

  // End paragraph, lists and table; returns where the next block goes.
  #close() {
    Object.assign(this.state, {lists: [], block: null, math: false, row: null, table: null});
    return this.#target();
  }

  // One line of the open block. Lines of a paragraph keep their breaks. Mathematics over several lines stays as it is, up to an empty line.
  #text(line, glued) {
    const s = this.state, inMath = s.math || (!glued && MATH.test(line));
    const nodes = (inMath ? [line] : inline(line)).map((node) => node.nodeType ? node : document.createTextNode(node));
    s.math = inMath && !(s.math && /\\\]|\$\$/.test(line));
    if (s.block.hasChildNodes() && !glued)
      nodes.unshift(el("br"));
    for (const node of nodes)
      this.#add(s.block, node);
    s.row = line.includes("|") && !inMath ? {line, nodes} : null;
  }

  #item(indent, number, text) {
    const s = this.state, {lists} = s, tag = number ? "OL" : "UL";
    while (lists.length && indent < lists.at(-1).indent)
      lists.pop();
    let list = lists.at(-1);
    const nested = list && indent >= list.indent + 2 && lists.length < 8;
    if (list && !nested)
      lists.pop();
    if (nested || list?.root.tagName !== tag)
      list = {indent, root: this.#add(this.#target(), el(tag, {start: number > 1 && number}))};
    s.block = this.#add(list.root, el("li"));
    lists.push({...list, item: s.block});
    const task = TASK.exec(text);
    if (task) {
      s.block.className = "task";
      s.block.append(el("input", {type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "Done"}));
      this.#text(task[2], true);
    } else if (text) {
      this.#text(text, false);
    }
  }

  #fence(indent, mark, language) {
    const s = this.state;
    if (!indent)
      s.lists = [];
    const code = el("code");
    this.#add(this.#target(), el("div", {class: "code"},
      el("div", {class: "bar"}, el("span", {}, language.slice(0, 40)), copyButton("Copy", () => code.textContent)),
      region("pre", "Code", code)));
    Object.assign(s, {fence: {indent, mark, language, code, open: ""}, block: null, row: null});
  }

  #fenceLine(raw, open) {
    const {indent, mark, language, code, open: within} = this.state.fence;
    const trimmed = raw.trim();
    if (trimmed && trimmed.startsWith(mark) && trimmed === mark[0].repeat(trimmed.length)) {
      this.state.fence = null;
      if (!this.trial)
        code.normalize();
      return;
    }
    if (this.trial && trimmed && mark.startsWith(trimmed))
      return; // it may become the end of the block
    const line = colour(language, raw.replace(new RegExp(`^ {0,${indent}}`), ""), within);
    for (const node of [...line.nodes, open || this.trial ? "" : "\n"])
      this.#add(code, node.nodeType ? node : document.createTextNode(node));
    this.state.fence = {...this.state.fence, open: line.open};
  }

  // The last line was a table's head.
  #table() {
    const {row: {line, nodes}, block} = this.state, head = el("thead"), body = el("tbody");
    for (const node of nodes)
      node.remove();
    if (!block.hasChildNodes() && block.localName === "p")
      block.remove();
    this.#row(head, "th", line);
    this.#add(this.#target(), region("div", "Table", el("table", {}, head, body)));
    Object.assign(this.state, {table: body, block: null, row: null});
  }

  #row(parent, tag, line) {
    const cells = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/);
    this.#add(parent, el("tr", {}, ...cells.map((cell) => el(tag, {}, ...inline(cell.trim())))));
  }
}
