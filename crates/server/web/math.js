// Writes LaTeX's mathematics as MathML: fractions, roots, sums, matrices, letters and signs.
//
// Invariants: the time grows linearly with the text, the nesting of the nodes is bounded, what LaTeX shows is shown: a command that is not
// known by its name. Nodes are made one by one, so nothing of the text is parsed as HTML.

import { ACCENTS, FUNCTIONS, IGNORED, inAlphabet, INTEGRALS, isAlphabet, LARGE, LETTERS, LIMITS, OPERATORS, SPACES, UNDER } from "./math_symbols.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
/** Groups, fractions and roots nest this deep at most; what is deeper is shown as it was written. */
const MAX_DEPTH = 24;
/** Tokens of an argument in square brackets. */
const MAX_OPTION = 40;
const TOKEN = /\\(?:operatorname\*|[A-Za-z]+|[^])|\s+|\d+(?:[.,]\d+)*|[^]/gu;
/** Brackets around the rows of an environment, and how its columns stand. */
const ENVIRONMENTS = {
  matrix: ["", ""], smallmatrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"],
  Vmatrix: ["‖", "‖"], cases: ["{", ""], rcases: ["", "}"], array: ["", ""], aligned: ["", ""], align: ["", ""], alignat: ["", ""],
  split: ["", ""], gather: ["", ""], gathered: ["", ""], equation: ["", ""], eqnarray: ["", ""], multline: ["", ""], substack: ["", ""],
};
const ALIGNED = /^(aligned|align|alignat|split|eqnarray)\*?$/;
const own = (object, key) => (Object.hasOwn(object, key) ? object[key] : undefined);

/** A formula as a node; `isBlock`: it stands on lines of its own. */
export function math(source, isBlock) {
  const root = element("math", new Writer(source, isBlock).all());
  root.setAttribute("display", isBlock ? "block" : "inline");
  root.setAttribute("alttext", source.trim());
  return root;
}

