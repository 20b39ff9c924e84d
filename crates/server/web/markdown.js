// Renders Markdown into DOM nodes. Text only ever becomes text nodes: nothing a model writes is parsed as HTML, and
// links keep only http, https and mailto targets.
//
// Invariants: the time grows linearly with the text, the nesting of the nodes is bounded, no text is lost.

import { copyButton } from "./clipboard.js";
import { parts } from "./highlight.js";
import { inline } from "./markdown_inline.js";
import { math } from "./math.js";

/** Quotes and lists nest this deep at most; what is deeper is shown as plain paragraphs. */
const MAX_DEPTH = 12;
const FENCE = /^\s*(`{3,}(?=[^`]*$)|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/;
const QUOTE = /^\s*>/;
/** How a formula on lines of its own begins, and what ends it. */
const FORMULAS = [
  [/^\s*\$\$/, "$$", "$$"],
  [/^\s*\\\[/, "\\[", "\\]"],
];
const ENVIRONMENT = /^\s*\\begin\{((?:equation|align|alignat|gather|multline|eqnarray)\*?)\}/;
/** A formula that has no end on as many lines is text. */
const MAX_FORMULA_LINES = 60;
const TASK = /^\[([ xX])\]\s+(?=\S)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
/** A line that begins with so much white space, and neither continues a paragraph nor is an item of a list, is code. */
const CODE_INDENT = 4;

/** Shows `source` in `target`, keeping the nodes of blocks that did not change since the last call, and the nodes at the beginning of code that grows. */
export function render(target, source) {
  const blocks = parse(source.split("\n"), 0);
  blocks.forEach((block, i) => {
    const key = block.lines.join("\n");
    const old = target.children[i];
    if (old?.source === key && old.kind === block.kind) return;
    if (old?.kind === "code" && block.kind === "code" && updateCode(old, block.lines)) {
      old.source = key;
      return;
    }
    const node = build(block, 0);
    // Each block runs as its own words do, code and formulas from the left.
    node.dir = ["code", "indented", "formula"].includes(block.kind) ? "ltr" : "auto";
    node.source = key;
    node.kind = block.kind;
    if (old) old.replaceWith(node);
    else target.append(node);
  });
  while (target.children.length > blocks.length) target.lastElementChild.remove();
}

/** Splits lines into blocks: each has a kind and its lines. */
function parse(lines, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const kind = kindAt(lines, at, depth);
    const end = ENDS[kind](lines, at, depth);
    blocks.push({ kind, lines: lines.slice(at, end) });
    at = end;
  }
  return blocks;
}

function kindAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (endOfFormula(lines, at)) return "formula";
  if (HEADING.test(line)) return "heading";
  if (isRule(line)) return "rule";
  if (depth < MAX_DEPTH && QUOTE.test(line)) return "quote";
  if (depth < MAX_DEPTH && ITEM.test(line)) return "list";
  if (width(line) >= CODE_INDENT) return "indented";
  if (line.includes("|") && isDelimiterRow(lines[at + 1], cells(line).length)) return "table";
  return "paragraph";
}

/** Where a block that begins at `at` ends, for each kind. */
const ENDS = {
  code: endOfFence,
  formula: endOfFormula,
  heading: (_, at) => at + 1,
  rule: (_, at) => at + 1,
  quote: (lines, at) => firstFrom(lines, at, (line) => !QUOTE.test(line)),
  table: (lines, at) => firstFrom(lines, at + 2, (line) => isBlank(line) || !line.includes("|")),
  list: endOfList,
  indented: endOfIndented,
  paragraph: endOfParagraph,
};

function firstFrom(lines, at, holds) {
  while (at < lines.length && !holds(lines[at])) at += 1;
  return at;
}

function endOfFence(lines, at) {
  const fence = FENCE.exec(lines[at])[1];
  const closing = firstFrom(lines, at + 1, (line) => closes(line, fence));
  return Math.min(closing + 1, lines.length);
}

/** Where a formula that begins at `at` ends, if it does there with its line; 0 where none begins. */
function endOfFormula(lines, at) {
  const line = lines[at];
  const [, begin, end] = FORMULAS.find(([pattern]) => pattern.test(line)) ?? [];
  const environment = begin ? null : ENVIRONMENT.exec(line)?.[1];
  if (!begin && !environment) return 0;
  const mark = end ?? `\\end{${environment}}`;
  const last = Math.min(lines.length, at + MAX_FORMULA_LINES);
  for (let i = at; i < last && !isBlank(lines[i]); i += 1) {
    const from = i === at && begin ? line.indexOf(begin) + begin.length : 0;
    const found = lines[i].indexOf(mark, from);
    // Words after it make it a part of a paragraph.
    if (found >= 0) return /^[\s.,;]*$/.test(lines[i].slice(found + mark.length)) ? i + 1 : 0;
  }
  return 0;
}

