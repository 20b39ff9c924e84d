// The chat view: the open conversation, the composer, the answer that streams in.

import { append, fresh, onChangeElsewhere, read } from "./conversations.js";
import { showList, startList } from "./history.js";
import { render } from "./markdown.js";
import { model, showContext } from "./model.js";
import { askForKey, headers, sampling, systemMessage } from "./settings.js";
import { errorOf, events } from "./sse.js";

const OPEN = "tokenmill.open";
const DRAFT = "tokenmill.draft";
const $ = (id) => document.getElementById(id);

/** The conversation shown; each tab has its own. */
let open = "";
/** The turn whose answer is on its way, or `null`. */
let running = null;

function element(name, className, text) {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  return node;
}

/** Shows text as Markdown, or as it is should that fail: an answer is never lost to its looks. */
function renderSafely(node, text) {
  try {
    render(node, text);
  } catch (error) {
    console.error(error);
    node.replaceChildren(element("p", "plain", text));
  }
}

function messageNode({ role, content, note }) {
  const node = element("div", `message ${role}`, "");
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", role === "user" ? "You" : "Model");
  if (role === "user") {
    node.textContent = content;
    return node;
  }
  const body = element("div", "body", "");
  renderSafely(body, content);
  node.append(body, element("p", "note", note ?? ""));
  return node;
}

function scrollToEnd() {
  scrollTo(0, document.documentElement.scrollHeight);
}

function isAtEnd() {
  return innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
}

/** Draws the stored messages, then the turn that runs. */
function redraw() {
  const nodes = read(open).map(messageNode);
  if (running?.id === open) nodes.push(...running.nodes);
  $("messages").replaceChildren(...nodes);
  $("empty").hidden = nodes.length > 0;
  showLastContext();
  showList(open);
}

/** Shows the gauge for the last answer of the open conversation. */
export function showLastContext() {
  showContext(read(open).at(-1)?.n_tokens ?? 0);
}

/** Opens a conversation; an answer that still streams into another one is stopped and kept there. */
function openConversation(id) {
  if (running && running.id !== id) running.stop();
  open = id;
  sessionStorage.setItem(OPEN, id);
  $("rate").textContent = "";
  $("error").textContent = "";
  redraw();
  scrollToEnd();
}

function setDraft(text) {
  $("prompt").value = text;
  keepDraft(text);
}

function keepDraft(text) {
  try {
    sessionStorage.setItem(DRAFT, text);
  } catch {
    // The storage is full; the draft holds until a reload.
  }
}

function requestBody(content) {
  const system = systemMessage();
  return JSON.stringify({
    model: model.name || undefined,
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...read(open).map((message) => ({ role: message.role, content: message.content })),
      { role: "user", content },
    ],
    stream: true,
    stream_options: { include_usage: true },
    ...sampling(),
  });
}

/** One message and the answer to it. It is stored once it has an answer. */
class Turn {
  constructor(content) {
    this.id = open;
    this.content = content;
    this.text = "";
    this.notes = [];
    this.usage = null;
    this.timings = null;
    this.nArrived = 0;
    this.firstAt = 0;
    this.begunAt = performance.now();
    this.isOver = false;
    this.frame = 0;
    this.controller = new AbortController();
    this.nodes = [messageNode({ role: "user", content }), messageNode({ role: "assistant", content: "" })];
  }

  stop() {
    this.controller.abort();
  }

