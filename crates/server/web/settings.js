// Sampling, thinking, tools, colours and key: read from the form, and kept over a reload.

const STORE = "tokenmill.settings";
const KEY = "tokenmill.key";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "thinking_budget", "seed"];
const KEPT = [...NUMBERS, "thinking", "system", "tools", "template_variables", "scheme"];
/** The fields of a request by what is chosen for thinking; nothing where the model decides. */
const THINKING = {
  on: { enable_thinking: true },
  off: { enable_thinking: false },
  low: { reasoning_effort: "low" },
  medium: { reasoning_effort: "medium" },
  high: { reasoning_effort: "high" },
};
const $ = (id) => document.getElementById(id);

/** The headers of a request, with the key when one is set. */
export function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

/** The fields of a request that the form gives. An empty box is left to the server. */
export function sampling() {
  const canThink = !$("thinking-choice").hidden;
  const filled = NUMBERS.filter((name) => $(name).value !== "" && (canThink || name !== "thinking_budget"));
  const numbers = Object.fromEntries(filled.map((name) => [name, Number($(name).value)]));
  return { ...numbers, ...(canThink && THINKING[$("thinking").value]) };
}

/** Shows the switch of thinking, or hides it, and then it says nothing. */
export function showThinking(canThink) {
  for (const id of ["thinking-choice", "thinking-most"]) $(id).hidden = !canThink;
}

/**
 * The tools that the model may call, or `null`.
 * @throws when they are no list in JSON
 */
export function tools() {
  const list = json("tools", "The tools");
  if (list !== null && !Array.isArray(list)) throw new Error("The tools are not a list; write [{\"type\": \"function\", …}].");
  return list;
}

/**
 * The variables for the model's chat template, or `null`.
 * @throws when they are no object in JSON
 */
export function templateVariables() {
  const given = json("template_variables", "The template's variables");
  if (given !== null && (typeof given !== "object" || Array.isArray(given))) {
    throw new Error("The template's variables are not an object; write {\"name\": value, …}.");
  }
  return given;
}

/** The JSON that a box holds, which is called `name` in words; `null` where it is empty. */
function json(id, name) {
  const text = $(id).value.trim();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name} are not valid JSON. Look for a missing quote, comma or bracket under “Settings”.`);
  }
}

/** Light, dark, or as the system has it. */
function showScheme() {
  document.documentElement.dataset.scheme = $("scheme").value;
}

/** Opens the form where the key is entered, and goes there. */
export function askForKey() {
  $("settings").open = true;
  $("key").focus();
}

/** Fills the form from what was kept and keeps what is entered; `keyChanged` is called after a new key. */
export function startSettings(keyChanged) {
  const stored = kept();
  // 512 was the default of earlier versions, and was kept with whatever else was entered.
  if (stored.repeat_penalty === undefined && stored.max_tokens === "512") stored.max_tokens = "";
  for (const name of KEPT) {
    if (typeof stored[name] === "string") $(name).value = stored[name];
  }
  showScheme();
  $("scheme").addEventListener("input", showScheme);
  $("key").value = sessionStorage.getItem(KEY) ?? "";
  $("key").addEventListener("change", () => {
    sessionStorage.setItem(KEY, $("key").value);
    keyChanged();
  });
  for (const name of KEPT) $(name).addEventListener("input", keep);
  $("defaults").addEventListener("click", () => {
    for (const name of KEPT) $(name).value = $(name).defaultValue ?? "";
    showScheme();
    keep();
  });
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

function keep() {
  try {
    localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(KEPT.map((name) => [name, $(name).value]))));
  } catch {
    // The storage is full; the settings hold until a reload.
  }
}
