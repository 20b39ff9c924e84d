// A message as nodes: text, images, reasoning, calls of tools and their results, and what can be done with it.

import { imageNode } from "./images.js";
import { render } from "./markdown.js";
import { fileNode, withFiles } from "./text_files.js";

export function element(name, className, text) {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  return node;
}

export function button(text, label, pressed) {
  const node = element("button", "", text);
  node.type = "button";
  if (label) node.setAttribute("aria-label", label);
  node.addEventListener("click", pressed);
  return node;
}

/** Shows text as Markdown, or as it is should that fail: an answer is never lost to its looks. */
export function renderSafely(node, text) {
  try {
    render(node, text);
  } catch (error) {
    console.error(error);
    node.replaceChildren(element("p", "plain", text));
  }
}

const NAMES = { user: "You", tool: "Result of a tool", assistant: "Model" };

/** The node of a message. */
export function messageNode(message) {
  const { role, content } = message;
  const node = element("div", `message ${role}`, "");
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", NAMES[role]);
  if (role === "user") node.dir = "auto";
  if (role === "user") {
    if (message.images) {
      const row = element("div", "images", "");
      row.dir = "ltr";
      row.append(...message.images.map(imageNode));
      node.append(row);
    }
    for (const file of message.files ?? []) node.append(fileNode(file));
    node.append(content);
  } else if (role === "tool") {
    const result = element("span", "", content);
    result.dir = "auto";
    node.append(element("span", "quiet", `Result of ${message.name}: `), result);
  } else {
    node.append(element("div", "thoughts", ""), element("div", "body", ""), element("div", "calls", ""));
    node.append(element("p", "note", message.note ?? ""));
    update(node, message);
  }
  return node;
}

/** Brings the node of an answer up to date, which `isRunning` or is over; what did not change stays. */
export function update(node, { content, reasoning = "", calls = [] }, isRunning = false) {
  showReasoning(node.querySelector(".thoughts"), reasoning, isRunning && content === "" && calls.length === 0);
  renderSafely(node.querySelector(".body"), content);
  const shown = calls.map((call) => {
    const block = element("div", "call", "");
    block.append(element("span", "quiet", "Calls "), element("code", "", call.name), element("pre", "", indented(call.arguments)));
    return block;
  });
  node.querySelector(".calls").replaceChildren(...shown);
}

/** Reasoning is folded; its fold stays as the reader left it. */
function showReasoning(place, text, isRunning) {
  if (!text) return;
  if (!place.firstChild) {
    const fold = element("details", "reasoning", "");
    const plain = element("div", "plain", "");
    plain.dir = "auto";
    fold.append(element("summary", "quiet", ""), plain);
    place.append(fold);
  }
  place.querySelector("summary").textContent = isRunning ? "Reasoning …" : "Reasoning";
  place.querySelector(".plain").textContent = text;
}

/** Whether a call has a name, and arguments that are an object. */
export function isWhole({ name, arguments: json }) {
  try {
    const given = JSON.parse(json);
    return name !== "" && given !== null && typeof given === "object" && !Array.isArray(given);
  } catch {
    return false;
  }
}

/** Arguments on several lines; as they are while they are not complete. */
function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** Makes these nodes the children of another; those that were children stay where they are. */
export function putInPlace(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, i) => {
    if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null);
  });
}

/** Buttons below a message. */
export function actions(...buttons) {
  const row = element("div", "actions", "");
  // They are not read with the answer.
  row.setAttribute("aria-live", "off");
  row.append(...buttons);
  return row;
}

/** Buttons that show the version before and after, and which one is shown; `to(at)` shows another. */
export function versionButtons({ at, count }, to) {
  const group = element("span", "versions", "");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Versions");
  const [before, after] = [button("‹", "Previous version", () => to(at - 1)), button("›", "Next version", () => to(at + 1))];
  before.disabled = at === 0;
  after.disabled = at === count - 1;
  group.append(before, element("span", "", `${at + 1}/${count}`), after);
  return group;
}

/** A form for the results of calls; `sent` gets them as messages. `typed` has those that could not be sent before. */
export function resultsForm(calls, typed, sent) {
  const form = element("form", "results", "");
  const inputs = calls.map((call) => {
    const label = element("label", "quiet", `Result of ${call.name}`);
    const input = document.createElement("textarea");
    input.rows = 1;
    input.dir = "auto";
    input.value = typed.find(({ id }) => id === call.id)?.content ?? "";
    label.append(input);
    form.append(label);
    return input;
  });
  const send = element("button", "", "Send results");
  send.type = "submit";
  form.append(send);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sent(calls.map(({ id, name }, i) => ({ role: "tool", id, name, content: inputs[i].value })));
  });
  return form;
}

/** A stored message in the form of a request; `parts` has the images by their keys. */
export function toRequest({ role, content: words, images = [], files, reasoning, calls, id }, parts) {
  if (role === "tool") return { role, tool_call_id: id, content: words };
  const content = withFiles({ content: words, files });
  const seen = images.map(({ key }) => parts.get(key)).filter(Boolean);
  const text = content ? [{ type: "text", text: content }] : [];
  const message = { role, content: seen.length ? [...seen, ...text] : content };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls?.length) {
    message.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}
