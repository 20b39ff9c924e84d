// The served model: its name, the size of its context, and its card.

import { headers } from "./settings.js";

const $ = (id) => document.getElementById(id);

/** `name` is empty and `nContext` 0 until the server has told them. */
export const model = { name: "", nContext: 0 };

/** Asks the server which model it serves. */
export async function nameModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) return;
    const served = (await response.json()).data[0];
    model.name = served?.id ?? "";
    model.nContext = served?.max_model_len ?? 0;
    $("model").textContent = model.name;
    await showCard();
  } catch {
    // The first message will say what is wrong.
  }
}

/** Fills the card: what the server says of the model. */
async function showCard() {
  const body = JSON.stringify({ model: model.name });
  const response = await fetch("/api/show", { method: "POST", headers: headers(), body });
  if (!response.ok) return;
  const { details = {}, capabilities = [], model_info: info = {} } = await response.json();
  const size = info["general.parameter_count"];
  const rows = {
    Family: details.family,
    Parameters: size ? size.toLocaleString("en") : details.parameter_size,
    Weights: details.quantization_level,
    Format: details.format,
    Context: model.nContext && `${model.nContext.toLocaleString("en")} tokens`,
    "Made for": capabilities.join(", "),
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
  const isNearlyFull = nTokens > gauge.high;
  const words = `${nTokens.toLocaleString("en")} of ${model.nContext.toLocaleString("en")} tokens`;
  $("context-words").textContent = isNearlyFull ? `${words}: nearly full` : words;
}
