// The conversations of this browser, in IndexedDB. A copy of all is in memory, so that reading waits for nothing.
//
// A conversation grows by whole turns, and each turn is added to what is stored at that moment, in one transaction: two tabs never
// overwrite each other's turns. A message that got no answer is not stored. A turn that finds no room lives as long as the page does.

import { Store } from "./database.js";
import { adopt, forgetFormer, former, pendingTurns } from "./former_storage.js";
import { everyMessage, replaced, switched } from "./versions.js";

const STORE = new Store("tokenmill.conversations", "conversations");
const CHANNEL = new BroadcastChannel("tokenmill.conversations");

/** Each conversation by its id: `{ title, system, updated, messages }`; the title is `""` until one is given. */
const all = new Map();
/** The conversations that were deleted stay so, also when an answer or a title arrives. */
const deleted = new Set();

/** Reads what is stored, and takes over what earlier versions of the page kept elsewhere. Call once, before anything else. */
export async function startConversations() {
  const kept = former();
  try {
    if (kept.length) {
      await STORE.change((store) => kept.forEach((entry) => putIfNew(store, entry)));
      kept.forEach(({ id }) => forgetFormer(id));
    }
  } catch {
    // There is no room for them here; they stay where they are.
    for (const { id, ...entry } of kept) all.set(id, entry);
  }
  try {
    const [ids, entries] = [await STORE.ask((store) => store.getAllKeys()), await STORE.ask((store) => store.getAll())];
    ids.forEach((id, i) => all.set(id, adopt(entries[i])));
  } catch {
    // This browser keeps nothing in IndexedDB.
  }
  for (const { id, nKept, messages, system, isContinued } of pendingTurns()) await addTurn(id, { nKept, messages, system, isContinued });
}

/** A name for a conversation that does not exist yet. It is stored with its first turn. */
export function fresh() {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
}

/** The messages of a conversation; none if it is not stored. */
export function read(id) {
  return all.get(id)?.messages ?? [];
}

/** The system message of a conversation; `undefined` if it is not stored. */
export function systemOf(id) {
  return all.get(id)?.system;
}

/** The title of a conversation, or its first words; an empty string if it is not stored. */
export function titleOf(id) {
  return all.has(id) ? titleOfEntry(all.get(id)) : "";
}

/** The title of a conversation, or else its first words. */
export function titleOfEntry({ title, messages: [first] }) {
  if (title) return title;
  return first?.content.trim().split("\n")[0].slice(0, 60) || first?.images?.[0]?.name || first?.files?.[0]?.name || "Without words";
}

/**
 * Adds the messages of one turn: after all others, or in the place of those from `nKept` on, which become another version. A turn that
 * `isContinued` is one message that takes the place of its beginning. Whether there was room to store it.
 */
export function addTurn(id, { nKept, messages, system = "", isContinued = false }) {
  return change(id, (entry) => {
    let grown;
    if (isContinued) {
      grown = lengthened(entry.messages, messages[0]);
    } else if (nKept === undefined) grown = [...entry.messages, ...messages];
    else grown = replaced(entry.messages, nKept, messages);
    return { ...entry, system: entry.messages.length ? entry.system : system, messages: grown, updated: Date.now() };
  });
}

/** Shows another version of the message at `at`. */
export function switchVersion(id, at, to) {
  return change(id, (entry) => ({ ...entry, messages: switched(entry.messages, at, to) }));
}

/** Gives a conversation a title; an empty one takes it back. */
export function rename(id, title) {
  return change(id, (entry) => ({ ...entry, title }));
}

/** Gives a stored conversation another system message. */
export function setSystem(id, system) {
  return all.has(id) ? change(id, (entry) => ({ ...entry, system })) : true;
}

/**
 * Adds conversations, `{ id, title, system, updated, messages }`; one gets a new id where it has none, or where that is taken. The id of the
 * first, and whether there was room for all.
 */
export async function addConversations(given) {
  let first = "";
  let areStored = true;
  for (const { id: asked, ...entry } of given) {
    const id = asked && !all.has(asked) ? asked : fresh();
    first ||= id;
    // It may be one that was deleted here.
    deleted.delete(id);
    areStored = (await change(id, () => entry)) && areStored;
  }
  return { id: first, areStored };
}

/** Deletes a conversation. */
export async function remove(id) {
  all.delete(id);
  deleted.add(id);
  forgetFormer(id);
  try {
    await STORE.change((store) => store.delete(id));
  } catch {
    // It was never stored.
  }
  CHANNEL.postMessage(id);
}

/** All that the reader of a conversation may remember: its title, and the words, files and images of all versions. */
function wordsOf(entry) {
  const said = everyMessage(entry.messages).flatMap(({ content, files = [], images = [] }) => {
    return [content, ...files.flatMap(({ name, text }) => [name, text]), ...images.map(({ name }) => name)];
  });
  return [titleOfEntry(entry), ...said].join("\n").toLowerCase();
}

/** All conversations as `{ id, title, updated }`, the newest first; those that hold the words, where some are given. */
export function list(words = "") {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (entry) => {
    if (!wanted.length) return true;
    const text = wordsOf(entry);
    return wanted.every((word) => text.includes(word));
  };
  return [...all]
    .filter(([, entry]) => holds(entry))
    .map(([id, { updated }]) => ({ id, title: titleOf(id), updated }))
    .sort((a, b) => b.updated - a.updated);
}

/** All conversations as they are stored, with their ids, the newest first. */
export function entries() {
  return list().map(({ id }) => ({ id, ...all.get(id) }));
}

/** The messages of a conversation, those of other versions included. */
export function messagesOf(id) {
  return everyMessage(read(id));
}

/** The messages of all conversations, those of other versions included. */
export function allMessages() {
  return [...all.keys()].flatMap(messagesOf);
}

/** Calls `changed(id, isDeleted)` when another tab changes a conversation. */
export function onChangeElsewhere(changed) {
  CHANNEL.addEventListener("message", async ({ data: id }) => {
    const entry = await STORE.ask((store) => store.get(id));
    if (entry) {
      all.set(id, adopt(entry));
      deleted.delete(id);
    } else {
      all.delete(id);
      deleted.add(id);
    }
    changed(id, !entry);
  });
}

/** Changes a conversation by `act`, which gets and gives what is stored. Whether it could be stored. */
async function change(id, act) {
  if (deleted.has(id)) return true;
  const empty = { title: "", system: "", updated: 0, messages: [] };
  try {
    const entry = await STORE.change((store, keep) => {
      store.get(id).onsuccess = ({ target: { result } }) => {
        // A conversation that found no room before is in memory only.
        const changed = act(result ? adopt(result) : (all.get(id) ?? empty));
        store.put(changed, id);
        keep(changed);
      };
    });
    // It may have been deleted meanwhile.
    if (deleted.has(id)) return true;
    all.set(id, entry);
    CHANNEL.postMessage(id);
    return true;
  } catch {
    if (deleted.has(id)) return true;
    all.set(id, act(all.get(id) ?? empty));
    return false;
  }
}

/** The messages with a longer answer in the place of its beginning, which another tab may have answered. */
function lengthened(messages, longer) {
  const at = messages.findLastIndex(({ role, content }) => role === "assistant" && longer.content.startsWith(content));
  if (at < 0) return [...messages, longer];
  const { versions } = messages[at];
  return messages.with(at, versions ? { ...longer, versions } : longer);
}

function putIfNew(store, { id, ...entry }) {
  store.getKey(id).onsuccess = ({ target: { result } }) => result === undefined && store.put(entry, id);
}
