// The drafts of each conversation: the text and the files of its next message, the place of the edited one, the message that the edit put aside,
// and the system message.
//
// All of it is kept for this tab and found after a reload; where the storage is full, it holds until then.

const PREFIX = "tokenmill.draft.";
const names = Object.keys(sessionStorage).filter((name) => name.startsWith(PREFIX));
/** The parts of drafts by the names under which they are kept. */
const parts = new Map(names.map((name) => [name, parse(sessionStorage.getItem(name))]).filter(([, value]) => value !== null));

/** A part of a conversation's draft: `text`, `files`, `edited`, `aside` or `system`; `null` where there is none. */
export function draftOf(id, part) {
  return parts.get(nameOf(id, part)) ?? null;
}

/** Sets a part of a draft, or deletes it with `null`. A reload finds `kept`. */
export function keepDraft(id, part, value, kept = value) {
  const name = nameOf(id, part);
  if (value === null) parts.delete(name);
  else parts.set(name, value);
  try {
    if (kept === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, JSON.stringify(kept));
  } catch {
    // The storage is full.
  }
}

/** A reload finds the message as it is in the box, no more. */
export function settleDraft(id) {
  for (const part of ["text", "files"]) keepDraft(id, part, draftOf(id, part));
}

/** Deletes all drafts of a conversation. */
export function dropDrafts(id) {
  for (const part of ["text", "files", "edited", "aside", "system"]) keepDraft(id, part, null);
}

/** The messages that are being written, as `{ content, images, files }` by their conversations. */
export function drafts() {
  const ids = [...parts.keys()].map((name) => name.slice(PREFIX.length).split(".")).filter(([part]) => ["text", "files"].includes(part));
  return new Map(ids.map(([, id]) => [id, { content: draftOf(id, "text") ?? "", images: [], files: [], ...draftOf(id, "files") }]));
}

/** The images of all drafts, as messages that hold them. */
export function draftsWithImages() {
  return [...parts].filter(([name]) => /\.(files|aside)\./.test(name)).map(([, value]) => value);
}

function nameOf(id, part) {
  return `${PREFIX}${part}.${id}`;
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
