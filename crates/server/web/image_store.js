// The images of this browser: each once, in IndexedDB, under the key by which messages name it.
//
// Separate from the conversations because a photo is larger than all the room that texts have. Invariant: what happens to an image never
// keeps a text from being stored. An image that found no room lives as long as the page does.

import { Store } from "./database.js";

const STORE = new Store("tokenmill.images", "images");
/** An image that no conversation names may belong to a message that is being written in another tab. */
const SPARED_MS = 24 * 3600 * 1000;

/** The images that this page has had in hand, as `data:` URLs. */
const urls = new Map();

/** Takes in an image, a `data:` URL; its key. */
export function addImage(url) {
  const key = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 12)}`;
  urls.set(key, url);
  keepImages([key]);
  return key;
}

/** Stores images that this page has in hand, again where they are stored already. Whether all are. */
export async function keepImages(keys) {
  try {
    const at = Date.now();
    const known = keys.filter((key) => urls.has(key));
    await STORE.change((store) => known.forEach((key) => store.put({ url: urls.get(key), at }, key)));
    return known.length === keys.length;
  } catch {
    return false;
  }
}

/** An image as a `data:` URL; `null` where it is no longer kept. */
export async function imageUrl(key) {
  if (urls.has(key)) return urls.get(key);
  try {
    const found = await STORE.ask((store) => store.get(key));
    if (typeof found?.url === "string") urls.set(key, found.url);
  } catch {
    // This browser keeps nothing; so the image is gone.
  }
  return urls.get(key) ?? null;
}

/** Deletes images. */
export function forgetImages(keys) {
  return STORE.change((store) => keys.forEach((key) => store.delete(key))).catch(() => {});
}

/** Deletes what no conversation names, unless it is new. */
export async function forgetUnused(used) {
  try {
    await STORE.change((store) => {
      store.openCursor().onsuccess = ({ target: { result: cursor } }) => {
        if (!cursor) return;
        if (!used.has(cursor.key) && Date.now() - cursor.value.at > SPARED_MS) cursor.delete();
        cursor.continue();
      };
    });
  } catch {
    // This browser keeps nothing.
  }
}
