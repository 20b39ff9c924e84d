// The chat view: the open conversation, the composer, and what can be done with each message.

import { attachedImages, giveBackImages, keepAttached, setAttached, startImages } from "./composer_images.js";
import { allMessages, append, fresh, onChangeElsewhere, read, replaceFrom } from "./conversations.js";
import { showList, startList } from "./history.js";
import { forgetUnused, keepImages } from "./image_store.js";
import { imageParts, inMib, keysOf, MAX_BODY_BYTES } from "./images.js";
import { actions, button, copyButton, messageNode, resultsForm, toRequest } from "./messages.js";
import { model, showContext } from "./model.js";
import { askForKey, sampling, systemMessage, tools } from "./settings.js";
import { Turn } from "./turn.js";

const OPEN = "tokenmill.open";
const DRAFT = "tokenmill.draft";
const EDITED = "tokenmill.edited";
const $ = (id) => document.getElementById(id);

/** The conversation shown; each tab has its own. */
let open = "";
/** The turn whose answer is on its way, or `null`. */
let running = null;
/** The place of the message that is edited, or `null`. */
let edited = null;
/** Results of tools that could not be sent, for the form. */
let unsent = [];

function scrollToEnd() {
  scrollTo(0, document.documentElement.scrollHeight);
}

function isAtEnd() {
  return innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
}

/** A message and what can be done with it. */
function nodesOf(message, at, messages) {
  const isLast = at === messages.length - 1;
  const buttons = [];
  if (message.role === "user") buttons.push(button("Edit", "Edit this message", () => edit(at)));
  if (message.role === "assistant" && message.content) buttons.push(copyButton(message.content));
  if (message.role === "assistant" && isLast) buttons.push(button("Regenerate", "Answer again", () => start([], at)));
  const nodes = [messageNode(message), actions(...buttons)];
  if (isLast && message.calls) nodes.push(resultsForm(message.calls, unsent, (results) => start(results)));
  return nodes;
}

/** Draws the stored messages, then the turn that runs. */
function redraw() {
  const isHere = running?.id === open;
  const stored = read(open).slice(0, isHere ? running.nKept : undefined);
  const nodes = stored.flatMap(nodesOf);
  if (isHere) nodes.push(...running.nodes);
  $("messages").replaceChildren(...nodes);
  $("messages").classList.toggle("busy", running !== null);
  $("empty").hidden = nodes.length > 0;
  $("export").disabled = stored.length === 0;
  showLastContext();
  showList(open);
}

/** Shows the gauge for the last answer of the open conversation. */
export function showLastContext() {
  showContext(read(open).at(-1)?.n_tokens ?? 0);
}

/** Opens a conversation; an answer that still streams into another one is stopped and kept there. */
function openConversation(id) {
  if (running && running.id !== id) running.stop();
  open = id;
  sessionStorage.setItem(OPEN, id);
  $("rate").textContent = "";
  $("error").textContent = "";
  // What is in a message that is edited belongs to its conversation.
  if (edited !== null) emptyBox();
  stopEditing();
  redraw();
  scrollToEnd();
}

/** Puts a message back into the box; what was said after it goes when it is sent. */
function edit(at) {
  if (running) return;
  const { content, images = [] } = read(open)[at];
  setEdited(at);
  setDraft(content);
  setAttached(images);
  $("prompt").focus();
}

function stopEditing() {
  setEdited(null);
}

/** Says which message is edited; a reload finds it as it finds the draft. */
function setEdited(at) {
  edited = at;
  $("editing").hidden = at === null;
  if (at === null) sessionStorage.removeItem(EDITED);
  else keep(EDITED, at);
}

function emptyBox() {
  setDraft("");
  setAttached([]);
}

function setDraft(text) {
  $("prompt").value = text;
  keepDraft(text);
}

function keepDraft(text) {
  keep(DRAFT, text);
}

function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The storage is full; the value holds until a reload.
  }
}

/** Messages in the form of requests and files, the system message first. */
async function inForm(system, messages) {
  const parts = await imageParts(messages);
  const first = system ? [{ role: "system", content: system }] : [];
  return [...first, ...messages.map((message) => toRequest(message, parts))];
}

/**
 * What makes the body of a request.
 * @throws when the settings or the images are such that there can be none
 */
function requestMaker(added, nKept) {
  const messages = [...read(open).slice(0, nKept), ...added];
  const hasImages = keysOf(messages).length > 0;
  if (hasImages && model.takesImages === false) throw new Error(blindness(added));
  const system = systemMessage();
  const offered = tools();
  const fields = {
    model: model.name || undefined,
    ...(offered && { tools: offered }),
    stream: true,
    stream_options: { include_usage: true },
    ...sampling(),
  };
  return async () => {
    const body = JSON.stringify({ ...fields, messages: await inForm(system, messages) });
    const nBytes = hasImages ? new Blob([body]).size : 0;
    if (nBytes > MAX_BODY_BYTES) {
      throw new Error(
        `With the images of the whole conversation this request would have ${inMib(nBytes)}; this server takes ` +
          `${inMib(MAX_BODY_BYTES)} (--max-body-bytes). Send fewer or smaller images, or start a new conversation.`,
      );
    }
    return body;
  };
}