function element(name, children = [], attributes = {}) {
  const node = document.createElementNS(MATHML, name);
  for (const child of children) node.append(child);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

const mo = (text, attributes) => element("mo", [text], attributes);
const fence = (text) => (text ? [mo(text, { fence: "true", stretchy: "true" })] : []);
const row = (nodes) => (nodes.length === 1 ? nodes[0] : element("mrow", nodes));

class Writer {
  constructor(source, isBlock) {
    this.tokens = source.match(TOKEN) ?? [];
    this.at = 0;
    this.depth = 0;
    /** The command whose alphabet letters have, or "". */
    this.alphabet = "";
    this.isBlock = isBlock;
  }

  /** The whole formula. Lines outside of an environment make one. */
  all() {
    const lines = [];
    let nodes = [];
    while (this.at < this.tokens.length) {
      nodes.push(...this.until((token) => token === "\\\\" || token === "&"));
      const token = this.tokens[this.at];
      // A brace or an end that nothing began is text.
      if (token === "\\\\") {
        lines.push(nodes);
        nodes = [];
      } else if (token !== undefined && token !== "&") nodes.push(element("mtext", [token]));
      this.at += 1;
    }
    if (!lines.length) return [row(nodes)];
    return [element("mtable", [...lines, nodes].map((line) => element("mtr", [element("mtd", line)])))];
  }

  /** The nodes up to a token that `ends`, or that closes what this did not open. */
  until(ends) {
    const nodes = [];
    for (let token; (token = this.tokens[this.at]) !== undefined; ) {
      if (ends(token) || token === "}" || token === "\\end" || token === "\\right") break;
      if (token === "^" || token === "_" || token === "'") {
        const isBase = nodes.length > 0 && !nodes.at(-1).hasScripts;
        nodes.push(this.scripts(isBase ? nodes.pop() : element("mrow")));
        continue;
      }
      this.at += 1;
      const made = this.one(token);
      if (made) nodes.push(made);
    }
    return nodes;
  }

  /** The node of a token that was taken; `null` where it shows nothing. */
  one(token) {
    if (/^\s/.test(token)) return null;
    if (token === "{") return this.group();
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (/^\d/.test(token)) return element("mn", [inAlphabet(this.alphabet, token)]);
    if (/^\p{L}/u.test(token)) return element("mi", [inAlphabet(this.alphabet, token)], this.alphabet && { mathvariant: "normal" });
    if (token === "~") return space(SPACES["~"]);
    if (token === "-") return mo("−");
    if (token === "*") return mo("∗");
    return mo(token, /[()[\]|]/.test(token) ? { stretchy: "false" } : {});
  }

  /** The content of braces, the first of which was taken. */
  group() {
    return this.nested(() => {
      const nodes = this.until(() => false);
      if (this.tokens[this.at] === "}") this.at += 1;
      return row(nodes);
    });
  }

  /** The result of `make` one level deeper; the next token as text where that is too deep. */
  nested(make) {
    if (this.depth >= MAX_DEPTH) {
      const token = this.tokens[this.at] ?? "";
      this.at += 1;
      return element("mtext", [token]);
    }
    this.depth += 1;
    const made = make();
    this.depth -= 1;
    return made;
  }

  skipSpace() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
  }

  /** The argument of a command: a group, or one token. */
  argument() {
    this.skipSpace();
    const token = this.tokens[this.at];
    if (token === undefined || token === "}" || token === "&" || token === "\\\\" || token === "\\end" || token === "\\right") return element("mrow");
    // An argument without braces is the first digit of a number.
    if (/^\d./.test(token)) {
      this.tokens[this.at] = token.slice(1);
      return element("mn", [token[0]]);
    }
    this.at += 1;
    return this.nested(() => this.one(token) ?? element("mrow"));
  }

  /** The argument of a command as it was written, without its braces. */
  raw() {
    this.skipSpace();
    if (this.tokens[this.at] !== "{") return this.tokens[this.at++] ?? "";
    this.at += 1;
    let text = "";
    for (let open = 1; this.at < this.tokens.length; text += this.tokens[this.at++]) {
      const token = this.tokens[this.at];
      if (token === "{") open += 1;
      if (token === "}") open -= 1;
      if (open > 0) continue;
      this.at += 1;
      break;
    }
    return text;
  }

  /** An argument in square brackets, as it was written; `null` where there is none. */
  option() {
    this.skipSpace();
    if (this.tokens[this.at] !== "[") return null;
    const inside = this.tokens.slice(this.at + 1, this.at + MAX_OPTION);
    const end = inside.indexOf("]");
    if (end < 0) return null;
    this.at += end + 2;
    return inside.slice(0, end).join("");
  }

  /** `base` with what stands below and above it. One that has some already gets no more, so they do not nest. */
  scripts(base) {
    const primes = [];
    let [below, above] = [null, null];
    for (let token; (token = this.tokens[this.at]) !== undefined; ) {
      if (token === "_" ? below : above) break;
      if (!["_", "^", "'"].includes(token)) break;
      this.at += 1;
      if (token === "_") below = this.argument();
      else if (token === "^") above = this.argument();
      else primes.push(mo("′"));
    }
    if (primes.length) above = row([...primes, ...(above ? [above] : [])]);
    const names = base.hasLimits && this.isBlock ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const name = names[below && above ? 2 : above ? 1 : 0];
    return Object.assign(element(name, [base, below, above].filter(Boolean)), { hasScripts: true });
  }

  command(name) {
    const letter = own(LETTERS, name);
    if (letter) return element("mi", [letter], /^[A-Z]/.test(name) ? { mathvariant: "normal" } : {});
    const sign = own(OPERATORS, name);
    if (sign) return mo(sign, /[{}|‖[\]⟨⟩⌈⌉⌊⌋]/.test(sign) ? { stretchy: "false" } : {});
    const large = own(LARGE, name);
    if (large) return Object.assign(mo(large, { movablelimits: "false" }), { hasLimits: true });
    const integral = own(INTEGRALS, name);
    if (integral) return mo(integral);
    if (FUNCTIONS.has(name)) return element("mi", [name]);
    if (LIMITS.has(name)) return Object.assign(element("mi", [name.replace(/^(lim|arg)(?=.)/, "$1 ")]), { hasLimits: true });
    if (Object.hasOwn(SPACES, name)) return space(SPACES[name]);
    if (Object.hasOwn(ACCENTS, name)) return this.accent(...ACCENTS[name], name);
    if (Object.hasOwn(UNDER, name)) return Object.assign(element("munder", [this.argument(), mo(UNDER[name], { stretchy: "true" })]), { hasLimits: name === "underbrace" });
    if (isAlphabet(name) || name === "mathrm") return this.letters(name, this.raw());
    if (IGNORED.has(name) || name === "\\") return null;
    const make = own(COMMANDS, name);
    return make ? make(this) : element("mtext", [`\\${name}`]);
  }

  /** A text in an alphabet: one word, or a formula where it has more than letters. */
  letters(alphabet, text) {
    if (!/[\^_\\]/.test(text)) return element("mi", [inAlphabet(alphabet, lettersOf(text))], { mathvariant: "normal" });
    return this.nested(() => {
      const inner = Object.assign(new Writer(text, this.isBlock), { depth: this.depth, alphabet });
      return row(inner.all());
    });
  }

  accent(mark, isStretchy, name) {
    const made = element("mover", [this.argument(), mo(mark, { stretchy: String(isStretchy) })], name === "overbrace" ? {} : { accent: "true" });
    return Object.assign(made, { hasLimits: name === "overbrace" });
  }

  /** The content between `\left` and `\right`. */
  fenced() {
    return this.nested(() => {
      const left = this.fence();
      const nodes = this.until(() => false);
      let right = "";
      if (this.tokens[this.at] === "\\right") {
        this.at += 1;
        right = this.fence();
      }
      return element("mrow", [...fence(left), ...nodes, ...fence(right)]);
    });
  }

  fence() {
    this.skipSpace();
    const token = this.tokens[this.at++] ?? ".";
    if (token === ".") return "";
    return token[0] === "\\" ? (own(OPERATORS, token.slice(1)) ?? token) : token;
  }

  /** The rows of an environment, whose `\begin` was taken. */
  environment() {
    const name = this.raw();
    const plain = name.replace("*", "");
    const [left, right] = own(ENVIRONMENTS, plain) ?? ["", ""];
    if (["array", "alignat"].includes(plain) && this.tokens[this.at] === "{") this.raw();
    return this.nested(() => {
      const rows = this.rows();
      if (this.tokens[this.at] === "\\end") {
        this.at += 1;
        this.raw();
      }
      const align = (i) => (ALIGNED.test(name) ? (i % 2 ? "left" : "right") : plain.endsWith("cases") ? "left" : "");
      const table = element("mtable", rows.map((cells) => element("mtr", cells.map((nodes, i) => element("mtd", nodes, align(i) && { class: align(i) })))));
      if (ALIGNED.test(name)) table.setAttribute("class", "aligned");
      if (!own(ENVIRONMENTS, plain)) return element("mrow", [element("mtext", [name]), table]);
      return left || right ? element("mrow", [...fence(left), table, ...fence(right)]) : table;
    });
  }

  rows() {
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.until((token) => token === "&" || token === "\\\\"));
      const token = this.tokens[this.at];
      if (token !== "&" && token !== "\\\\") break;
      this.at += 1;
      if (token === "\\\\") {
        this.option();
        rows.push([]);
      }
    }
    const isEmpty = (cells) => cells.every((nodes) => nodes.length === 0);
    if (rows.length > 1 && isEmpty(rows.at(-1))) rows.pop();
    return rows;
  }
}

