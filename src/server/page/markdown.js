// Markdown as it streams in: headings, lists, quotes, tables, code blocks, emphasis, code, links. Made of DOM nodes and text nodes only, so that
// nothing in the text can become markup. A line is final once its end has come; only the last, unfinished line is drawn again at each push,
// and it is cut when it grows long. So the work of a push depends on what is pushed, not on what is there.
import {copyButton, el} from "./dom.js";

const LONGEST_LINE = 2000; // the patterns below take at most the square of it
const DEEPEST_LIST = 8;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;
const FENCE = /^( *)(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,}$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const INLINE = new RegExp([
  /\\([\\`*_{}[\]()#+\-.!~|>])/,                                // 1 escape
  /(?<!`)(`+)(?!`)(.+?)(?<!`)\2(?!`)/,                          // 2, 3 code
  /(\*\*|__)(?=\S)(.+?)(?<=\S)\4/,                              // 4, 5 strong
  /([*_])(?=\S)(.+?)(?<=\S)\6(?![\w*])/,                        // 6, 7 emphasis
  /~~(.+?)~~/,                                                  // 8 deleted
  /!?\[([^\]]+)\]\(<?([^\s)>]+)>?(?: +"[^"]*")?\)/,             // 9, 10 link; an image is shown as a link, so that nothing is fetched
  /(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_])/,             // 11 address
].map((part) => part.source).join("|"), "g");

function link(href, label) {
  return /^(?:https?:\/\/|mailto:)/i.test(href) ? el("a", {href, target: "_blank", rel: "noopener noreferrer", title: href}, ...label) : null;
}

// Nodes of one line of text.
export function inline(text, depth = 0) {
  const nodes = [];
  const pattern = new RegExp(INLINE);
  let from = 0;
  for (let m; depth < 8 && (m = pattern.exec(text)); from = pattern.lastIndex) {
    const inWord = (m[4] ?? m[6] ?? "").startsWith("_") && /\w/.test(text[m.index - 1] ?? "");
    let node = null;
    if (m[1] !== undefined)
      node = document.createTextNode(m[1]);
    else if (m[2])
      node = el("code", {}, m[3].replace(/^ (.*) $/, "$1"));
    else if (m[4] && !inWord)
      node = el("strong", {}, ...inline(m[5], depth + 1));
    else if (m[6] && !inWord)
      node = el("em", {}, ...inline(m[7], depth + 1));
    else if (m[8])
      node = el("del", {}, ...inline(m[8], depth + 1));
    else if (m[10])
      node = link(m[10], inline(m[9], depth + 1));
    else if (m[11])
      node = link(m[11], [m[11]]);
    if (!node) { // not markup here: its first characters are text
      const skipped = (m[4] ?? m[6] ?? m[0]).length;
      pattern.lastIndex = m.index + skipped;
      nodes.push(text.slice(from, m.index + skipped));
      continue;
    }
    if (m.index > from)
      nodes.push(text.slice(from, m.index));
    nodes.push(node);
  }
  if (from < text.length)
    nodes.push(text.slice(from));
  return nodes;
}

function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

export class Markdown {
  constructor(root) {
    this.root = root;
    this.tail = "";    // the unfinished line
    this.trial = null; // while it is drawn: the nodes that go again
    // lists: open ones, outermost first, {indent, list, item}. block: element that takes the next line of text. fence: open code block
    // {mark, indent, code}. row: nodes of the last line, if it may be a table's head. table: its body.
    this.state = {lists: [], block: null, fence: null, quote: null, row: null, table: null};
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
    const s = this.state;
    const glued = s.glued;
    s.glued = open;
    if (s.fence)
      return this.#fenceLine(raw, open);
    if (glued && s.block)
      return this.#text(raw, true);
    let line = raw.replaceAll("\t", "    ");
    if (!open)
      line = line.trimEnd();
    const quote = QUOTE.exec(line);
    if (Boolean(quote) !== Boolean(s.quote))
      Object.assign(s, {quote: quote ? this.#add(this.root, el("blockquote")) : null, lists: [], block: null, table: null, row: null});
    if (quote)
      line = quote[1];
    if (!line)
      return void Object.assign(s, {block: null, table: null, row: null});
    if (s.table && line.includes("|"))
      return this.#row(s.table, "td", cells(line));
    s.table = null;
    if (s.row && !this.trial && line.includes("-") && line.includes("|") && TABLE.test(line))
      return this.#table();
    this.#block(line);
  }

  #block(line) {
    const s = this.state;
    let m;
    if ((m = FENCE.exec(line)))
      return this.#fence(m[1].length, m[2], m[3].trim());
    if (RULE.test(line)) {
      Object.assign(s, {lists: [], block: null, row: null});
      return void this.#add(this.#target(), el("hr"));
    }
    if ((m = HEADING.exec(line))) {
      Object.assign(s, {lists: [], block: null, row: null});
      return void this.#add(this.#target(), el(`h${Math.min(6, m[1].length + 2)}`, {}, ...inline(m[2])));
    }
    if ((m = ITEM.exec(line)))
      return this.#item(m[1].length, m[2], m[3]);
    if (!s.block) {
      this.#leaveLists(line.length - line.trimStart().length);
      s.block = this.#add(this.#target(), el("p"));
    }
    this.#text(line.trimStart(), false);
  }

  #target() {
    return this.state.lists.at(-1)?.item ?? this.state.quote ?? this.root;
  }

