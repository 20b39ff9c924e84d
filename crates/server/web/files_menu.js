// The buttons below the list of conversations: files are saved and taken in.

import { addConversations, entries, titleOf, titleOfEntry } from "./conversations.js";
import { sortOut } from "./copies.js";
import { clearWords, showFailure, tell } from "./failures.js";
import { closeFold } from "./folds.js";
import { forgetImages, imageUrl } from "./image_store.js";
import { keysOf } from "./images.js";
import { conversationsOf, backupOf, fileNameOf, markdownOf, offer } from "./transfer.js";
import { everyMessage } from "./versions.js";

const JSON_TYPE = "application/json";
const $ = (id) => document.getElementById(id);

/**
 * Connects the buttons; call once. `shown()` is the conversation shown as `{ id, system, messages }`, `inForm(system, messages)` its
 * messages in the form of requests, `select(id)` opens one, and `tellFull()` says that there was no room.
 */
export function startExports({ shown, inForm, select, tellFull }) {
  $("export").addEventListener("click", async () => {
    const { id, system, messages } = shown();
    offer(`${JSON.stringify({ messages: await inForm(system, messages) }, null, 2)}\n`, fileNameOf(titleOf(id), "json"), JSON_TYPE);
  });
  $("export-markdown").addEventListener("click", () => {
    const { id, system, messages } = shown();
    offer(markdownOf({ title: titleOf(id), system, messages }), fileNameOf(titleOf(id), "md"), "text/markdown");
  });
  $("export-all").addEventListener("click", async () => {
    const day = new Date().toISOString().slice(0, 10);
    offer(await backupOf(entries()), `tokenmill-conversations-${day}.json`, JSON_TYPE);
  });
  $("import").addEventListener("click", () => $("import-files").click());
  $("import-files").addEventListener("change", async () => {
    const files = [...$("import-files").files];
    $("import-files").value = "";
    clearWords();
    const refused = [];
    const taken = [];
    for (const file of files) {
      try {
        taken.push(...conversationsOf(await file.text(), file.name));
      } catch (error) {
        refused.push(error.message);
      }
    }
    if (taken.length) {
      const here = new Map(entries().map(({ id, ...entry }) => [id, entry]));
      const { added, known } = await sortOut(taken, here, { titleOf: titleOfEntry, urlOf: imageUrl });
      const used = new Set(keysOf([...here.values(), ...added].flatMap(({ messages }) => everyMessage(messages))));
      forgetImages(keysOf(taken.flatMap(({ messages }) => everyMessage(messages))).filter((key) => !used.has(key)));
      const { id, areStored } = await addConversations(added);
      closeFold($("history"));
      select(id || known[0]);
      tell(inCounts(added.length, known.length));
      if (!areStored) tellFull();
    }
    if (refused.length) showFailure(refused.join(" "));
  });
}

/** Says what came in. */
function inCounts(nAdded, nKnown) {
  const conversations = (n) => (n === 1 ? "1 conversation" : `${n} conversations`);
  const added = nAdded ? `${conversations(nAdded)} imported.` : "";
  const known = nKnown ? `${conversations(nKnown)} ${nKnown === 1 ? "is" : "are"} already here.` : "";
  return [added, known].filter(Boolean).join(" ");
}
