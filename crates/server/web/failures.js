// Failures in words that say what to do.

import { NoConnection } from "./sse.js";

/** What the model's own template says of a model that has none. */
const NO_TEMPLATE = /this model has none/;

/** What is said of a base model, before and after it was asked. */
export const BASE_MODEL = "This is a base model: it continues text and cannot chat. Choose another.";

/** Says why there is no answer; `isCut`: some of it came. */
export function inWords(error, isCut) {
  const kept = isCut ? "" : " Your message is kept.";
  if (error instanceof NoConnection) {
    const what = isCut ? "The connection to the server was lost" : "The server does not answer";
    return `${what}; is \`tokenmill serve\` running?${kept}`;
  }
  if (error instanceof SyntaxError) return `The server's answer cannot be read.${kept}`;
  if (error.status === 401) return "This server needs an API key. Enter it under “Settings”, then send again.";
  if (error.code === "chat_template_error" && NO_TEMPLATE.test(error.message)) return BASE_MODEL;
  if (error.code === "context_length_exceeded") return `${error.message}. Shorten the message, or start a new conversation.`;
  return error.message;
}
