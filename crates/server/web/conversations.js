// The conversations of this browser, one entry of localStorage each.
//
// A conversation grows by whole turns, and each turn is added to what is stored at that moment: two tabs never
// overwrite each other's turns, unless a message is edited or answered again. A message that got no answer is not stored.

const PREFIX = "tokenmill.chat.";
/** Where one conversation was kept before there were several. */
const FORMER = "tokenmill.conversation";

/** A name for a conversation that does not exist yet. It is stored with its first turn. */
export function fresh() {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
}

/** The messages of a conversation; none if it is not stored. */
export function read(id) {
  return parse(localStorage.getItem(PREFIX + id)).messages;
}

/**
 * Adds the messages of one turn.
 * @throws when the browser's storage is full
 */
export function append(id, turn) {
  write(id, [...read(id), ...turn]);
}

/**
 * Puts the messages of one turn in the place of those from `nKept` on.
 * @throws when the browser's storage is full
 */
export function replaceFrom(id, nKept, turn) {
  write(id, [...read(id).slice(0, nKept), ...turn]);
}

/** Deletes a conversation. */
export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** All conversations as `{ id, title, updated }`, the newest first. */
export function list() {
  takeOverFormer();
  const found = [];
  for (let i = 0; i < localStorage.length; i += 1) {
    const key = localStorage.key(i);
    if (!key.startsWith(PREFIX)) continue;
    const { messages, updated } = parse(localStorage.getItem(key));
    const [first] = messages;
    const title = first?.content.trim().split("\n")[0].slice(0, 60) || first?.images?.[0]?.name || "Without words";
    found.push({ id: key.slice(PREFIX.length), title, updated });
  }
  return found.sort((a, b) => b.updated - a.updated);
}

/** The messages of all conversations. */
export function allMessages() {
  return list().flatMap(({ id }) => read(id));
}

/** Calls `changed(id)` when another tab changes a conversation, with `null` when it deletes everything. */
export function onChangeElsewhere(changed) {
  addEventListener("storage", ({ key }) => {
    if (key === null) changed(null);
    else if (key.startsWith(PREFIX)) changed(key.slice(PREFIX.length));
  });
}

function write(id, messages) {
  localStorage.setItem(PREFIX + id, JSON.stringify({ updated: Date.now(), messages }));
}

function parse(text) {
  try {
    const { messages, updated } = JSON.parse(text);
    const isMessage = (m) => typeof m?.content === "string" && ["user", "assistant", "tool"].includes(m.role);
    return { messages: messages.filter(isMessage), updated: Number(updated) || 0 };
  } catch {
    return { messages: [], updated: 0 };
  }
}

function takeOverFormer() {
  const text = localStorage.getItem(FORMER);
  if (text === null) return;
  const { messages } = parse(`{"messages":${text}}`);
  // A message without an answer made every later one fail.
  while (messages.at(-1)?.role === "user") messages.pop();
  try {
    if (messages.length) write(fresh(), messages);
    localStorage.removeItem(FORMER);
  } catch {
    // The storage is full; the next start tries again.
  }
}
