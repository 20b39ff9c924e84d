// The decide view: a text, questions with options, and the probability of each option as a bar. Nothing is stored.
//
// An answer belongs to what was asked: it goes when its question, the text or the model is changed.

import { needsKey, NO_ANSWER } from "./failures.js";
import { model } from "./model.js";
import { headers } from "./settings.js";

const TYPES = { noul: "Yes or no", choice: "One of several options", score: "A level of several" };
/** What stands above the box of the options. */
const OPTIONS = {
  choice: "Options, one a line; a description may follow a colon",
  score: "Levels, one a line, the lowest first",
};
const $ = (id) => document.getElementById(id);
/** The request that is under way. */
let running = null;
/** The model that was asked last. */
let askedModel = "";

/** An element with these properties and children. */
function made(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const questions = () => [...$("questions").children];
const part = (question, name) => question.querySelector(`.${name}`);

function tell(words, failure = "") {
  $("decide-told").textContent = words;
  $("decide-error").textContent = failure;
}

/** Takes answers back whose question or text is another one now, and what was said of them; a request for them ends too. */
function forget(nodes) {
  running?.abort();
  for (const question of nodes) part(question, "answer").replaceChildren();
  tell("");
}

/** Gives the questions their numbers; a single one cannot be removed. */
function number() {
  questions().forEach((question, i) => {
    part(question, "name").textContent = `Question ${i + 1}`;
    part(question, "remove").ariaLabel = `Remove question ${i + 1}`;
    part(question, "remove").hidden = questions().length === 1;
  });
}

function addQuestion() {
  const choices = Object.entries(TYPES).map(([value, words]) => new Option(words, value));
  const type = made("select", { className: "type" }, ...choices);
  const about = made("span");
  const options = made("label", { className: "wide", hidden: true }, about, made("textarea", { className: "options", rows: 3, dir: "auto" }));
  const remove = made("button", { type: "button", className: "remove", textContent: "Remove" });
  const question = made("li", {},
    made("label", {}, made("span", { className: "name" }), made("input", { className: "instructions", dir: "auto", autocomplete: "off" })),
    made("label", {}, "Answer", type), options, remove, made("div", { className: "answer wide", role: "status" }));
  question.addEventListener("input", () => forget([question]));
  type.addEventListener("change", () => {
    options.hidden = !OPTIONS[type.value];
    about.textContent = OPTIONS[type.value] ?? "";
  });
  remove.addEventListener("click", () => {
    forget([]);
    question.remove();
    number();
    $("add-question").focus();
  });
  $("questions").append(question);
  number();
  return question;
}

/** The lines of a box that say something. */
function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** A question as JSON, and the names of its options. Objects of JavaScript would bring numbers into another order. */
function read(question, nth) {
  const instructions = part(question, "instructions").value.trim();
  const type = part(question, "type").value;
  if (!instructions) throw new Error(`Question ${nth} has no text.`);
  const lines = linesOf(part(question, "options").value);
  const head = `"type":${JSON.stringify(type)},"instructions":${JSON.stringify(instructions)}`;
  if (type === "noul") return { json: `{${head}}`, names: ["yes", "no"] };
  if (lines.length < 2) throw new Error(`Question ${nth} needs two ${type === "score" ? "levels" : "options"} or more.`);
  if (type === "score") return { json: `{${head},"criteria":${JSON.stringify(lines)}}`, names: lines };
  const pairs = lines.map((line) => {
    const at = line.indexOf(":");
    return at > 0 ? [line.slice(0, at).trim(), line.slice(at + 1).trim() || null] : [line, null];
  });
  const names = pairs.map(([name]) => name);
  const twice = names.find((name, i) => names.indexOf(name) < i);
  if (twice !== undefined) throw new Error(`Question ${nth} has the option “${twice}” twice.`);
  const members = pairs.map((pair) => pair.map((text) => JSON.stringify(text)).join(":"));
  return { json: `{${head},"criteria":{${members}}}`, names };
}

/** What a refusal says, as a sentence: the server names a field by its path, in which questions are `q1`, `q2`, … */
async function refusal(response) {
  if (response.status === 401) return needsKey();
  const { detail, error } = await response.json().catch(() => ({}));
  const [fault] = Array.isArray(detail) ? detail : [];
  const words = fault?.msg ?? (typeof detail === "string" ? detail : error?.message) ?? `the server answered ${response.status}`;
  const nth = fault?.loc?.map((step) => /^q(\d+)$/.exec(step)?.[1]).find(Boolean);
  const said = nth ? words.replace(/^`questions\.q[^`]*`: /, "") : words;
  const text = `${said[0].toUpperCase()}${said.slice(1)}`;
  return `${nth ? `Question ${nth}: ` : ""}${text}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** The probabilities of an answer, in the order of the names, and what it comes to. */
function outcome(answer, names) {
  if (answer.type === "noul") return { said: `yes with ${answer.noul.toFixed(3)}`, shares: [answer.noul, 1 - answer.noul] };
  const shares = names.map((name, i) => answer.probabilities[answer.type === "score" ? i : name]);
  const confidence = `confidence ${answer.confidence.toFixed(3)}`;
  if (answer.type === "choice") return { said: `${answer.choice}, ${confidence}`, shares };
  return { said: `${answer.score.toFixed(2)} of 0 to ${names.length - 1}, ${confidence}`, shares };
}

function showAnswer(question, answer, names) {
  const { said, shares } = outcome(answer, names);
  const bars = names.map((name, i) => made("div", { className: "bar" },
    made("span", { textContent: name, dir: "auto" }),
    made("meter", { min: 0, max: 1, value: shares[i], ariaLabel: name }),
    made("span", { textContent: shares[i].toFixed(3) })));
  const mass = answer.x_label_mass;
  const doubt = mass < 0.5 ? `The options have only ${(100 * mass).toFixed(0)} % of the model's probability: it wanted to write something else.` : "";
  part(question, "answer").replaceChildren(made("p", { textContent: said }), ...bars, made("p", { className: "quiet", textContent: doubt }));
}

async function decide() {
  const asked = questions();
  forget(asked);
  let taken;
  try {
    if (!$("state").value.trim()) throw new Error("There is no text to decide about.");
    taken = asked.map((question, i) => read(question, i + 1));
  } catch (error) {
    tell("", error.message);
    return;
  }
  const members = taken.map(({ json }, i) => `"q${i + 1}":${json}`);
  const body = `{"model":${JSON.stringify(model.name)},"state":${JSON.stringify($("state").value)},"questions":{${members}}}`;
  const own = new AbortController();
  running = own;
  askedModel = model.name;
  tell("Deciding …");
  try {
    const response = await fetch("/v1/systemone", { method: "POST", headers: headers(), body, signal: own.signal });
    if (!response.ok) {
      tell("", await refusal(response));
      return;
    }
    const { answers, usage } = await response.json();
    if (own.signal.aborted) return;
    asked.forEach((question, i) => showAnswer(question, answers[`q${i + 1}`], taken[i].names));
    tell(`${usage.input_tokens.toLocaleString("en")} tokens read.`);
  } catch (error) {
    // The next request has words of its own.
    if (running !== own) return;
    if (own.signal.aborted) tell("");
    else tell("", error instanceof SyntaxError ? "The server's answer cannot be read." : NO_ANSWER);
  } finally {
    if (running === own) running = null;
  }
}

/** Takes all answers back if another model is asked now. One that the request itself had loaded is the same. */
export function forgetAnswers() {
  if (askedModel && model.name !== askedModel) forget(questions());
}

/** Connects the view; call once. */
export function startDecide() {
  addQuestion();
  $("add-question").addEventListener("click", () => part(addQuestion(), "instructions").focus());
  $("state").addEventListener("input", () => forget(questions()));
  $("deciding").addEventListener("submit", (event) => {
    event.preventDefault();
    decide();
  });
  $("deciding").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("deciding").requestSubmit();
  });
}
