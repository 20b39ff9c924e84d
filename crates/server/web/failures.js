// Failures in words that say what to do.

import { model } from "./model.js";
import { NoConnection } from "./sse.js";

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

/** A message of the server or of the browser as a sentence. */
function sentence(text) {
  const begun = /^(an?|no|the|this) /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/** Says why there is no answer; `isCut`: some of it came. */
export function inWords(error, isCut) {
  const kept = isCut ? "" : " Your message is kept.";
  if (error instanceof NoConnection) {
    const what = isCut ? "The connection to the server was lost" : "The server does not answer";
    return `${what}; is \`tokenmill serve\` running?${kept}`;
  }
  if (error instanceof SyntaxError) return `The server's answer cannot be read.${kept}`;
  if (error.status === 401) return "This server needs an API key. Enter it under “Settings”, then send again.";
  if (error.code === "chat_template_error" && NO_TEMPLATE.test(error.message)) return noChat({ ...model, kind: "base" });
  if (error.code === "context_length_exceeded") return `${sentence(error.message)} Shorten the message, or start a new conversation.`;
  return `${sentence(error.message)}${error.status ? kept : ""}`;
}
