// Helpers over the DOM. Text goes in as text nodes; nothing in this page parses markup from strings.

// el("p", {class: "x", onclick: f, hidden: true}, "text", node): functions become listeners, true an empty attribute, false nothing.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function")
      node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// What may be wider than its place: the keyboard can scroll it.
export const region = (tag, label, ...children) => el(tag, {tabindex: 0, role: "region", "aria-label": label}, ...children);

export const button = (label, onclick, attributes = {}) => el("button", {type: "button", onclick, ...attributes}, label);

// The clipboard's interface exists on https and localhost only; elsewhere the old command works.
async function copyText(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text);
  const area = el("textarea", {class: "hidden"}, text);
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function copyButton(label, getText) {
  const self = button(label, async () => {
    self.textContent = await copyText(getText()).then(() => "Copied", () => "Not copied");
    setTimeout(() => { self.textContent = label; }, 1500);
  }, {class: "quiet"});
  return self;
}

export function download(name, text) {
  const href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  el("a", {href, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

// JSON text with line breaks and indents between its tokens, which stay as they are: numbers of any length keep their digits.
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let out = "", depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  tokens.forEach((token, i) => {
    if (/^[}\]]$/.test(token)) {
      depth--;
      out += /^[{[]$/.test(tokens[i - 1]) ? token : line() + token;
    } else if (/^[{[]$/.test(token)) {
      depth++;
      out += /^[}\]]$/.test(tokens[i + 1]) ? token : token + line();
    } else {
      out += token === "," ? token + line() : token === ":" ? ": " : token;
    }
  });
  return out;
}
