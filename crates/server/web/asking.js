// Buttons that ask before they do something that cannot be taken back.

/** A second press within this time belongs to a double click. */
const DOUBLE_CLICK_MS = 500;
/** So long a button asks whether it is meant. */
const ASKING_MS = 4000;

/**
 * Makes a button ask: the first press only asks, the second one calls `act`. A press that comes with the first, as of a double click, says
 * nothing. The question ends after a while, and when the button is left.
 */
export function askFirst(node, act) {
  const [words, label] = [node.textContent, node.ariaLabel];
  const question = `${words}?`;
  let askedAt = 0;
  let timer = 0;
  const show = (isAsking) => {
    clearTimeout(timer);
    askedAt = isAsking ? performance.now() : 0;
    timer = isAsking ? setTimeout(show, ASKING_MS, false) : 0;
    node.toggleAttribute("data-asking", isAsking);
    node.textContent = isAsking ? question : words;
    node.ariaLabel = isAsking ? (label?.replace(`${words}:`, question) ?? null) : label;
  };
  node.addEventListener("click", () => {
    if (!askedAt) return show(true);
    if (performance.now() - askedAt < DOUBLE_CLICK_MS) return;
    show(false);
    act();
  });
  node.addEventListener("blur", () => show(false));
}
