// The models that the server has: which one is asked, and what each is doing.
//
// A server that never unloads says nothing of what its model is doing; where there is one model, there is nothing to choose. The
// choice is kept in this browser. Looking at the list loads nothing and counts as no use, so it is read again and again while the page is
// seen. While a server starts, engine.js sees its end and has this one look again.

import { causeGone, needsKey, NO_ANSWER, noChat } from "./failures.js";
import { model, showCard, STATES } from "./model.js";
import { headers } from "./settings.js";

const CHOSEN = "tokenmill.model";
/** The words of the list for models that cannot chat. */
const KINDS = { base: "base model", embedding: "embeddings" };
const PERIOD_MS = 5000;
/** While a model is loaded. */
const SHORT_PERIOD_MS = 1000;
const $ = (id) => document.getElementById(id);

/** The models of the server, as `{ name, parent, nContext, takesImages, kind, state, reason, comesAndGoes }`. */
let served = [];
let timer = 0;
/** Whether the server said that the model it starts with is still loading. */
let isStarting = false;
let changed = () => {};

/** Asks the server which models it has; `modelChanged` is called when another one is asked, or it is another than was known. Call again after a new key. */
export async function startModels(modelChanged) {
  changed = modelChanged;
  await look();
}

/** Reads the list once, then plans the next time. */
export async function look() {
  clearTimeout(timer);
  timer = 0;
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    isStarting = response.status === 503 && (await isLoadingFirst());
    if (isStarting) say("The model is loading …");
    else if (response.status === 401) say(needsKey());
    else if (response.ok) {
      causeGone("key");
      served = (await response.json()).data.map(read);
      await take(served.find(({ name }) => name === (model.name || kept())) ?? byDefault());
    }
  } catch {
    // The first message will say what is wrong, but nobody writes one while the model is said to load.
    if (isStarting) say(NO_ANSWER);
  }
  clearTimeout(timer);
  const isLoading = served.some(({ state }) => state === "loading");
  timer = model.comesAndGoes ? setTimeout(lookIfSeen, isLoading ? SHORT_PERIOD_MS : PERIOD_MS) : 0;
}

/** Whether a server that answers nothing else yet is loading the model it starts with. */
async function isLoadingFirst() {
  const response = await fetch("/readyz");
  return !response.ok && (await response.json()).status === "loading";
}

/** A page that nobody sees asks nothing; it looks when it is seen again. */
function lookIfSeen() {
  timer = 0;
  if (!document.hidden) look();
}

function read({ id, parent, max_model_len: nContext, architecture, capabilities = [], has_chat_template: hasTemplate, status }) {
  const state = status?.failed ? "failed" : (status?.value ?? "loaded");
  // The server says neither of a model whose files it has not read yet.
  const isRead = state === "loaded" || hasTemplate !== null;
  const takesImages = architecture?.input_modalities?.includes("image") || (isRead ? false : undefined);
  const kind = capabilities.includes("embedding") ? "embedding" : { true: "chat", false: "base" }[hasTemplate] ?? "";
  return { name: id, parent, nContext: nContext ?? 0, takesImages, kind, state, reason: status?.reason ?? "", comesAndGoes: Boolean(status) };
}

/** The model where none was chosen: the first that can chat and be loaded, as far as is known. */
function byDefault() {
  const sound = served.filter(({ state }) => state !== "failed");
  return sound.find((entry) => !noChat(entry)) ?? sound[0] ?? served[0];
}

/** The tokens that the context of a model holds; 0 where the server does not say, as of one that is not loaded. */
export function contextOf(name) {
  return served.find((entry) => entry.name === name)?.nContext ?? 0;
}

/** The names of the models that take images. */
export function seeing() {
  return served.filter(({ takesImages }) => takesImages).map(({ name }) => name);
}

/** Asks this model from now on, or shows what has become of it. */
async function take(entry) {
  if (!entry) return;
  const { name, nContext, takesImages, kind, state, reason, comesAndGoes } = entry;
  // The server knows more of a model that has been loaded.
  const isNewlyLoaded = state === "loaded" && model.state !== "loaded";
  const isKnown = name === model.name && nContext === model.nContext && takesImages === model.takesImages && kind === model.kind;
  const isNew = !isKnown || isNewlyLoaded;
  if (name !== model.name) causeGone("model");
  if (isNewlyLoaded) causeGone("load");
  const hasOthers = comesAndGoes && served.length > 1;
  Object.assign(model, { name, nContext, takesImages, kind, state, reason, comesAndGoes, hasOthers });
  $("model").textContent = hasOthers ? "About" : name;
  $("model").ariaLabel = hasOthers ? `About the model ${name}` : `Model: ${name}`;
  $("about").hidden = false;
  $("choice").hidden = !hasOthers;
  if (hasOthers) showChooser();
  showState();
  if (!isNew) return;
  changed();
  await showCard();
}

/** Brings the chooser up to date; what is the same stays, so that an open list stays as it is. */
function showChooser() {
  const chooser = $("chooser");
  const names = [...chooser.options].map(({ value }) => value);
  if (names.length !== served.length || served.some(({ name }, i) => name !== names[i])) {
    chooser.replaceChildren(...served.map(({ name }) => new Option(name, name)));
  }
  served.forEach(({ name, parent, kind, state }, i) => {
    const said = [KINDS[kind], STATES[state], parent && `adapter of ${parent}`];
    const text = `${name} (${said.filter(Boolean).join(", ")})`;
    if (chooser.options[i].textContent !== text) chooser.options[i].textContent = text;
  });
  if (chooser.value !== model.name) chooser.value = model.name;
}

/** Says what the next message will meet where the model is not loaded, or cannot chat. */
function showState() {
  const { name, state, reason } = model;
  const why = reason ? reason[0].toUpperCase() + reason.slice(1) : `${name} could not be loaded`;
  const words = {
    loaded: "",
    loading: `${name} is being loaded.`,
    unloaded: `${name} is not loaded; the next message loads it.`,
    failed: `${why}. The next message tries again.`,
  };
  say((state === "failed" ? "" : noChat(model)) || words[state] || "");
}

/** Says what the next message will meet; what is said already is not read again. */
function say(text) {
  if ($("model-state").textContent === text) return;
  $("model-state").textContent = text;
  $("model-state").hidden = false;
}

function kept() {
  return localStorage.getItem(CHOSEN) ?? "";
}

function choose(name) {
  try {
    localStorage.setItem(CHOSEN, name);
  } catch {
    // The storage is full; the choice holds until a reload.
  }
  take(served.find((entry) => entry.name === name)).catch(() => {});
}

$("chooser").addEventListener("change", () => choose($("chooser").value));
document.addEventListener("visibilitychange", () => model.comesAndGoes && !timer && lookIfSeen());