function endOfParagraph(lines, at, depth) {
  const first = at;
  for (at += 1; at < lines.length && !isBlank(lines[at]); at += 1) {
    if (["paragraph", "indented"].includes(kindAt(lines, at, depth))) continue;
    // A line of a paragraph may begin with a number and a dot; only a list that begins with 1 interrupts it.
    const item = ITEM.exec(lines[at]);
    if (item && !isRule(lines[at]) && /^\d/.test(item[2]) && parseInt(item[2], 10) !== 1) continue;
    break;
  }
  return Math.max(at, first + 1);
}

/** Where indented code ends: blank lines are a part of it where more follows. */
function endOfIndented(lines, at) {
  let end = firstFrom(lines, at, (line) => !isBlank(line) && width(line) < CODE_INDENT);
  while (isBlank(lines[end - 1])) end -= 1;
  return end;
}

function endOfList(lines, at) {
  const base = width(ITEM.exec(lines[at])[1]);
  const sign = signOf(ITEM.exec(lines[at]));
  let end = at + 1;
  for (let i = at + 1; i < lines.length; i += 1) {
    if (isBlank(lines[i])) continue;
    const follows = i === end;
    if (!belongs(lines[i], base, sign, follows)) break;
    end = i + 1;
  }
  return end;
}

/** The sign by which the markers of a list are known: another one begins another list. */
function signOf(item) {
  return item[2].at(-1);
}

/** Whether a line is part of a list whose markers stand at `base` and end in `sign`; `follows`: no blank line stands before it. */
function belongs(line, base, sign, follows) {
  if (width(line) > base + 1) return true;
  if (isRule(line)) return false;
  const item = ITEM.exec(line);
  if (item) return signOf(item) === sign;
  return follows && !FENCE.test(line) && !HEADING.test(line) && !QUOTE.test(line);
}

function isBlank(line) {
  return line.trim() === "";
}

/** Columns of white space that a line begins with. */
function width(line) {
  let columns = 0;
  for (const char of line) {
    if (char === " ") columns += 1;
    else if (char === "\t") columns += 4;
    else break;
  }
  return columns;
}

/** A line without up to `columns` of white space at its beginning. */
function dedent(line, columns) {
  let at = 0;
  for (let taken = 0; taken < columns && at < line.length; at += 1) {
    if (line[at] === " ") taken += 1;
    else if (line[at] === "\t") taken += 4;
    else break;
  }
  return line.slice(at);
}

function isRule(line) {
  return /^([-*_])\1{2,}$/.test(line.replace(/\s/g, ""));
}

function closes(line, fence) {
  const mark = line.trim();
  return mark.length >= fence.length && mark === fence[0].repeat(mark.length);
}

function isDelimiterRow(line, nCells) {
  if (!line?.includes("-")) return false;
  const marks = cells(line);
  return marks.length === nCells && marks.every((mark) => /^:?-+:?$/.test(mark));
}

/** The cells of a row. A bar in code is no border where that gives as many cells as the table has. */
function cells(line, nWanted = 0) {
  const parts = line.trim().split(/(?<!\\)\|/);
  if (parts[0] === "") parts.shift();
  if (parts.length > 1 && parts.at(-1) === "") parts.pop();
  if (nWanted && parts.length > nWanted && line.includes("`")) {
    const joined = joinCode(parts);
    if (joined.length === nWanted) return joined.map(cell);
  }
  return parts.map(cell);
}

function cell(part) {
  return part.trim().replaceAll("\\|", "|");
}

/** Puts together what bars in code have divided. */
function joinCode(parts) {
  const joined = [];
  let isOpen = false;
  for (const part of parts) {
    if (isOpen) joined.push(`${joined.pop()}|${part}`);
    else joined.push(part);
    if (part.split("`").length % 2 === 0) isOpen = !isOpen;
  }
  return joined;
}

function element(name, children = []) {
  const node = document.createElement(name);
  for (const child of children) node.append(child);
  return node;
}

function build(block, depth) {
  return BUILDERS[block.kind](block.lines, depth);
}

const BUILDERS = {
  heading: ([line]) => {
    const level = HEADING.exec(line)[1].length;
    let text = line.trim().slice(level).trim();
    // Closing marks are not part of the title.
    let end = text.length;
    while (text[end - 1] === "#") end -= 1;
    if (end < text.length && (end === 0 || /\s/.test(text[end - 1]))) text = text.slice(0, end).trimEnd();
    // The page's own title is the first level.
    return element(`h${Math.min(6, level + 1)}`, inline(text));
  },
  rule: () => element("hr"),
  paragraph: (lines) => element("p", inline(paragraphText(lines))),
  quote: (lines, depth) => {
    const inner = lines.map((line) => line.replace(/^\s*> ?/, ""));
    return element("blockquote", parse(inner, depth + 1).map((block) => build(block, depth + 1)));
  },
  code: (lines) => codeBlock(fenced(lines)),
  indented: (lines) => codeBlock({ text: lines.map((line) => dedent(line, CODE_INDENT)).join("\n"), language: "" }),
  formula: (lines) => formula(lines.join("\n").trim()),
  table: (lines) => {
    const sides = cells(lines[1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : ""));
    const row = (name, line) => element("tr", cells(line, sides.length).map((text, i) => {
      const node = element(name, inline(text));
      if (sides[i]) node.className = sides[i];
      return node;
    }));
    const table = element("table", [
      element("thead", [row("th", lines[0])]),
      element("tbody", lines.slice(2).map((line) => row("td", line))),
    ]);
    // The frame scrolls, so that a wide table keeps its words whole.
    const frame = element("div", [table]);
    frame.className = "table";
    return frame;
  },
  list: (lines, depth) => {
    const base = width(lines[0]);
    const isOrdered = /^\s*\d/.test(lines[0]);
    const list = element(isOrdered ? "ol" : "ul");
    if (isOrdered) list.start = parseInt(lines[0], 10);
    for (let at = 0; at < lines.length; ) {
      const end = firstFrom(lines, at + 1, (line) => ITEM.test(line) && width(line) <= base + 1);
      list.append(listItem(lines.slice(at, end), depth + 1));
      at = end;
    }
    return list;
  },
};

