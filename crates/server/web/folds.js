// The menus of the header: one is open at a time. A click elsewhere, the tab key that leaves it, and Escape close it; in a search, Escape first
// takes the words back.

const folds = () => [...document.querySelectorAll("details.fold")];

/** Connects the menus; call once, before others listen to keys. */
export function startFolds() {
  for (const fold of folds()) {
    fold.addEventListener("toggle", () => fold.open && folds().forEach((other) => other !== fold && (other.open = false)));
    fold.addEventListener("focusout", ({ relatedTarget: next }) => next && !fold.contains(next) && (fold.open = false));
  }
  document.addEventListener("keydown", (event) => {
    const fold = folds().find(({ open }) => open);
    if (event.key !== "Escape" || event.isComposing || !fold) return;
    // The answer continues, wherever the focus is: Escape stops it only where nothing is open.
    event.stopImmediatePropagation();
    if (event.target.type === "search" && event.target.value) return emptySearch(event);
    if (fold.contains(document.activeElement)) closeFold(fold);
    else fold.open = false;
  });
  document.addEventListener("click", ({ target }) => {
    for (const fold of folds()) if (!fold.contains(target) && target.isConnected) fold.open = false;
  });
}

/** Takes the words of a search back; some browsers would do so by themselves. */
function emptySearch(event) {
  event.preventDefault();
  event.target.value = "";
  event.target.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Closes a menu and goes back to its button. */
export function closeFold(fold) {
  fold.open = false;
  // The reader of the messages stays where they were.
  fold.querySelector("summary").focus({ preventScroll: true });
}
