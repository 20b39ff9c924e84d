// The served model: its name and the size of its context.

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
  } catch {
    // The first message will say what is wrong.
  }
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
