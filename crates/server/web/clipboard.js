// Buttons that copy a text.

/** So long a button says what it did. */
const TELLING_MS = 2000;

/** A button that copies the words of a message. */
export function messageCopy(content) {
  return copyButton(() => content, "Copy this message", () => "Cannot copy here");
}

/**
 * A button that copies the text of `text()`, called `label` for screen readers where "Copy" says too little. A page that came over plain HTTP from another
 * machine has no clipboard: then `failed()` says what became of it.
 */
export function copyButton(text, label, failed) {
  const node = document.createElement("button");
  let timer = 0;
  const show = (words, name) => {
    node.textContent = words;
    node.ariaLabel = name || null;
  };
  node.type = "button";
  node.className = "copy";
  show("Copy", label);
  node.addEventListener("click", async () => {
    clearTimeout(timer);
    try {
      await navigator.clipboard.writeText(text());
      show("Copied");
    } catch {
      show(failed());
    }
    timer = setTimeout(show, TELLING_MS, "Copy", label);
  });
  return node;
}
