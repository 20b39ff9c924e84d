// The files of the message that is being written, images and texts: chosen, dropped or pasted; shown above its text, where each can be
// removed.
//
// Each conversation has files of its own, as it has a text. Whether the model takes images is the server's word; where it does not, one is refused in
// words. Where the server does not know yet, as of a model that was never loaded, one is taken, and the answer to the message tells.

import { draftOf, keepDraft } from "./drafts.js";
import { causeGone, clearWords, showFailure } from "./failures.js";
import { addImage, imageUrl } from "./image_store.js";
import { imageNode, isImage, nameOf, readImage } from "./images.js";
import { button, element } from "./messages.js";
import { model } from "./model.js";
import { seeing } from "./models.js";
import { readText } from "./text_files.js";

const $ = (id) => document.getElementById(id);

/** The conversation whose files are shown. */
let open = "";
/** Files are read one after the other. */
let reading = Promise.resolve();
let changed = () => {};

/** Connects the button, the page and the clipboard; `filesChanged()` follows each change. Call once. */
export function startFiles(filesChanged) {
  changed = filesChanged;
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => {
    add([...$("files").files]);
    // The same file can be chosen again.
    $("files").value = "";
  });
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event.dataTransfer)) return;
    // Without this the browser would leave the page and open the file.
    event.preventDefault();
    event.dataTransfer.dropEffect = isShown() ? "copy" : "none";
    document.body.classList.toggle("dropping", isShown());
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || endDrop());
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event.dataTransfer)) return;
    event.preventDefault();
    endDrop();
    if (isShown()) add([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    // Tables and paragraphs come as a text with a picture of it; the text is meant.
    if (!files.length || event.clipboardData.types.includes("text/plain") || !isShown()) return;
    event.preventDefault();
    add(files);
  });
}

/** Shows the files of the message that is being written in a conversation. */
export function openFiles(id) {
  open = id;
  show();
  reading = reading.then(() => leaveOutLost(id));
}

/** The files of the message, once all were read. */
export async function attachedFiles() {
  await reading;
  return attachedNow();
}

/**
 * The files of the message that were read so far: images as `{ key, name, length }`, where the length is that of the URL, and texts as
 * `{ name, text }`.
 */
export function attachedNow() {
  return filesOf(open);
}

/** Puts these files in the place of those of the message; a reload finds `kept`. */
export function setAttached(files, kept = files) {
  setFilesOf(open, files, kept);
}

function filesOf(id) {
  return draftOf(id, "files") ?? { images: [], files: [] };
}

function setFilesOf(id, files, kept = files) {
  const some = (of) => (of.images.length || of.files.length ? of : null);
  keepDraft(id, "files", some(files), some(kept));
  if (id === open) show();
}

/** Puts files before those of the message. */
export function giveBackFiles({ images, files }) {
  const attached = attachedNow();
  setAttached({ images: [...images, ...attached.images], files: [...files, ...attached.files] });
}

/** Says on the button what the model takes. */
export function showAttach() {
  const label = model.takesImages === false ? "Add text files" : "Add images or text files";
  $("attach").setAttribute("aria-label", label);
  $("attach").title = `${label}; they can be dropped and pasted too`;
}

function add(files) {
  // Another conversation may be open once they are read.
  const id = open;
  clearWords();
  const refused = [];
  const causes = new Set(["files", "model"]);
  const each = async (file) => {
    try {
      if (await isImage(file)) await addOneImage(id, file);
      else {
        const read = { name: nameOf(file), text: await readText(file) };
        setFilesOf(id, { ...filesOf(id), files: [...filesOf(id).files, read] });
      }
    } catch (error) {
      if (!refused.includes(error.message)) refused.push(error.message);
      // Another model takes no more of the other files.
      if (!error.isOfModel) causes.delete("model");
      showFailure(refused.join(" "), [...causes]);
    }
  };
  for (const file of files) reading = reading.then(() => each(file));
  $("prompt").focus();
}

async function addOneImage(id, file) {
  if (model.takesImages === false) {
    const others = seeing();
    const next = others.length ? ` Choose a model that does: ${others.join(", ")}.` : "";
    throw Object.assign(new Error(`${model.name} takes no images.${next}`), { isOfModel: true });
  }
  const nBefore = filesOf(id).images.reduce((sum, { length }) => sum + length, 0);
  const url = await readImage(file, nBefore);
  setFilesOf(id, { ...filesOf(id), images: [...filesOf(id).images, { key: addImage(url), name: nameOf(file), length: url.length }] });
}

function show() {
  const { images, files } = attachedNow();
  $("attached").replaceChildren(...images.map((image) => item(image, imageNode(image))), ...files.map((file) => item(file, element("span", "file", file.name))));
  $("attached").hidden = images.length + files.length === 0;
  const counted = [[images.length, "image"], [files.length, "text file"]].filter(([count]) => count);
  const words = counted.map(([count, noun]) => `${count} ${noun}${count === 1 ? "" : "s"}`).join(" and ");
  const isOne = images.length + files.length === 1;
  changed();
  $("attached-words").textContent = words ? `${words} ${isOne ? "goes" : "go"} with the message.` : "";
}

function item(file, shown) {
  const node = document.createElement("li");
  const remove = button("×", `Remove ${file.name}`, () => {
    const buttons = [...$("attached").querySelectorAll("button")];
    const at = buttons.indexOf(remove);
    const others = (list) => list.filter((other) => other !== file);
    const attached = attachedNow();
    setAttached({ images: others(attached.images), files: others(attached.files) });
    causeGone("files");
    const left = [...$("attached").querySelectorAll("button")];
    (left[Math.min(at, left.length - 1)] ?? $("prompt")).focus();
  });
  node.append(shown, remove);
  return node;
}

/** Takes the images that the browser no longer keeps out of a draft. */
async function leaveOutLost(id) {
  const { images } = filesOf(id);
  const urls = await Promise.all(images.map(({ key }) => imageUrl(key)));
  const lost = images.filter((_, i) => !urls[i]);
  if (lost.length) setFilesOf(id, { ...filesOf(id), images: filesOf(id).images.filter((image) => !lost.includes(image)) });
}

function hasFiles(transfer) {
  return transfer?.types.includes("Files") ?? false;
}

function isShown() {
  return !$("chat-view").hidden;
}

function endDrop() {
  document.body.classList.remove("dropping");
}