/** The text of a group in an alphabet, without the commands that only set its look. */
function lettersOf(text) {
  const letters = text.replace(/\\([A-Za-z]+) ?/g, (whole, name) => own(LETTERS, name) ?? whole);
  return letters.replace(/\\[,;: ]|~/g, "\u2009").replace(/[{}]/g, "");
}

function space(width) {
  return element("mspace", [], { width: `${width}em` });
}

function fraction(writer, attributes = {}) {
  const above = writer.argument();
  return element("mfrac", [above, writer.argument()], attributes);
}

function words(writer) {
  // MathML leaves out spaces at the ends of a text.
  return element("mtext", [writer.raw().replace(/\\([%$#&_{} ])/g, "$1").replace(/^ | $/g, "\u00a0")]);
}

const binomial = (writer) => element("mrow", [...fence("("), fraction(writer, { linethickness: "0" }), ...fence(")")]);

const COMMANDS = {
  frac: (writer) => fraction(writer),
  dfrac: (writer) => element("mstyle", [fraction(writer)], { displaystyle: "true" }),
  cfrac: (writer) => element("mstyle", [fraction(writer)], { displaystyle: "true" }),
  tfrac: (writer) => element("mstyle", [fraction(writer)], { displaystyle: "false" }),
  binom: binomial,
  dbinom: binomial,
  tbinom: binomial,
  sqrt: (writer) => {
    const index = writer.option();
    const inner = writer.argument();
    return index === null ? element("msqrt", [inner]) : element("mroot", [inner, row(new Writer(index, false).all())]);
  },
  left: (writer) => writer.fenced(),
  begin: (writer) => writer.environment(),
  text: words,
  textrm: words,
  textit: words,
  textbf: words,
  mbox: words,
  hbox: words,
  // Formulas of chemistry, as far as they are letters, numbers and arrows.
  ce: (writer) => writer.letters("mathrm", writer.raw().replaceAll("->", "\\rightarrow ").replace(/([A-Za-z)\]])(\d+)/g, "$1_{$2}")),
  mathit: (writer) => element("mi", [lettersOf(writer.raw())]),
  operatorname: (writer) => element("mi", [lettersOf(writer.raw())], { mathvariant: "normal" }),
  "operatorname*": (writer) => Object.assign(element("mi", [lettersOf(writer.raw())], { mathvariant: "normal" }), { hasLimits: true }),
  tag: (writer) => element("mtext", [`\u2003(${writer.raw()})`]),
  label: (writer) => {
    writer.raw();
    return null;
  },
  boxed: (writer) => element("mrow", [writer.argument()], { class: "boxed" }),
  overset: (writer) => {
    const above = writer.argument();
    return element("mover", [writer.argument(), above]);
  },
  underset: (writer) => {
    const below = writer.argument();
    return element("munder", [writer.argument(), below]);
  },
  stackrel: (writer) => COMMANDS.overset(writer),
  xrightarrow: (writer) => element("mover", [mo("→", { stretchy: "true" }), writer.argument()]),
  not: (writer) => {
    const inner = writer.argument();
    inner.append("\u0338");
    return inner;
  },
  pmod: (writer) => element("mrow", [mo("("), element("mi", ["mod"]), space(0.33), writer.argument(), mo(")")]),
  bmod: () => mo("mod"),
  mod: () => mo("mod"),
  color: (writer) => {
    writer.raw();
    return null;
  },
  textcolor: (writer) => {
    writer.raw();
    return writer.argument();
  },
  phantom: (writer) => {
    writer.raw();
    return null;
  },
  substack: (writer) => {
    writer.skipSpace();
    if (writer.tokens[writer.at] !== "{") return writer.argument();
    writer.at += 1;
    return writer.nested(() => {
      const rows = writer.rows();
      if (writer.tokens[writer.at] === "}") writer.at += 1;
      return element("mtable", rows.map((cells) => element("mtr", cells.map((nodes) => element("mtd", nodes)))));
    });
  },
};
