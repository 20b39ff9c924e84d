// Conversations as files: one in the form that `tokenmill chat` loads or as Markdown, all as a backup; and what such files bring back.
//
// A file may come from anywhere: what is taken in has the known fields only, each of its type.

import { addImage, imageUrl } from "./image_store.js";
import { keysOf } from "./images.js";
import { withFiles } from "./text_files.js";
import { everyMessage } from "./versions.js";

const FORMAT = "tokenmill conversations";
const ID = /^[a-z0-9-]{1,40}$/;
const IMAGE = /^data:image\/(png|jpeg|webp|bmp|gif);base64,[A-Za-z0-9+/=]+$/;
const ROLES = ["user", "assistant", "tool"];
const SYSTEM_ROLES = ["system", "developer"];
const ENDINGS = ["length", "stopped", "broken"];
/** Versions of versions in a backup; deeper ones are left out. */
const MAX_DEPTH = 50;
/** Letters of a file's name. File systems take 255 bytes, and a letter has up to four. */
const MAX_NAME = 60;

/** A file name for a conversation of this title: letters and digits of any script, and lines between them. */
export function fileNameOf(title, ending) {
  const words = title.normalize("NFC").replace(/[^\p{L}\p{M}\p{N}]+/gu, "-");
  const short = [...words].slice(0, MAX_NAME).join("").replace(/^-+|-+$/g, "");
  return `${short || "conversation"}.${ending}`;
}

