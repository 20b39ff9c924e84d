// The chat view: the open conversation, what can be done with each of its messages, and the turns that run.
//
// Each conversation has at most one turn that runs. It goes on while another conversation is open, and is stored with its own.

import { messageCopy } from "./clipboard.js";
import { beginEdit, cancelEdit, editedPlace, focusBox, giveBack, leaveEdit, message, openBox, showSend, startComposer, takeBox, takeOut } from "./composer.js";
import { startFiles } from "./composer_files.js";
import { addTurn, allMessages, fresh, onChangeElsewhere, read, startConversations, switchVersion, titleOf, titleOfEntry } from "./conversations.js";
import { drafts, draftsWithImages, dropDrafts, settleDraft } from "./drafts.js";
import { clearWords, forgetTold, hasCause, isBlind, noChat, showFailure, tell, tellFailure } from "./failures.js";
import { startExports } from "./files_menu.js";
import { keepPending } from "./former_storage.js";
import { showList, startList } from "./history.js";
import { forgetUnused, keepImages } from "./image_store.js";
import { imageParts, inMib, keysOf, MAX_BODY_BYTES } from "./images.js";
import { actions, button, messageNode, putInPlace, resultsForm, toRequest, versionButtons } from "./messages.js";
import { model, showContext } from "./model.js";
import { follow, scrollToEnd, showStops, startScrolling } from "./scrolling.js";
import { askForKey, sampling, templateVariables, tools } from "./settings.js";
import { showSystemOf, startSystemMessage, systemMessage } from "./system_message.js";
import { Turn } from "./turn.js";

const OPEN = "tokenmill.open";
const $ = (id) => document.getElementById(id);

/** The conversation shown; each tab has its own. */
let open = "";
/** The turns whose answers are on their way, by their conversations. */
const turns = new Map();
/** Turns that ended while another conversation was open, as `{ turn, failure }`, by their conversations. */
const unseen = new Map();
/** The stored messages as they are drawn, in the form of `drawnOf`. */
let drawn = [];
/** Results of tools that could not be sent, for the form. */
let unsent = [];
/** Shows this view: a conversation can be opened from another one. */
let showView = () => {};

/** The turn that runs in the conversation shown. */
function turnHere() {
  return turns.get(open);
}

/** The buttons and forms below a message. */
function waysOf(shown, at, isLast) {
  const { role, content, versions } = shown;
  const buttons = [];
  if (versions) buttons.push(versionButtons({ at: versions.at, count: versions.tails.length }, (to) => showVersion(at, to)));
  if (role === "user") buttons.push(button("Edit", "Edit this message", () => edit(at)));
  if (role !== "tool" && content) buttons.push(messageCopy(content));
  if (role === "assistant") {
    const isCut = isLast && shown.ended && content && !shown.calls;
    if (isCut) buttons.push(button("Continue", "Continue this answer", () => start([], { continued: shown })));
    buttons.push(button("Regenerate", "Regenerate this answer", () => start([], { nKept: at })));
  }
  const nodes = [actions(...buttons)];
  if (isLast && shown.calls) nodes.push(resultsForm(shown.calls, unsent, (results) => start(results)));
  return nodes;
}

/** The message at `at` as it is drawn; what stands there and did not change stays. */
function drawnOf(shown, at, isLast) {
  const source = JSON.stringify([open, shown]);
  const old = drawn[at]?.source === source ? drawn[at] : null;
  const form = isLast && shown.calls ? JSON.stringify(unsent) : "";
  if (old && old.isLast === isLast && old.form === form) return old;
  return { source, isLast, form, node: old?.node ?? messageNode(shown), ways: waysOf(shown, at, isLast) };
}

/** Draws the stored messages, then the turn that runs. Messages that did not change stay: none is read aloud again, or loses its folds. */
function redraw() {
  const turn = turnHere();
  const stored = read(open).slice(0, turn?.nKept);
  drawn = stored.map((shown, at) => drawnOf(shown, at, at === stored.length - 1));
  const nodes = drawn.flatMap(({ node, ways }) => [node, ...ways]);
  if (turn) nodes.push(...turn.nodes);
  putInPlace($("messages"), nodes);
  showIdle();
  showStops();
  $("empty").hidden = nodes.length > 0;
  markEdited();
  for (const id of ["export", "export-markdown"]) $(id).disabled = stored.length === 0;
  showLastContext();
  showList(open);
}

