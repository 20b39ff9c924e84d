// One request and its answer as it streams in: what comes, its figures, and why it ended.

import { messageCopy } from "./clipboard.js";
import { actions, element, isWhole, messageNode, update } from "./messages.js";
import { model } from "./model.js";
import { contextOf, look } from "./models.js";
import { headers } from "./settings.js";
import { errorOf, events, NoConnection } from "./sse.js";

/** Why an answer ended before its end, by the note that says so. */
const ENDINGS = { length: "length", "Stopped.": "stopped", "Interrupted.": "stopped", "The answer broke off.": "broken" };
/** So long an answer that has come waits for the list of models. */
const LOOK_MS = 2000;

export class Turn {
  /**
   * @param id the conversation
   * @param added the messages that go before the answer
   * @param nKept how many stored messages stay before them; all, if it is not given
   * @param continued the answer that is continued, or `null`; then it is the last message and nothing is added
   * @param system the system message of the conversation
   * @param watch `{ follow(draw), figures(rate, nTokens), ended(turn, failure) }`
   */
  constructor({ id, added, nKept, continued, system }, watch) {
    Object.assign(this, { id, added, nKept, continued, system, watch });
    this.text = continued?.content ?? "";
    this.reasoning = continued?.reasoning ?? "";
    this.calls = [];
    this.notes = [];
    this.usage = null;
    this.timings = null;
    this.nArrived = 0;
    this.firstAt = 0;
    this.begunAt = performance.now();
    /** The model that is asked, then the one that answers. */
    this.asked = model.name;
    this.model = model.name;
    this.comesAndGoes = model.comesAndGoes;
    this.hasOthers = model.hasOthers;
    this.lookedAt = 0;
    this.isOver = false;
    this.frame = 0;
    this.controller = new AbortController();
    this.answer = messageNode({ role: "assistant", content: this.text, reasoning: this.reasoning });
    this.nodes = [...added.flatMap(withCopy), this.answer];
  }

  stop() {
    this.controller.abort();
  }

  /** Ends the turn at once; nobody is told. */
  drop() {
    this.watch.ended = () => {};
    this.end(null);
    this.stop();
  }

