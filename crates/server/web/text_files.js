// Text files of messages: which files are some, how one is shown, and its part of a message.
//
// A text goes before the message's own words, with its name above it and an empty line after it.

import { inMib, MAX_BODY_BYTES, nameOf, unfit } from "./images.js";

/** Bytes below a space that texts have: tabulators, ends of lines and of pages, and what begins a colour of a terminal. */
const CONTROLS = new Set([0x09, 0x0a, 0x0c, 0x0d, 0x1b]);
/** Bytes to which windows-1252 gives no character. */
const UNASSIGNED = new Set([0x7f, 0x81, 0x8d, 0x8f, 0x90, 0x9d]);
/** The marks with which files in UTF-16 begin, as Windows writes them. */
const MARKS = { "255,254": "utf-16le", "254,255": "utf-16be" };
/** A text of western Europe has fewer letters with accents; of other scripts windows-1252 would make a muddle. */
const MAX_NOT_ASCII = 0.3;

/**
 * Reads a file as text.
 * @throws when it is none, with the reason for people
 */
export async function readText(file) {
  const name = nameOf(file);
  if (file.size === 0) throw new Error(`${name} is empty.`);
  if (file.size > MAX_BODY_BYTES) throw new Error(`${name} is too large: ${inMib(file.size)}; this server takes ${inMib(MAX_BODY_BYTES)} (--max-body-bytes).`);
  const text = textOf(await file.arrayBuffer());
  if (text === null) throw new Error(unfit(name));
  return text.replaceAll("\r\n", "\n");
}

/**
 * The text that the bytes of a file are: UTF-16 where they begin with its mark, else UTF-8, or else windows-1252 where that can be; `null`
 * where they are none.
 */
export function textOf(bytes) {
  let text = "\0";
  const start = new Uint8Array(bytes.slice(0, 2)).join();
  try {
    text = new TextDecoder(MARKS[start] ?? "utf-8", { fatal: true }).decode(bytes);
  } catch {
    if (isWestern(new Uint8Array(bytes))) text = new TextDecoder("windows-1252").decode(bytes);
  }
  // Some PDF files have characters only, and none of their words are among them.
  return text.includes("\0") || text.startsWith("%PDF-") ? null : text;
}

/** Whether bytes are clearly a text in windows-1252, of which Latin-1 is a part. */
function isWestern(bytes) {
  const nOthers = bytes.reduce((count, byte) => count + (byte > 0x7f ? 1 : 0), 0);
  return nOthers <= MAX_NOT_ASCII * bytes.length && bytes.every((byte) => (byte >= 0x20 || CONTROLS.has(byte)) && !UNASSIGNED.has(byte));
}

/** The words of a message with its text files. */
export function withFiles({ content, files = [] }) {
  return [...files.map(({ name, text }) => `File: ${name}\n${text.replace(/\n$/, "")}\n`), content].filter(Boolean).join("\n");
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