/** Marks the message that is edited. */
function markEdited() {
  const at = editedPlace();
  $("messages").querySelectorAll(".message").forEach((node, i) => node.classList.toggle("edited", i === at));
}

/** Stops the answer, or else ends the edit. */
function escape() {
  if (turnHere()) turnHere().stop();
  else if (editedPlace() !== null) {
    cancelEdit();
    focusBox();
  }
}

/** Shows the gauge for the last answer of the open conversation, or for the one that runs. */
export function showLastContext() {
  showContext(turnHere()?.nTokens() || (read(open).at(-1)?.n_tokens ?? 0));
}

/** The words of the list for conversations with an answer that runs, or that ended unseen, and for those that have a draft only. */
function states() {
  const titled = ({ id, added }, words) => [id, { title: titleOf(id) || titleOfEntry({ messages: added }), words }];
  const written = [...drafts()].filter(([id]) => id !== open && !titleOf(id)).map(([id, draft]) => titled({ id, added: [draft] }, "draft"));
  const seen = [...turns.values()].map((turn) => titled(turn, turn.id === open ? "" : "answering"));
  const others = [...unseen.values()].map(({ turn, failure }) => titled(turn, isWhole(turn, failure) ? "new answer" : "failed"));
  return new Map([...written, ...others, ...seen]);
}

function isWhole(turn, failure) {
  return turn.hasAnswer() && !failure;
}

/** Opens a conversation; an answer that still streams into another one goes on there. */
function openConversation(id) {
  const left = turnHere();
  if (left) left.system = systemMessage();
  showView();
  open = id;
  sessionStorage.setItem(OPEN, id);
  $("rate").textContent = "";
  clearWords();
  openBox(id);
  // Another tab may have changed the conversation.
  if (editedPlace() !== null && read(id)[editedPlace()]?.role !== "user") leaveEdit({});
  const missed = unseen.get(id);
  unseen.delete(id);
  showSystemOf(id, (turnHere() ?? missed?.turn)?.system);
  redraw();
  scrollToEnd();
  if (missed) showEnd(missed.turn, missed.failure);
  else if (left && left.id !== id) tell(`The answer in “${states().get(left.id).title}” goes on.`, left.id);
}

/** Ends what belongs to a conversation that was deleted. */
function drop(id) {
  unseen.delete(id);
  const turn = turns.get(id);
  turns.delete(id);
  turn?.drop();
  forgetTold(id);
  if (id === open) openConversation(fresh());
  dropDrafts(id);
}

/** Opens a new conversation; a message for which this one has no room goes with it. */
function newConversation() {
  const carried = hasCause("conversation") ? takeBox() : null;
  openConversation(fresh());
  if (carried) giveBack(carried);
  focusBox();
}

/** Ends the edit of a message at a place or after it, which will not be shown. */
function endEditFrom(at) {
  const edited = editedPlace();
  if (edited !== null && edited >= at) leaveEdit(read(open)[edited] ?? {});
}

/** Shows another version of a message, and what followed that one. */
async function showVersion(at, to) {
  if (turnHere()) return;
  clearWords();
  endEditFrom(at);
  const id = open;
  const before = read(id)[at].versions.at;
  if (!(await switchVersion(id, at, to))) tellFull();
  if (id !== open) return;
  redraw();
  // The button that was pressed was drawn again.
  const [back, on] = $("messages").querySelectorAll(".actions")[at].querySelectorAll(".versions button");
  const pressed = to > before ? on : back;
  (pressed.disabled ? (pressed === on ? back : on) : pressed).focus();
}

/** Puts a message back into the box; with its answer it becomes another version when it is sent. */
function edit(at) {
  if (turnHere()) return;
  if (editedPlace() !== at) {
    clearWords();
    endEditFrom(0);
    beginEdit(at, read(open)[at]);
  }
  $("prompt").focus();
}

/** Messages in the form of requests and files, the system message first. */
async function inForm(system, messages) {
  const parts = await imageParts(messages);
  const first = system ? [{ role: "system", content: system }] : [];
  return [...first, ...messages.map((each) => toRequest(each, parts))];
}

/**
 * A function that makes the body of a request.
 * @throws when the settings or the images are such that there can be none
 */
