// The box of the message that is being written: its text, its height, what Enter does, and which message is edited.
//
// Text and place are kept over a reload. Files of the message are in composer_files.js.

import { attachedFiles, giveBackFiles, setAttached } from "./composer_files.js";

const DRAFT = "tokenmill.draft";
const EDITED = "tokenmill.edited";
const $ = (id) => document.getElementById(id);
/** A finger has no Shift+Enter, and a keyboard on the screen takes half of it. */
const TOUCH = matchMedia("(pointer: coarse)");

/** The place of the message that is edited, or `null`. */
let edited = null;

/** Connects the box; `send` is called when the message is to be sent. Call once. */
export function startComposer(send) {
  setText(sessionStorage.getItem(DRAFT) ?? "");
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("input", () => {
    keepDraft($("prompt").value);
    fit();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (TOUCH.matches && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    $("composer").requestSubmit();
  });
  $("cancel-edit").addEventListener("click", () => {
    setEdited(null);
    emptyBox();
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

/** Goes to the box, unless that would open a keyboard on the screen. */
export function focusBox() {
  if (!TOUCH.matches) $("prompt").focus();
}

/** The message in the box as `{ content, images, files }`, once all files were read; `null` where there is none. */
export async function message() {
  const { images, files } = await attachedFiles();
  const content = $("prompt").value.trim();
  return content || images.length || files.length ? { content, images, files } : null;
}

/** Empties the box of a message that was sent. Until the answer is stored, a reload finds it here. */
export function takeOut({ content, images, files }) {
  setText("");
  keepDraft(content);
  setAttached({ images: [], files: [] }, { images, files });
}

/** Puts a message before what is in the box. */
export function giveBack({ content, images = [], files = [] }) {
  giveBackFiles({ images, files });
  const later = $("prompt").value;
  setDraft(later.trim() ? `${content}\n${later}` : content);
}

/** Puts a message in the place of what is in the box. */
export function fillBox({ content, images = [], files = [] }) {
  setDraft(content);
  setAttached({ images, files });
}

export function emptyBox() {
  fillBox({ content: "" });
}

function setDraft(text) {
  setText(text);
  keepDraft(text);
}

function setText(text) {
  $("prompt").value = text;
  fit();
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
}

function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The storage is full; the value holds until a reload.
  }
}
