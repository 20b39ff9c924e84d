// The inline part of Markdown: emphasis, code and links within a block's text.
//
// Separate from the blocks because it works on characters, not on lines. One pass from left to right with a stack of
// open marks; the stack is bounded, and every search for a partner remembers its result, so the time is linear.

const SAFE_LINK = /^(https?:|mailto:)/i;
const WORD = /[\p{L}\p{N}_]/u;
const ESCAPABLE = "\\`*_~#";
/** Marks that may be open at once; further ones are text. */
const MAX_OPEN = 24;
const MAX_TARGET = 4096;
const NAMES = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "s" };

/** Nodes of a block's text; a line break becomes `br`. */
export function inline(text) {
  return new Inline(text).nodes();
}

function element(name, children) {
  const node = document.createElement(name);
  for (const child of children) node.append(child);
  return node;
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    // The outermost frame has no mark. Each frame collects the nodes since its mark.
    this.frames = [{ mark: "", nodes: [] }];
    this.plain = "";
    this.found = new Map();
    this.runs = null;
  }

  nodes() {
    while (this.at < this.text.length) this.step();
    this.flush();
    while (this.frames.length > 1) this.unwrap();
    return this.frames[0].nodes;
  }

  step() {
    const char = this.text[this.at];
    if (char === "\\" && ESCAPABLE.includes(this.text[this.at + 1] ?? "x")) {
      this.plain += this.text[this.at + 1];
      this.at += 2;
    } else if (char === "\n") {
      this.push(document.createElement("br"));
      this.at += 1;
    } else if (char === "`") this.code();
    else if (char === "[") this.link();
    else if (char === "*" || char === "_" || char === "~") this.marks(char);
    else {
      const next = /[\\\n`[*_~]/g;
      next.lastIndex = this.at + 1;
      const end = next.exec(this.text)?.index ?? this.text.length;
      this.plain += this.text.slice(this.at, end);
      this.at = end;
    }
  }

  flush() {
    if (this.plain) this.frames.at(-1).nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  push(node) {
    this.flush();
    this.frames.at(-1).nodes.push(node);
  }

  /** Where `wanted` stands at or after `from`. Questions come in rising order, so an old answer often still holds. */
  next(wanted, from) {
    const known = this.found.get(wanted);
    if (known !== undefined && (known === -1 || known >= from)) return known;
    const index = this.text.indexOf(wanted, from);
    this.found.set(wanted, index);
    return index;
  }

  runLength(char) {
    let end = this.at;
    while (this.text[end] === char) end += 1;
    return end - this.at;
  }

  /** Starts of the runs of backticks, by their length, last one first. */
  backticks() {
    const runs = new Map();
    for (const run of this.text.matchAll(/`+/g)) {
      const starts = runs.get(run[0].length) ?? [];
      starts.push(run.index);
      runs.set(run[0].length, starts);
    }
    for (const starts of runs.values()) starts.reverse();
    return runs;
  }

  code() {
    const length = this.runLength("`");
    this.runs ??= this.backticks();
    const starts = this.runs.get(length) ?? [];
    while (starts.length && starts.at(-1) <= this.at) starts.pop();
    const begin = this.at + length;
    if (!starts.length) {
      this.plain += this.text.slice(this.at, begin);
      this.at = begin;
      return;
    }
    const end = starts.pop();
    const words = this.text.slice(begin, end).replaceAll("\n", " ");
    const isPadded = words.startsWith(" ") && words.endsWith(" ") && words.trim() !== "";
    this.push(element("code", [document.createTextNode(isPadded ? words.slice(1, -1) : words)]));
    this.at = end + length;
  }

  link() {
    const close = this.next("]", this.at);
    const end = close >= 0 && this.text[close + 1] === "(" ? this.next(")", close) : -1;
    const target = end >= 0 && end - close < MAX_TARGET ? this.text.slice(close + 2, end) : "";
    const label = close >= 0 && close - this.at < MAX_TARGET ? this.text.slice(this.at + 1, close) : "[";
    if (!SAFE_LINK.test(target) || /\s/.test(target) || label.includes("[")) {
      this.plain += "[";
      this.at += 1;
      return;
    }
    const link = element("a", label ? inline(label) : [document.createTextNode(target)]);
    link.href = target;
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    this.push(link);
    this.at = end + 1;
  }

  marks(char) {
    const length = this.runLength(char);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + length] ?? " ";
    const isInWord = char === "_" && WORD.test(before) && WORD.test(after);
    const canOpen = !isInWord && !/\s/.test(after) && !(char === "_" && WORD.test(before));
    const canClose = !isInWord && !/\s/.test(before) && !(char === "_" && WORD.test(after));
    this.at += length;
    // A longer run is a line or an ornament.
    if (length > 3 || (char === "~" && length !== 2)) {
      this.plain += char.repeat(length);
      return;
    }
    for (let left = length; left > 0; ) {
      const double = char.repeat(2);
      const top = this.frames.at(-1).mark;
      let mark = left >= 2 ? double : char;
      if (canClose && top === char && left !== 2) mark = char;
      left -= mark.length;
      if (canClose && this.frames.some((frame) => frame.mark === mark)) this.close(mark);
      else if (canOpen && this.frames.length <= MAX_OPEN) this.open(mark);
      else this.plain += mark;
    }
  }

  open(mark) {
    this.flush();
    this.frames.push({ mark, nodes: [] });
  }

  close(mark) {
    this.flush();
    while (this.frames.at(-1).mark !== mark) this.unwrap();
    const { nodes } = this.frames.pop();
    // Marks around nothing are text.
    if (nodes.length) this.push(element(NAMES[mark], nodes));
    else this.plain += mark + mark;
  }

  /** Takes back the innermost mark, which found no partner. */
  unwrap() {
    const { mark, nodes } = this.frames.pop();
    const outer = this.frames.at(-1).nodes;
    outer.push(document.createTextNode(mark));
    for (const node of nodes) outer.push(node);
  }
}
