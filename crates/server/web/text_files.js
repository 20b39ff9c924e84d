// Text files of messages: which files are some, how one is shown, and its part of a message.
//
// A text goes before the message's own words and an empty line after it, as `/file` of `tokenmill chat` puts it.

import { inMib, MAX_BODY_BYTES, nameOf } from "./images.js";

/**
 * Reads a file as text.
 * @throws when it is none, with the reason for people
 */
export async function readText(file) {
  const name = nameOf(file);
  if (file.size === 0) throw new Error(`${name} is empty.`);
  if (file.size > MAX_BODY_BYTES) throw new Error(`${name} is too large: ${inMib(file.size)}; this server takes ${inMib(MAX_BODY_BYTES)} (--max-body-bytes).`);
  let text = "";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) throw new Error(`${name} is neither a text nor an image that can be sent: UTF-8, PNG, JPEG, WebP, BMP and GIF are.`);
  return text.replaceAll("\r\n", "\n");
}

/** The words of a message with its text files. */
export function withFiles({ content, files = [] }) {
  return [...files.map(({ text }) => `${text.replace(/\n$/, "")}\n`), content].filter(Boolean).join("\n");
}

/** A text file as it is shown: folded. */
export function fileNode({ name, text }) {
  const fold = document.createElement("details");
  fold.className = "file";
  // Its name does not say how the words of the message run.
  fold.dir = "ltr";
  const summary = document.createElement("summary");
  const nLines = text.replace(/\n$/, "").split("\n").length;
  summary.textContent = `${name}, ${nLines === 1 ? "1 line" : `${nLines} lines`}`;
  const shown = document.createElement("pre");
  shown.dir = "auto";
  shown.textContent = text;
  fold.append(summary, shown);
  return fold;
}