function requestMaker(added, nKept, isContinued) {
  const messages = [...read(open).slice(0, nKept), ...added];
  const hasImages = keysOf(messages).length > 0;
  if (hasImages && model.takesImages === false) throw blindness(added, model.name);
  if (noChat(model)) throw Object.assign(new Error(noChat(model)), { causes: ["model"] });
  const system = systemMessage();
  const [offered, variables] = [tools(), templateVariables()];
  const fields = {
    model: model.name || undefined,
    ...(offered && { tools: offered }),
    ...(variables && { chat_template_kwargs: variables }),
    ...(isContinued && { continue_final_message: true, add_generation_prompt: false }),
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    ...sampling(),
  };
  return async () => {
    const body = JSON.stringify({ ...fields, messages: await inForm(system, messages) });
    const nBytes = new Blob([body]).size;
    if (nBytes > MAX_BODY_BYTES) {
      const words =
        `With ${hasImages ? "the images of " : ""}the whole conversation this request would have ${inMib(nBytes)}; this server takes ` +
        `${inMib(MAX_BODY_BYTES)} (--max-body-bytes). Send fewer or smaller files, or start a new conversation.`;
      throw Object.assign(new Error(words), { causes: ["message", "files", "conversation"] });
    }
    return body;
  };
}

/** Why images cannot be sent to a model that takes none. */
function blindness(added, name) {
  const isOfMessage = keysOf(added).length > 0;
  const way = isOfMessage ? "Remove those of the message" : "The conversation has some: start a new one";
  const words = `${name} takes no images. ${way}${model.hasOthers ? ", or choose another model" : ""}.`;
  return Object.assign(new Error(words), { causes: ["model", isOfMessage ? "files" : "conversation"] });
}

/**
 * Asks for an answer to the conversation's first `nKept` messages, or all, and to those that are `added`; or for the rest of the last
 * answer, which is `continued`. Whether it could be asked for.
 */
function start(added, { nKept, continued = null } = {}) {
  if (turnHere()) return false;
  clearWords();
  let makeBody;
  try {
    makeBody = requestMaker(added, nKept, continued !== null);
  } catch (error) {
    tellFailure(error);
    return false;
  }
  const id = open;
  const nShown = continued ? read(open).length - 1 : nKept;
  const turn = new Turn({ id, added, nKept: nShown, continued, system: systemMessage() }, {
    follow: (draw) => (id === open ? follow(draw) : draw()),
    figures: (rate, nTokens) => id === open && showFigures(rate, nTokens),
    ended,
  });
  turns.set(id, turn);
  // An edit that is sent ends where its message is taken out of the box.
  if (!added.some(({ role }) => role === "user") && nShown !== undefined) endEditFrom(nShown);
  $("rate").textContent = "";
  redraw();
  turn.run(makeBody);
  scrollToEnd();
  return true;
}

/** Shows the figures of the answer that runs, as far as they are known. */
function showFigures(rate, nTokens) {
  if (rate) $("rate").textContent = rate;
  if (nTokens) showContext(nTokens);
}

/** Stores a turn, and shows how it ended, or says so where another conversation is open. */
async function ended(turn, failure) {
  const isStored = turn.hasAnswer() && (await store(turn));
  // The conversation may have been deleted meanwhile.
  if (turns.get(turn.id) !== turn) return;
  turns.delete(turn.id);
  if (turn.id === open) showEnd(turn, failure);
  else {
    unseen.set(turn.id, { turn, failure });
    const { title } = states().get(turn.id);
    tell(isWhole(turn, failure) ? `“${title}” has a new answer.` : `“${title}” was not finished; open it to see why.`, turn.id);
    showList(open);
  }
  if (turn.hasAnswer() && !isStored) tellFull();
}

/** Shows how a turn of the open conversation ended. A message that got no answer goes back to the box. */
function showEnd(turn, failure) {
  follow(() => {
    const isCut = turn.hasAnswer();
    if (!isCut) giveBackTurn(turn);
    redraw();
    const isKept = !isCut && turn.added.some(({ role }) => role === "user");
    // The page did not know it of a model whose files were not read yet.
    if (failure) tellFailure(isBlind(failure) ? blindness(turn.added, turn.asked) : failure, { isCut, isKept });
  });
  if (failure?.status === 401) askForKey();
  else focusBox();
}

