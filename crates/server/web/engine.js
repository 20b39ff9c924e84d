// The engine view: figures and plots from the Prometheus text of /metrics, read once a second from the page's start, so
// that the last two minutes are there when the view is opened.

import { noteServer } from "./failures.js";
import { look } from "./models.js";
import { headers } from "./settings.js";

const SHOWN_S = 120;
const PERIOD_MS = 1000;
const RETRY_MS = 5000;
const STATES = { down: "down", starting: "starting", ready: "ready" };
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const whole = (v) => v.toFixed(0);
const share = (v) => `${(v * 100).toFixed(1)}%`;
const rate = (v) => (v < 10 ? v.toFixed(1) : v.toFixed(0));

// Metric, label, how to show it, and whether it is shown as its rate of change.
const SERIES = [
  { metric: "tokenmill_generated_tokens_total", label: "Generated tokens/s", isRate: true, format: rate },
  { metric: "tokenmill_prompt_tokens_total", label: "Prompt tokens/s", isRate: true, format: rate },
  { metric: "tokenmill_requests_running", label: "Running requests", format: whole },
  { metric: "tokenmill_requests_waiting", label: "Waiting requests", format: whole },
  { metric: "tokenmill_kv_usage_ratio", label: "Context memory in use", format: share },
];
// Caption, the series drawn (the second one dashed), and the top of the axis where it does not follow the values.
const PLOTS = [
  { caption: "Generated tokens/s", drawn: [SERIES[0]] },
  { caption: "Prompt tokens/s", drawn: [SERIES[1]] },
  { caption: "Requests running, and waiting (dashed)", drawn: [SERIES[2], SERIES[3]] },
  { caption: "Context memory in use", drawn: [SERIES[4]], top: 1 },
];
// The points of each metric, `{ at, value }` in the order of time; `at` in seconds. One without a value ends a line: the server did not answer.
const points = new Map(SERIES.map((series) => [series.metric, []]));
let last = null;
let timer = 0;
let isShown = false;
let failure = "";
/** What the server was when it was last asked, one of `STATES`; empty before that. */
let state = "";

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

/** The points of each line, where one without a value ends it. */
function runs(values) {
  const lines = [[]];
  for (const point of values) {
    if (point.value === null) lines.push([]);
    else lines.at(-1).push(point);
  }
  return lines.filter((line) => line.length);
}

function plot({ caption, drawn, top: fixedTop }, now) {
  const width = 320;
  const height = 90;
  const shown = drawn.map(({ metric }) => points.get(metric));
  const top = fixedTop ?? niceTop(Math.max(0, ...shown.flat().map(({ value }) => value)));
  const x = (at) => (1 - (now - at) / SHOWN_S) * width;
  const y = (v) => height - (v / top) * height;
  const label = `${caption}, last two minutes`;
  const drawing = node("svg", { viewBox: `0 -4 ${width} ${height + 8}`, role: "img", "aria-label": label },
    node("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }),
    node("line", { class: "axis", x1: 0, x2: width, y1: 0, y2: 0 }));
  shown.forEach((values, nth) => {
    if (values.length < 2) return;
    const lines = runs(values);
    const path = (run) => run.map(({ at, value }, i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const area = (run) => `${path(run)}L${x(run.at(-1).at).toFixed(1)} ${height}L${x(run[0].at).toFixed(1)} ${height}Z`;
    if (nth === 0) drawing.append(node("path", { class: "area", d: lines.map(area).join("") }));
    drawing.append(node("path", { class: nth ? "line second" : "line", d: lines.map(path).join("") }));
  });
  drawing.append(node("text", { x: 2, y: 12 }, drawn[0].format(top)));
  const figure = document.createElement("figure");
  const words = document.createElement("figcaption");
  words.textContent = caption;
  figure.append(words, drawing);
  return figure;
}

/** Reads the figures once, then plans the next time. */
async function poll() {
  clearTimeout(timer);
  timer = 0;
  let wait = PERIOD_MS;
  try {
    const response = await fetch("/metrics", { headers: headers() });
    note(response.status === 503 ? STATES.starting : STATES.ready);
    if (response.ok) keep(parseMetrics(await response.text()));
    failure = response.ok ? "" : `/metrics answered ${response.status}`;
    // Without a key every further request would be refused; `watchEngine` starts again when there is one.
    if (response.status === 503) failure = "The server is not ready yet.";
    else if (response.status === 401) [wait, failure] = [0, "The figures need an API key: see “Settings”."];
    else if (!response.ok) wait = RETRY_MS;
  } catch {
    note(STATES.down);
    failure = "The server does not answer.";
    wait = RETRY_MS;
  }
  if (failure) keepGap();
  if (isShown) draw();
  clearTimeout(timer);
  timer = wait ? setTimeout(poll, wait) : 0;
}

/** Takes note of what the server is. One that was down or is ready now may have another model than before. */
function note(now) {
  noteServer(now === STATES.ready);
  if (state && now !== state) look();
  state = now;
}

function keep(values) {
  const now = performance.now() / 1000;
  for (const { metric, isRate } of SERIES) {
    const value = values.get(metric) ?? 0;
    const kept = points.get(metric);
    if (!isRate) kept.push({ at: now, value });
    else if (last) kept.push({ at: now, value: Math.max(0, value - (last.values.get(metric) ?? 0)) / (now - last.now) });
    while (kept.length && now - kept[0].at > SHOWN_S) kept.shift();
  }
  last = { now, values };
}

/** Takes note that there are no figures now; rates begin anew. */
function keepGap() {
  last = null;
  for (const kept of points.values()) if (kept.length && kept.at(-1).value !== null) kept.push({ at: performance.now() / 1000, value: null });
}

function draw() {
  const now = performance.now() / 1000;
  $("figures").replaceChildren(...SERIES.map((series) => {
    const box = document.createElement("div");
    const term = document.createElement("dt");
    const figure = document.createElement("dd");
    term.textContent = series.label;
    const value = points.get(series.metric).at(-1)?.value ?? null;
    figure.textContent = value === null ? "–" : series.format(value);
    box.append(term, figure);
    return box;
  }));
  $("plots").replaceChildren(...PLOTS.map((which) => plot(which, now)));
  $("engine-error").textContent = failure;
}

/** Begins to read the figures, or begins again after a new key. */
export function watchEngine() {
  poll();
}

/** Shows or hides the view. */
export function showEngine(isOpen) {
  isShown = isOpen;
  if (isShown) draw();
}
