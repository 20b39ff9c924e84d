// The list of conversations in the header: found by words, opened, renamed, deleted.

import { askFirst } from "./asking.js";
import { allMessages, list, messagesOf, remove, rename, titleOf } from "./conversations.js";
import { tell } from "./failures.js";
import { closeFold } from "./folds.js";
import { forgetImages } from "./image_store.js";
import { keysOf } from "./images.js";
import { button, element } from "./messages.js";

const $ = (id) => document.getElementById(id);
let chosen = () => {};
let gone = () => {};
let news = () => new Map();
let shown = "";
/** Whether a title is being written: its box stays where it is. */
let isRenaming = false;

/**
 * Connects the list: `select(id)` opens a conversation, `removed(id)` follows a deletion, and `states()` has by their ids the conversations
 * of which there is something to say, as `{ title, words }`; one that is not stored is listed too. Call once.
 */
export function startList({ select, removed, states }) {
  chosen = select;
  gone = removed;
  news = states;
  $("filter").addEventListener("input", () => showList(shown));
  // No button still asks when the list is opened again.
  $("history").addEventListener("toggle", () => $("history").open || showList(shown));
}

/** Draws the list, marks the open conversation, and returns all of them, the newest first. Where the reader is in the list stays. */
export function showList(open) {
  shown = open;
  const states = news();
  const all = [...begun(states, ""), ...list()];
  const words = $("filter").value;
  const found = words ? [...begun(states, words), ...list(words)] : all;
  $("n-conversations").textContent = String(all.length);
  if (!isRenaming) {
    keepingPlace(() => $("conversations").replaceChildren(...found.map((entry) => row(entry, entry.id === open, states.get(entry.id)?.words ?? ""))));
  }
  $("no-conversations").hidden = found.length > 0;
  $("no-conversations").textContent = all.length ? "No conversation matches." : "No conversations yet.";
  $("filter").hidden = all.length === 0;
  document.title = [titleOf(open) || states.get(open)?.title, "tokenmill"].filter(Boolean).join(" – ");
  return all;
}

/** The conversations that have begun and are not stored, whose titles hold the words. */
function begun(states, words) {
  const wanted = words.toLowerCase().split(/\s+/);
  return [...states]
    .filter(([id, { title }]) => !titleOf(id) && wanted.every((word) => title.toLowerCase().includes(word)))
    .map(([id, { title }]) => ({ id, title, isNew: true }));
}

/** Draws the list by `draw`; the list stays where it was scrolled to, and the focus where it was. */
function keepingPlace(draw) {
  const box = $("conversations");
  const top = box.scrollTop;
  const focused = document.activeElement?.closest("#conversations li > button");
  draw();
  box.scrollTop = top;
  if (!focused) return;
  // By its class: the word of a state comes and goes between the buttons.
  const item = [...box.children].find(({ dataset }) => dataset.id === focused.parentElement.dataset.id);
  item?.querySelector(`.${focused.className}`)?.focus({ preventScroll: true });
}

function row({ id, title, isNew = false }, isOpen, words) {
  const select = button(title, "", () => {
    $("filter").value = "";
    chosen(id);
    closeFold($("history"));
  });
  select.className = "title";
  select.title = title;
  if (isOpen) select.setAttribute("aria-current", "true");
  const item = document.createElement("li");
  item.dataset.id = id;
  item.append(select);
  if (words) item.append(element("span", "state", words));
  if (!isNew) item.append(renamer(item, id, title));
  item.append(eraser(id, title));
  return item;
}

function renamer(item, id, title) {
  const node = button("Rename", `Rename: ${title}`, () => edit(item, id));
  node.className = "rename";
  return node;
}

function eraser(id, title) {
  const erase = button("Delete", `Delete: ${title}`, () => {});
  erase.className = "delete";
  askFirst(erase, async () => {
    tell("");
    const at = [...$("conversations").children].indexOf(erase.parentElement);
    const images = keysOf(messagesOf(id));
    const removal = remove(id);
    const others = new Set(keysOf(allMessages()));
    forgetImages(images.filter((key) => !others.has(key)));
    gone(id);
    showList(shown);
    focusRow(at);
    await removal;
  });
  return erase;
}

/** Goes to the row at a place, or to the last one, or else to the button of the list. */
function focusRow(at) {
  const rows = $("conversations").children;
  const title = rows[Math.min(at, rows.length - 1)]?.querySelector(".title");
  (title ?? $("history").querySelector("summary")).focus({ preventScroll: true });
}

/** Puts a box for the title in the place of a row. */
function edit(item, id) {
  const box = document.createElement("input");
  box.value = titleOf(id);
  box.setAttribute("aria-label", "Title of the conversation");
  let isOver = false;
  isRenaming = true;
  const end = async (title) => {
    if (isOver) return;
    isOver = true;
    isRenaming = false;
    // The focus goes back to the row, unless it is elsewhere by now.
    const isHere = document.activeElement === box || document.activeElement === document.body;
    if (title !== null) await rename(id, title);
    showList(shown);
    if (isHere) focusRow([...$("conversations").children].findIndex(({ dataset }) => dataset.id === id));
  };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(box.value.trim());
    if (event.key !== "Escape") return;
    event.stopPropagation();
    end(null);
  });
  box.addEventListener("blur", () => end(box.value.trim()));
  item.replaceChildren(box);
  box.focus({ preventScroll: true });
  box.select();
}
