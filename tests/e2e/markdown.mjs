// The page's Markdown and mathematics under node: examples, hostile texts within a time limit, and properties over random texts.
//
// Usage: node tests/e2e/markdown.mjs [number of random texts] [seed]

import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** As much of the DOM as the renderer uses. */
class Text {
  constructor(text) {
    this.text = String(text);
  }
  remove() {
    this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
  }
}
class Node {
  constructor(name) {
    this.name = name;
    this.childNodes = [];
    this.children = [];
  }
  get lastElementChild() {
    return this.children.at(-1);
  }
  append(child) {
    child = typeof child === "string" ? new Text(child) : child;
    child.parent = this;
    this.childNodes.push(child);
    if (child instanceof Node) this.children.push(child);
  }
  remove() {
    for (const list of [this.parent.childNodes, this.parent.children]) list.splice(list.indexOf(this), 1);
  }
  replaceWith(other) {
    other.parent = this.parent;
    for (const list of [this.parent.childNodes, this.parent.children]) list[list.indexOf(this)] = other;
  }
  addEventListener() {}
  setAttribute(name, value) {
    (this.attributes ??= {})[name] = value;
  }
}
globalThis.document = {
  createElement: (name) => new Node(name),
  createElementNS: (space, name) => {
    assert.equal(space, "http://www.w3.org/1998/Math/MathML");
    return new Node(name);
  },
  createTextNode: (text) => new Text(text),
};

// Node takes a file for a module by its package; the page's files have none, so a copy gets one.
const folder = mkdtempSync(join(tmpdir(), "tokenmill-markdown-"));
const web = new URL("../../crates/server/web/", import.meta.url);
for (const name of ["clipboard.js", "highlight.js", "markdown.js", "markdown_inline.js", "math.js", "math_symbols.js"]) copyFileSync(new URL(name, web), join(folder, name));
writeFileSync(join(folder, "package.json"), '{"type":"module"}');
const { render } = await import(pathToFileURL(join(folder, "markdown.js")));
rmSync(folder, { recursive: true });

function show(source) {
  const target = new Node("div");
  render(target, source);
  return target;
}

