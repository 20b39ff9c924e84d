// Entry point: which view is shown, and which model is served.

import { headers, startChat } from "./chat.js";
import { showEngine } from "./engine.js";

const $ = (id) => document.getElementById(id);

function show(view) {
  for (const name of ["chat", "engine"]) {
    $(`${name}-view`).hidden = name !== view;
    $(`show-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  showEngine(view === "engine");
}

async function nameModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (response.ok) $("model").textContent = (await response.json()).data[0]?.id ?? "";
  } catch {
    // The first message will say what is wrong.
  }
}

$("show-chat").addEventListener("click", () => show("chat"));
$("show-engine").addEventListener("click", () => show("engine"));
$("key").value = sessionStorage.getItem("tokenmill.key") ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem("tokenmill.key", $("key").value);
  nameModel();
});
startChat();
nameModel();
