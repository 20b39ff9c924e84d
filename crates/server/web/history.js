// The list of conversations in the header.

import { allMessages, list, read, remove } from "./conversations.js";
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
  $("history").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !$("history").open) return;
    event.stopPropagation();
    close();
  });
  document.addEventListener("click", ({ target }) => {
    if (!$("history").contains(target) && target.isConnected) $("history").open = false;
  });
}

/** Draws the list, marks the open conversation, and returns all of them, the newest first. */
export function showList(open) {
  shown = open;
  const all = list();
  $("n-conversations").textContent = String(all.length);
  $("conversations").replaceChildren(...all.map((entry) => row(entry, entry.id === open)));
  $("no-conversations").hidden = all.length > 0;
  return all;
}

function close() {
  $("history").open = false;
  $("history").querySelector("summary").focus();
}

function row({ id, title }, isOpen) {
  const select = button(title, "", () => {
    chosen(id);
    close();
  });
  select.className = "title";
  if (isOpen) select.setAttribute("aria-current", "true");
  // Nothing brings a conversation back, so the first press only asks.
  const erase = button("Delete", `Delete: ${title}`, () => {
    if (erase.textContent === "Delete") {
      erase.textContent = "Really?";
      erase.setAttribute("aria-label", `Really delete: ${title}?`);
      return;
    }
    const images = keysOf(read(id));
    remove(id);
    const others = new Set(keysOf(allMessages()));
    forgetImages(images.filter((key) => !others.has(key)));
    showList(shown);
    gone(id);
    $("history").querySelector("summary").focus();
  });
  const item = document.createElement("li");
  item.append(select, erase);
  return item;
}
