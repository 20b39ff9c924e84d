// The model that is asked: its name, the size of its context, what it is doing, and its card. Which models there are is in models.js.

import { headers, showThinking } from "./settings.js";

const $ = (id) => document.getElementById(id);

/**
 * `name` is empty, `nContext` 0 and `takesImages` undefined until the server knows and tells them; `state` is one of `STATES`. A model that
 * `comesAndGoes` is loaded when it is asked. `kind` is `chat`, `base` of one that has no form for messages, `embedding` of one that makes
 * no texts, or empty where that is not known.
 */
export const model = {
  name: "",
  nContext: 0,
  takesImages: undefined,
  state: "loaded",
  reason: "",
  comesAndGoes: false,
  hasOthers: false,
  kind: "",
};

const ABILITIES = { tools: "calling tools", thinking: "thinking", vision: "images", insert: "filling in the middle", embedding: "embeddings" };

/** The states of a model, in words for a list. */
export const STATES = { loaded: "loaded", loading: "loading", unloaded: "not loaded", failed: "failed" };

/** Whether models can think, by their names: the server knows it of those that are loaded. */
const thinkers = new Map();

/** Whether the model can think; also where nobody knows yet, so that it can be said before the first message loads it. */
function mayThink() {
  const isUnknown = model.state !== "loaded" && !["base", "embedding"].includes(model.kind);
  return thinkers.get(model.name) ?? isUnknown;
}

/** Fills the card: what the server says of the model. */
export async function showCard() {
  showThinking(mayThink());
  const isLoaded = model.state === "loaded";
  const body = JSON.stringify({ model: model.name });
  const response = await fetch("/api/show", { method: "POST", headers: headers(), body });
  if (!response.ok) return;
  const { details = {}, capabilities = [], model_info: info = {} } = await response.json();
  if (body !== JSON.stringify({ model: model.name })) return;
  if (isLoaded) thinkers.set(model.name, capabilities.includes("thinking"));
  showThinking(mayThink());
  const main = { chat: ["chat"], base: ["continuing text"] }[model.kind] ?? [];
  const abilities = capabilities.filter((name) => name !== "completion").map((name) => ABILITIES[name] ?? name);
  const size = info["general.parameter_count"];
  const rows = {
    Name: model.name,
    Family: details.family,
    Parameters: size ? size.toLocaleString("en") : details.parameter_size,
    Weights: details.quantization_level,
    Format: details.format,
    Context: model.nContext && `${model.nContext.toLocaleString("en")} tokens`,
    "Made for": [...main, ...abilities].join(", "),
  };
  const nodes = Object.entries(rows).filter(([, value]) => value).flatMap(([name, value]) => {
    const [term, text] = ["dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  });
  $("card").replaceChildren(...nodes);
}

/** Shows how many tokens of the context a conversation takes; 0 hides the gauge. */
export function showContext(nTokens) {
  const isKnown = nTokens > 0 && model.nContext > 0;
  $("context").hidden = !isKnown;
  if (!isKnown) return;
  const gauge = $("context-gauge");
  gauge.max = model.nContext;
  gauge.high = 0.9 * model.nContext;
  gauge.value = nTokens;
  const words = `${nTokens.toLocaleString("en")} of ${model.nContext.toLocaleString("en")} tokens`;
  const [long, short] = $("context-words").children;
  if (nTokens >= model.nContext) long.textContent = `${words}: full`;
  else long.textContent = nTokens > gauge.high ? `${words}: nearly full` : words;
  short.textContent = `${Math.ceil((100 * nTokens) / model.nContext)}% full`;
}
