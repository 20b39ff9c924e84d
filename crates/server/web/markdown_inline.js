// The inline part of Markdown: emphasis, code, links and mathematics within a block's text.
//
// Separate from the blocks because it works on characters, not on lines. One pass from left to right with a stack of
// open marks; the stack is bounded, and every search for a partner remembers its result, so the time is linear.

import { math } from "./math.js";

const SAFE_LINK = /^(https?:|mailto:)/i;
const WORD = /[\p{L}\p{N}_]/u;
const ESCAPABLE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/** Characters that may be more than text. An address in plain text begins with `h`. */
const SPECIAL = /[\\\n`[!*_~$<&hH]/g;
const BARE_LINK = /https?:\/\/[^\s<>"`|]+/iy;
const IN_ANGLES = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+|[\w.+-]+@[\w.-]+\.\w+)>/iy;
const BREAK = /<br\s{0,4}\/?>/iy;
/** The tags that have a meaning, since plain text has no other way to set letters lower or higher. */
const SCRIPT = /<(\/?)(sub|sup)>/y;
/** A footnote's number. Other names stay text: a set of signs of a pattern looks the same. */
const FOOTNOTE = /\[\^(\d{1,3})\](?!\()/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–",
  lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", bull: "•", middot: "·", times: "×", divide: "÷", plusmn: "±",
  deg: "°", euro: "€", pound: "£", yen: "¥", cent: "¢", sect: "§", para: "¶", larr: "←", rarr: "→", uarr: "↑", darr: "↓", le: "≤", ge: "≥",
  ne: "≠", infin: "∞", micro: "µ", half: "½", ensp: "\u2002", emsp: "\u2003", zwj: "\u200d", shy: "\u00ad", thinsp: "\u2009",
};
/** Longer formulas stay text. */
const MAX_MATH = 8000;
/** Marks that may be open at once; further ones are text. */
const MAX_OPEN = 24;
const MAX_TARGET = 4096;
/** An address in angle brackets may have spaces. */
const ANGLED_TARGET = /\(\s{0,9}<([^<>\n]{1,4096})>(?:\s{1,9}(?:"[^"]{0,4096}"|'[^']{0,4096}'))?\s{0,9}\)/y;
const NAMES = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "s", "<sub>": "sub", "<sup>": "sup" };

/** Nodes of a block's text; a line break becomes `br`. In the words of a link an address is no other link. */
export function inline(text, hasLinks = true) {
  return new Inline(text, hasLinks).nodes();
}

function linkTo(target, children) {
  const link = element("a", children);
  link.href = target;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}

function element(name, children) {
  const node = document.createElement(name);
  for (const child of children) node.append(child);
  return node;
}

class Inline {
  constructor(text, hasLinks) {
    this.text = text;
    this.hasLinks = hasLinks;
    this.at = 0;
    // The outermost frame has no mark. Each frame collects the nodes since its mark.
    this.frames = [{ mark: "", nodes: [] }];
    this.plain = "";
    this.found = new Map();
    this.runs = null;
    this.brackets = null;
  }

  nodes() {
    while (this.at < this.text.length) this.step();
    this.flush();
    while (this.frames.length > 1) this.unwrap();
    return this.frames[0].nodes;
  }

  step() {
    const char = this.text[this.at];
    if (char === "\\") this.escape();
    else if (char === "\n") {
      this.push(document.createElement("br"));
      this.at += 1;
    } else if (char === "`") this.code();
    else if (char === "[") this.footnote() || this.link(this.at);
    else if (char === "*" || char === "_" || char === "~") this.marks(char);
    else if (!this.rest(char)) {
      SPECIAL.lastIndex = this.at + 1;
      const end = SPECIAL.exec(this.text)?.index ?? this.text.length;
      this.plain += this.text.slice(this.at, end);
      this.at = end;
    }
  }

  /** Whether a rarer element stands here: an image, an address, mathematics, an entity, a break of HTML. */
  rest(char) {
    if (char === "!") return this.text[this.at + 1] === "[" && this.link(this.at + 1);
    if (char === "$") return this.dollars();
    if (char === "&") return this.entity();
    if (char === "h" || char === "H") return this.bareLink();
    if (char !== "<") return false;
    if (this.taken(BREAK)) {
      this.push(document.createElement("br"));
      return true;
    }
    const tag = this.taken(SCRIPT);
    if (tag) {
      this.script(tag);
      return true;
    }
    const target = this.hasLinks && this.taken(IN_ANGLES)?.[1];
    if (target) this.push(linkTo(target.includes(":") ? target : `mailto:${target}`, [document.createTextNode(target)]));
    return Boolean(target);
  }

  /** Takes what stands here in the form of a sticky pattern; `null` where it does not. */
  taken(pattern) {
    pattern.lastIndex = this.at;
    const hit = pattern.exec(this.text);
    if (hit) this.at += hit[0].length;
    return hit;
  }

  /** A backslash: before a sign, at a line's end, or before a formula. */
  escape() {
    const after = this.text[this.at + 1] ?? "";
    if (after === "(" && this.formula("\\(", "\\)", false)) return;
    if (after === "[" && this.formula("\\[", "\\]", true)) return;
    if (after === "\n") this.at += 1;
    else if (after && ESCAPABLE.includes(after)) {
      this.plain += after;
      this.at += 2;
    } else {
      this.plain += "\\";
      this.at += 1;
    }
  }

  /** A formula between these marks, the first of which stands here. Whether there is one. */
  formula(begin, end, isBlock) {
    const from = this.at + begin.length;
    const to = this.next(end, from);
    if (to < 0 || to - from > MAX_MATH || !this.text.slice(from, to).trim()) return false;
    this.push(math(this.text.slice(from, to), isBlock));
    this.at = to + end.length;
    return true;
  }

  /** A formula in dollars. Prices are none: the rules are those of Pandoc, and what begins with a digit needs a sign of mathematics. */
  dollars() {
    if (this.text[this.at + 1] === "$") {
      if (this.formula("$$", "$$", true)) return true;
      this.plain += "$$";
      this.at += 2;
      return true;
    }
    const from = this.at + 1;
    const to = this.next("$", from);
    if (to < 0 || to - from > MAX_MATH || WORD.test(this.text[this.at - 1] ?? " ")) return false;
    const inner = this.text.slice(from, to);
    const after = this.text[to + 1] ?? " ";
    if (!inner || /^\s|\s$|\\$|`/.test(inner) || /\d/.test(after)) return false;
    // Variables of a shell: "$HOME/bin:$PATH".
    if (/^\w\w/.test(inner) && /\w/.test(after)) return false;
    // Words between two prices: "5 on one and USD".
    const isPlain = !/[\\^_={}<>+]/.test(inner);
    if (isPlain && (/^[\d.,]/.test(inner) ? /[\s\p{L}]{2}/u.test(inner) : /\s.*\s|\p{L}{4}/u.test(inner))) return false;
    this.push(math(inner, false));
    this.at = to + 1;
    return true;
  }

  entity() {
    const hit = this.taken(ENTITY);
    if (!hit) return false;
    const [whole, decimal, hex, name] = hit;
    const code = decimal ? Number(decimal) : parseInt(hex ?? "0", 16);
    const isCode = (code >= 32 && code < 0xd800) || (code > 0xdfff && code <= 0x10ffff);
    this.plain += name ? (Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole) : isCode ? String.fromCodePoint(code) : whole;
    return true;
  }

  /** An address in plain text, without the sentence's own signs after it. */
  bareLink() {
    if (!this.hasLinks || WORD.test(this.text[this.at - 1] ?? " ")) return false;
    BARE_LINK.lastIndex = this.at;
    let target = BARE_LINK.exec(this.text)?.[0].slice(0, MAX_TARGET);
    if (!target) return false;
    let end = target.length;
    const count = (char) => target.slice(0, end).split(char).length - 1;
    let nOpen = count("(") - count(")");
    for (; ; end -= 1) {
      const last = target[end - 1];
      if (/[.,:;!?'*_~\\$\]]/.test(last)) continue;
      if (last !== ")" || nOpen >= 0) break;
      nOpen += 1;
    }
    target = target.slice(0, end);
    if (!/^https?:\/\/./i.test(target)) return false;
    this.push(linkTo(target, [document.createTextNode(target)]));
    this.at += end;
    return true;
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

  /** Where the square brackets close that stand in pairs, by where they open. */
  pairs() {
    const [pairs, opened] = [new Map(), []];
    for (const { 0: sign, index } of this.text.matchAll(/\\[^]|[[\]]/g)) {
      if (sign === "[") opened.push(index);
      else if (sign === "]" && opened.length) pairs.set(opened.pop(), index);
    }
    return pairs;
  }

  /** Returns the place of the bracket that closes the one at `open`; -1 if there is none near it. Addresses may have pairs of brackets. */
  targetEnd(open) {
    let nOpen = 0;
    for (let at = open; at < Math.min(this.text.length, open + MAX_TARGET); at += 1) {
      const char = this.text[at];
      if (char === "\\") at += 1;
      if (char === "(") nOpen += 1;
      if (char === ")" && (nOpen -= 1) === 0) return at;
      if (char === "\n" && this.text[at + 1] === "\n") return -1;
    }
    return -1;
  }

  /** The address after a label that ends before `open`, as `{ target, end }`; `null` where none stands there. A title may follow it. */
  target(open) {
    if (this.text[open] !== "(") return null;
    ANGLED_TARGET.lastIndex = open;
    const angled = ANGLED_TARGET.exec(this.text);
    if (angled) return { target: angled[1], end: ANGLED_TARGET.lastIndex };
    const end = this.targetEnd(open);
    if (end < 0) return null;
    const target = this.text.slice(open + 1, end).replace(/\s+(?:"[^"]*"|'[^']*')\s*$/, "").trim();
    return /\s/.test(target) ? null : { target, end: end + 1 };
  }

  /** A link whose bracket stands at `open`; before that of an image stands a `!`. Images are not loaded: they are links. */
  link(open) {
    const isImage = open > this.at;
    this.brackets ??= this.pairs();
    const close = this.brackets.get(open) ?? -1;
    const found = close >= 0 && close - open < MAX_TARGET ? this.target(close + 1) : null;
    const label = found ? this.text.slice(open + 1, close) : "";
    // A link within a link wins over the outer one.
    if (!found || !SAFE_LINK.test(found.target) || label.includes("](")) {
      this.plain += this.text.slice(this.at, open + 1);
      this.at = open + 1;
      return true;
    }
    const words = label ? inline(label, false) : [document.createTextNode(found.target)];
    this.push(linkTo(found.target, isImage ? [document.createTextNode("Image: "), ...words] : words));
    this.at = found.end;
    return true;
  }

  /** The number of a footnote, in a text or before its words at the beginning of a line. Whether one stands here. */
  footnote() {
    const isFirst = this.at === 0 || this.text[this.at - 1] === "\n";
    const hit = this.taken(FOOTNOTE);
    if (!hit) return false;
    if (isFirst && this.text[this.at] === ":") this.at += 1;
    this.push(element("sup", [document.createTextNode(hit[1])]));
    return true;
  }

  /** A tag of letters that stand lower or higher, which begins or ends. */
  script([tag, slash, name]) {
    const mark = `<${name}>`;
    if (!slash && this.frames.length <= MAX_OPEN) this.open(mark);
    else if (slash && this.frames.some((frame) => frame.mark === mark)) this.close(mark, tag);
    else this.plain += tag;
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

  /** Ends the innermost part with this mark, by `end`. */
  close(mark, end = mark) {
    this.flush();
    while (this.frames.at(-1).mark !== mark) this.unwrap();
    const { nodes } = this.frames.pop();
    // Marks around nothing are text.
    if (nodes.length) this.push(element(NAMES[mark], nodes));
    else this.plain += mark + end;
  }

  /** Takes back the innermost mark, which found no partner. */
  unwrap() {
    const { mark, nodes } = this.frames.pop();
    const outer = this.frames.at(-1).nodes;
    outer.push(document.createTextNode(mark));
    for (const node of nodes) outer.push(node);
  }
}
