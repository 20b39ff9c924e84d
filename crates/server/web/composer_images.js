// The images of the message that is being written: chosen, dropped or pasted; shown above its text, where each can be removed.
//
// They are kept over a reload as the text is. Whether the model takes images is the server's word; where it does not, the button is gone,
// and what is dropped is refused in words.

import { addImage, imageUrl } from "./image_store.js";
import { imageNode, nameOf, readImage } from "./images.js";
import { button } from "./messages.js";
import { model } from "./model.js";

const DRAFT = "tokenmill.draft-images";
const $ = (id) => document.getElementById(id);

/** The images, as `{ key, name, length }`; the length is that of the URL. */
let attached = [];
/** Files are read one after the other. */
let reading = Promise.resolve();

/** Connects the button, the page and the clipboard, and takes up the images of a reload; call once. */
export function startImages() {
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
    event.dataTransfer.dropEffect = isShown() && model.takesImages ? "copy" : "none";
    document.body.classList.toggle("dropping", isShown() && Boolean(model.takesImages));
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
  takeUpDraft();
}

/** The images of the message, once all files were read. */
export async function attachedImages() {
  await reading;
  return attached;
}

/** Puts these images in the place of those of the message; a reload finds `kept`. */
export function setAttached(images, kept = images) {
  attached = images;
  keepDraft(kept);
  show();
}

/** Puts images before those of the message. */
export function giveBackImages(images) {
  if (images.length) setAttached([...images, ...attached]);
}

/** A reload finds what is in the box, no more. */
export function keepAttached() {
  keepDraft(attached);
}

/** Shows the button where the model takes images. */
export function showAttach() {
  $("attach").hidden = !model.takesImages;
}

function add(files) {
  $("error").textContent = "";
  const refused = [];
  const each = async (file) => {
    try {
      if (!model.takesImages) throw new Error(`${model.name || "This model"} takes no images.`);
      const nBefore = attached.reduce((sum, { length }) => sum + length, 0);
      const url = await readImage(file, nBefore);
      setAttached([...attached, { key: addImage(url), name: nameOf(file), length: url.length }]);
    } catch (error) {
      if (!refused.includes(error.message)) refused.push(error.message);
      $("error").textContent = refused.join(" ");
    }
  };
  for (const file of files) reading = reading.then(() => each(file));
  $("prompt").focus();
}

function show() {
  $("attached").replaceChildren(...attached.map(item));
  $("attached").hidden = attached.length === 0;
  const words = attached.length === 1 ? "1 image goes with the message." : `${attached.length} images go with the message.`;
  $("attached-words").textContent = attached.length ? words : "";
}

function item(image, at) {
  const node = document.createElement("li");
  const remove = button("×", `Remove ${image.name}`, () => {
    setAttached(attached.filter(({ key }) => key !== image.key));
    const next = $("attached").querySelectorAll("button")[Math.min(at, attached.length - 1)];
    (next ?? $("prompt")).focus();
  });
  node.append(imageNode(image), remove);
  return node;
}

async function takeUpDraft() {
  let kept = [];
  try {
    kept = JSON.parse(sessionStorage.getItem(DRAFT)) ?? [];
  } catch {
    // Nothing of a message is lost with it but images.
  }
  if (!kept.length) return;
  const found = async () => {
    const urls = await Promise.all(kept.map(({ key }) => imageUrl(key)));
    giveBackImages(kept.filter((_, i) => urls[i]));
  };
  reading = reading.then(found);
}

function keepDraft(images) {
  try {
    sessionStorage.setItem(DRAFT, JSON.stringify(images));
  } catch {
    // The storage is full; the images hold until a reload.
  }
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
