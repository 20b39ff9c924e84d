// Renders Markdown into DOM nodes. Text only ever becomes text nodes: nothing a model writes is parsed as HTML, and
// links keep only http, https and mailto targets.

const SAFE_LINK = /^(https?:|mailto:)/i;

/** Splits source into blocks; a block never spans two others, so finished ones need no new rendering. */
export function splitBlocks(source) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const flush = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of source.split("\n")) {
    const mark = /^\s*(`{3,}|~{3,})/.exec(line)?.[1];
    if (fence) {
      lines.push(line);
      if (mark && mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) {
        fence = null;
        flush();
      }
    } else if (mark) {
      flush();
      fence = mark;
      lines.push(line);
    } else if (line.trim() === "") {
      flush();
    } else if (/^#{1,6}\s/.test(line)) {
      flush();
      blocks.push(line);
    } else {
      lines.push(line);
    }
  }
  flush();
  return blocks;
}

/** Shows `source` in `target`, keeping the nodes of blocks that did not change since the last call. */
export function render(target, source) {
  const blocks = splitBlocks(source);
  blocks.forEach((block, i) => {
    const old = target.children[i];
    if (old?.source === block) return;
    const node = renderBlock(block);
    node.source = block;
    if (old) old.replaceWith(node);
    else target.append(node);
  });
  while (target.children.length > blocks.length) target.lastElementChild.remove();
}

function element(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

function renderBlock(block) {
  const lines = block.split("\n");
  const first = lines[0];
  if (/^\s*(`{3,}|~{3,})/.test(first)) return renderCode(lines);
  const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(first);
  // The page's own title is the first level.
  if (heading) return element(`h${Math.min(6, heading[1].length + 1)}`, ...inline(heading[2]));
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(first) && lines.length === 1) return element("hr");
  if (lines.every((line) => /^\s*>/.test(line))) {
    const quote = element("blockquote");
    for (const inner of splitBlocks(lines.map((line) => line.replace(/^\s*> ?/, "")).join("\n"))) {
      quote.append(renderBlock(inner));
    }
    return quote;
  }
  if (lines.length > 1 && first.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[1])) {
    return renderTable(lines);
  }
  if (/^\s*([-*+]|\d+[.)])\s/.test(first)) return renderList(lines);
  const paragraph = element("p");
  lines.forEach((line, i) => {
    if (i) paragraph.append(/ {2}$/.test(lines[i - 1]) ? element("br") : "\n");
    paragraph.append(...inline(line.trimEnd()));
  });
  return paragraph;
}

function renderCode(lines) {
  const fence = /^\s*(`{3,}|~{3,})/.exec(lines[0])[1];
  const isClosed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
  const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  });
  return element("pre", element("code", text), copy);
}

function renderTable(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (name, line) => element("tr", ...cells(line).map((cell) => element(name, ...inline(cell))));
  return element(
    "table",
    element("thead", row("th", lines[0])),
    element("tbody", ...lines.slice(2).map((line) => row("td", line))),
  );
}

function renderList(lines) {
  const indentOf = (line) => /^\s*/.exec(line)[0].length;
  const base = indentOf(lines[0]);
  const isOrdered = /^\s*\d/.test(lines[0]);
  const list = element(isOrdered ? "ol" : "ul");
  if (isOrdered) list.start = parseInt(lines[0], 10) || 1;
  let nested = [];
  const closeNested = () => {
    if (nested.length) list.lastElementChild?.append(/^\s*([-*+]|\d+[.)])\s/.test(nested[0]) ? renderList(nested) : nested.join("\n"));
    nested = [];
  };
  for (const line of lines) {
    const item = /^\s*(?:[-*+]|\d+[.)])\s+(.*)$/.exec(line);
    if (item && indentOf(line) <= base) {
      closeNested();
      list.append(element("li", ...inline(item[1])));
    } else if (item || nested.length) {
      nested.push(line);
    } else {
      list.lastElementChild?.append("\n", ...inline(line.trim()));
    }
  }
  closeNested();
  return list;
}

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*(?!\s)(.+?)\*|\b_(?!\s)(.+?)_\b|~~(.+?)~~|\[([^\]]*)\]\(([^)\s]+)\)/;

/** Nodes of one line of text. */
function inline(text) {
  const nodes = [];
  for (let rest = text; rest; ) {
    const hit = INLINE.exec(rest);
    if (!hit) {
      nodes.push(rest);
      break;
    }
    if (hit.index) nodes.push(rest.slice(0, hit.index));
    nodes.push(inlineNode(hit));
    rest = rest.slice(hit.index + hit[0].length);
  }
  return nodes;
}

function inlineNode([whole, , code, bold, bold2, italic, italic2, struck, label, target]) {
  if (code !== undefined) return element("code", code);
  if (bold ?? bold2) return element("strong", ...inline(bold ?? bold2));
  if (italic ?? italic2) return element("em", ...inline(italic ?? italic2));
  if (struck !== undefined) return element("s", ...inline(struck));
  if (target !== undefined && SAFE_LINK.test(target)) {
    const link = element("a", label || target);
    link.href = target;
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    return link;
  }
  return document.createTextNode(whole);
}
