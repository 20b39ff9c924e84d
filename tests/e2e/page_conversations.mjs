// Versions of messages and backups of conversations under node: whatever is edited, answered again and switched, no message is lost.
//
// Usage: node tests/e2e/page_conversations.mjs [number of random conversations] [seed]

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

// The page's files look for this when they are loaded.
globalThis.document = { querySelector: () => ({ content: "8388608" }) };

// Node takes a file for a module by its package; the page's files have none, so a copy gets one.
const folder = mkdtempSync(join(tmpdir(), "tokenmill-conversations-"));
cpSync(fileURLToPath(new URL("../../crates/server/web/", import.meta.url)), folder, { recursive: true });
writeFileSync(join(folder, "package.json"), '{"type":"module"}');
const load = (name) => import(pathToFileURL(join(folder, name)));
const [{ everyMessage, replaced, switched, versionOf }, { backupOf, conversationsOf, fileNameOf }] = [await load("versions.js"), await load("transfer.js")];
const { textOf } = await load("text_files.js");
const { sortOut } = await load("copies.js");
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
  const entry = { id: `id-${round}`, title: `round ${round}`, system: "s", updated: 1 + round, messages };
  const [back] = conversationsOf(await backupOf([entry]), "backup.json");
  assert.deepEqual(back, entry);
  // It is here already, whichever versions are shown and under whichever id; with one word more it is a copy.
  const sorted = (taken, here) => sortOut(taken, new Map(here.map(({ id, ...rest }) => [id, rest])), { titleOf: ({ title }) => title, urlOf: () => null });
  const at = messages.findIndex(({ versions }) => versions);
  const shown = at < 0 ? messages : switched(messages, at, next(messages[at].versions.tails.length));
  for (const id of [entry.id, "other", ""]) {
    assert.deepEqual(await sorted([{ ...back, id }, back], [{ ...entry, messages: shown }]), { added: [], known: [entry.id, entry.id] });
  }
  const changed = structuredClone(back);
  everyMessage(changed.messages)[next(everyMessage(changed.messages).length)].content += "!";
  const { added, known } = await sorted([changed, changed, back], [entry]);
  assert.deepEqual([known, added], [["", entry.id], [{ ...changed, id: "", title: `round ${round} (imported copy)` }]]);
  assert.deepEqual((await sorted([back], [])).added, [back]);
}

// An id that is none, as in backups of earlier versions, is left out.
for (const id of [undefined, null, 7, "../x", "A", "a".repeat(41), ["abc"]]) {
  const [{ id: taken }] = conversationsOf(JSON.stringify({ conversations: [{ id, messages: turnOf(1) }] }), "ids.json");
  assert.equal(taken, "", String(id));
}

// All words to the system are taken in.
const toSystem = [
  { role: "developer", content: "First." },
  ...turnOf(1),
  { role: "system", content: [{ type: "text", text: "Then." }] },
  { role: "system", content: "" },
  ...turnOf(2),
];
const [taken] = conversationsOf(JSON.stringify({ messages: toSystem }), "system.json");
assert.equal(taken.system, "First.\n\nThen.");
assert.deepEqual(texts(taken.messages), texts([...turnOf(1), ...turnOf(2)]));

// Versions of versions deeper than anybody makes them end somewhere.
let deep = [{ role: "assistant", content: "a" }];
for (let level = 0; level < 500; level += 1) deep = [{ role: "assistant", content: "b", versions: { at: 0, tails: [null, deep] } }];
const [{ messages: shallow }] = conversationsOf(JSON.stringify({ conversations: [{ messages: deep }] }), "deep.json");
assert.equal(everyMessage(shallow).length, 51);
// A file is called as its conversation, in letters that every system takes.
for (const [title, name] of [
  ["What is 3 + 4?", "What-is-3-4"],
  ["../a/b:c*", "a-b-c"],
  ["Größe – שלום", "Größe-שלום"],
  ["???", "conversation"],
  ["", "conversation"],
  ["a".repeat(70), "a".repeat(60)],
]) {
  assert.equal(fileNameOf(title, "json"), `${name}.json`);
}
// A file that is not UTF-8 is read as Windows-1252 where it is clearly a text.
const bytesOf = (text) => Uint8Array.from(text, (letter) => letter.charCodeAt(0)).buffer;
for (const [bytes, text] of [
  ["plain\n", "plain\n"],
  ["K\xc3\xa4se", "Käse"],
  ["K\xe4se\r\n", "Käse\r\n"],
  ["\xff\xfeK\0\xe4\0\x3d\xd8\x00\xde", "Kä😀"],
  ["\xfe\xff\0K\0\xe4", "Kä"],
  ["\xff\xfeK\0\0\xd8", null],
  ["\xff\xfe\0\0K\0\0\0", null],
  ["\xff\xfeK", null],
  ["K\xe4se\x00", null],
  ["K\xe4se\x02", null],
  ["K\xe4se\x81", null],
  ["\xcf\xf0\xe8\xe2\xe5\xf2", null],
  ["%PDF-1.4\nwords", null],
]) {
  assert.equal(textOf(bytesOf(bytes)), text, JSON.stringify(bytes));
}
// A field that the form of requests lacks does not make another conversation of a file; its images do.
const image = (key) => ({ key, name: key, length: 3 });
const request = (texts, key) => {
  const messages = texts.map((text, i) => ({ role: i % 2 ? "assistant" : "user", content: text, ...(i === 0 && key && { images: [image(key)] }) }));
  return { id: "", title: "", system: "s ", updated: 1, messages, isRequest: true };
};
const mine = { id: "mine", title: "Mine", system: "s", updated: 1 };
mine.messages = [
  { role: "user", content: "words", files: [{ name: "a.txt", text: "text\n" }], images: [image("red")] },
  { role: "assistant", content: "b", note: "9 tokens", n_tokens: 9, ended: "length", versions: { at: 1, tails: [[{ role: "assistant", content: "a" }], null] } },
];
const urls = { red: "data:1", redAgain: "data:1", blue: "data:2" };
const asked = (entry) => sortOut([entry], new Map([["mine", mine]]), { titleOf: () => "Title", urlOf: async (key) => urls[key] });
for (const answer of ["a", "b"]) assert.deepEqual(await asked(request(["File: a.txt\ntext\n\nwords", answer], "redAgain")), { added: [], known: ["mine"] });
for (const [texts, key, title] of [
  [["File: a.txt\ntext\n\nwords", "b"], "blue", "Title (imported copy)"],
  [["File: a.txt\ntext\n\nwords", "b", "c", "d"], "redAgain", "Title (imported copy)"],
  [["File: a.txt\ntext\n\nwords", "c"], "redAgain", ""],
]) {
  const { added, known } = await asked(request(texts, key));
  assert.deepEqual([added.length, added[0].title, known], [1, title, []]);
  assert(!("isRequest" in added[0]), "that is not stored");
}
console.log(`the page's conversations: ${count} of random turns, edits and versions`);
