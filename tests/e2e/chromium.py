"""Chromium for tests of the web page: its start, what is found and waited for, and whether what is shown is accessible.

Importing it ends the test where Chromium or its driver is absent. Screenshots go to target/e2e-screenshots.
"""

import importlib.util
import pathlib
import shutil
import sys

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
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


def accessible(page):
    """Axe finds nothing wrong with what is shown."""
    page.execute_script(AXE)
    found = page.execute_async_script("axe.run().then(arguments[0])")["violations"]
    assert not found, [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


def ask(page, text, *keys):
    find(page, "#prompt").send_keys(text, *keys)


def is_answered(page, count):
    until(page, f"{count} answers are complete", lambda: len(answers(page)) == count and is_idle(page))
