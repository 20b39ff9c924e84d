// Images of messages: which files are some, how one is shown, and its part of a request.

import { imageUrl } from "./image_store.js";

/** The kinds that the server reads, told by how such a file begins: its name and its type may be wrong. */
const KINDS = {
  "image/png": /^\x89PNG\r\n\x1a\n/,
  "image/jpeg": /^\xff\xd8\xff/,
  "image/webp": /^RIFF[^]{4}WEBP/,
  "image/bmp": /^BM/,
  "image/gif": /^GIF8[79]a/,
};
const MIB = 1024 * 1024;

/** The bytes that a request to this server may have; the server wrote them into the page. */
export const MAX_BODY_BYTES = Number(document.querySelector("meta[name=max-body-bytes]").content);

/** A count of bytes for people. */
export function inMib(nBytes) {
  return `${(nBytes / MIB).toFixed(nBytes < MIB / 10 ? 3 : 1)} MiB`;
}

/** Whether a file says that it is an image, or begins as one. A file that says that it is a text, as SVG is, is a text. */
export async function isImage(file) {
  if (file.type.startsWith("text/") || file.type === "image/svg+xml") return false;
  return file.type.startsWith("image/") || Boolean(await kindOf(file).catch(() => undefined));
}

/** The type of a file by how it begins; `undefined` where it is not an image that the server reads. */
async function kindOf(file) {
  const start = String.fromCharCode(...new Uint8Array(await file.slice(0, 12).arrayBuffer()));
  return Object.keys(KINDS).find((type) => KINDS[type].test(start));
}

/**
 * Reads a file as a `data:` URL, where the other images of its message have `nBefore` characters.
 * @throws when it is not an image that the server reads, with the reason for people
 */
export async function readImage(file, nBefore) {
  const name = nameOf(file);
  if (file.size === 0) throw new Error(`${name} is empty.`);
  let kind;
  try {
    kind = await kindOf(file);
  } catch {
    throw new Error(`${name} cannot be read.`);
  }
  if (!kind) throw new Error(unfit(name));
  const nBytes = Math.ceil(file.size / 3) * 4;
  if (nBefore + nBytes > MAX_BODY_BYTES) {
    const others = nBefore ? ` besides the other images, which take ${inMib(nBefore)}` : "";
    throw new Error(
      `${name} is too large: it takes ${inMib(nBytes)} of a request${others}; this server takes ${inMib(MAX_BODY_BYTES)} (--max-body-bytes).`,
    );
  }
  const blob = new Blob([file], { type: kind });
  try {
    (await createImageBitmap(blob)).close();
  } catch {
    throw new Error(`${name} is damaged, or no image.`);
  }
  return urlOf(blob);
}

/** Says that a file is none of those that can be sent. */
export function unfit(name) {
  return `${name} cannot be sent. Text files and PNG, JPEG, WebP, BMP or GIF images can.`;
}

/** The name of a file; a pasted one may have none. */
export function nameOf(file) {
  return file.name || "The file";
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** An image as it is shown, or a note where it is no longer kept. */
export function imageNode({ key, name }) {
  const frame = document.createElement("span");
  frame.className = "image";
  imageUrl(key).then(async (url) => {
    const node = document.createElement(url ? "img" : "em");
    if (url) {
      Object.assign(node, { src: url, alt: name });
      // Its size is known then. One that cannot be decoded shows its name.
      await node.decode().catch(() => {});
    } else {
      node.textContent = `${name}: this image is no longer kept, and no longer sent.`;
    }
    frame.append(node);
  });
  return frame;
}

/** The images of messages as parts of a request, by their keys. Images that are no longer kept are not among them. */
export async function imageParts(messages) {
  const keys = keysOf(messages);
  const found = await Promise.all(keys.map(imageUrl));
  const part = (url) => ({ type: "image_url", image_url: { url } });
  return new Map(keys.map((key, i) => [key, found[i] && part(found[i])]).filter(([, made]) => made));
}

/** The keys of all images of messages. */
export function keysOf(messages) {
  return messages.flatMap(({ images = [] }) => images.map(({ key }) => key));
}
