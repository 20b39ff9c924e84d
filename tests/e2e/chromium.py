"""Chromium for tests of the web page: its start, what is found and waited for, and whether what is shown is accessible.

Importing it ends the test where Chromium or its driver is absent. Screenshots go to target/e2e-screenshots.
"""

import importlib.util
import json
import pathlib
import shutil
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from server import ROOT

chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
if not (chromium and driver_path):
    print("skipped: Chromium and its driver (Debian: chromium, chromium-driver) are not installed")
    sys.exit(0)
shots = ROOT / "target/e2e-screenshots"
shots.mkdir(parents=True, exist_ok=True)


FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --window-size=1100,800""".split()


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver_path))


def find(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector)


def until(page, claim, holds, seconds=60):
    WebDriverWait(page, seconds, poll_frequency=0.05).until(lambda _: holds(), claim)


def answers(page):
    return page.find_elements(By.CSS_SELECTOR, ".message.assistant")


def is_idle(page):
    return find(page, "#send").is_enabled()


def color(page, scheme):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


# The package is only the place where the script lies; importing it would need another browser.
AXE = (pathlib.Path(importlib.util.find_spec("axe_playwright_python").origin).parent / "axe.min.js").read_text()


# One rule of axe is off by itself: who speaks to the page says what is written on a button.
RULES = {"rules": {"label-content-name-mismatch": {"enabled": True}}}


def accessible(page):
    """Axe finds nothing wrong with what is shown."""
    page.execute_script(AXE)
    found = page.execute_async_script("axe.run(arguments[0]).then(arguments[1])", RULES)["violations"]
    assert not found, [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


def ask(page, text, *keys):
    find(page, "#prompt").send_keys(text, *keys)


def is_answered(page, count):
    until(page, f"{count} answers are complete", lambda: len(answers(page)) == count and is_idle(page))


# The next answer is these events, and a reason to end; "refused" is a refusal.
SCRIPTED = """
const before = window.fetch;
window.fetch = async (path, options) => {
  if (!options?.body) return before(path, options);
  window.fetch = before;
  const [deltas, reason] = %s;
  if (reason === "refused") return Response.json({ error: { message: "busy" } }, { status: 429 });
  const events = deltas.map((delta) => ({ choices: [{ delta }] }));
  events.push({ choices: [{ delta: {}, finish_reason: reason }] });
  events.push({ choices: [], timings: { predicted_per_second: 9 }, usage: { completion_tokens: 3, total_tokens: 9 } });
  return new Response(events.map((event) => `data: ${JSON.stringify(event)}\\n\\n`).join(""));
};
"""


def script(page, deltas, reason):
    """The next request is answered with these deltas."""
    page.execute_script(SCRIPTED % json.dumps([deltas, reason]))


def press(page, text):
    """Presses the last button of this text."""
    page.find_elements(By.XPATH, f"//button[text()='{text}']")[-1].click()


def asked(page):
    """The messages of the user; in one go, for they are drawn again."""
    return page.execute_script("return [...document.querySelectorAll('.message.user')].map((node) => node.innerText)")


def entries(page):
    """Opens the list of conversations; of each the title and the buttons that rename and delete it."""
    find(page, "#history summary").click()
    rows = page.find_elements(By.CSS_SELECTOR, "#conversations li")
    return [row.find_elements(By.TAG_NAME, "button") for row in rows]


def erase(button):
    """Presses a button that deletes or resets, and answers its question; a double click would answer nothing."""
    words = button.text
    button.click()
    assert button.text == f"{words}?", button.text
    time.sleep(0.6)
    button.click()


def reset(page):
    """Resets the settings, which is asked first."""
    find(page, "#settings summary").click()
    erase(find(page, "#defaults"))
    find(page, "#settings summary").click()


# Notes the body of each request.
WATCH = """
const plain = window.fetch;
window.bodies = [];
window.fetch = async (path, options) => {
  if (path === "/v1/chat/completions") window.bodies.push(options.body);
  return plain(path, options);
};
"""
# Events arrive a twentieth of a second apart, and the answer continues past its end; `cut()` breaks it off as a lost connection does.
SLOWLY = """
const plain = window.fetch;
let isCut = false;
window.cut = () => (isCut = true);
window.fetch = async (path, options) => {
  if (!options?.body) return plain(path, options);
  const body = JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true });
  const response = await plain(path, { ...options, body });
  const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];
  const slow = new TransformStream({
    async transform(chunk, out) {
      for (const event of decoder.decode(chunk, { stream: true }).split(/(?<=\\n\\n)/)) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        options.signal.throwIfAborted();
        if (isCut) throw new TypeError("network error");
        out.enqueue(encoder.encode(event));
      }
    },
  });
  return new Response(response.body.pipeThrough(slow), response);
};
"""
# Each answer waits for a second, as a long prompt makes it.
LATE = """
const prompt = window.fetch;
window.fetch = async (path, options) => {
  if (options?.body) await new Promise((resolve) => setTimeout(resolve, 1000));
  return prompt(path, options);
};
"""


def setting(page, **values):
    """Enters settings."""
    find(page, "#settings summary").click()
    for name, value in values.items():
        find(page, f"#{name}").clear()
        # Clearing alone enters nothing.
        find(page, f"#{name}").send_keys(str(value) or Keys.BACKSPACE)
    find(page, "#settings summary").click()
