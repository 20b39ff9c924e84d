"""The page's chooser of models in headless Chromium: by mouse and by keyboard, what each model is doing, what is kept, on a phone."""

import json
import pathlib
import sys
import tempfile
import urllib.request

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from chromium import accessible, answers, ask, browser, color, find, is_answered, is_idle, shots, until
from server import ROOT, Server

BASE = ROOT / "tests/data/networks/minicpm/model-BF16.gguf"
ENCODER = ROOT / "tests/data/encoders/nomic_bert/model-Q4_K_M.gguf"
DEMO = (ROOT / "crates/tokenmill/assets/tokenmill-demo-Q8_0.gguf").read_bytes()
MODELS = """
[models.anna]
model = "anna.gguf"
[models.broken]
model = "broken.gguf"
[models.a-model-with-a-very-long-name-as-files-of-the-hub-have-them-Q4_K_M]
model = "anna.gguf"
ctx-size = 256
"""
UNFIT = f"""
[models.base]
model = "{BASE}"
[models.vectors]
model = "{ENCODER}"
[models.with-template]
model = "{BASE}"
template = "plain.jinja"
[models.zoe]
model = "anna.gguf"
"""
LONG = "a-model-with-a-very-long-name-as-files-of-the-hub-have-them-Q4_K_M"

# Answers go on past their ends.
ENDLESS = """
const plain = window.fetch;
window.fetch = (path, options) => {
  if (path !== "/v1/chat/completions") return plain(path, options);
  return plain(path, { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) });
};
"""


def chooser(page):
    return Select(find(page, "#chooser"))


def listed(page):
    return [option.text for option in chooser(page).options]


def states(page, *expected):
    until(page, f"{expected} are listed", lambda: listed(page) == list(expected))


def state(page):
    return find(page, "#model-state").text


def manage(url, action, model):
    request = urllib.request.Request(f"{url}/models/{action}", json.dumps({"model": model}).encode())
    assert json.load(urllib.request.urlopen(request))["success"]


def choosing(page, url):
    page.get(url)
    until(page, "models can be chosen", lambda: find(page, "#chooser").is_displayed())
    # The state of the first that can be loaded is known; nothing was loaded for the page.
    states(page, "anna (not loaded)", "broken (failed)", f"{LONG} (not loaded)")
    assert chooser(page).first_selected_option.text == "anna (not loaded)"
    assert "the next message loads it" in state(page), state(page)
    assert find(page, "#thinking").is_displayed(), "it is not known yet whether the model thinks"
    accessible(page)
    page.save_screenshot(shots / "models-light.png")
    # At a usual width the chooser has the room that the header has, and that is one line.
    page.set_window_size(1280, 800)
    chooser(page).select_by_value(LONG)
    header = find(page, "header").rect["height"]
    width = find(page, "#chooser").rect["width"]
    page.save_screenshot(shots / "models-wide-light.png")
    assert header < 70 and width > 500, (header, width)
    find(page, "#settings summary").click()
    menu = find(page, "#settings .menu").rect
    assert menu["x"] + menu["width"] <= page.execute_script("return document.documentElement.clientWidth"), menu
    find(page, "#settings summary").click()
    chooser(page).select_by_value("anna")
    page.set_window_size(1100, 800)

    # A short answer: it goes to the next model with its own question, whose context is 256 tokens.
    ask(page, "What is 1 + 2?", Keys.ENTER)
    is_answered(page, 1)
    note = answers(page)[0].find_element(By.CSS_SELECTOR, ".note").text
    assert note.startswith("anna: ") and "tokens/s" in note, note
    states(page, "anna (loaded)", "broken (failed)", f"{LONG} (not loaded)")
    assert state(page) == "", state(page)
    until(page, "it is known that the model does not think", lambda: not find(page, "#thinking").is_displayed())
    assert "of 512 tokens" in find(page, "#context").text, find(page, "#context").text

    # Another one answers the next message, and is still chosen after a reload.
    chooser(page).select_by_value(LONG)
    assert "the next message loads it" in state(page), state(page)
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 2)
    notes = [answer.find_element(By.CSS_SELECTOR, ".note").text for answer in answers(page)]
    assert notes[0].startswith("anna: ") and notes[1].startswith(f"{LONG}: "), notes
    until(page, "its context is known", lambda: "of 256 tokens" in find(page, "#context").text)
    find(page, "#about summary").click()
    assert "256 tokens" in find(page, "#card").text, find(page, "#card").text
    page.save_screenshot(shots / "models-answered-light.png")
    find(page, "#about summary").click()
    page.refresh()
    until(page, "the choice is kept", lambda: find(page, "#chooser").get_attribute("value") == LONG)
    assert answers(page)[0].find_element(By.CSS_SELECTOR, ".note").text.startswith("anna: ")


def others(page, url):
    """A change made elsewhere is shown without a reload."""
    manage(url, "unload", LONG)
    until(page, "it is unloaded", lambda: f"{LONG} (not loaded)" in listed(page))
    assert "the next message loads it" in state(page), state(page)
    manage(url, "load", LONG)
    until(page, "it is loaded", lambda: f"{LONG} (loaded)" in listed(page) and state(page) == "")