function escape(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

/** The nodes as HTML, without the copy buttons, the languages of code and the frames of tables; of a formula the outermost node has no name. */
function html(node) {
  if (!(node instanceof Node)) return escape(node.text);
  const inner = node.childNodes.map(html).join("");
  if (node.name === "button") return "";
  if (node.name === "div") return inner;
  if (node.name === "math") return `{${inner}}`;
  if (node.className === "language") return "";
  if (node.name === "span") return node.className === "task" ? `${inner} ` : `{${node.className.slice("code-".length)} ${inner}}`;
  if (node.name === "br" || node.name === "hr") return `<${node.name}>`;
  const href = node.href ? ` href="${node.href}"` : "";
  const start = node.start > 1 ? ` start="${node.start}"` : "";
  const side = ["center", "right"].find((name) => name === (node.className ?? node.attributes?.class));
  return `<${node.name}${href}${start}${side ? ` ${side}` : ""}>${inner}</${node.name}>`;
}

function textIn(node) {
  return node instanceof Node ? node.childNodes.map(textIn).join("") : node.text;
}

function* all(node, depth = 0) {
  if (!(node instanceof Node)) return;
  yield [node, depth];
  for (const child of node.childNodes) yield* all(child, depth + 1);
}

const EXAMPLES = [
  ["a\nb", "<p>a<br>b</p>"],
  ["a  \nb", "<p>a<br>b</p>"],
  ["a\n\nb", "<p>a</p><p>b</p>"],
  ["Steps:\n1. a\n2. b", "<p>Steps:</p><ol><li>a</li><li>b</li></ol>"],
  ["In\n2024. It was", "<p>In<br>2024. It was</p>"],
  ["1. a\n\n   more of a\n2. b\n3. c", "<ol><li><p>a</p><p>more of a</p></li><li>b</li><li>c</li></ol>"],
  ["- a\n\n- b", "<ul><li>a</li><li>b</li></ul>"],
  ["3. a\n\n4. b\n\nafter", '<ol start="3"><li>a</li><li>b</li></ol><p>after</p>'],
  ["- a\n  - b\n    1. c\n- d", "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ul>"],
  ["- a\nlazy\n- b", "<ul><li>a<br>lazy</li><li>b</li></ul>"],
  ["1. do\n   ```sh\n   x\n     y\n   ```\n2. next", "<ol><li>do<pre><code>x\n  y</code></pre></li><li>next</li></ol>"],
  ["```py\nif a: # b\n```", "<pre><code>{keyword if} a: {comment # b}</code></pre>"],
  ["```rust\nlet c: &'a str = \"d\\\"e\"; 'f'\n```", "<pre><code>{keyword let} c: &amp;'a {keyword str} = {string \"d\\\"e\"}; {string 'f'}</code></pre>"],
  ["```js\n/* a\nb */ 0x1f `c\n```", "<pre><code>{comment /* a\nb */} {number 0x1f} {string `c}</code></pre>"],
  ["```\n- a\n\n# b\n```\nc", "<pre><code>- a\n\n# b</code></pre><p>c</p>"],
  ["```\nnot closed", "<pre><code>not closed</code></pre>"],
  ["```one line```", "<p><code>one line</code></p>"],
  ["# T #\n## C#\n### ", "<h2>T</h2><h3>C#</h3><h4></h4>"],
  ["> a\n> > b\n>\n> c\nd", "<blockquote><p>a</p><blockquote><p>b</p></blockquote><p>c</p></blockquote><p>d</p>"],
  ["***\n* * *", "<hr><hr>"],
  ["a\n---\nb", "<p>a</p><hr><p>b</p>"],
  ["|a|b|\n|-|:-:|\n|c|`d\\|e`|\nend", "<table><thead><tr><th>a</th><th center>b</th></tr></thead><tbody><tr><td>c</td><td center><code>d|e</code></td></tr></tbody></table><p>end</p>"],
  ["a | b", "<p>a | b</p>"],
  ["**b** *i* _i_ __b__ ~~s~~ ***bi***", "<p><strong>b</strong> <em>i</em> <em>i</em> <strong>b</strong> <s>s</s> <strong><em>bi</em></strong></p>"],
  ["**a *b* c** *d **e** f*", "<p><strong>a <em>b</em> c</strong> <em>d <strong>e</strong> f</em></p>"],
  ["**a\nb**", "<p><strong>a<br>b</strong></p>"],
  ["snake_case_name 2 * 3 * 4 **open", "<p>snake_case_name 2 * 3 * 4 **open</p>"],
  ["\\*a\\* `\\*`", "<p>*a* <code>\\*</code></p>"],
  ["``a ` b`` `` ` `` `open", "<p><code>a ` b</code> <code>`</code> `open</p>"],
  ["[a **b**](https://x.example/?a=1&b=2)", '<p><a href="https://x.example/?a=1&b=2">a <strong>b</strong></a></p>'],
  ["[a](javascript:alert(1)) [](mailto:a@b)", '<p>[a](javascript:alert(1)) <a href="mailto:a@b">mailto:a@b</a></p>'],
  ["<b>x</b>", "<p>&lt;b>x&lt;/b></p>"],
  ["|a|b|\n|-:|-|\n|`c|d`|e|", "<table><thead><tr><th right>a</th><th>b</th></tr></thead><tbody><tr><td right><code>c|d</code></td><td>e</td></tr></tbody></table>"],
  ["|a|b|\n|-|-|\n|c<br>d|&lt;e&gt;|", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>c<br>d</td><td>&lt;e></td></tr></tbody></table>"],
  ["- [ ] a\n- [x] **b**\n- [y] c", "<ul><li>☐ a</li><li>☑ <strong>b</strong></li><li>[y] c</li></ul>"],
  ["See https://x.example/a_b_c?d=(e). And (https://y.example/)!", '<p>See <a href="https://x.example/a_b_c?d=(e)">https://x.example/a_b_c?d=(e)</a>. And (<a href="https://y.example/">https://y.example/</a>)!</p>'],
  ["<https://x.example/> **https://y.example** xhttps://z https://", '<p><a href="https://x.example/">https://x.example/</a> <strong><a href="https://y.example">https://y.example</a></strong> xhttps://z https://</p>'],
  ["![a photo](https://x.example/a.png) ![b](data:x) !", '<p><a href="https://x.example/a.png">Image: a photo</a> ![b](data:x) !</p>'],
  ["[Rust](https://x.example/Rust_(language)) is", '<p><a href="https://x.example/Rust_(language)">Rust</a> is</p>'],
  ['[a](https://x.example "a title (1)") b', '<p><a href="https://x.example">a</a> b</p>'],
  ["[https://x.example](https://x.example 'title')", '<p><a href="https://x.example">https://x.example</a></p>'],
  ["&amp; &lt;b&gt; &#65;&#x42; &unknown; &#0; &constructor; AT&T", "<p>&amp; &lt;b> AB &amp;unknown; &amp;#0; &amp;constructor; AT&amp;T</p>"],
  ["a\\\nb\\", "<p>a<br>b\\</p>"],
  ["\\[a\\] \\(b \\. \\- \\! \\a \\_c\\_", "<p>{<mi>a</mi>} (b . - ! \\a _c_</p>"],
  ["```html\n<a href=\"b\">it's &amp; <!-- c -->\n```", '<pre><code>{keyword &lt;a} href={string "b"}>it\'s {number &amp;amp;} {comment &lt;!-- c -->}</code></pre>'],
  ["It costs $5 and $6, or $7/month; $HOME/bin:$PATH, US$10.", "<p>It costs $5 and $6, or $7/month; $HOME/bin:$PATH, US$10.</p>"],
  ["From $100 (or $90) to 3$, \\$x$ and $ y $ or `$z$`", "<p>From $100 (or $90) to 3$, $x$ and $ y $ or <code>$z$</code></p>"],
  ["$1,000 to $2,000, $20-$30, **$5** and **$6**, $5 + tax = $6, $A and $B, $5 or 6$", "<p>$1,000 to $2,000, $20-$30, <strong>$5</strong> and <strong>$6</strong>, $5 + tax = $6, $A and $B, $5 or 6$</p>"],
  ["the $n$th of $5x$", "<p>the {<mi>n</mi>}th of {<mrow><mn>5</mn><mi>x</mi></mrow>}</p>"],
  ["$E = mc^2$", "<p>{<mrow><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></mrow>}</p>"],
  ["\\(a_1*b*c\\) and *d*", "<p>{<mrow><msub><mi>a</mi><mn>1</mn></msub><mo>∗</mo><mi>b</mi><mo>∗</mo><mi>c</mi></mrow>} and <em>d</em></p>"],
  ["So\n\\[\n- x\n\\]\nand", "<p>So</p><p>{<mrow><mo>−</mo><mi>x</mi></mrow>}</p><p>and</p>"],
  ["$$\nx\n$$", "<p>{<mi>x</mi>}</p>"],
  ["a $$x$$ b $$ c", "<p>a {<mi>x</mi>} b $$ c</p>"],
  ["$$ not closed\n\nb", "<p>$$ not closed</p><p>b</p>"],
  ["a\n\n    b\n\n      *c*\n\n\nd", "<p>a</p><pre><code>b\n\n  *c*</code></pre><p>d</p>"],
  ["\t# a\n    > b", "<pre><code># a\n> b</code></pre>"],
  ["a\n    b", "<p>a<br>b</p>"],
  ["1. a\n\n       b\n2. c", "<ol><li><p>a</p><pre><code>b</code></pre></li><li>c</li></ol>"],
  ["    - a\n    - b", "<ul><li>a</li><li>b</li></ul>"],
  ["- a\n  * b\n  - c\n    1. d\n    1) e\n- f", "<ul><li>a<ul><li>b</li></ul><ul><li>c<ol><li>d</li></ol><ol><li>e</li></ol></li></ul></li><li>f</li></ul>"],
  ["A claim[^1], two[^23].\n\n[^1]: The *note*.\n[^23]: Another", "<p>A claim<sup>1</sup>, two<sup>23</sup>.</p><p><sup>1</sup> The <em>note</em>.<br><sup>23</sup> Another</p>"],
  ["[^0-9] [^a] [^1]: [^1](https://e.example) `[^1]`", '<p>[^0-9] [^a] <sup>1</sup>: <a href="https://e.example">^1</a> <code>[^1]</code></p>'],
  ["H<sub>2</sub>O, e<sup>*x*<sub>1</sub></sup>", "<p>H<sub>2</sub>O, e<sup><em>x</em><sub>1</sub></sup></p>"],
  ["<sub>a *b</sub> c* <sub></sub> <sup>d</sub>", "<p><sub>a *b</sub> c* &lt;sub>&lt;/sub> &lt;sup>d&lt;/sub></p>"],
  ["[a](<https://x.example/b (c>) [d](<mailto:e@f> \"g\") [h](<javascript:1>)", '<p><a href="https://x.example/b (c">a</a> <a href="mailto:e@f">d</a> [h](&lt;javascript:1>)</p>'],
  ["<a.b+c@d-e.example> <a@b>", '<p><a href="mailto:a.b+c@d-e.example">a.b+c@d-e.example</a> &lt;a@b></p>'],
  ["[[1]](https://x.example) [a[0] \\[](https://y.example) [b] [c](https://z.example", '<p><a href="https://x.example">[1]</a> <a href="https://y.example">a[0] [</a> [b] [c](<a href="https://z.example">https://z.example</a></p>'],
  ["[a [b](https://y.example)](https://x.example)", '<p>[a <a href="https://y.example">b</a>](<a href="https://x.example">https://x.example</a>)</p>'],
  ["1. a\n   $$x$$\n2. b", "<ol><li>a<p>{<mi>x</mi>}</p></li><li>b</li></ol>"],
];
/** Formulas on lines of their own, and their nodes. */
const FORMULAS = [
  ["\\frac{a}{b} + \\frac12", "<mrow><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>+</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow>"],
  ["\\sqrt{2}\\sqrt[3]{x}", "<mrow><msqrt><mn>2</mn></msqrt><mroot><mi>x</mi><mn>3</mn></mroot></mrow>"],
  ["\\sum_{i=1}^n i", "<mrow><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><mi>i</mi></mrow>"],
  ["\\int_0^\\infty", "<msubsup><mo>∫</mo><mn>0</mn><mi>∞</mi></msubsup>"],
  ["\\lim_{x \\to 0} \\sin x", "<mrow><munder><mi>lim</mi><mrow><mi>x</mi><mo>→</mo><mn>0</mn></mrow></munder><mi>sin</mi><mi>x</mi></mrow>"],
  ["\\alpha'_i\\Gamma", "<mrow><msubsup><mi>α</mi><mi>i</mi><mo>′</mo></msubsup><mi>Γ</mi></mrow>"],
  ["\\left( \\frac{a}{b} \\right.", "<mrow><mo>(</mo><mfrac><mi>a</mi><mi>b</mi></mfrac></mrow>"],
  ["\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}", "<mrow><mo>(</mo><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable><mo>)</mo></mrow>"],
  ["\\begin{aligned} a &= b \\\\[2pt] &= c \\\\ \\end{aligned}", "<mtable><mtr><mtd right><mi>a</mi></mtd><mtd><mo>=</mo><mi>b</mi></mtd></mtr><mtr><mtd right></mtd><mtd><mo>=</mo><mi>c</mi></mtd></mtr></mtable>"],
  ["a \\\\ b", "<mtable><mtr><mtd><mi>a</mi></mtd></mtr><mtr><mtd><mi>b</mi></mtd></mtr></mtable>"],
  ["\\mathbb{R}^n \\mathcal{L} \\mathbf{v}", "<mrow><msup><mi>ℝ</mi><mi>n</mi></msup><mi>ℒ</mi><mi>𝐯</mi></mrow>"],
  ["\\text{if } x \\le 1{,}5", "<mrow><mtext>if\u00a0</mtext><mi>x</mi><mo>≤</mo><mn>1</mn><mo>,</mo><mn>5</mn></mrow>"],
  ["\\hat{x} \\vec v \\binom{n}{k}", "<mrow><mover><mi>x</mi><mo>^</mo></mover><mover><mi>v</mi><mo>→</mo></mover><mrow><mo>(</mo><mfrac><mi>n</mi><mi>k</mi></mfrac><mo>)</mo></mrow></mrow>"],
  ["\\{x \\mid x > 0\\}", "<mrow><mo>{</mo><mi>x</mi><mo>∣</mo><mi>x</mi><mo>></mo><mn>0</mn><mo>}</mo></mrow>"],
  ["\\mathrm{kg/m^2} \\mathbf{x_1}", "<mrow><mrow><mi>k</mi><mi>g</mi><mo>/</mo><msup><mi>m</mi><mn>2</mn></msup></mrow><msub><mi>𝐱</mi><mn>𝟏</mn></msub></mrow>"],
  ["\\operatorname*{arg\\,max}_x \\ce{H2O}", "<mrow><munder><mi>arg\u2009max</mi><mi>x</mi></munder><mrow><msub><mi>H</mi><mn>2</mn></msub><mi>O</mi></mrow></mrow>"],
  ["\\unknown x}", "<mrow><mtext>\\unknown</mtext><mi>x</mi><mtext>}</mtext></mrow>"],
  ["\\constructor \\hasOwnProperty{a}", "<mrow><mtext>\\constructor</mtext><mtext>\\hasOwnProperty</mtext><mi>a</mi></mrow>"],
  ["x^2^3", "<mrow><msup><mi>x</mi><mn>2</mn></msup><msup><mrow></mrow><mn>3</mn></msup></mrow>"],
  ["\\cdot*<script>", "<mrow><mo>⋅</mo><mo>∗</mo><mo>&lt;</mo><mi>s</mi><mi>c</mi><mi>r</mi><mi>i</mi><mi>p</mi><mi>t</mi><mo>></mo></mrow>"],
];
for (const [source, wanted] of FORMULAS) EXAMPLES.push([`\\[${source}\\]`, `<p>{${wanted}}</p>`]);
const nodesOf = (source, name) => [...all(show(source))].map(([node]) => node).filter((node) => node.name === name);
assert.equal(nodesOf("```py\na\n```", "span")[0].childNodes[0].text, "py");
// Code that grows keeps the nodes of its beginning and its block; another language makes another block.
for (const [language, line] of [["py", "if a: # b\n"], ["", "some words\n"]]) {
  const grown = new Node("div");
  render(grown, `\`\`\`${language}\n${line.repeat(40)}`);
  const [frame, code] = [grown.children[0], [...all(grown)].map(([node]) => node).find(({ name }) => name === "code")];
  const nodes = [...code.childNodes];
  assert(nodes.length >= 40, `${nodes.length}`);
  render(grown, `\`\`\`${language}\n${line.repeat(41)}x`);
  assert.equal(grown.children[0], frame);
  assert.deepEqual(nodes.filter((node, i) => code.childNodes[i] !== node), []);
  assert.equal(code.childNodes.map(textIn).join(""), `${line.repeat(41)}x`);
  render(grown, `\`\`\`${language}\nx`);
  assert.equal(html(grown), "<pre><code>x</code></pre>");
  render(grown, "```js\nx");
  assert.notEqual(grown.children[0], frame);
}
assert.equal(nodesOf("$$x^2$$", "math")[0].attributes.alttext, "x^2");
for (const [source, wanted] of EXAMPLES) assert.equal(html(show(source)), `${wanted}`, source);

for (const scheme of ["javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "https:\0//x", "//evil", "\x01javascript:1", "vbscript:x"]) {
  for (const [node] of all(show(`[a](${scheme})`))) assert(!node.href || /^https:/.test(node.href), scheme);
}

/** Texts that are slow or deep for a careless renderer; each is tried at a size and at eight times the size. */
const HOSTILE = {
  quotes: (n) => `${">".repeat(n)} x`,
  "spaced quotes": (n) => `${"> ".repeat(n / 2)}x`,
  "a heading of spaces": (n) => `# a${" ".repeat(n)}x`,
  "a heading of marks": (n) => `# ${"# ".repeat(n / 2)}x`,
  brackets: (n) => "[".repeat(n),
  "open links": (n) => "[a](".repeat(n / 4),
  "open links with an end": (n) => `${"[a](https:".repeat(n / 10)})`,
  "empty links": (n) => "[](https:x)".repeat(n / 11),
  "brackets in pairs": (n) => "[".repeat(n / 2) + "]".repeat(n / 2),
  "links in labels": (n) => `${"[".repeat(n / 8)}a${"](https:x)".repeat(n / 12)}`,
  "addresses in angles": (n) => "[a](<https:".repeat(n / 11),
  "addresses of mail": (n) => `<a@${"a.".repeat(n / 4)}${"a".repeat(n / 2)}`,
  "titles without an end": (n) => `[a](<https:x> "`.repeat(n / 15),
  "letters lower and higher": (n) => "<sub>a<sup>".repeat(n / 11),
  "lower letters that end": (n) => "</sub>".repeat(n / 6),
  "indented lines": (n) => "    a\n\n".repeat(n / 7),
  "indented blank lines": (n) => `    a${"\n    ".repeat(n / 5)}`,
  backticks: (n) => Array.from({ length: n / 20 }, (_, i) => "`".repeat((i % 19) + 1)).join("a"),
  "rising backticks": (n) => Array.from({ length: Math.sqrt(n) }, (_, i) => "`".repeat(i + 1)).join("a"),
  stars: (n) => "*a ".repeat(n / 3),
  "stars alone": (n) => "*".repeat(n),
  "closing stars": (n) => "a* ".repeat(n / 3),
  underscores: (n) => "_a ".repeat(n / 3),
  tildes: (n) => "~~a ".repeat(n / 4),
  "nested marks": (n) => `${"**_".repeat(n / 6)}a${"_**".repeat(n / 6)}`,
  "mixed marks": (n) => "*a **b _c __d ~~e ".repeat(n / 18),
  backslashes: (n) => "\\*".repeat(n / 2),
  "a table's second line": (n) => `|a\n${"|-".repeat(n / 2)}x`,
  "a wide table": (n) => `${"|a".repeat(n / 4)}\n${"|-".repeat(n / 4)}`,
  "a table's spaces": (n) => `|a\n${" ".repeat(n)}-x`,
  "rows of pipes": (n) => "a|b\n".repeat(n / 4),
  "a rule of marks": (n) => `${"- ".repeat(n / 2)}x`,
  "a rule of spaces": (n) => `- -${" ".repeat(n)}x`,
  "a staircase": (n) => Array.from({ length: Math.sqrt(n) }, (_, i) => `${" ".repeat(i * 2)}- a`).join("\n"),
  "markers in one line": (n) => "- ".repeat(n / 2) + "x",
  "quotes and markers": (n) => "> - ".repeat(n / 4) + "x",
  "blank lines in a list": (n) => `- a${"\n".repeat(n)}x`,
  "items with blank lines": (n) => "- a\n\n".repeat(n / 5),
  "a paragraph of lines": (n) => "a\n".repeat(n / 2),
  fences: (n) => "```\n".repeat(n / 4),
  "rising fences": (n) => Array.from({ length: Math.sqrt(n) }, (_, i) => "`".repeat(i + 3)).join("\n"),
  spaces: (n) => " ".repeat(n),
  "open formulas": (n) => "\\[\n".repeat(n / 3),
  "formulas in one line": (n) => "$a$ ".repeat(n / 4),
  dollars: (n) => "$ ".repeat(n / 2),
  "dollars without spaces": (n) => "$a".repeat(n / 2),
  "open groups": (n) => `$$${"{".repeat(n)}$$`,
  "open groups of a short formula": (n) => `$$${"{".repeat(7000)}$$ `.repeat(n / 7000),
  "scripts of scripts": (n) => `$$${"x^{".repeat(2000)}$$\n`.repeat(n / 6000),
  "scripts in a row": (n) => `$$${"^1_2'".repeat(1400)}$$\n`.repeat(n / 7000),
  "fractions of fractions": (n) => `$$${"\\frac".repeat(1400)}$$\n`.repeat(n / 7000),
  roots: (n) => `$$${"\\sqrt[".repeat(1100)}$$\n`.repeat(n / 7000),
  environments: (n) => `$$${"\\begin{matrix}".repeat(500)}$$\n`.repeat(n / 7000),
  "left brackets": (n) => `$$${"\\left(".repeat(1100)}$$\n`.repeat(n / 7000),
  "alphabets of alphabets": (n) => `$$${"\\mathbf{^".repeat(700)}$$\n`.repeat(n / 7000),
  accents: (n) => `$$${"\\hat".repeat(1700)}$$\n`.repeat(n / 7000),
  addresses: (n) => "https://a) ".repeat(n / 11),
  "an address of brackets": (n) => `https://a${"(".repeat(n / 2)}${")".repeat(n / 2)}`,
  "addresses in a row": (n) => "https://".repeat(n / 8),
  entities: (n) => "&amp;&#1".repeat(n / 8),
  "angles": (n) => "<https://a".repeat(n / 10),
  "images": (n) => "![".repeat(n / 2),
  "code in a row of a table": (n) => `|a|b|\n|-|-|\n${"|`a".repeat(n / 3)}`,
  markup: (n) => `\`\`\`html\n${"<a b='".repeat(n / 7)}`,
  "white space of all kinds": (n) => "\u00a0\t\u2028\r".repeat(n / 4),
};
function seconds(source) {
  const begin = process.cpuUsage();
  const target = show(source);
  const used = process.cpuUsage(begin);
  const spent = (used.user + used.system) / 1e6;
  let deepest = 0;
  for (const [, depth] of all(target)) deepest = Math.max(deepest, depth);
  assert(deepest < 200, `nested ${deepest} deep`);
  return spent;
}
for (const [name, make] of Object.entries(HOSTILE)) {
  try {
    const [small, large] = [seconds(make(20_000)), seconds(make(160_000))];
    // Linear would be 8 times; the first term absorbs compiling and a busy machine.
    assert(large < 0.5 + 20 * small && large < 4, `${small.toFixed(3)} s, then ${large.toFixed(3)} s`);
  } catch (error) {
    throw new Error(name, { cause: error });
  }
}

/** A repeatable source of numbers (mulberry32). */
function random(seed) {
  return (n) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % n;
  };
}

const PIECES = [
  "\n", "\n", "\n\n", " ", "  ", "    ", "\t", "- ", "* ", "+ ", "1. ", "2) ", "> ", ">", "# ", "### ", "```", "```js\n", "~~~", "`", "``",
  "*", "**", "***", "_", "__", "~~", "[", "]", "(", ")", "](https://e.example/", "](<https://e.example/", "](javascript:", "<sub>", "</sub>", "<sup>", "</sup>", "|", "|-|-|", "\n|-|\n", "---", "\\", "<b>",
  "&", "&amp;", "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\frac", "\\begin{matrix}", "{", "}", "^", "!", "https://e.example/", "<br>", "- [ ] ", "\r\n", "é", "\u{1f600}", "\u202e", "\0",
];
const ALLOWED = new Set("math mrow mi mn mo mtext mspace msub msup msubsup munder mover munderover mfrac msqrt mroot mtable mtr mtd mstyle div p h2 h3 h4 h5 h6 hr br blockquote pre code button ul ol li table thead tbody tr th td strong em s sub sup a span".split(" "));

/** All text that a reader meets, links' targets included. */
function textOf(node) {
  if (!(node instanceof Node)) return node.text;
  if (node.name === "button" || node.className === "language") return "";
  // Each letter of a formula is a node of its own.
  return node.childNodes.map(textOf).join("") + (node.href ?? "");
}

const count = Number(process.argv[2] ?? 4000);
const seed = Number(process.argv[3] ?? 1);
for (let round = 0; round < count; round += 1) {
  const next = random(seed * 1_000_003 + round);
  let source = "";
  let nWords = 0;
  for (let left = 1 + next(60); left > 0; left -= 1) source += next(3) ? PIECES[next(PIECES.length)] : `w${(nWords += 1)}w`;
  try {
    const whole = show(source);
    for (const [node] of all(whole)) {
      assert(ALLOWED.has(node.name), `<${node.name}>`);
      assert(!node.href || /^(https?:|mailto:)/i.test(node.href), node.href);
    }
    // Only the word behind an opening fence, which names a language, is not shown.
    const shown = textOf(whole);
    const fenced = [...source.matchAll(/(?:`{3,}|~{3,})([^\n]*)/g)].map((hit) => hit[1]).join(" ");
    for (let word = 1; word <= nWords; word += 1) {
      assert(shown.includes(`w${word}w`) || fenced.includes(`w${word}w`), `w${word}w is lost`);
    }
    // Text that streams in ends as the same nodes.
    const streamed = new Node("div");
    for (let end = 0; end < source.length; end += 1 + next(9)) render(streamed, source.slice(0, end));
    render(streamed, source);
    assert.equal(html(streamed), html(whole), "streamed and whole differ");
  } catch (error) {
    throw new Error(`text ${round} of seed ${seed}: ${JSON.stringify(source)}`, { cause: error });
  }
}
console.log(`the page's Markdown: ${EXAMPLES.length} examples, ${Object.keys(HOSTILE).length} hostile and ${count} random texts`);
