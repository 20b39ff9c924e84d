// The chat view: conversation, composer, streaming answer. The conversation lives in localStorage.

import { render } from "./markdown.js";
import { errorMessage, events } from "./sse.js";

const STORE = "tokenmill.conversation";
const SETTINGS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const $ = (id) => document.getElementById(id);

let conversation = load();
let running = null;

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(stored) ? stored.filter((m) => typeof m?.content === "string" && typeof m?.role === "string") : [];
  } catch {
    return [];
  }
}

function save() {
  try {
    localStorage.setItem(STORE, JSON.stringify(conversation));
  } catch {
    $("error").textContent = "The conversation is too long for this browser's storage; it will be gone after a reload.";
  }
}

/** The headers of a request, with the key when one is set. */
export function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

function addMessage({ role, content }) {
  const node = document.createElement("div");
  node.className = `message ${role}`;
  node.setAttribute("aria-label", role === "user" ? "You" : "Model");
  if (role === "user") node.textContent = content;
  else render(node, content);
  $("messages").append(node);
  $("empty").hidden = true;
  return node;
}

function redraw() {
  $("messages").replaceChildren();
  $("empty").hidden = conversation.length > 0;
  conversation.forEach(addMessage);
}

function request() {
  const system = $("system").value.trim();
  const body = {
    model: $("model").textContent || "default",
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of SETTINGS) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  return body;
}

/** Streams one answer into the conversation. */
async function answer() {
  const mine = conversation;
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  $("error").textContent = "";
  const node = addMessage({ role: "assistant", content: "" });
  const isAtEnd = () => innerHeight + scrollY >= document.body.scrollHeight - 120;
  const reply = { role: "assistant", content: "" };
  let nTokens = 0;
  let firstAt = 0;
  let note = "";
  let frame = 0;
  const draw = () => {
    frame = 0;
    const follow = isAtEnd();
    render(node, reply.content);
    if (follow) scrollTo(0, document.body.scrollHeight);
  };
  try {
    const body = JSON.stringify(request());
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal: running.signal });
    if (!response.ok) throw new Error(await errorMessage(response));
    for await (const data of events(response)) {
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices?.[0];
      if (choice?.delta?.content) {
        firstAt ||= performance.now();
        reply.content += choice.delta.content;
        nTokens += 1;
        const seconds = (performance.now() - firstAt) / 1000;
        if (seconds > 0.2) $("rate").textContent = `${((nTokens - 1) / seconds).toFixed(1)} tokens/s`;
        frame ||= requestAnimationFrame(draw);
      }
      if (choice?.finish_reason === "length") note = "The answer reached its longest length.";
      const rate = event.timings?.predicted_per_second;
      if (rate) $("rate").textContent = `${rate.toFixed(1)} tokens/s`;
    }
  } catch (error) {
    if (error.name === "AbortError") note = "Stopped.";
    else $("error").textContent = error.message;
  }
  cancelAnimationFrame(frame);
  draw();
  if (note) {
    const line = document.createElement("p");
    line.className = "note";
    line.textContent = note;
    node.append(line);
  }
  // A conversation that was begun meanwhile is not this answer's.
  if (reply.content) mine.push(reply);
  else node.remove();
  save();
  running = null;
  $("send").disabled = false;
  $("stop").disabled = true;
  $("prompt").focus();
}

/** Connects the composer; call once. */
export function startChat() {
  redraw();
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const content = $("prompt").value.trim();
    if (!content || running) return;
    $("prompt").value = "";
    conversation.push({ role: "user", content });
    addMessage(conversation.at(-1));
    save();
    answer();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
  $("clear").addEventListener("click", () => {
    running?.abort();
    conversation = [];
    save();
    redraw();
    $("rate").textContent = "";
    $("prompt").focus();
  });
}