def failing(page):
    """A model that cannot be loaded says why, and gives the message back; another then answers it."""
    count = len(answers(page))
    chooser(page).select_by_value("broken")
    assert "the file ends inside" in state(page) and "tries again" in state(page), state(page)
    accessible(page)
    color(page, "dark")
    accessible(page)
    page.save_screenshot(shots / "models-failed-dark.png")
    color(page, "light")
    ask(page, "What is 2 + 2?", Keys.ENTER)
    until(page, "the refusal is shown", lambda: find(page, "#error").text and is_idle(page))
    assert "cannot be loaded" in find(page, "#error").text, find(page, "#error").text
    chooser(page).select_by_value("anna")
    assert find(page, "#error").text == "", "another model is chosen"
    chooser(page).select_by_value("broken")
    assert find(page, "#prompt").get_attribute("value") == "What is 2 + 2?"
    assert len(answers(page)) == count


def keyboard(page):
    """The chooser is reached and used without a mouse."""
    count = len(answers(page))
    page.refresh()
    until(page, "models can be chosen", lambda: find(page, "#chooser").is_displayed())
    find(page, "body").send_keys(Keys.TAB)
    for _ in range(20):
        if page.switch_to.active_element.get_attribute("id") == "chooser":
            break
        page.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    assert page.switch_to.active_element == find(page, "#chooser"), "it is reached with the tab key"
    page.switch_to.active_element.send_keys(Keys.HOME)
    until(page, "it is chosen", lambda: find(page, "#chooser").get_attribute("value") == "anna")
    find(page, "#prompt").clear()
    ask(page, "What is 5 + 2?", Keys.ENTER)
    is_answered(page, count + 1)
    assert answers(page)[-1].find_element(By.CSS_SELECTOR, ".note").text.startswith("anna: ")


def phone(page):
    metrics = {"width": 390, "height": 780, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    chooser(page).select_by_value(LONG)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390, "nothing sticks out"
    header = find(page, "header").rect["height"]
    box = find(page, "#chooser").rect
    assert header < 110 and box["width"] > 150, (header, box)
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] >= 24, box
    page.save_screenshot(shots / "models-phone.png")
    chooser(page).select_by_value("broken")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390, "nothing sticks out"
    page.save_screenshot(shots / "models-failed-phone.png")


def one(page, url):
    """Where there is one model there is nothing to choose, also where one was chosen of another server."""
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    assert not find(page, "#chooser").is_displayed() and state(page) == ""
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    assert not answers(page)[0].find_element(By.CSS_SELECTOR, ".note").text.startswith("demo: ")


def alone(page, url):
    """One model that comes and goes: nothing to choose, and the page follows what it is doing."""
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "anna")
    assert not find(page, "#chooser").is_displayed()
    assert "the next message loads it" in state(page), state(page)
    # An answer that fills the context, of which the page knows nothing yet.
    page.execute_script(ENDLESS)
    ask(page, "Tell me a story.", Keys.ENTER)
    is_answered(page, 1)
    note = answers(page)[0].find_element(By.CSS_SELECTOR, ".note").text
    assert note.startswith("The context is full. ") and "anna: " not in note, note
    assert not page.find_elements(By.XPATH, "//button[text()='Continue']")
    until(page, "it is loaded", lambda: state(page) == "" and "512 of 512 tokens: full" in find(page, "#context").text)


def unfit(page, url):
    """Models that cannot chat are marked before they are loaded, are not what is asked first, and say what they are for."""
    page.get(url)
    # Other tests chose other models.
    page.execute_script("localStorage.removeItem('tokenmill.model')")
    page.refresh()
    states(page, "base (base model, not loaded)", "vectors (embeddings, not loaded)", "with-template (not loaded)", "zoe (not loaded)")
    assert find(page, "#chooser").get_attribute("value") == "with-template"
    assert "the next message loads it" in state(page), state(page)
    for width, scheme in [(390, "light"), (1280, "dark")]:
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        color(page, scheme)
        for name, words in [("base", "This is a base model: it continues text"), ("vectors", "This model turns texts into vectors")]:
            chooser(page).select_by_value(name)
            until(page, "it is said", lambda: state(page).startswith(words) and state(page).endswith("cannot chat. Choose another."))
            assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
            accessible(page)
            page.save_screenshot(shots / f"models-{name}-{width}-{scheme}.png")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    color(page, "light")
    chooser(page).select_by_value("base")
    said = state(page)
    ask(page, "What is 3 + 4?", Keys.ENTER)
    until(page, "it is refused, in the same words, which are there once", lambda: find(page, "#error").text == said and state(page) == "")
    find(page, "#about summary").click()
    assert "continuing text" in find(page, "#card").text, find(page, "#card").text
    find(page, "#about summary").click()
    chooser(page).select_by_value("zoe")
    ask(page, "", Keys.ENTER)
    is_answered(page, 1)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "one").mkdir()
    (folder / "one/anna.gguf").write_bytes(DEMO)
    (folder / "anna.gguf").write_bytes(DEMO)
    (folder / "broken.gguf").write_bytes(DEMO[:1000])
    (folder / "models.toml").write_text(MODELS)
    try:
        page = browser()
    except WebDriverException as error:
        print(f"skipped: Chromium does not start here: {error.msg}")
        sys.exit(0)
    try:
        with Server("--models", folder / "models.toml", model=None) as server:
            choosing(page, server.url)
            others(page, server.url)
            failing(page)
            keyboard(page)
            phone(page)
            page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            # The one refused request is told of by the browser too.
            severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE" and "503" not in entry["message"]]
            assert not severe, severe
        with Server("--models-dir", folder / "one", model=None) as server:
            alone(page, server.url)
        with Server() as server:
            one(page, server.url)
        (folder / "unfit.toml").write_text(UNFIT)
        (folder / "plain.jinja").write_text("{{ messages[0].content }}")
        with Server("--models", folder / "unfit.toml", model=None) as server:
            unfit(page, server.url)
    finally:
        page.quit()
print(f"the chooser of models in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
