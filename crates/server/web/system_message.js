// The system message: each conversation has its own. A new one begins with that of the settings.
//
// A text that is entered is kept for this tab at once, and with the conversation when the box is left.

import { setSystem, systemOf } from "./conversations.js";
import { draftOf, keepDraft } from "./drafts.js";

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
  const draft = draftOf(id, "system");
  $("system-here").value = draft ?? systemOf(id) ?? begun ?? $("system").value;
  if (draft !== null) store();
}

/** Connects the boxes; call once. */
export function startSystemMessage() {
  $("system-here").addEventListener("input", () => keepDraft(open, "system", $("system-here").value));
  $("system-here").addEventListener("change", store);
  // A conversation that has not begun follows the settings.
  $("system").addEventListener("input", () => {
    if (systemOf(open) !== undefined) return;
    keepDraft(open, "system", null);
    $("system-here").value = $("system").value;
  });
}

/** Keeps what was entered with its conversation, where that has begun; until then its draft is kept. */
async function store() {
  const id = open;
  if (systemOf(id) === undefined) return;
  const text = systemMessage();
  if ((await setSystem(id, text)) && draftOf(id, "system")?.trim() === text) keepDraft(id, "system", null);
}
