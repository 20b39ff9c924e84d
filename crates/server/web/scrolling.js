// Where the reader is: drawing stays at the end for a reader who is there, and a button leads there.

const $ = (id) => document.getElementById(id);

export function scrollToEnd() {
  scrollTo(0, document.documentElement.scrollHeight);
}

function isAtEnd() {
  return innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
}

/** Draws, and stays at the end where the reader is there. */
export function follow(draw) {
  const isFollowing = isAtEnd();
  draw();
  if (isFollowing) scrollToEnd();
  showButton();
}

function showButton() {
  $("to-end").hidden = isAtEnd();
}

/** Connects the button; call once. */
export function startScrolling() {
  $("to-end").addEventListener("click", () => {
    scrollToEnd();
    $("prompt").focus({ preventScroll: true });
  });
  addEventListener("scroll", showButton, { passive: true });
  addEventListener("resize", showButton);
}
