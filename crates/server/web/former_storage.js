// Conversations in localStorage: earlier versions of the page kept theirs there. Turns that are on their way when the page is left are
// kept there too, for nothing else is written in time then.

const PREFIX = "tokenmill.chat.";
/** Where one conversation was kept before there were several. */
const SINGLE = "tokenmill.conversation";
/** The id that it gets. */
const FIRST = "first";
const PENDING = "tokenmill.turn.";
const SETTINGS = "tokenmill.settings";
const ROLES = ["user", "assistant", "tool"];

/** Conversations of earlier versions as `{ id, title, system, updated, messages }`. Their system message was one for all. */
export function former() {
  const found = [];
  for (const key of keys(PREFIX)) found.push({ id: key.slice(PREFIX.length), ...adopt(parse(localStorage.getItem(key))) });
  const { messages } = adopt({ messages: parse(localStorage.getItem(SINGLE)) });
  // A message without an answer made every later one fail.
  while (messages.at(-1)?.role === "user") messages.pop();
  if (messages.length) found.push({ id: FIRST, ...adopt({ messages }) });
  const system = String(parse(localStorage.getItem(SETTINGS))?.system ?? "").trim();
  return found.filter((entry) => entry.messages.length).map((entry) => ({ ...entry, system }));
}

/** Deletes a conversation of earlier versions. */
export function forgetFormer(id) {
  localStorage.removeItem(id === FIRST ? SINGLE : PREFIX + id);
}

/** Keeps a turn until the page starts again. */
export function keepPending(id, turn) {
  try {
    // Two tabs may leave the same conversation.
    localStorage.setItem(PENDING + Math.random().toString(36).slice(2), JSON.stringify({ ...turn, id }));
  } catch {
    // The storage is full: this turn is lost.
  }
}

/** The turns that were kept, with the id of their conversation; they are kept no longer. */
export function pendingTurns() {
  return keys(PENDING).flatMap((key) => {
    const turn = parse(localStorage.getItem(key));
    localStorage.removeItem(key);
    return typeof turn?.id === "string" && Array.isArray(turn.messages) ? [turn] : [];
  });
}

/** A conversation in the form of today; what is no message is left out. */
export function adopt(entry) {
  const { title, system, updated, messages } = entry ?? {};
  const isMessage = (m) => typeof m?.content === "string" && ROLES.includes(m.role);
  return {
    title: typeof title === "string" ? title : "",
    system: typeof system === "string" ? system : "",
    updated: Number(updated) || 0,
    messages: Array.isArray(messages) ? messages.filter(isMessage) : [],
  };
}

function keys(prefix) {
  return Object.keys(localStorage).filter((key) => key.startsWith(prefix));
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
