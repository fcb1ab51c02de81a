// Colours for code, a line at a time: comments, strings, numbers, and words that most languages keep for themselves.
import {el} from "./dom.js";

const set = (words) => new Set(words.split(" "));
const PLAIN = set("text txt plain plaintext output markdown md diff csv log latex");
// Comments, where they are not those of C.
const COMMENTS = [
  [set("python py sh bash shell console zsh yaml yml toml ruby rb perl make makefile dockerfile r ini conf nginx cmake"), "(?<!\\S)#.*"],
  [set("sql lua haskell"), "--.*"],
  [set("html xml svg"), "<!--.*?(?:-->|$)"],
  [set("json"), "(?!)"],
];
const WORDS = set("and as async await auto bool boolean break by case catch char class const continue create def default delete do done " +
  "double elif else enum esac except export extends false fi final finally float fn for from func function group if impl " +
  "implements import in insert int interface into is join lambda let limit local long loop match mod mut namespace new " +
  "nil none not null on or order pass private protected pub public raise return select self set short sizeof static " +
  "struct super switch table template then this throw trait true try type typedef typeof union unsigned update use using " +
  "values var void where while with yield");
const LONG = {"/*": "*/", "<!--": "-->", '"""': '"""', "'''": "'''", "`": "`"}; // what goes on over lines, and its end
const patterns = new Map();

function patternOf(language) {
  const comment = COMMENTS.find(([names]) => names.has(language))?.[1] ?? "\\/\\/.*|\\/\\*.*?(?:\\*\\/|$)";
  return new RegExp(`(${comment})|` + // 1, 2 string or how a long one begins, 3 number, 4 word
    /("""|'''|`|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(\b\d[\w.]*)|([A-Za-z_]\w*)/.source, "g");
}

// Nodes and strings of one line. `open`: kind and end of what the line begins in, or "". Returns {nodes, open}.
export function colour(language, line, open) {
  const name = language.toLowerCase().split(/[^\w+#-]/)[0], nodes = [];
  if (!name || PLAIN.has(name))
    return {nodes: [line], open};
  if (!patterns.has(name))
    patterns.set(name, patternOf(name));
  const pattern = new RegExp(patterns.get(name));
  let from = 0;
  const put = (kind, start, end) => {
    nodes.push(line.slice(from, start), el("span", {class: kind}, line.slice(start, end)));
    from = pattern.lastIndex = end;
  };
  // The end of a long one from `start` on is looked for from `at` on.
  const long = (kind, end, start, at) => {
    const found = line.indexOf(end, at);
    put(kind, start, found < 0 ? line.length : found + end.length);
    open = found < 0 ? kind + end : "";
  };
  if (open)
    long(open[0], open.slice(1), 0, 0);
  for (let m; !open && (m = pattern.exec(line));) {
    const [all, comment, string, number, word] = m, kind = comment ? "c" : string ? "s" : number ? "n" : "k";
    const begin = Object.keys(LONG).find((mark) => string === mark || comment?.startsWith(mark));
    if (begin)
      long(kind, LONG[begin], m.index, m.index + begin.length);
    else if (!word || WORDS.has(/^(None|True|False|[A-Z]+)$/.test(word) ? word.toLowerCase() : word))
      put(kind, m.index, m.index + all.length);
  }
  return {nodes: [...nodes, line.slice(from)].filter(Boolean), open};
}
