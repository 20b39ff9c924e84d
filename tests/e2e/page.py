"""The web page in headless Chromium: a conversation by mouse and by keyboard, the stop button, the engine view.

Writes screenshots (light, dark, phone) to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import json
import shutil
import sys
import threading
import time
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from server import ROOT, Server

chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
if not (chromium and driver_path):
    print("skipped: Chromium and its driver (Debian: chromium, chromium-driver) are not installed")
    sys.exit(0)
shots = ROOT / "target/e2e-screenshots"
shots.mkdir(parents=True, exist_ok=True)


SLOWLY = """
const plain = window.fetch;
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
        out.enqueue(encoder.encode(event));
      }
    },
  });
  return new Response(response.body.pipeThrough(slow), response);
};
"""


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1100,800"]:
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


def ask(page, text, *keys):
    find(page, "#prompt").send_keys(text, *keys)


def conversation(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "the first answer is complete", lambda: len(answers(page)) == 1 and is_idle(page))
    assert answers(page)[0].text
    assert "tokens/s" in find(page, "#rate").text, find(page, "#rate").text
    assert page.switch_to.active_element == find(page, "#prompt"), "the focus is back in the box"

    ask(page, "What is 3 + 4?")
    find(page, "#send").click()
    until(page, "the second answer is complete", lambda: len(answers(page)) == 2 and is_idle(page))
    page.save_screenshot(shots / "chat-light.png")
    color(page, "dark")
    page.save_screenshot(shots / "chat-dark.png")

    page.refresh()
    until(page, "the conversation is kept", lambda: len(answers(page)) == 2)


def markup_is_text(page):
    ask(page, "<img src=x onerror=\"document.title='bad'\"> **hi**", Keys.ENTER)
    until(page, "the third answer is complete", lambda: len(answers(page)) == 3 and is_idle(page))
    assert not page.find_elements(By.CSS_SELECTOR, "#messages img")
    hostile = "# Title\n\n<script>document.title='bad'</script> <img src=x onerror=alert(1)>\n\n[x](javascript:alert(1)) [y](https://a.example/?a=1&b=2) **bold** *soft* `code<b>`\n\n```js\nlet a = '<b>';\n```\n\n1. one\n2. two\n\n- a\n- b\n"
    page.execute_async_script(
        "const done = arguments[1]; import('/web/markdown.js').then(({ render }) => {"
        " const node = document.createElement('div'); node.className = 'message assistant'; node.id = 'hostile';"
        " document.getElementById('messages').append(node); render(node, arguments[0]); done(); });",
        hostile,
    )
    node = find(page, "#hostile")
    for selector in ["script", "img", "a[href^='javascript']", "[onerror]"]:
        assert not node.find_elements(By.CSS_SELECTOR, selector), selector
    for selector in ["strong", "em", "code", "pre code", "ol li", "ul li", "a[href^='https://a.example']"]:
        assert node.find_elements(By.CSS_SELECTOR, selector), selector
    assert page.title != "bad"
    page.execute_script("arguments[0].scrollIntoView()", node)
    page.save_screenshot(shots / "markdown-dark.png")


def stopping(page):
    find(page, "#settings summary").click()
    length = find(page, "#max_tokens")
    length.clear()
    length.send_keys("400")
    find(page, "#clear").click()
    until(page, "the conversation is new", lambda: not answers(page))
    # The small model's answer would be over before anybody could press the button, so it goes on past its end, and its
    # events arrive a twentieth of a second apart: 400 of them take at least 20 seconds, on the fastest machine too.
    page.execute_script(SLOWLY)
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "text streams in", lambda: answers(page) and len(answers(page)[0].text) > 20)
    find(page, "#stop").click()
    until(page, "it stops", lambda: is_idle(page))
    assert "Stopped." in answers(page)[0].text
    page.save_screenshot(shots / "settings-dark.png")


def load(url, stop):
    """Keeps the engine busy, so that there is something to see."""
    fields = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "n": 3}
    while not stop.is_set():
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(fields).encode())
        urllib.request.urlopen(request).read()


def engine_view(page, url):
    color(page, "light")
    find(page, "#show-engine").click()
    until(page, "figures are shown", lambda: len(page.find_elements(By.CSS_SELECTOR, "#plots svg")) == 4)
    stop = threading.Event()
    loads = [threading.Thread(target=load, args=(url, stop)) for _ in range(2)]
    for thread in loads:
        thread.start()
    try:
        until(page, "the rate moves", lambda: page.execute_script("return parseFloat(document.querySelector('#figures dd').textContent)") > 0)
        until(page, "the plots move", lambda: len(page.find_elements(By.CSS_SELECTOR, "#plots path.line")) == 5)
        time.sleep(2)
        page.save_screenshot(shots / "engine-light.png")
        color(page, "dark")
        page.save_screenshot(shots / "engine-dark.png")
        color(page, "light")
    finally:
        stop.set()
        for thread in loads:
            thread.join()
    assert find(page, "#engine-error").text == ""
    find(page, "#show-chat").click()


def phone(page):
    metrics = {"width": 390, "height": 780, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390, "nothing sticks out"
    page.save_screenshot(shots / "phone.png")
    find(page, "#show-engine").click()
    time.sleep(1.5)
    page.save_screenshot(shots / "phone-engine.png")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390, "nothing sticks out"


def keyboard(page):
    page.get(page.current_url)
    until(page, "the box has the focus", lambda: page.switch_to.active_element == find(page, "#prompt"))
    reached = set()
    for _ in range(14):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.switch_to.active_element.get_attribute("id"))
    assert {"send", "clear", "show-chat", "show-engine"} <= reached, reached


with Server() as server:
    try:
        page = browser()
    except WebDriverException as error:
        print(f"skipped: Chromium does not start here: {error.msg}")
        sys.exit(0)
    try:
        conversation(page, server.url)
        markup_is_text(page)
        stopping(page)
        engine_view(page, server.url)
        keyboard(page)
        phone(page)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
    finally:
        page.quit()
print(f"the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
