// Versions of messages: what an edit or another answer replaced stays, and can be brought back with all that followed it.
//
// A conversation is the list of messages that is shown. A message that has versions carries `versions: { at, tails }`: `tails` has, for
// each version, the messages from this place on, and `null` at `at`, for the version shown is the conversation itself. Tails are lists
// of the same kind, so versions nest.

/** The messages with `turn` in the place of those from `nKept` on, which become another version. */
export function replaced(messages, nKept, turn) {
  const tail = messages.slice(nKept);
  if (!tail.length) return [...messages, ...turn];
  const { versions, tails } = withTail(tail);
  const [first, ...rest] = turn;
  return [...messages.slice(0, nKept), { ...first, versions: { at: versions, tails: [...tails, null] } }, ...rest];
}

/** The messages with version `to` of the message at `at`, and all that followed it; the same where there is none. */
export function switched(messages, at, to) {
  const known = messages[at]?.versions;
  if (!known || !known.tails[to]) return messages;
  const { tails } = withTail(messages.slice(at));
  const [first, ...rest] = tails[to];
  const others = tails.map((tail, i) => (i === to ? null : tail));
  return [...messages.slice(0, at), { ...first, versions: { at: to, tails: others } }, ...rest];
}

/** Which version of how many is shown, counted from 0; `null` where there is one. */
export function versionOf({ versions }) {
  return versions ? { at: versions.at, count: versions.tails.length } : null;
}

/** All messages, those of other versions included. */
export function everyMessage(messages) {
  const found = [];
  const rest = [...messages];
  while (rest.length) {
    const message = rest.pop();
    found.push(message);
    for (const tail of message.versions?.tails ?? []) if (tail) rest.push(...tail);
  }
  return found;
}

/** The tails of all versions of a tail's first message, with this one in its place, and how many there are. */
function withTail(tail) {
  const [{ versions: known, ...first }, ...rest] = tail;
  const tails = known ? [...known.tails] : [null];
  tails[known?.at ?? 0] = [first, ...rest];
  return { versions: tails.length, tails };
}
