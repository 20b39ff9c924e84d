// Sampling, system message and key: read from the form, and kept over a reload.

const STORE = "tokenmill.settings";
const KEY = "tokenmill.key";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const KEPT = [...NUMBERS, "system"];
const $ = (id) => document.getElementById(id);

/** The headers of a request, with the key when one is set. */
export function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

/** The fields of a request that the form gives. An empty box is left to the server. */
export function sampling() {
  const filled = NUMBERS.filter((name) => $(name).value !== "");
  return Object.fromEntries(filled.map((name) => [name, Number($(name).value)]));
}

/** The system message, or an empty string. */
export function systemMessage() {
  return $("system").value.trim();
}

/** Opens the form where the key is entered, and goes there. */
export function askForKey() {
  $("settings").open = true;
  $("key").focus();
}

/** Fills the form from what was kept and keeps what is entered; `keyChanged` is called after a new key. */
export function startSettings(keyChanged) {
  const stored = kept();
  for (const name of KEPT) {
    if (typeof stored[name] === "string") $(name).value = stored[name];
  }
  $("key").value = sessionStorage.getItem(KEY) ?? "";
  $("key").addEventListener("change", () => {
    sessionStorage.setItem(KEY, $("key").value);
    keyChanged();
  });
  for (const name of KEPT) $(name).addEventListener("input", keep);
  $("defaults").addEventListener("click", () => {
    for (const name of KEPT) $(name).value = $(name).defaultValue;
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
