// Failures in words that say what to do, and notices: both stand below the box. A failure is shown until its cause is gone, and both until the next
// action.

import { model } from "./model.js";
import { markRefused } from "./settings.js";
import { NoConnection } from "./sse.js";

const $ = (id) => document.getElementById(id);
/** The server's words on a model that has no template. */
const NO_TEMPLATE = /this model has none/;
/** The server's words on images for a model that sees none. */
const BLIND = /architecture `[^`]*` takes no images/;
/** The causes of a failure, by the code of the server's error. */
const CAUSES = {
  context_length_exceeded: ["model", "message", "conversation"],
  chat_template_error: ["model"],
  model_failed: ["model", "load"],
  model_too_large: ["model", "load"],
  not_ready: ["connection"],
};
/** Said where the server cannot be reached. */
export const NO_ANSWER = "The server does not answer; is `tokenmill serve` running?";
/** The causes of the failure that is shown. */
let causes = [];
/** The conversation of which the notice says something; empty where that is none. */
let toldOf = "";
/** Whether the server gave no answer, or was not ready, when it was last asked for its figures. */
let wasDown = false;

/** Says why a model cannot chat, before and after it was asked; empty where it can. */
export function noChat({ kind, hasOthers }) {
  const whys = {
    base: "This is a base model: it continues text and cannot chat.",
    embedding: "This model turns texts into vectors or ranks them, and cannot chat.",
  };
  const next = hasOthers ? "Choose another." : "Start the server with a model made for chats, whose name mostly ends in Instruct, it or chat.";
  return whys[kind] ? `${whys[kind]} ${next}` : "";
}

/** Says that the server wants a key, or another one. */
export function needsKey() {
  const hasOne = $("key").value.trim() !== "";
  return hasOne ? "This server does not take the API key that stands under “Settings”." : "This server needs an API key. Enter it under “Settings”.";
}

/** Whether the server refused images because the model takes none. */
export function isBlind(error) {
  return BLIND.test(error?.message);
}

/** A message of the server or of the browser as a sentence, without the field of the request. */
function sentence(message) {
  const text = message.replace(/^`messages`: /, "");
  const begun = /^(an?|no|the|this) /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/**
 * Shows a failure below the box, or none; what is said there is not said of the model's state above it too. The end of any of its causes ends
 * it: `model`, where another is chosen; `load`, where it is loaded; `conversation`, where a new one has room; `key`, `connection`, `message`,
 * `files` or `settings`.
 */
export function showFailure(text, ofCauses = []) {
  const state = $("model-state");
  causes = ofCauses;
  $("error").textContent = text;
  state.hidden = state.textContent !== "" && text.startsWith(state.textContent);
}

/** Says something below the box, which may be of a conversation. */
export function tell(words, id = "") {
  toldOf = id;
  $("told").textContent = words;
}

/** Takes back what was said of a conversation. */
export function forgetTold(id) {
  if (id === toldOf) tell("");
}

/** Takes back what is said below the box: something else is done now. */
export function clearWords() {
  showFailure("");
  tell("");
}

/** Says by how much a message is too long; the server's own words where it gives no figures. */
function tooLong({ message, n_prompt_tokens: nTokens, n_ctx: nContext }) {
  if (!nTokens || !nContext) return sentence(message);
  return `With its conversation your message needs ${nTokens.toLocaleString("en")} tokens; this model holds ${nContext.toLocaleString("en")}.`;
}

/** Whether the failure that is shown has this cause. */
export function hasCause(cause) {
  return causes.includes(cause);
}

/** Takes a failure back whose cause is gone. */
export function causeGone(cause) {
  if (causes.includes(cause)) showFailure("");
}

/** Takes note of whether the server answers and is ready: a failure to reach it ends when it is there again. */
export function noteServer(isReady) {
  if (isReady && wasDown) causeGone("connection");
  wasDown = !isReady;
}

/** Shows why there is no answer; `isCut`: some of it came, `isKept`: the message is in the box again. */
export function tellFailure(error, { isCut = false, isKept = false } = {}) {
  const isOfSetting = error.param ? markRefused(error.param, sentence(error.message)) : false;
  showFailure(inWords(error, isCut, isKept, isOfSetting), isOfSetting ? ["settings"] : causesOf(error));
}

function causesOf(error) {
  if (error instanceof NoConnection) return ["connection"];
  if (error.status === 401) return ["key"];
  return error.causes ?? CAUSES[error.code] ?? [];
}

function inWords(error, isCut, isKept, isOfSetting) {
  const kept = isKept ? " Your message is kept." : "";
  if (error instanceof NoConnection) {
    const words = isCut ? "The connection to the server was lost; is `tokenmill serve` running?" : NO_ANSWER;
    return `${words}${kept}`;
  }
  if (error instanceof SyntaxError) return `The server's answer cannot be read.${kept}`;
  if (error.status === 401) return `${needsKey()}${kept}`;
  if (error.code === "chat_template_error" && NO_TEMPLATE.test(error.message)) return noChat({ ...model, kind: "base" });
  if (error.code === "context_length_exceeded") return `${tooLong(error)} Shorten the message, or start a new conversation.`;
  return `${sentence(error.message)}${isOfSetting ? " See “Settings”." : ""}${error.status ? kept : ""}`;
}
