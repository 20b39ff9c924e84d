// The box of the message that is being written: its text, its height, what Enter does, and which message is edited.
//
// Each conversation has a message of its own. An edit puts what was in the box aside, and gives it back at its end. Files of the message are in
// composer_files.js.

import { attachedFiles, attachedNow, giveBackFiles, openFiles, setAttached } from "./composer_files.js";
import { draftOf, keepDraft } from "./drafts.js";
import { causeGone } from "./failures.js";
import { keepEnd } from "./scrolling.js";

const $ = (id) => document.getElementById(id);
/** A finger has no Shift+Enter, and a keyboard on the screen takes half of it. */
const TOUCH = matchMedia("(pointer: coarse)");

/** The conversation whose message is in the box; empty until the page knows one. */
let open = "";
let editedChanged = () => {};

/** Connects the box; `send()` is called when the message is to be sent, `edits()` when another one is edited or none. Call once. */
export function startComposer({ send, edits }) {
  editedChanged = edits;
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("input", () => {
    keepText($("prompt").value);
    fit();
    showSend();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (TOUCH.matches && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    $("composer").requestSubmit();
  });
  $("cancel-edit").addEventListener("click", () => {
    cancelEdit();
    $("prompt").focus();
  });
  const tellKeys = () => {
    $("prompt").placeholder = TOUCH.matches ? "Message" : "Message (Enter sends, Shift+Enter starts a new line)";
    fit();
  };
  TOUCH.addEventListener("change", tellKeys);
  tellKeys();
  addEventListener("resize", fit);
}

/** Shows the message that is being written in a conversation. */
export function openBox(id) {
  if (id === open) return;
  // A quick reader types before the page knows the conversation.
  const early = draftOf("", "text");
  keepDraft("", "text", null);
  open = id;
  openFiles(id);
  setText(draftOf(id, "text") ?? "");
  showEdited();
  if (early) giveBack({ content: early });
}

/** Makes the box as high as its text; the style sheet says how high at most. */
function fit() {
  const box = $("prompt");
  // While the box is small the page is shorter, and the browser moves a reader at the end.
  keepEnd(() => {
    box.style.height = "auto";
    // The border belongs to the height that is set, and not to that of the text.
    box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
  });
}

/** Goes to the box, unless that would open a keyboard on the screen, or take somebody out of an open menu. */
export function focusBox() {
  if (!TOUCH.matches && !document.activeElement?.closest(".fold[open]")) $("prompt").focus();
}

/** The message in the box as `{ content, images, files }`, once all files were read; `null` where there is none. */
export async function message() {
  const { images, files } = await attachedFiles();
  const content = $("prompt").value.trim();
  return content || images.length || files.length ? { content, images, files } : null;
}

/** Takes a message that was sent out of the box, which gets what was put aside. Until the answer is stored, a reload finds the message here. */
export function takeOut({ content, images, files }) {
  const later = takeAside();
  setEdited(null);
  setText(later.content);
  keepText(later.content, joined(content, later.content));
  const [laterImages, laterFiles] = [later.images, later.files];
  setAttached({ images: laterImages, files: laterFiles }, { images: [...images, ...laterImages], files: [...files, ...laterFiles] });
}

/** Puts a message before what is in the box. */
export function giveBack({ content, images = [], files = [] }) {
  giveBackFiles({ images, files });
  setDraft(joined(content, $("prompt").value));
}

/** Puts the message at a place into the box, to be edited; what was in the box is put aside. */
export function beginEdit(at, message) {
  if (editedPlace() === null) keepDraft(open, "aside", inBox());
  setEdited(at);
  fillBox(message);
}

/** Ends an edit without sending it: the box has what it had before. */
export function cancelEdit() {
  if (editedPlace() === null) return;
  setEdited(null);
  fillBox(takeAside());
}

/** Ends an edit of a message that is no longer shown. A text that was changed stays in the box, before its former text. */
export function leaveEdit({ content, images = [], files = [] }) {
  const written = takeBox();
  if (JSON.stringify(written) !== JSON.stringify({ content, images, files })) giveBack(written);
}

/** Takes the message out of the box, as `{ content, images, files }`; an edit ends. */
export function takeBox() {
  const written = inBox();
  setEdited(null);
  fillBox(takeAside());
  return written;
}

function inBox() {
  return { content: $("prompt").value, ...attachedNow() };
}

/** Puts a message in the place of what is in the box. */
function fillBox({ content, images = [], files = [] }) {
  setDraft(content);
  setAttached({ images, files });
}

/** The message that an edit put aside, once. */
function takeAside() {
  const { content = "", images = [], files = [] } = draftOf(open, "aside") ?? {};
  keepDraft(open, "aside", null);
  return { content, images, files };
}

/** A message and the draft of a later one, as one text. */
function joined(content, later) {
  return later.trim() ? `${content}\n${later}` : content;
}

function setDraft(text) {
  setText(text);
  keepText(text);
}

function setText(text) {
  $("prompt").value = text;
  fit();
  showSend();
}

/** Send looks inactive where there is nothing to send; keys reach it all the same. A failure of a message ends when that is taken out. */
export function showSend() {
  const { images, files } = attachedNow();
  const isEmpty = !$("prompt").value.trim() && images.length + files.length === 0;
  $("send").setAttribute("aria-disabled", String(isEmpty));
  if (isEmpty) causeGone("message");
}

function keepText(text, kept = text) {
  keepDraft(open, "text", text || null, kept || null);
}

/** The place of the message that is edited, or `null`. */
export function editedPlace() {
  return draftOf(open, "edited");
}

/** Says which message is edited; a reload finds it as it finds the draft. */
function setEdited(at) {
  keepDraft(open, "edited", at);
  showEdited();
}

function showEdited() {
  $("editing").hidden = editedPlace() === null;
  editedChanged();
}
