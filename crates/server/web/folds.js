// The menus of the header: one is open at a time, and a click elsewhere or Escape closes it.

const folds = () => [...document.querySelectorAll("details.fold")];

/** Connects the menus; call once. */
export function startFolds() {
  for (const fold of folds()) {
    fold.addEventListener("toggle", () => fold.open && folds().forEach((other) => other !== fold && (other.open = false)));
    fold.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !fold.open) return;
      // The answer continues: Escape stops it only where nothing is open.
      event.stopPropagation();
      closeFold(fold);
    });
  }
  document.addEventListener("click", ({ target }) => {
    for (const fold of folds()) if (!fold.contains(target) && target.isConnected) fold.open = false;
  });
}

/** Closes a menu and goes back to its button. */
export function closeFold(fold) {
  fold.open = false;
  fold.querySelector("summary").focus();
}
