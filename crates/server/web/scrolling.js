// Where the reader is: drawing stays at the end until the reader goes up, and a button leads back. Each view keeps its place.
//
// A reader at the end stays there too where the window, the header or the box gets another size.
//
// The style sheet gets the heights of the header and the box, under which nothing that has the focus may lie.

/** The button is there where the end is farther than this. */
const FAR_PX = 120;
const $ = (id) => document.getElementById(id);
/** Whether drawing goes along with the end. */
let isFollowing = true;
/** Whether the end was seen when this was last noted. */
let sawEnd = true;
let lastY = 0;
/** The view that is shown, and the places of the others. */
let view = "chat";
const places = new Map();

export function scrollToEnd() {
  isFollowing = true;
  scrollTo(0, document.documentElement.scrollHeight);
  notePlace();
}

/** Pixels below what is seen. */
function distanceToEnd() {
  return document.documentElement.scrollHeight - innerHeight - scrollY;
}

/** Draws, and stays at the end unless the reader has left it. */
export function follow(draw) {
  draw();
  if (view !== "chat") return;
  if (isFollowing) scrollToEnd();
  else notePlace();
}

/** Changes the size of what is around the messages by `act`: a reader at the end stays there. */
export function keepEnd(act) {
  const isToStay = sawEnd;
  act();
  if (view !== "chat") return;
  if (isToStay) scrollToEnd();
  else notePlace();
}

/** Goes to another view, which `show` shows, where the reader left it; the end of the messages, if that was it. */
export function changeView(to, show) {
  places.set(view, { y: scrollY, isAtEnd: distanceToEnd() <= 2 });
  view = to;
  show();
  const { y = 0, isAtEnd = false } = places.get(to) ?? {};
  if (to === "chat" && isAtEnd) scrollToEnd();
  else scrollTo(0, y);
  lastY = scrollY;
  if (to === "chat") notePlace();
}

/** Notes whether the end is seen, and shows the button where it is far. */
function notePlace() {
  sawEnd = distanceToEnd() <= 2;
  $("to-end").hidden = distanceToEnd() <= FAR_PX;
}

/** A reader who goes up, however little, is left there; one who comes to the end is taken along again. */
function noteScroll() {
  if (view !== "chat") return;
  if (distanceToEnd() <= 2) isFollowing = true;
  else if (scrollY < lastY) isFollowing = false;
  lastY = scrollY;
  notePlace();
}

/** Lets keys scroll what is wider or higher than its place, and makes no stop of what is not. */
export function showStops() {
  const scrolls = (node) => node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight;
  const found = [...$("messages").querySelectorAll("math, .table, pre")].map((node) => [node, scrolls(node)]);
  for (const [node, isStop] of found) {
    if (isStop) node.setAttribute("tabindex", "0");
    else node.removeAttribute("tabindex");
  }
}

/** Connects the button; call once. */
export function startScrolling() {
  $("to-end").addEventListener("click", () => {
    scrollToEnd();
    $("prompt").focus({ preventScroll: true });
  });
  addEventListener("scroll", noteScroll, { passive: true });
  addEventListener("resize", () => {
    keepEnd(showStops);
  });
  // Folds open; the event does not bubble.
  $("messages").addEventListener("toggle", showStops, true);
  // Messages come and go, images arrive, folds open.
  new ResizeObserver(() => view === "chat" && notePlace()).observe($("messages"));
  const heights = new ResizeObserver(() => keepEnd(() => {
    const { style } = document.documentElement;
    style.setProperty("--above", `${document.querySelector("header").offsetHeight}px`);
    style.setProperty("--below", `${$("composer").offsetHeight}px`);
  }));
  for (const node of [document.querySelector("header"), $("composer")]) heights.observe(node);
}