/** Offers a text as a file. */
export function offer(text, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** A conversation as Markdown: who said it, then the words. */
export function markdownOf({ title, system, messages }) {
  const names = { user: () => "You", assistant: () => "Model", tool: ({ name }) => `Result of ${name}` };
  const sections = messages.map((message) => {
    const calls = (message.calls ?? []).map(({ name, arguments: json }) => `Calls \`${name}\`:\n\n\`\`\`json\n${json}\n\`\`\``);
    const images = (message.images ?? []).map(({ name }) => `*Image: ${name}*`);
    return [`## ${names[message.role](message)}`, ...images, withFiles(message).trim(), ...calls].filter(Boolean).join("\n\n");
  });
  const first = system ? [`## System message\n\n${system}`] : [];
  return `${[`# ${title}`, ...first, ...sections].join("\n\n")}\n`;
}

/** All conversations with their versions and images, as a text. */
export async function backupOf(conversations) {
  const keys = [...new Set(conversations.flatMap(({ messages }) => keysOf(everyMessage(messages))))];
  const urls = await Promise.all(keys.map(imageUrl));
  const images = Object.fromEntries(keys.map((key, i) => [key, urls[i]]).filter(([, url]) => url));
  return `${JSON.stringify({ format: FORMAT, conversations, images })}\n`;
}

/**
 * The conversations of a file that is called `name`: of a backup, or one as `tokenmill chat` and the page write it, which `isRequest`. Each
 * is `{ id, title, system, updated, messages }`; the id is `""` where the file has none.
 * @throws when it is neither, with the reason for people
 */
export function conversationsOf(text, name) {
  let file = null;
  try {
    file = JSON.parse(text.replace(/^\ufeff/, ""));
  } catch {
    throw new Error(`${name} is not JSON.`);
  }
  let found = [];
  if (Array.isArray(file?.conversations)) found = ofBackup(file);
  else if (Array.isArray(file?.messages)) found = [ofRequest(file.messages)];
  else throw new Error(`${name} is not a conversation: it has neither “messages” nor “conversations”.`);
  found = found.filter(({ messages }) => messages.length);
  if (!found.length) throw new Error(`${name} has no conversation with an answer.`);
  return found;
}

function ofBackup({ conversations, images }) {
  // Each image gets a key of its own: the one it had may be taken here.
  const keys = new Map();
  const keyOf = (key) => {
    const url = images?.[key];
    if (typeof url !== "string" || !IMAGE.test(url)) return key;
    if (!keys.has(key)) keys.set(key, addImage(url));
    return keys.get(key);
  };
  return conversations.map((entry) => ({
    id: ID.test(text(entry?.id)) ? entry.id : "",
    title: text(entry?.title),
    system: text(entry?.system),
    updated: Number(entry?.updated) || Date.now(),
    messages: answered(clean(entry?.messages, keyOf, 0)),
  }));
}

/** Stored messages, as far as they are some. */
function clean(messages, keyOf, depth) {
  const whole = Array.isArray(messages) ? messages.filter((m) => ROLES.includes(m?.role) && typeof m.content === "string") : [];
  return whole.map((m) => {
    const message = { role: m.role, content: m.content };
    for (const field of ["note", "reasoning", "id", "name"]) if (typeof m[field] === "string") message[field] = m[field];
    for (const field of ["n_tokens", "n_answer"]) if (Number.isFinite(m[field])) message[field] = m[field];
    if (ENDINGS.includes(m.ended)) message.ended = m.ended;
    const calls = listOf(m.calls).map(({ id, name, arguments: json }) => ({ id: text(id), name: text(name), arguments: text(json) }));
    if (calls.length) message.calls = calls;
    const files = listOf(m.files).map((file) => ({ name: text(file.name), text: text(file.text) }));
    if (files.length) message.files = files;
    const images = listOf(m.images).map(({ key, name, length }) => ({ key: keyOf(text(key)), name: text(name), length: Number(length) || 0 }));
    if (images.length) message.images = images;
    const versions = depth < MAX_DEPTH ? versionsOf(m.versions, keyOf, depth) : null;
    if (versions) message.versions = versions;
    return message;
  });
}

/** Versions without those that hold no message; `null` where one is left. */
function versionsOf(versions, keyOf, depth) {
  if (!Array.isArray(versions?.tails) || !Number.isInteger(versions.at)) return null;
  const tails = versions.tails.map((tail, i) => (i === versions.at ? null : clean(tail, keyOf, depth + 1)));
  const kept = tails.filter((tail) => tail === null || tail.length);
  return kept.length > 1 && kept.includes(null) ? { at: kept.indexOf(null), tails: kept } : null;
}

/** A conversation in the form of a request. All words to the system become its system message, for a conversation has one. */
function ofRequest(given) {
  const messages = listOf(given);
  const toSystem = messages.filter(({ role }) => SYSTEM_ROLES.includes(role));
  const system = toSystem.map(({ content }) => textOf(content)).filter(Boolean).join("\n\n");
  const calls = new Map(messages.flatMap(({ tool_calls: made }) => listOf(made)).map((call) => [call.id, text(call.function?.name)]));
  const taken = messages.filter(({ role }) => ROLES.includes(role)).map((m) => {
    const message = { role: m.role, content: textOf(m.content) };
    const reasoning = text(m.reasoning_content);
    if (reasoning) message.reasoning = reasoning;
    if (m.role === "tool") Object.assign(message, { id: text(m.tool_call_id), name: calls.get(m.tool_call_id) ?? "a tool" });
    const made = listOf(m.tool_calls).map((call) => ({ id: text(call.id), name: text(call.function?.name), arguments: text(call.function?.arguments) }));
    if (made.length) message.calls = made;
    const urls = listOf(m.content).map((part) => text(part.image_url?.url)).filter((url) => IMAGE.test(url));
    if (urls.length) message.images = urls.map((url, i) => ({ key: addImage(url), name: `Image ${i + 1}`, length: url.length }));
    return message;
  });
  return { id: "", title: "", system, updated: Date.now(), messages: answered(taken), isRequest: true };
}

/** Without messages at the end that have no answer: they would make every later one fail. */
function answered(messages) {
  return messages.slice(0, messages.findLastIndex(({ role }) => role === "assistant") + 1);
}

function textOf(content) {
  if (typeof content === "string") return content;
  return listOf(content).map((part) => text(part.text)).filter(Boolean).join("\n");
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function listOf(value) {
  return Array.isArray(value) ? value.filter((item) => item !== null && typeof item === "object") : [];
}
