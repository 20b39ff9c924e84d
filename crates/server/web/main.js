// Entry point: which view is shown, and what starts with the page.

import { showLastContext, startChat } from "./chat.js";
import { showAttach } from "./composer_files.js";
import { forgetAnswers, startDecide } from "./decide.js";
import { showEngine, watchEngine } from "./engine.js";
import { causeGone } from "./failures.js";
import { startFolds } from "./folds.js";
import { startModels } from "./models.js";
import { changeView } from "./scrolling.js";
import { startSettings } from "./settings.js";

const $ = (id) => document.getElementById(id);

function show(view) {
  if (!$(`${view}-view`).hidden) return;
  changeView(view, () => {
    for (const name of ["chat", "decide", "engine"]) {
      $(`${name}-view`).hidden = name !== view;
      $(`show-${name}`).setAttribute("aria-pressed", String(name === view));
    }
    showEngine(view === "engine");
  });
}

function modelChanged() {
  showLastContext();
  showAttach();
  forgetAnswers();
}

async function greet() {
  watchEngine();
  await startModels(modelChanged);
}

$("show-chat").addEventListener("click", () => show("chat"));
$("show-decide").addEventListener("click", () => show("decide"));
$("show-engine").addEventListener("click", () => show("engine"));
startDecide();
startFolds();
startSettings({ keyChanged: greet, areRight: () => causeGone("settings") });
await startChat(() => show("chat"));
greet();
