// Small helpers over the DOM. Text always goes in as text nodes; nothing in this page parses markup from strings.

// el("p", {class: "x", onclick: f, hidden: true}, "text", node, ...): functions become listeners, true an empty attribute, false and null nothing.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function")
      node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const button = (label, onclick, attributes = {}) => el("button", {type: "button", onclick, ...attributes}, label);

// The clipboard API exists on https and localhost only; elsewhere the old command works.
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext)
    return navigator.clipboard.writeText(text);
  const area = el("textarea", {class: "hidden", readonly: true});
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done)
    throw new Error("not copied");
}

// A button that copies what getText() returns and says so.
export function copyButton(label, getText) {
  return button(label, async (event) => {
    const self = event.currentTarget;
    try {
      await copyText(getText());
      self.textContent = "Copied";
    } catch {
      self.textContent = "Not copied";
    }
    setTimeout(() => { self.textContent = label; }, 1500);
  }, {class: "quiet"});
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  el("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// JSON text with line breaks and indents put between its tokens. The tokens stay as they are: numbers of any length keep their digits.
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let out = "", depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, i) => {
    if (token === "{" || token === "[") {
      depth++;
      out += /[}\]]/.test(tokens[i + 1]) ? token : token + line();
    } else if (token === "}" || token === "]") {
      depth--;
      out += /[{[]/.test(tokens[i - 1]) ? token : line() + token;
    } else {
      out += token === "," ? "," + line() : token === ":" ? ": " : token;
    }
  });
  return out;
}