/** Gives back what could not be sent in the open conversation: a message to the box, results of tools to their form. */
function giveBackTurn({ added, nKept }) {
  unsent = added.filter(({ role }) => role === "tool");
  const asked = added.find(({ role }) => role === "user");
  if (!asked) return;
  if (nKept !== undefined) beginEdit(nKept, asked);
  else giveBack(asked);
}

/** A turn as it is stored. */
function storedForm(turn) {
  const system = turn.id === open ? systemMessage() : turn.system;
  return { nKept: turn.nKept, isContinued: turn.continued !== null, messages: [...turn.added, turn.reply()], system };
}

/** Stores a turn. Whether there was room. */
async function store(turn) {
  const isStored = await addTurn(turn.id, storedForm(turn));
  settleDraft(turn.id);
  // They were stored when they were added; this tells whether there was room, and dates them again.
  keepImages(keysOf(turn.added)).then((areKept) => {
    if (!areKept && isStored) {
      showFailure("This browser has no room for the images of this message: only its text will be here after a reload.");
    }
  });
  return isStored;
}

function tellFull() {
  showFailure("This browser has no room for this, or keeps nothing: what is new will be gone after a reload. Export it, or delete conversations.");
}

/** One button sends a message or stops the answer. A screen reader reads an answer once, at its end, and not again with each word. */
function showIdle() {
  const isIdle = !turnHere();
  $("send").disabled = !isIdle;
  $("send").hidden = !isIdle;
  $("stop").disabled = isIdle;
  $("stop").hidden = isIdle;
  $("messages").classList.toggle("busy", !isIdle);
  $("messages").setAttribute("aria-busy", String(!isIdle));
}

/** Sends the message to the conversation shown; it stays in the box where another one is opened while its files are read. */
async function send() {
  const id = open;
  const written = await message();
  if (!written || id !== open) return;
  const { content, images, files } = written;
  const nKept = editedPlace() ?? undefined;
  if (start([{ role: "user", content, ...(images.length && { images }), ...(files.length && { files }) }], { nKept })) takeOut(written);
}

/** Connects the view, which `show` shows; call once. */
export async function startChat(show) {
  showView = show;
  // The browser would put the old place back before the messages are drawn.
  history.scrollRestoration = "manual";
  const ready = startConversations();
  const sendWhenRead = async () => {
    await ready;
    await send();
  };
  startComposer({ send: sendWhenRead, edits: markEdited });
  // A quick reader types before the conversations are read.
  openBox(sessionStorage.getItem(OPEN) ?? "");
  await ready;
  startList({ select: openConversation, removed: drop, states });
  startFiles(showSend);
  forgetUnused(new Set(keysOf([...allMessages(), ...draftsWithImages()])));
  startSystemMessage();
  startScrolling();
  startExports({ shown: () => ({ id: open, system: systemMessage(), messages: read(open) }), inForm, select: openConversation, tellFull });
  openConversation(sessionStorage.getItem(OPEN) ?? newest());
  $("stop").addEventListener("click", () => turnHere()?.stop());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing) escape();
    if (!event.shiftKey || !(event.ctrlKey || event.metaKey) || event.code !== "KeyO") return;
    event.preventDefault();
    newConversation();
  });
  $("clear").addEventListener("click", newConversation);
  onChangeElsewhere((id, isDeleted) => {
    if (isDeleted) drop(id);
    if (id === open) redraw();
    else showList(open);
  });
  addEventListener("pagehide", keepRunning);
  // A page that the browser had put aside is what it was before that turn.
  addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
}

/** Ends the turns that run because the page goes; what they have is stored at the next start, and a message without an answer is a draft. */
function keepRunning() {
  // One that is over is being stored.
  const running = [...turns.values()].filter(({ isOver }) => !isOver);
  const failed = [...unseen.values()].map(({ turn }) => turn);
  turns.clear();
  unseen.clear();
  for (const turn of running) {
    turn.notes.push("Interrupted.");
    turn.drop();
    if (turn.hasAnswer()) keepPending(turn.id, storedForm(turn));
  }
  for (const turn of [...failed, ...running]) {
    settleDraft(turn.id);
    if (turn.hasAnswer()) continue;
    openBox(turn.id);
    giveBackTurn(turn);
  }
}

function newest() {
  return showList("")[0]?.id ?? fresh();
}