function listItem(lines, depth) {
  const marker = ITEM.exec(lines[0]);
  const indent = Math.min(marker[0].length, marker[1].length + marker[2].length + 4);
  const first = lines[0].slice(marker[0].length);
  const task = TASK.exec(first);
  const inner = [task ? first.slice(task[0].length) : first, ...lines.slice(1).map((line) => dedent(line, indent))];
  const blocks = parse(inner, depth);
  const lastText = inner.findLastIndex((line) => !isBlank(line));
  const isTight = !inner.slice(0, lastText).some((line, i) => i > 0 && isBlank(line));
  const item = element("li", task ? [taskBox(task[1] !== " ")] : []);
  for (const block of blocks) {
    if (isTight && block.kind === "paragraph") {
      for (const node of inline(paragraphText(block.lines))) item.append(node);
    } else {
      item.append(build(block, depth));
    }
  }
  return item;
}

/** The box of a task, done or not. */
function taskBox(isDone) {
  const box = element("span", [isDone ? "☑" : "☐"]);
  box.className = "task";
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", isDone ? "Done:" : "To do:");
  return box;
}

/** A formula with its marks, as a block; signs of the sentence may follow it. */
function formula(text) {
  const [, begin, end] = FORMULAS.find(([pattern]) => pattern.test(text)) ?? [];
  if (!begin) return element("p", [math(text, true)]);
  const last = text.lastIndexOf(end);
  return element("p", [math(text.slice(begin.length, last) + text.slice(last + end.length), true)]);
}

function paragraphText(lines) {
  return lines.map((line) => line.trim()).join("\n");
}

/** The text and the language of lines with a fence before them. */
function fenced(lines) {
  const fence = FENCE.exec(lines[0])[1];
  const isClosed = lines.length > 1 && closes(lines.at(-1), fence);
  const indent = width(lines[0]);
  const language = lines[0].trim().slice(fence.length).trim().split(/[\s{]/)[0];
  return { text: lines.slice(1, isClosed ? -1 : undefined).map((line) => dedent(line, indent)).join("\n"), language };
}

/** A part of code as a node: text, or text with a colour. */
function piece(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const node = element("span", [part.text]);
  node.className = `code-${part.kind}`;
  return node;
}

function codeBlock({ text, language }) {
  const code = element("code");
  const copy = copyButton(() => code.textContent, "", () => {
    // Selected text can be copied by hand.
    getSelection().selectAllChildren(code);
    return "Selected";
  });
  const label = element("span", [language]);
  label.className = "language";
  const head = element("div", [label, copy]);
  head.className = "head";
  // Only the text scrolls, so that the button stays and covers none of it.
  const frame = element("div", [head, element("pre", [code])]);
  frame.className = "code";
  Object.assign(frame, { code, language, shown: [] });
  showCode(frame, text);
  return frame;
}

/** Shows the code of lines with a fence in the block that had it before. Whether that can be: a block stays of its language. */
function updateCode(frame, lines) {
  const { text, language } = fenced(lines);
  if (language !== frame.language) return false;
  showCode(frame, text);
  return true;
}

/** Shows a text in a block of code. The nodes of its beginning stay as far as that is the same, so a long text can grow by a few words. */
function showCode(frame, text) {
  // Text without colours is a node a line.
  const wanted = parts(text, frame.language).flatMap((part) => (typeof part === "string" ? part.split(/(?<=\n)/) : part));
  const { code, shown } = frame;
  const nSame = wanted.findIndex((part, i) => !isSame(part, shown[i]?.part));
  for (const { node } of nSame < 0 ? shown.splice(wanted.length) : shown.splice(nSame)) node.remove();
  for (const part of wanted.slice(shown.length)) {
    const node = piece(part);
    code.append(node);
    shown.push({ part, node });
  }
}

function isSame(part, old) {
  return part === old || (part.text === old?.text && part.kind === old?.kind && part.text !== undefined);
}
