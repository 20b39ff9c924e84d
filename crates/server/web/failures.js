// Failures in words that say what to do.

import { model } from "./model.js";
import { NoConnection } from "./sse.js";

const $ = (id) => document.getElementById(id);
/** What the model's own template says of a model that has none. */
const NO_TEMPLATE = /this model has none/;

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

/** A message of the server or of the browser as a sentence. */
function sentence(text) {
  const begun = /^(an?|no|the|this) /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/** Shows a failure below the box, or none; what is said there is not said of the model's state above it too. */
export function showFailure(text) {
  const state = $("model-state");
  $("error").textContent = text;
  state.hidden = state.textContent !== "" && text.startsWith(state.textContent);
}

/** Says why there is no answer; `isCut`: some of it came. */
export function inWords(error, isCut) {
  const kept = isCut ? "" : " Your message is kept.";
  if (error instanceof NoConnection) {
    const what = isCut ? "The connection to the server was lost" : "The server does not answer";
    return `${what}; is \`tokenmill serve\` running?${kept}`;
  }
  if (error instanceof SyntaxError) return `The server's answer cannot be read.${kept}`;
  if (error.status === 401) return `${needsKey()}${kept}`;
  if (error.code === "chat_template_error" && NO_TEMPLATE.test(error.message)) return noChat({ ...model, kind: "base" });
  if (error.code === "context_length_exceeded") return `${sentence(error.message)} Shorten the message, or start a new conversation.`;
  return `${sentence(error.message)}${error.status ? kept : ""}`;
}
