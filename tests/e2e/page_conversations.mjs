// Versions of messages and backups of conversations under node: whatever is edited, answered again and switched, no message is lost.
//
// Usage: node tests/e2e/page_conversations.mjs [number of random conversations] [seed]

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

// What the page's files look for when they are loaded.
globalThis.document = { querySelector: () => ({ content: "8388608" }) };

// Node takes a file for a module by its package; the page's files have none, so a copy gets one.
const folder = mkdtempSync(join(tmpdir(), "tokenmill-conversations-"));
cpSync(fileURLToPath(new URL("../../crates/server/web/", import.meta.url)), folder, { recursive: true });
writeFileSync(join(folder, "package.json"), '{"type":"module"}');
const load = (name) => import(pathToFileURL(join(folder, name)));
const [{ everyMessage, replaced, switched, versionOf }, { backupOf, conversationsOf }] = [await load("versions.js"), await load("transfer.js")];
rmSync(folder, { recursive: true });

/** A repeatable source of numbers (mulberry32). */
function random(seed) {
  return (n) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % n;
  };
}

const texts = (messages) => messages.map(({ content }) => content);
const turnOf = (i) => [
  { role: "user", content: `question ${i}` },
  { role: "assistant", content: `answer ${i}` },
];

const count = Number(process.argv[2] ?? 300);
const seed = Number(process.argv[3] ?? 1);
for (let round = 0; round < count; round += 1) {
  const next = random(seed * 1_000_003 + round);
  let messages = turnOf("first");
  let nTurns = 0;
  const said = new Set(texts(messages));
  for (let left = 1 + next(30); left > 0; left -= 1) {
    const before = messages;
    const unchanged = JSON.stringify(before);
    const at = next(messages.length);
    const kind = next(4);
    if (kind === 0) {
      messages = [...messages, ...turnOf((nTurns += 1))];
      for (const text of texts(messages.slice(-2))) said.add(text);
    } else if (kind < 3) {
      // A question is edited with a turn, an answer is given again alone.
      const turn = messages[at].role === "user" ? turnOf((nTurns += 1)) : [{ role: "assistant", content: `answer ${(nTurns += 1)}` }];
      const known = versionOf(messages[at])?.count ?? 1;
      messages = replaced(messages, at, turn);
      for (const text of texts(turn)) said.add(text);
      assert.deepEqual(versionOf(messages[at]), { at: known, count: known + 1 });
      assert.deepEqual(texts(messages), [...texts(before.slice(0, at)), ...texts(turn)]);
      // The way back shows what was there.
      assert.deepEqual(texts(switched(messages, at, versionOf(before[at])?.at ?? 0)), texts(before));
    } else {
      const known = versionOf(messages[at]);
      const to = next((known?.count ?? 1) + 1);
      messages = switched(messages, at, to);
      if (!known || to === known.at || to >= known.count) assert.equal(messages, before);
      else {
        assert.equal(versionOf(messages[at]).at, to);
        assert.deepEqual(switched(messages, at, known.at), before);
      }
    }
    assert.equal(JSON.stringify(before), unchanged, "what is stored is not changed in its place");
    assert.deepEqual(new Set(texts(everyMessage(messages))), said, "nothing is lost");
    for (const { versions } of everyMessage(messages)) {
      if (versions) assert(versions.tails.every((tail, i) => (tail === null) === (i === versions.at)));
    }
  }
  // A backup brings back the same, as far as it ends with an answer.
  const entry = { title: `round ${round}`, system: "s", updated: 1 + round, messages };
  const [back] = conversationsOf(await backupOf([entry]), "backup.json");
  assert.deepEqual(back, entry);
}

// Versions of versions deeper than anybody makes them end somewhere.
let deep = [{ role: "assistant", content: "a" }];
for (let level = 0; level < 500; level += 1) deep = [{ role: "assistant", content: "b", versions: { at: 0, tails: [null, deep] } }];
const [{ messages: shallow }] = conversationsOf(JSON.stringify({ conversations: [{ messages: deep }] }), "deep.json");
assert.equal(everyMessage(shallow).length, 51);
console.log(`the page's conversations: ${count} of random turns, edits and versions`);