  async run(body) {
    const waiting = setInterval(() => this.showWaiting(), 500);
    this.showWaiting();
    let failure = null;
    try {
      const signal = this.controller.signal;
      const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal });
      if (!response.ok) throw await errorOf(response);
      for await (const data of events(response)) this.take(JSON.parse(data));
      if (!this.timings) this.notes.push("The answer broke off.");
    } catch (error) {
      if (error.name === "AbortError") this.notes.push("Stopped.");
      else failure = error;
    } finally {
      clearInterval(waiting);
      this.end(failure);
    }
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    if (choice?.delta?.content) {
      this.firstAt ||= performance.now();
      this.text += choice.delta.content;
      this.nArrived += 1;
      this.frame ||= requestAnimationFrame(() => this.draw());
    }
    this.usage = event.usage ?? this.usage;
    this.timings = event.timings ?? this.timings;
    if (choice?.finish_reason === "length") this.notes.push("length");
    const rate = this.rate();
    if (rate && this.id === open) $("rate").textContent = rate;
  }

  /** Tokens a second: as the server measured at the end, as they arrive until then. */
  rate() {
    const seconds = (performance.now() - this.firstAt) / 1000;
    const measured = this.timings?.predicted_per_second;
    const counted = this.firstAt && seconds > 0.2 ? (this.nArrived - 1) / seconds : 0;
    const rate = measured || counted;
    return rate ? `${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s` : "";
  }

  /** Says that the prompt is read, and after two seconds for how long. */
  showWaiting() {
    if (this.firstAt || this.isOver) return;
    const seconds = Math.floor((performance.now() - this.begunAt) / 1000);
    const note = this.nodes[1].querySelector(".note");
    if (!note.firstChild) note.append("Reading the prompt …", element("span", "", ""));
    note.classList.add("waiting");
    note.lastChild.setAttribute("aria-hidden", "true");
    note.lastChild.textContent = seconds >= 2 ? ` ${seconds} s` : "";
  }

  draw() {
    this.frame = 0;
    const follow = isAtEnd();
    renderSafely(this.nodes[1].querySelector(".body"), this.text);
    this.setNote("");
    if (follow) scrollToEnd();
  }

  setNote(text) {
    const note = this.nodes[1].querySelector(".note");
    note.classList.remove("waiting");
    note.textContent = text;
  }

  /** The line below the answer: why it ended, and its figures. */
  summary(nTokens) {
    const why = this.notes.map((note) => {
      if (note !== "length") return note;
      return model.nContext && nTokens >= model.nContext ? "The context is full." : "The answer reached its longest length.";
    });
    const figures = [];
    if (this.usage) figures.push(`${this.usage.completion_tokens} tokens`);
    if (this.rate()) figures.push(this.rate());
    const waited = this.firstAt - this.begunAt;
    if (this.firstAt) figures.push(`first after ${waited < 1000 ? `${waited.toFixed(0)} ms` : `${(waited / 1000).toFixed(1)} s`}`);
    return [...why, figures.join(", ")].filter(Boolean).join(" ");
  }

  /** Stores the turn, or gives the message back to the box if nothing came. */
  end(failure) {
    if (this.isOver) return;
    this.isOver = true;
    cancelAnimationFrame(this.frame);
    if (running === this) running = null;
    const nTokens = this.usage?.total_tokens ?? 0;
    const follow = isAtEnd();
    if (this.text || this.timings) {
      if (!this.text) this.notes.push("The model ended its answer at once.");
      const note = this.summary(nTokens);
      this.draw();
      this.setNote(note);
      this.store({ role: "assistant", content: this.text, note, n_tokens: nTokens });
    } else {
      for (const node of this.nodes) node.remove();
      const later = $("prompt").value;
      setDraft(later.trim() ? `${this.content}\n${later}` : this.content);
    }
    if (failure) showFailure(failure);
    showIdle();
    if (this.id === open) showLastContext();
    $("empty").hidden = $("messages").children.length > 0;
    showList(open);
    if (follow) scrollToEnd();
    if (failure?.status === 401) askForKey();
    else $("prompt").focus();
  }

  store(reply) {
    try {
      append(this.id, [{ role: "user", content: this.content }, reply]);
    } catch {
      $("error").textContent = "This browser's storage is full: this turn will be gone after a reload. Delete conversations to make room.";
    }
    keepDraft($("prompt").value);
  }
}

function showFailure(error) {
  let message = error.message;
  if (error.status === 401) message = "This server needs an API key. Enter it under “Settings and key”, then send again.";
  if (error.code === "context_length_exceeded") message += ". Shorten the message, or start a new conversation.";
  $("error").textContent = message;
}

function showIdle() {
  $("send").disabled = running !== null;
  $("stop").disabled = running === null;
}

function send() {
  const content = $("prompt").value.trim();
  if (!content || running) return;
  const body = requestBody(content);
  running = new Turn(content);
  $("prompt").value = "";
  // Until the answer is stored, a reload finds the message in the box.
  keepDraft(content);
  $("error").textContent = "";
  $("rate").textContent = "";
  $("empty").hidden = true;
  $("messages").append(...running.nodes);
  showIdle();
  running.run(body);
  scrollToEnd();
}

/** Connects the view; call once. */
export function startChat() {
  // The browser would put the old place back before the messages are drawn.
  history.scrollRestoration = "manual";
  startList({ select: openConversation, removed: (id) => id === open && openConversation(fresh()) });
  openConversation(sessionStorage.getItem(OPEN) ?? newest());
  $("prompt").value = sessionStorage.getItem(DRAFT) ?? "";
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("input", () => keepDraft($("prompt").value));
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("stop").addEventListener("click", () => running?.stop());
  document.addEventListener("keydown", (event) => event.key === "Escape" && running?.stop());
  $("clear").addEventListener("click", () => {
    openConversation(fresh());
    $("prompt").focus();
  });
  onChangeElsewhere((id) => {
    if (id === null || id === open) redraw();
    else showList(open);
  });
  addEventListener("pagehide", () => {
    running?.notes.push("Interrupted.");
    running?.end(null);
  });
}

function newest() {
  return showList("")[0]?.id ?? fresh();
}
