// Sampling, thinking, tools, colours and key: read from the form, and kept over a reload. A setting that cannot be sent is marked at its field.

import { askFirst } from "./asking.js";
import { element } from "./messages.js";

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
/** The readers of settings that are JSON. */
const JSONS = { tools, template_variables: templateVariables };
/** The settings that are called otherwise in a request. */
const SETTINGS = { chat_template_kwargs: "template_variables" };
/** The server's words on settings that it refused, until they are changed. */
const refused = new Map();
const $ = (id) => document.getElementById(id);

/** The headers of a request, with the key when one is set: its bytes in UTF-8, since a header takes no other characters than Latin-1. */
export function headers() {
  const key = String.fromCharCode(...new TextEncoder().encode($("key").value.trim()));
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

/**
 * The fields of a request that the form gives. An empty box is left to the server.
 * @throws when a number is not one that can be sent
 */
export function sampling() {
  const canThink = !$("thinking-choice").hidden;
  const asked = NUMBERS.filter((name) => canThink || name !== "thinking_budget");
  for (const name of asked) {
    const fault = numberFault(name);
    if (fault) throw wrong(`${$(name).labels[0].firstChild.data.trim()} ${fault} (Settings).`);
  }
  const filled = asked.filter((name) => $(name).value !== "");
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
  if (list !== null && !Array.isArray(list)) throw wrong("The tools are not a list; write [{\"type\": \"function\", …}].");
  return list;
}

/**
 * The variables for the model's chat template, or `null`.
 * @throws when they are no object in JSON
 */
export function templateVariables() {
  const given = json("template_variables", "The template's variables");
  if (given !== null && (typeof given !== "object" || Array.isArray(given))) {
    throw wrong("The template's variables are not an object; write {\"name\": value, …}.");
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
    throw wrong(`${name} are not valid JSON. Look for a missing quote, comma or bracket under “Settings”.`);
  }
}

/** A failure that ends when all settings can be sent. */
function wrong(words) {
  return Object.assign(new Error(words), { causes: ["settings"] });
}

/** Why the number in a box cannot be sent, as the end of a sentence; an empty string where it can. */
function numberFault(name) {
  const { validity, value, min, max, step } = $(name);
  if (validity.badInput) return "must be a number";
  if (validity.rangeUnderflow || validity.rangeOverflow) return max ? `must be between ${min} and ${max}` : `must be ${min} or more`;
  return step === "1" && !Number.isInteger(Number(value)) ? "must be a whole number" : "";
}

/** Marks the setting from which a field of a refused request came, with the server's words. Whether it came from one. */
export function markRefused(field, words) {
  const [root] = field.split(/[.[]/);
  const name = SETTINGS[root] ?? root;
  if (!NUMBERS.includes(name) && !JSONS[name]) return false;
  const reason = words.replace(`\`${root}\`: `, "");
  refused.set(name, reason[0].toUpperCase() + reason.slice(1));
  mark(name);
  return true;
}

/** Why a setting cannot be sent, or was refused, as a sentence; an empty string where it can be sent. */
function faultOf(name) {
  if (refused.has(name)) return refused.get(name);
  const fault = NUMBERS.includes(name) ? numberFault(name) : "";
  if (fault) return `${fault[0].toUpperCase()}${fault.slice(1)}.`;
  try {
    JSONS[name]?.();
    return "";
  } catch (error) {
    return error.message;
  }
}

/** Marks a setting that cannot be sent, and says why below its field. */
function mark(name) {
  const fault = faultOf(name);
  const field = $(name);
  field.parentElement.querySelector(".fault")?.remove();
  field.ariaInvalid = fault ? "true" : null;
  if (fault) field.after(element("span", "fault", fault));
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

/** Fills the form from what was kept and keeps what is entered; `keyChanged` is called after a new key, `areRight` when all can be sent. */
export function startSettings({ keyChanged, areRight }) {
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
  for (const name of KEPT) {
    mark(name);
    $(name).addEventListener("input", () => {
      keep();
      refused.delete(name);
      // A field is marked when it is left, and no longer once its setting is right.
      if (!faultOf(name)) mark(name);
      if (!KEPT.some(faultOf)) areRight();
    });
    $(name).addEventListener("change", () => mark(name));
  }
  askFirst($("defaults"), () => {
    for (const name of KEPT) {
      $(name).value = $(name).defaultValue ?? "";
      $(name).dispatchEvent(new Event("input"));
    }
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
