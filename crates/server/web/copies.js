// Which conversations of a file are new here: one that is here already is kept once, and a changed one becomes a copy that says so.
//
// Two conversations are the same if they have the same system message, messages, versions and images; their titles, the version that is
// shown and figures below answers do not count. A file in the form of requests has neither versions nor names of files: there only what a
// request would say counts, and it is here already if any versions of a conversation say that.

import { withFiles } from "./text_files.js";
import { everyMessage } from "./versions.js";

const COPY = " (imported copy)";

/**
 * Sorts out the conversations of a file, `{ id, title, system, updated, messages, isRequest }`, given those that are `here`, by their ids.
 * `titleOf(entry)` is what one is called, and `urlOf(key)` an image.
 * @returns `{ added, known }`: those to add, and the ids of those that the others are the same as. The id of an added one is `""` where
 * it needs a new one.
 */
export async function sortOut(taken, here, { titleOf, urlOf }) {
  const all = new Map([...here].map(([id, entry]) => [id, { ...entry, id }]));
  const [added, known] = [[], []];
  for (const { isRequest = false, ...entry } of taken) {
    const others = [...all.values()];
    const same = await sameAs(entry, others, isRequest, urlOf);
    if (same) {
      known.push(same.id);
      continue;
    }
    const beginning = entry.messages.slice(0, 2);
    const isCopy = all.has(entry.id) || (!entry.id && others.some(({ messages }) => versionLike(messages, beginning, true)));
    const title = isCopy ? `${titleOf(entry).replace(COPY, "")}${COPY}` : entry.title;
    const sorted = { ...entry, id: isCopy ? "" : entry.id, title };
    added.push(sorted);
    all.set(sorted.id || `added ${added.length}`, sorted);
  }
  return { added, known };
}

/** The first of the `others` that is the same as `entry`; `null` where none is. */
async function sameAs(entry, others, isRequest, urlOf) {
  const whole = isRequest ? "" : wholeForm(entry);
  for (const other of others) {
    if (other.system.trim() !== entry.system.trim()) continue;
    const found = isRequest ? versionLike(other.messages, entry.messages) : wholeForm(other) === whole && everyMessage(other.messages);
    if (found && (await haveSameImages(found, everyMessage(entry.messages), urlOf))) return other;
  }
  return null;
}

/** Whether the images of messages that are still kept are the same. */
async function haveSameImages(ours, theirs, urlOf) {
  const [a, b] = await Promise.all(
    [ours, theirs].map(async (messages) => {
      const urls = await Promise.all(messages.flatMap(({ images = [] }) => images.map(({ key }) => urlOf(key))));
      return urls.filter(Boolean).sort();
    }),
  );
  return a.length === b.length && a.every((url, i) => url === b[i]);
}

/** All words of a conversation, those of other versions included, whichever is shown. */
function wholeForm({ messages }) {
  return JSON.stringify(tree(messages));
}

/** Messages up to the first that has versions, then the versions of the rest. */
function tree(messages) {
  const { before, tails } = fork(messages);
  return tails ? [...before.map(words), { versions: tails.map(tree) }] : before.map(words);
}

/**
 * The messages, of some version each, that say in a request what the `wanted` ones do; `null` where there are none. Where that `isBeginning`,
 * more may follow.
 */
function versionLike(messages, wanted, isBeginning = false) {
  const { before, tails } = fork(messages);
  const n = Math.min(before.length, wanted.length);
  if (before.length > n && !isBeginning) return null;
  if (before.slice(0, n).some((message, i) => requestWords(message) !== requestWords(wanted[i]))) return null;
  if (n === wanted.length && isBeginning) return before;
  if (!tails) return n === wanted.length ? before : null;
  for (const tail of tails) {
    const rest = versionLike(tail, wanted.slice(n), isBeginning);
    if (rest) return [...before, ...rest];
  }
  return null;
}

/** The messages before the first that has versions, and those of each version from there on; no `tails` where none has any. */
function fork(messages) {
  const at = messages.findIndex(({ versions }) => versions);
  if (at < 0) return { before: messages, tails: null };
  const { versions, ...first } = messages[at];
  const rest = [first, ...messages.slice(at + 1)];
  return { before: messages.slice(0, at), tails: versions.tails.map((tail, i) => (i === versions.at ? rest : tail)) };
}

function words({ role, content, reasoning = "", calls = [], files = [], id = "", ended = "" }) {
  return [role, content, reasoning, calls.map(callWords), files.map(({ name, text }) => [name, text]), id, ended];
}

/** The words of a message in a request. */
function requestWords(message) {
  const { role, content, reasoning = "", calls = [], id = "" } = message;
  return JSON.stringify(role === "tool" ? [role, content, id] : [role, withFiles(message), reasoning, calls.map(callWords)]);
}

function callWords({ id, name, arguments: json }) {
  return [id, name, json];
}
