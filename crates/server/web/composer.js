// The box of the message that is being written: its text, its height, what Enter does, and which message is edited.
//
// An edit puts what was in the box aside, and gives it back at its end. Text, place and what is put aside are kept over a reload. Files of the
// message are in composer_files.js.

import { attachedFiles, attachedNow, giveBackFiles, setAttached } from "./composer_files.js";
import { causeGone } from "./failures.js";

const DRAFT = "tokenmill.draft";
const EDITED = "tokenmill.edited";
const ASIDE = "tokenmill.aside";
const $ = (id) => document.getElementById(id);
/** A finger has no Shift+Enter, and a keyboard on the screen takes half of it. */
const TOUCH = matchMedia("(pointer: coarse)");

/** The place of the message that is edited, or `null`. */
let edited = null;
/** The content of the box before the edit, as `{ content, images, files }`; `null` where nothing is edited, or after a reload. */
let aside = null;
let editedChanged = () => {};

/** Connects the box; `send()` is called when the message is to be sent, `edits()` when another one is edited or none. Call once. */
export function startComposer({ send, edits }) {
  editedChanged = edits;
  setText(sessionStorage.getItem(DRAFT) ?? "");
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("input", () => {
    keepDraft($("prompt").value);
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

/** Makes the box as high as its text; the style sheet says how high at most. */
function fit() {
  const box = $("prompt");
  box.style.height = "auto";
  // The border belongs to the height that is set, and not to that of the text.
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
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
  keepDraft(joined(content, later.content));
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
  if (edited === null) keep(ASIDE, JSON.stringify((aside = { content: $("prompt").value, ...attachedNow() })));
  setEdited(at);
  fillBox(message);
}

/** Ends an edit without sending it: the box has what it had before. */
export function cancelEdit() {
  if (edited === null) return;
  setEdited(null);
  fillBox(takeAside());
}

/** Puts a message in the place of what is in the box. */
function fillBox({ content, images = [], files = [] }) {
  setDraft(content);
  setAttached({ images, files });
}

/** The message that an edit put aside, once. */
function takeAside() {
  const { content = "", images = [], files = [] } = aside ?? formerlyAside();
  aside = null;
  sessionStorage.removeItem(ASIDE);
  return { content, images, files };
}

/** The message that was put aside before a reload. */
function formerlyAside() {
  try {
    return JSON.parse(sessionStorage.getItem(ASIDE)) ?? {};
  } catch {
    return {};
  }
}

/** A message and the draft of a later one, as one text. */
function joined(content, later) {
  return later.trim() ? `${content}\n${later}` : content;
}

function setDraft(text) {
  setText(text);
  keepDraft(text);
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

/** A reload finds what is in the box, no more. */
export function keepBox() {
  keepDraft($("prompt").value);
}

function keepDraft(text) {
  keep(DRAFT, text);
}

/** The place of the message that is edited, or `null`. */
export function editedPlace() {
  return edited;
}

/** The place of the message that was edited before a reload, or `null`. */
export function formerlyEdited() {
  const place = sessionStorage.getItem(EDITED);
  return place === null ? null : Number(place);
}

/** Says which message is edited; a reload finds it as it finds the draft. */
export function setEdited(at) {
  edited = at;
  $("editing").hidden = at === null;
  if (at === null) sessionStorage.removeItem(EDITED);
  else keep(EDITED, at);
  editedChanged();
}

function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The storage is full; the value holds until a reload.
  }
}
