// The page's Markdown under node: examples, hostile texts within a time limit, and properties over random texts.
//
// Usage: node tests/e2e/markdown.mjs [number of random texts] [seed]

import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** As much of the DOM as the renderer uses. */
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
    child = typeof child === "string" ? { text: child } : child;
    this.childNodes.push(child);
    if (!(child instanceof Node)) return;
    child.parent = this;
    this.children.push(child);
  }
  remove() {
    for (const list of [this.parent.childNodes, this.parent.children]) list.splice(list.indexOf(this), 1);
  }
  replaceWith(other) {
    other.parent = this.parent;
    for (const list of [this.parent.childNodes, this.parent.children]) list[list.indexOf(this)] = other;
  }
  addEventListener() {}
}
globalThis.document = {
  createElement: (name) => new Node(name),
  createTextNode: (text) => ({ text: String(text) }),
};

// Node takes a file for a module by its package; the page's files have none, so a copy gets one.
const folder = mkdtempSync(join(tmpdir(), "tokenmill-markdown-"));
const web = new URL("../../crates/server/web/", import.meta.url);
for (const name of ["highlight.js", "markdown.js", "markdown_inline.js"]) copyFileSync(new URL(name, web), join(folder, name));
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

/** The nodes as HTML, without the copy buttons and the frames of tables. */
function html(node) {
  if (!(node instanceof Node)) return escape(node.text);
  const inner = node.childNodes.map(html).join("");
  if (node.name === "button") return "";
  if (node.name === "div") return inner;
  if (node.name === "span") return `{${node.className.slice("code-".length)} ${inner}}`;
  if (node.name === "br" || node.name === "hr") return `<${node.name}>`;
  const href = node.href ? ` href="${node.href}"` : "";
  const start = node.start > 1 ? ` start="${node.start}"` : "";
  return `<${node.name}${href}${start}>${inner}</${node.name}>`;
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
  ["|a|b|\n|-|:-:|\n|c|`d\\|e`|\nend", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>c</td><td><code>d|e</code></td></tr></tbody></table><p>end</p>"],
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
];
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
  "white space of all kinds": (n) => "\u00a0\t\u2028\r".repeat(n / 4),
};
function seconds(source) {
  const begin = process.cpuUsage();
  const target = show(source);
  const used = process.cpuUsage(begin);
  const spent = (used.user + used.system) / 1e6;
  const deepest = Math.max(...[...all(target)].map(([, depth]) => depth));
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
  "*", "**", "***", "_", "__", "~~", "[", "]", "(", ")", "](https://e.example/", "](javascript:", "|", "|-|-|", "\n|-|\n", "---", "\\", "<b>",
  "&", "\r\n", "é", "\u{1f600}", "\u202e", "\0",
];
const ALLOWED = new Set("div p h2 h3 h4 h5 h6 hr br blockquote pre code button ul ol li table thead tbody tr th td strong em s a span".split(" "));

/** All text that a reader meets, links' targets included. */
function textOf(node) {
  if (!(node instanceof Node)) return node.text;
  if (node.name === "button") return "";
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
