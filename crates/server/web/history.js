// The list of conversations in the header: found by words, opened, renamed, deleted.

import { askFirst } from "./asking.js";
import { allMessages, list, messagesOf, remove, rename, titleOf } from "./conversations.js";
import { closeFold } from "./folds.js";
import { forgetImages } from "./image_store.js";
import { keysOf } from "./images.js";
import { button } from "./messages.js";

const $ = (id) => document.getElementById(id);
let chosen = () => {};
let gone = () => {};
let shown = "";

/** Connects the list: `select(id)` opens a conversation, `removed(id)` follows a deletion. Call once. */
export function startList({ select, removed }) {
  chosen = select;
  gone = removed;
  $("filter").addEventListener("input", () => showList(shown));
  // No button still asks "Really?" when the list is opened again.
  $("history").addEventListener("toggle", () => $("history").open || showList(shown));
}

/** Draws the list, marks the open conversation, and returns all of them, the newest first. */
export function showList(open) {
  shown = open;
  const all = list();
  const found = list($("filter").value);
  $("n-conversations").textContent = String(all.length);
  $("conversations").replaceChildren(...found.map((entry) => row(entry, entry.id === open)));
  $("no-conversations").hidden = found.length > 0;
  $("no-conversations").textContent = all.length ? "None has these words." : "There are none yet.";
  $("filter").hidden = all.length === 0;
  document.title = [titleOf(open), "tokenmill"].filter(Boolean).join(" – ");
  return all;
}

function row({ id, title }, isOpen) {
  const select = button(title, "", () => {
    $("filter").value = "";
    chosen(id);
    closeFold($("history"));
  });
  select.className = "title";
  select.title = title;
  if (isOpen) select.setAttribute("aria-current", "true");
  const item = document.createElement("li");
  item.append(select, button("Rename", `Rename: ${title}`, () => edit(item, id)), eraser(id, title));
  return item;
}

function eraser(id, title) {
  const erase = button("Delete", `Delete: ${title}`, () => {});
  erase.className = "delete";
  askFirst(erase, async () => {
    const images = keysOf(messagesOf(id));
    const removal = remove(id);
    const others = new Set(keysOf(allMessages()));
    forgetImages(images.filter((key) => !others.has(key)));
    showList(shown);
    gone(id);
    $("history").querySelector("summary").focus();
    await removal;
  });
  return erase;
}

/** Puts a box for the title in the place of a row. */
function edit(item, id) {
  const box = document.createElement("input");
  box.value = titleOf(id);
  box.setAttribute("aria-label", "Title of the conversation");
  let isOver = false;
  const end = async (title) => {
    if (isOver) return;
    isOver = true;
    if (title !== null) await rename(id, title);
    showList(shown);
    $("history").querySelector("summary").focus();
  };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(box.value.trim());
    if (event.key !== "Escape") return;
    event.stopPropagation();
    end(null);
  });
  box.addEventListener("blur", () => end(box.value.trim()));
  item.replaceChildren(box);
  box.focus();
  box.select();
}
