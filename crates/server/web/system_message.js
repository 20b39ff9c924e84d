// The system message: each conversation has its own. A new one begins with that of the settings.
//
// A text that is entered is kept for this tab at once, and with the conversation when the box is left.

import { setSystem, systemOf } from "./conversations.js";

const DRAFT = "tokenmill.draft-system";
const $ = (id) => document.getElementById(id);
/** The conversation shown. */
let open = "";

/** The system message of the conversation shown, or an empty string. */
export function systemMessage() {
  return $("system-here").value.trim();
}

/** Shows the system message of a conversation; `begun` is that of one whose first answer is on its way. */
export function showSystemOf(id, begun) {
  open = id;
  const draft = draftOf(id);
  $("system-here").value = draft ?? systemOf(id) ?? begun ?? $("system").value;
  if (draft !== null) store();
}

/** Connects the boxes; call once. */
export function startSystemMessage() {
  $("system-here").addEventListener("input", () => keepDraft($("system-here").value));
  $("system-here").addEventListener("change", store);
  // A conversation that has not begun follows the settings.
  $("system").addEventListener("input", () => {
    if (systemOf(open) !== undefined) return;
    sessionStorage.removeItem(DRAFT);
    $("system-here").value = $("system").value;
  });
}

/** Keeps what was entered with its conversation, where that has begun; until then its draft is kept. */
async function store() {
  const id = open;
  if (systemOf(id) === undefined) return;
  const text = systemMessage();
  if ((await setSystem(id, text)) && draftOf(id)?.trim() === text) sessionStorage.removeItem(DRAFT);
}

/** The text that was entered for a conversation and is not stored with it; `null` where there is none. */
function draftOf(id) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(DRAFT));
    return kept?.id === id ? String(kept.text) : null;
  } catch {
    return null;
  }
}

function keepDraft(text) {
  try {
    sessionStorage.setItem(DRAFT, JSON.stringify({ id: open, text }));
  } catch {
    // The storage is full; the text holds until a reload.
  }
}
