// The engine view: figures and plots from the Prometheus text of /metrics, read once a second while the view is open.

import { headers } from "./chat.js";

const KEPT = 120;
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const whole = (v) => v.toFixed(0);
const share = (v) => `${(v * 100).toFixed(1)} %`;
const rate = (v) => (v < 10 ? v.toFixed(1) : v.toFixed(0));

// Metric, label, how to show it, and whether it is shown as its rate of change.
const SERIES = [
  { metric: "tokenmill_generated_tokens_total", label: "Generated tokens/s", isRate: true, format: rate },
  { metric: "tokenmill_prompt_tokens_total", label: "Prompt tokens/s", isRate: true, format: rate },
  { metric: "tokenmill_requests_running", label: "Running requests", format: whole },
  { metric: "tokenmill_requests_waiting", label: "Waiting requests", format: whole },
  { metric: "tokenmill_kv_usage_ratio", label: "KV pages in use", format: share },
];
// Caption, the series drawn (the second one dashed), and the top of the axis where it does not follow the values.
const PLOTS = [
  { caption: "Generated tokens/s", drawn: [SERIES[0]] },
  { caption: "Prompt tokens/s", drawn: [SERIES[1]] },
  { caption: "Requests running, and waiting (dashed)", drawn: [SERIES[2], SERIES[3]] },
  { caption: "KV pages in use", drawn: [SERIES[4]], top: 1 },
];
const points = new Map(SERIES.map((series) => [series.metric, []]));
let last = null;
let timer = 0;

/** Sums each metric over its labels. */
export function parseMetrics(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const hit = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)/.exec(line);
    if (hit) values.set(hit[1], (values.get(hit[1]) ?? 0) + Number(hit[2]));
  }
  return values;
}

function node(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The smallest of 1, 2 or 5 times a power of ten that is not below `value`, at least 1. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((n) => n * power).find((top) => top >= value) ?? 1;
}

function plot({ caption, drawn, top: fixedTop }) {
  const width = 320;
  const height = 90;
  const lines = drawn.map(({ metric }) => points.get(metric));
  const top = fixedTop ?? niceTop(Math.max(0, ...lines.flat()));
  const y = (v) => height - (v / top) * height;
  const label = `${caption}, last two minutes`;
  const drawing = node("svg", { viewBox: `0 -4 ${width} ${height + 8}`, role: "img", "aria-label": label },
    node("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }),
    node("line", { class: "axis", x1: 0, x2: width, y1: 0, y2: 0 }));
  lines.forEach((values, at) => {
    if (values.length < 2) return;
    const x = (i) => ((i + KEPT - values.length) / (KEPT - 1)) * width;
    const path = values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    if (at === 0) drawing.append(node("path", { class: "area", d: `${path}L${width} ${height}L${x(0).toFixed(1)} ${height}Z` }));
    drawing.append(node("path", { class: at ? "line second" : "line", d: path }));
  });
  drawing.append(node("text", { x: 2, y: 12 }, drawn[0].format(top)));
  const figure = document.createElement("figure");
  const words = document.createElement("figcaption");
  words.textContent = caption;
  figure.append(words, drawing);
  return figure;
}

async function poll() {
  try {
    const response = await fetch("/metrics", { headers: headers() });
    if (!response.ok) throw new Error(`/metrics answered ${response.status}; is an API key needed?`);
    const now = performance.now() / 1000;
    const values = parseMetrics(await response.text());
    for (const { metric, isRate } of SERIES) {
      const value = values.get(metric) ?? 0;
      const shown = isRate ? (last ? Math.max(0, value - (last.values.get(metric) ?? 0)) / (now - last.now) : 0) : value;
      const kept = points.get(metric);
      kept.push(shown);
      if (kept.length > KEPT) kept.shift();
    }
    last = { now, values };
    $("engine-error").textContent = "";
  } catch (error) {
    $("engine-error").textContent = error.message;
  }
  draw();
}

function draw() {
  $("figures").replaceChildren(...SERIES.map((series) => {
    const box = document.createElement("div");
    const term = document.createElement("dt");
    const figure = document.createElement("dd");
    term.textContent = series.label;
    figure.textContent = series.format(points.get(series.metric).at(-1) ?? 0);
    box.append(term, figure);
    return box;
  }));
  $("plots").replaceChildren(...PLOTS.map(plot));
}

/** Starts or stops the polling. */
export function showEngine(isShown) {
  clearInterval(timer);
  timer = 0;
  last = null;
  if (!isShown) return;
  poll();
  timer = setInterval(poll, 1000);
}