  /** Sends the request that `makeBody` makes, and takes in the answer. */
  async run(makeBody) {
    const waiting = setInterval(() => this.showWaiting(), 500);
    this.showWaiting();
    let failure = null;
    try {
      const signal = this.controller.signal;
      const body = await makeBody();
      const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal }).catch((error) => {
        throw NoConnection.of(error);
      });
      if (!response.ok) throw await errorOf(response);
      for await (const data of events(response)) this.take(JSON.parse(data));
      if (!this.usage) this.notes.push("The answer broke off.");
      // The model may have been loaded for this; then the size of its context is known now.
      if (this.notes.includes("length") && !this.nContext()) await this.lookBriefly();
    } catch (error) {
      if (error.name === "AbortError") this.notes.push("Stopped.");
      else {
        failure = error;
        this.notes.push("The answer broke off.");
      }
    } finally {
      clearInterval(waiting);
      this.end(failure);
      // It may have been loaded for this, or have failed to be.
      if (this.comesAndGoes) look();
    }
  }

  /** Looks at the models, for two seconds at most: other answers may hold all connections of the browser. Stop ends it too. */
  lookBriefly() {
    const over = new Promise((resolve) => {
      setTimeout(resolve, LOOK_MS);
      this.controller.signal.addEventListener("abort", resolve);
    });
    return Promise.race([look(), over]);
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    this.model = event.model ?? this.model;
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    if (delta.content || delta.reasoning_content || delta.tool_calls) {
      this.firstAt ||= performance.now();
      this.text += delta.content ?? "";
      this.reasoning += delta.reasoning_content ?? "";
      for (const call of delta.tool_calls ?? []) this.takeCall(call);
      this.nArrived += 1;
      this.frame ||= requestAnimationFrame(() => this.draw());
    }
    this.usage = event.usage ?? this.usage;
    this.timings = event.timings ?? this.timings;
    if (choice?.finish_reason === "length") this.notes.push("length");
    this.watch.figures(this.rate(), this.nTokens());
  }

  takeCall({ index, id, function: { name, arguments: more } = {} }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id = id ?? call.id;
    call.name = name ?? call.name;
    call.arguments += more ?? "";
  }

  /** Whether anything came that is worth keeping. */
  hasAnswer() {
    return Boolean(this.nArrived || this.usage);
  }

  /** Tokens of the context, as far as the server has counted them. */
  nTokens() {
    const { cache_n: nCached = 0, prompt_n: nComputed = 0, predicted_n: nPredicted = 0 } = this.timings ?? {};
    return this.usage?.total_tokens ?? nCached + nComputed + nPredicted;
  }

  /** Tokens of this answer, without those of its beginning where it is continued. */
  nAdded() {
    return this.usage?.completion_tokens ?? this.timings?.predicted_n ?? 0;
  }

  /** Tokens of the whole answer; 0 where those of its beginning were not noted. */
  nAnswer() {
    if (!this.continued) return this.nAdded();
    return this.continued.n_answer ? this.continued.n_answer + this.nAdded() : 0;
  }

  /** The tokens that the context of the model that answers holds; 0 where nobody knows. */
  nContext() {
    return contextOf(this.model) || contextOf(this.asked);
  }

  /** The answer as it is stored. */
  reply() {
    const message = { role: "assistant", content: this.text, note: this.note, n_tokens: this.nTokens() };
    if (this.nAnswer()) message.n_answer = this.nAnswer();
    if (this.reasoning) message.reasoning = this.reasoning;
    if (this.calls.length) message.calls = this.calls;
    const ended = this.notes.map((note) => ENDINGS[note]).find(Boolean);
    if (ended && !this.isFull()) message.ended = ended;
    return message;
  }

  /** Whether the context has no room for more. */
  isFull() {
    return this.nContext() > 0 && this.nTokens() >= this.nContext();
  }

  /** Tokens a second: as the server measured at the end, as they arrive until then. */
  rate() {
    const seconds = (performance.now() - this.firstAt) / 1000;
    const measured = this.timings?.predicted_per_second;
    const counted = this.firstAt && seconds > 0.2 ? (this.nArrived - 1) / seconds : 0;
    const rate = measured || counted;
    return rate ? `${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s` : "";
  }

  /** Says what is waited for, and after two seconds for how long. */
  showWaiting() {
    if (this.firstAt || this.isOver) return;
    const seconds = Math.floor((performance.now() - this.begunAt) / 1000);
    const note = this.answer.querySelector(".note");
    if (!note.firstChild) note.append("", element("span", "", ""));
    const isLoading = this.comesAndGoes && model.name === this.model && model.state !== "loaded";
    const reading = this.continued ? "Continuing …" : "Reading the prompt …";
    const words = isLoading ? `Loading ${this.model} …` : reading;
    if (note.firstChild.data !== words) note.firstChild.data = words;
    if (isLoading && seconds > this.lookedAt) {
      this.lookedAt = seconds;
      look();
    }
    note.classList.add("waiting");
    note.lastChild.setAttribute("aria-hidden", "true");
    note.lastChild.textContent = seconds >= 2 ? ` ${seconds} s` : "";
  }

  draw() {
    this.frame = 0;
    this.watch.follow(() => {
      update(this.answer, { content: this.text, reasoning: this.reasoning, calls: this.calls }, !this.isOver);
      this.setNote("");
    });
  }

  setNote(text) {
    const note = this.answer.querySelector(".note");
    note.classList.remove("waiting");
    note.textContent = text;
  }

  /** The line below the answer: why it ended, and its figures. */
  summary() {
    const why = this.notes.map((note) => {
      if (note !== "length") return note;
      return this.isFull() ? "The context is full." : "The answer reached its limit of tokens.";
    });
    const figures = [];
    if (this.nAnswer()) figures.push(`${this.nAnswer()} tokens`);
    else if (this.nAdded()) figures.push(`${this.nAdded()} more tokens`);
    if (this.rate()) figures.push(this.rate());
    const waited = this.firstAt - this.begunAt;
    if (this.firstAt) figures.push(`first token after ${waited < 1000 ? `${waited.toFixed(0)} ms` : `${(waited / 1000).toFixed(1)} s`}`);
    const by = this.hasOthers && figures.length ? `${this.model}: ` : "";
    return [...why, figures.length ? `${by}${figures.join(", ")}` : ""].filter(Boolean).join(" ");
  }

  /** Leaves out the calls that cannot be made: a request that holds one is refused. */
  dropCutCalls() {
    const whole = this.calls.filter(isWhole);
    if (whole.length < Object.keys(this.calls).length) this.notes.push("A call that is not complete was left out.");
    this.calls = whole;
  }

  /** Ends the turn, once. */
  end(failure) {
    if (this.isOver) return;
    this.isOver = true;
    cancelAnimationFrame(this.frame);
    if (this.hasAnswer()) {
      this.dropCutCalls();
      if (!this.text && !this.reasoning && !this.calls.length && !this.notes.length) {
        this.notes.push("The model ended its answer at once.");
      }
      this.note = this.summary();
      this.draw();
      this.setNote(this.note);
    }
    this.watch.ended(this, failure);
  }
}

/** A message as nodes; the words of a user can be copied while the answer runs. */
function withCopy(message) {
  const node = messageNode(message);
  return message.role === "user" && message.content ? [node, actions(messageCopy(message.content))] : [node];
}