  #leaveLists(indent) {
    const lists = this.state.lists;
    while (lists.length && indent <= lists.at(-1).indent)
      lists.pop();
  }

  // One line of the open block. Lines of a paragraph keep their breaks.
  #text(line, glued) {
    const s = this.state;
    const nodes = inline(line).map((node) => typeof node === "string" ? document.createTextNode(node) : node);
    if (s.block.hasChildNodes() && !glued)
      nodes.unshift(el("br"));
    for (const node of nodes)
      this.#add(s.block, node);
    s.row = line.includes("|") ? {line, nodes} : null;
  }

  #item(indent, number, text) {
    const s = this.state;
    while (s.lists.length && indent < s.lists.at(-1).indent)
      s.lists.pop();
    let top = s.lists.at(-1);
    const tag = number === undefined ? "UL" : "OL";
    if (!top || (indent >= top.indent + 2 && s.lists.length < DEEPEST_LIST)) {
      top = {indent, list: this.#add(this.#target(), el(tag, {start: number > 1 ? number : null}))};
      s.lists.push(top);
    } else if (top.list.tagName !== tag) {
      s.lists.pop();
      top = {indent, list: this.#add(this.#target(), el(tag, {start: number > 1 ? number : null}))};
      s.lists.push(top);
    }
    s.block = this.#add(top.list, el("li"));
    s.lists[s.lists.length - 1] = {...top, item: s.block};
    if (text)
      this.#text(text, false);
  }

  #fence(indent, mark, language) {
    const s = this.state;
    if (!indent)
      s.lists = [];
    const code = el("code");
    this.#add(this.#target(), el("div", {class: "code"},
      el("div", {class: "bar"}, el("span", {}, language.slice(0, 40)), copyButton("Copy", () => code.textContent)),
      el("pre", {tabindex: 0, role: "region", "aria-label": "Code"}, code)));
    Object.assign(s, {fence: {indent, mark, code}, block: null, row: null});
  }

  #fenceLine(raw, open) {
    const {indent, mark, code} = this.state.fence;
    const trimmed = raw.trim();
    if (trimmed && trimmed.startsWith(mark) && trimmed === mark[0].repeat(trimmed.length)) {
      this.state.fence = null;
      if (!this.trial)
        code.normalize();
      return;
    }
    if (this.trial && trimmed && mark.startsWith(trimmed))
      return; // it may become the end of the block
    const outer = new RegExp(`^ {0,${indent}}`);
    this.#add(code, document.createTextNode(raw.replace(outer, "") + (open || this.trial ? "" : "\n")));
  }

  #table() {
    const s = this.state;
    const {line, nodes} = s.row;
    for (const node of nodes)
      node.remove();
    if (!s.block.hasChildNodes() && s.block.tagName === "P")
      s.block.remove();
    const head = el("thead"), body = el("tbody");
    this.#row(head, "th", cells(line));
    this.#add(this.#target(), el("div", {class: "wide-table", tabindex: 0, role: "region", "aria-label": "Table"}, el("table", {}, head, body)));
    Object.assign(s, {table: body, block: null, row: null});
  }

  #row(parent, tag, texts) {
    this.#add(parent, el("tr", {}, ...texts.map((text) => el(tag, {}, ...inline(text)))));
  }
}