/** Why images cannot be sent to a model that takes none. */
function blindness(added) {
  const isOfMessage = keysOf(added).length > 0;
  const way = isOfMessage ? "Remove those of the message" : "The conversation has some: start a new one";
  return `${model.name} takes no images. ${way}${model.hasOthers ? ", or choose another model" : ""}.`;
}

/** Asks for an answer to the conversation's first `nKept` messages, or all, and to those that are `added`. */
function start(added, nKept) {
  if (running) return;
  $("error").textContent = "";
  let makeBody;
  try {
    makeBody = requestMaker(added, nKept);
  } catch (error) {
    showFailure(error);
    return;
  }
  const id = open;
  running = new Turn(id, added, nKept, {
    isShown: () => id === open,
    follow,
    rate: (text) => ($("rate").textContent = text),
    ended,
  });
  stopEditing();
  $("rate").textContent = "";
  redraw();
  showIdle();
  running.run(makeBody);
  scrollToEnd();
}

/** Draws, and stays at the end where the reader is there. */
function follow(draw) {
  const isFollowing = isAtEnd();
  draw();
  if (isFollowing) scrollToEnd();
}

/** Stores a turn, or gives the message back to the box if nothing came. */
function ended(turn, failure) {
  if (running === turn) running = null;
  follow(() => {
    if (turn.hasAnswer()) {
      if (store(turn)) redraw();
    } else {
      giveBack(turn);
      redraw();
    }
    if (failure) showFailure(failure);
    showIdle();
    showList(open);
  });
  if (failure?.status === 401) askForKey();
  else $("prompt").focus();
}

/** Gives back what could not be sent: a message to the box, results of tools to their form. */
function giveBack({ id, added, nKept }) {
  unsent = added.filter(({ role }) => role === "tool");
  const message = added.find(({ role }) => role === "user");
  if (!message) return;
  const { content, images = [] } = message;
  giveBackImages(images);
  const later = $("prompt").value;
  setDraft(later.trim() ? `${content}\n${later}` : content);
  // The place is one of the turn's conversation; another may be open by now.
  if (nKept !== undefined && id === open) setEdited(nKept);
}

function store(turn) {
  const messages = [...turn.added, turn.reply()];
  let isStored = true;
  try {
    if (turn.nKept === undefined) append(turn.id, messages);
    else replaceFrom(turn.id, turn.nKept, messages);
  } catch {
    isStored = false;
    $("error").textContent = "This browser's storage is full: this turn will be gone after a reload. Delete conversations to make room.";
  }
  keepDraft($("prompt").value);
  keepAttached();
  // They were stored when they were added; this tells whether there was room, and dates them anew.
  keepImages(keysOf(turn.added)).then((areKept) => {
    if (!areKept && isStored) {
      $("error").textContent = "This browser has no room for the images of this message: only its text will be here after a reload.";
    }
  });
  return isStored;
}

function showFailure(error) {
  let message = error.message;
  if (error.status === 401) message = "This server needs an API key. Enter it under “Settings and key”, then send again.";
  if (error.code === "context_length_exceeded") message += ". Shorten the message, or start a new conversation.";
  $("error").textContent = message;
}

function showIdle() {
  $("send").disabled = running !== null;
  $("stop").disabled = running === null;
  $("messages").classList.toggle("busy", running !== null);
}

async function send() {
  const images = await attachedImages();
  const content = $("prompt").value.trim();
  if ((!content && !images.length) || running) return;
  const nKept = edited ?? undefined;
  start([{ role: "user", content, ...(images.length && { images }) }], nKept);
  if (!running) return;
  $("prompt").value = "";
  // Until the answer is stored, a reload finds the message in the box.
  keepDraft(content);
  setAttached([], images);
}

/** Offers the conversation as a file, in the form that `tokenmill chat` loads. */
async function exportConversation() {
  const messages = await inForm(systemMessage(), read(open));
  const file = new Blob([`${JSON.stringify({ messages }, null, 2)}\n`], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = "conversation.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Connects the view; call once. */
export function startChat() {
  // The browser would put the old place back before the messages are drawn.
  history.scrollRestoration = "manual";
  startList({ select: openConversation, removed: (id) => id === open && openConversation(fresh()) });
  startImages();
  attachedImages().then((images) => forgetUnused(new Set(keysOf([...allMessages(), { images }]))));
  const wasEdited = sessionStorage.getItem(EDITED);
  openConversation(sessionStorage.getItem(OPEN) ?? newest());
  $("prompt").value = sessionStorage.getItem(DRAFT) ?? "";
  if (wasEdited !== null && read(open)[wasEdited]?.role === "user") setEdited(Number(wasEdited));
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("input", () => keepDraft($("prompt").value));
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("stop").addEventListener("click", () => running?.stop());
  $("cancel-edit").addEventListener("click", () => {
    stopEditing();
    emptyBox();
    $("prompt").focus();
  });
  $("export").addEventListener("click", exportConversation);
  document.addEventListener("keydown", (event) => event.key === "Escape" && running?.stop());
  $("clear").addEventListener("click", () => {
    openConversation(fresh());
    $("prompt").focus();
  });
  onChangeElsewhere((id) => {
    if (id === null || id === open) redraw();
    else showList(open);
  });
  addEventListener("pagehide", () => {
    running?.notes.push("Interrupted.");
    running?.end(null);
  });
}

function newest() {
  return showList("")[0]?.id ?? fresh();
}
