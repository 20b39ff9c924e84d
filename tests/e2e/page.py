"""The web page in headless Chromium: conversations by mouse and by keyboard, what is kept, what fails, the engine view.

Writes screenshots (light, dark, phone) to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chromium import LATE, SLOWLY, accessible, answers, ask, asked, browser, color, entries, erase, find, is_answered, is_idle, press, reset, script, shots, until
from server import BINARY, ROOT, Server


# The next answer is no JSON.
BROKEN = """
const sound = window.fetch;
window.fetch = async (path, options) => {
  if (!options?.body) return sound(path, options);
  window.fetch = sound;
  return new Response("data: {]\\n\\n");
};
"""


def is_at_end(page):
    return page.execute_script("return innerHeight + scrollY >= document.documentElement.scrollHeight - 2")


def conversation(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    ask(page, "Tell me a story.", Keys.ENTER)
    is_answered(page, 1)
    assert answers(page)[0].text
    assert "tokens/s" in find(page, "#rate").text, find(page, "#rate").text
    assert "tokens/s, first token after" in answers(page)[0].text, answers(page)[0].text
    assert "of 512 tokens" in find(page, "#context").text, find(page, "#context").text
    assert page.switch_to.active_element == find(page, "#prompt"), "the focus is back in the box"

    ask(page, "What is 3 + 4?")
    find(page, "#send").click()
    is_answered(page, 2)
    page.save_screenshot(shots / "chat-light.png")
    accessible(page)
    color(page, "dark")
    accessible(page)
    page.save_screenshot(shots / "chat-dark.png")

    shown = answers(page)[1].text
    page.refresh()
    until(page, "the conversation is kept", lambda: len(answers(page)) == 2)
    assert answers(page)[1].text == shown


def scrolling(page):
    page.set_window_size(1100, 420)
    page.execute_script("scrollTo(0, 0)")
    assert not is_at_end(page)
    page.execute_script(LATE)
    ask(page, "What is 2 + 2?", Keys.ENTER)
    until(page, "sending scrolls", lambda: is_at_end(page))
    assert "Reading the prompt" in answers(page)[2].text, answers(page)[2].text
    page.save_screenshot(shots / "waiting-dark.png")
    accessible(page)
    is_answered(page, 3)
    assert "Reading the prompt" not in answers(page)[2].text
    page.refresh()
    until(page, "the conversation is kept", lambda: len(answers(page)) == 3)
    assert page.execute_script("return scrollY") > 0
    assert is_at_end(page), "a reload opens at the end"
    page.set_window_size(1100, 800)


def several(page):
    """Conversations are listed, opened and deleted; a new one deletes none."""
    first = find(page, "#messages").text
    find(page, "#clear").click()
    assert not answers(page)
    ask(page, "What is 5 + 2?", Keys.ENTER)
    is_answered(page, 1)
    second = find(page, "#messages").text
    listed = entries(page)
    accessible(page)
    page.save_screenshot(shots / "history-dark.png")
    assert [title.text for title, *_ in listed] == ["What is 5 + 2?", "Tell me a story."]
    listed[1][0].click()
    assert find(page, "#messages").text == first
    entries(page)[0][0].click()
    assert find(page, "#messages").text == second

    erase(entries(page)[1][2])
    assert find(page, "#n-conversations").text == "1"
    assert find(page, "#messages").text == second, "the open one stays"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert find(page, "#history").get_attribute("open") is None


def two_tabs(page, url):
    """Both tabs show one conversation and add to it at the same time: nothing is overwritten."""
    count = len(answers(page))
    one = page.current_window_handle
    page.switch_to.new_window("tab")
    two = page.current_window_handle
    page.get(url)
    until(page, "the newest conversation is open", lambda: len(answers(page)) == count)
    page.execute_script(LATE)
    ask(page, "What is 2 + 1?", Keys.ENTER)
    page.switch_to.window(one)
    ask(page, "What is 1 + 1?", Keys.ENTER)
    for tab in [one, two]:
        page.switch_to.window(tab)
        is_answered(page, count + 2)
        page.refresh()
        until(page, "both turns are kept", lambda: len(answers(page)) == count + 2)
        asked = [node.text for node in page.find_elements(By.CSS_SELECTOR, ".message.user")]
        assert {"What is 1 + 1?", "What is 2 + 1?"} == set(asked[-2:]), asked
    find(page, "#clear").click()
    ask(page, "What is 3 + 1?", Keys.ENTER)
    is_answered(page, 1)
    page.close()
    page.switch_to.window(one)
    until(page, "the other tab's conversation is listed", lambda: find(page, "#n-conversations").text == "2")
    assert len(answers(page)) == count + 2


def settings(page):
    find(page, "#settings summary").click()
    for name, value in [("temperature", "0.25"), ("seed", "7"), ("system", "You are brief.")]:
        find(page, f"#{name}").clear()
        find(page, f"#{name}").send_keys(value)
    find(page, "#prompt").send_keys("not sent yet")
    page.refresh()
    kept = [find(page, f"#{name}").get_attribute("value") for name in ["temperature", "seed", "system", "prompt"]]
    assert kept == ["0.25", "7", "You are brief.", "not sent yet"], kept
    # A setting that cannot be sent is marked at its field; the refusal of a message ends once it is right.
    find(page, "#settings summary").click()
    find(page, "#temperature").clear()
    find(page, "#temperature").send_keys("3", Keys.TAB)
    assert "Must be between 0 and 2." in find(page, "#settings .fault").text
    accessible(page)
    page.save_screenshot(shots / "wrong-setting-dark.png")
    find(page, "#settings summary").click()
    ask(page, "", Keys.ENTER)
    until(page, "it is refused", lambda: find(page, "#error").text == "Temperature must be between 0 and 2 (Settings).")
    assert find(page, "#prompt").get_attribute("value") == "not sent yet"
    find(page, "#settings summary").click()
    find(page, "#temperature").send_keys(Keys.BACKSPACE, "1")
    assert find(page, "#error").text == "" and not page.find_elements(By.CSS_SELECTOR, ".fault, [aria-invalid]")
    find(page, "#defaults").click()
    assert find(page, "#temperature").get_attribute("value") == "1", "it asks first"
    find(page, "#settings summary").click()
    find(page, "#prompt").clear()
    reset(page)
    assert find(page, "#temperature").get_attribute("value") == "0.8"
    assert find(page, "#system").get_attribute("value") == ""


def failing(page):
    """A failure leaves the message in the box and the page ready."""
    count = len(answers(page))
    page.execute_script(BROKEN)
    ask(page, "What is 6 + 1?", Keys.ENTER)
    until(page, "the page is ready again", lambda: find(page, "#error").text and is_idle(page))
    assert find(page, "#prompt").get_attribute("value") == "What is 6 + 1?"
    assert len(answers(page)) == count
    ask(page, "", Keys.ENTER)
    is_answered(page, count + 1)
    assert find(page, "#error").text == ""


def full_context():
    with Server("--ctx-size", "128") as server:
        page = browser()
        try:
            page.get(server.url)
            until(page, "the model is named", lambda: find(page, "#model").text == "demo")
            ask(page, "word " * 300, Keys.ENTER)
            words = r"With its conversation your message needs \d+ tokens; this model holds 128\. Shorten the message, or start a new conversation\."
            until(page, "the refusal is shown", lambda: re.fullmatch(words, find(page, "#error").text))
            assert find(page, "#prompt").get_attribute("value").startswith("word word")
            assert not page.find_elements(By.CSS_SELECTOR, ".message")
            find(page, "#prompt").clear()
            find(page, "#prompt").send_keys("x", Keys.BACKSPACE)
            assert find(page, "#error").text == "", "the message is gone, and so is the failure"
            ask(page, "Tell me a story.", Keys.ENTER)
            is_answered(page, 1)
        finally:
            page.quit()


# The server answers as one does that loads its model, as long as the tab says so.
STARTING = """
const plain = window.fetch;
window.fetch = async (path, options) => {
  if (!sessionStorage.getItem("starting")) return plain(path, options);
  if (sessionStorage.getItem("starting") === "gone") throw new TypeError("network error");
  if (path === "/readyz") return Response.json({ status: "loading", queued: 0 }, { status: 503 });
  return Response.json({ error: { message: "the server is not ready: the model is loading", code: "not_ready" } }, { status: 503 });
};
"""


def loading(url):
    """A page that is opened while the model loads says so, and is ready when the server is."""
    page = browser()
    try:
        page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": STARTING})
        page.get(url)
        now = lambda state: page.execute_script("sessionStorage.setItem('starting', arguments[0])", state)
        said = lambda: find(page, "#model-state").text
        now("yes")
        page.refresh()
        until(page, "it is said", lambda: said() == "The model is loading …")
        assert not find(page, "#about").is_displayed(), "there is no model to tell about"
        accessible(page)
        page.save_screenshot(shots / "loading-light.png")
        ask(page, "Tell me a story.", Keys.ENTER)
        until(page, "it is refused", lambda: find(page, "#error").text == "The server is not ready: the model is loading. Your message is kept.")
        find(page, "#show-engine").click()
        until(page, "the engine's view says it", lambda: find(page, "#engine-error").text == "The server is not ready yet.")
        find(page, "#show-chat").click()
        now("gone")
        until(page, "the end of the server is seen", lambda: said() == "The server does not answer; is `tokenmill serve` running?")
        now("")
        until(page, "the model is named", lambda: find(page, "#model").text == "demo")
        assert said() == "" and find(page, "#error").text == "", (said(), find(page, "#error").text)
        ask(page, "", Keys.ENTER)
        is_answered(page, 1)
    finally:
        page.quit()


def without_key():
    with Server("--api-key", "secret") as server:
        page = browser()
        try:
            page.get(server.url)
            needs = "This server needs an API key. Enter it under “Settings”."
            until(page, "it is said before anything is asked", lambda: find(page, "#model-state").text == needs)
            ask(page, "Tell me a story.", Keys.ENTER)
            until(page, "the refusal is shown", lambda: find(page, "#error").text == f"{needs} Your message is kept.")
            assert not find(page, "#model-state").is_displayed(), "it is said once"
            assert page.switch_to.active_element == find(page, "#key")
            page.save_screenshot(shots / "refused-light.png")
            accessible(page)
            find(page, "#show-engine").click()
            assert "API key" in find(page, "#engine-error").text
            find(page, "#show-chat").click()
            find(page, "#settings summary").click()
            find(page, "#key").send_keys("wrong", Keys.TAB)
            until(page, "another key is wanted", lambda: "does not take the API key" in find(page, "#model-state").text)
            find(page, "#key").clear()
            find(page, "#key").send_keys("secret", Keys.TAB)
            find(page, "#settings summary").click()
            until(page, "the model is named", lambda: find(page, "#model").text == "demo")
            assert find(page, "#prompt").get_attribute("value") == "Tell me a story."
            assert find(page, "#error").text == "", "the key is right"
            ask(page, "", Keys.ENTER)
            is_answered(page, 1)
            find(page, "#show-engine").click()
            until(page, "the figures come", lambda: len(page.find_elements(By.CSS_SELECTOR, "#plots path.line")) == 5)
            assert find(page, "#engine-error").text == ""
        finally:
            page.quit()


ADD = """[{"type": "function", "function": {"name": "add_numbers", "description": "Adds two numbers.", "parameters": {
"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]}}}]"""
def changing(page):
    """A message is edited, an answer is given again; what follows is replaced."""
    find(page, "#clear").click()
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    press(page, "Regenerate")
    is_answered(page, 1)
    assert asked(page) == ["What is 3 + 4?"], asked(page)
    press(page, "Edit")
    assert find(page, "#prompt").get_attribute("value") == "What is 3 + 4?"
    press(page, "Cancel")
    assert find(page, "#prompt").get_attribute("value") == ""
    press(page, "Edit")
    find(page, "#prompt").clear()
    ask(page, "What is 2 + 2?", Keys.ENTER)
    is_answered(page, 1)
    page.refresh()
    is_answered(page, 1)
    assert asked(page) == ["What is 2 + 2?"], asked(page)
    # A reload knows which message is edited.
    press(page, "Edit")
    page.refresh()
    until(page, "the message is still edited", lambda: find(page, "#editing").is_displayed())
    ask(page, "!", Keys.ENTER)
    is_answered(page, 1)
    assert asked(page) == ["What is 2 + 2?!"], asked(page)
    # An edit that was sent and is left for another conversation replaces nothing there; its answer comes where it was asked for.
    press(page, "Edit")
    page.execute_script(LATE)
    ask(page, "!", Keys.ENTER)
    until(page, "it waits", lambda: find(page, "#stop").is_displayed())
    find(page, "#clear").click()
    assert is_idle(page) and not answers(page)
    assert find(page, "#prompt").get_attribute("value") == "" and not find(page, "#editing").is_displayed()
    until(page, "it is answered", lambda: find(page, "#told").text == "“What is 2 + 2?!!” has a new answer.")
    # Neither does one that was not sent, whose text stays with its conversation.
    entries(page)[0][0].click()
    assert asked(page) == ["What is 2 + 2?!!"] and len(answers(page)) == 1
    press(page, "Edit")
    find(page, "#clear").click()
    assert find(page, "#prompt").get_attribute("value") == "" and not find(page, "#editing").is_displayed()


def tools(page):
    """A call is shown; its result is entered, and an answer comes of it. Reasoning is folded, code has colours."""
    find(page, "#clear").click()
    find(page, "#settings summary").click()
    find(page, "#temperature").clear()
    find(page, "#temperature").send_keys("0")
    page.execute_script("arguments[0].value = arguments[1]", find(page, "#tools"), ADD)
    find(page, "#settings summary").click()
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    call = find(page, ".call").text
    assert "add_numbers" in call and '"x": 3' in call, call
    # Results that cannot be sent stay in the form.
    script(page, [], "refused")
    find(page, ".results textarea").send_keys("7")
    press(page, "Send results")
    until(page, "the refusal is shown", lambda: find(page, "#error").text.startswith("busy.") and is_idle(page))
    assert find(page, ".results textarea").get_attribute("value") == "7"
    accessible(page)
    page.save_screenshot(shots / "call-dark.png")
    press(page, "Send results")
    is_answered(page, 2)
    assert answers(page)[1].find_element(By.CSS_SELECTOR, ".body").text
    assert "7" in find(page, ".message.tool").text
    page.execute_script("arguments[0].value = '{'", find(page, "#tools"))
    ask(page, "Hm?", Keys.ENTER)
    until(page, "the tools are refused", lambda: find(page, "#error").text.startswith("The tools are not valid JSON."))
    assert find(page, "#prompt").get_attribute("value") == "Hm?"
    page.execute_script("arguments[0].value = ''", find(page, "#tools"))
    code = {"content": "```py\nif a: # b\n```\n"}
    script(page, [{"reasoning_content": "Hm, "}, {"reasoning_content": "well."}, code], "stop")
    ask(page, "", Keys.ENTER)
    is_answered(page, 3)
    fold = find(page, ".reasoning")
    assert fold.get_attribute("open") is None and "Hm, well." not in fold.text
    fold.find_element(By.TAG_NAME, "summary").click()
    assert "Hm, well." in fold.text, fold.text
    assert find(page, ".code-keyword").text == "if" and find(page, ".code-comment").text == "# b"
    accessible(page)
    page.save_screenshot(shots / "reasoning-dark.png")
    find(page, "#about summary").click()
    assert "512 tokens" in find(page, "#card").text, find(page, "#card").text
    page.save_screenshot(shots / "card-dark.png")
    accessible(page)
    find(page, "#about summary").click()
    exporting(page)
    reset(page)


def cut_answers(page):
    """A call that was cut is not kept; an answer that was cut while the model reasoned did not end at once."""
    find(page, "#clear").click()
    start = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "add_numbers", "arguments": '{"x": 3, "te'}}]}
    script(page, [{"content": "Hm."}, start], "length")
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    assert "not complete" in answers(page)[0].text, answers(page)[0].text
    assert not page.find_elements(By.CSS_SELECTOR, ".call, .results")
    ask(page, "And now?", Keys.ENTER)
    is_answered(page, 2)
    script(page, [{"reasoning_content": "Hm, "}], "length")
    ask(page, "Think.", Keys.ENTER)
    is_answered(page, 3)
    note = answers(page)[2].text
    assert "limit of tokens" in note and "at once" not in note, note
    assert find(page, ".reasoning summary").text == "Reasoning", "it is over"
    script(page, [], "stop")
    ask(page, "Nothing?", Keys.ENTER)
    is_answered(page, 4)
    assert "at once" in answers(page)[3].text, answers(page)[3].text
    find(page, "#clear").click()


def exporting(page):
    """`tokenmill chat` loads an exported conversation."""
    page.execute_script("URL.createObjectURL = (file) => { file.text().then((text) => (window.exported = text)); return '#'; }")
    find(page, "#history summary").click()
    find(page, "#export").click()
    find(page, "#history summary").click()
    until(page, "a file is offered", lambda: page.execute_script("return window.exported"))
    exported = json.loads(page.execute_script("return window.exported"))["messages"]
    roles = [message["role"] for message in exported]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"], roles
    assert exported[1]["tool_calls"][0]["id"] == exported[2]["tool_call_id"]
    file = ROOT / "target/e2e-conversation.json"
    file.write_text(page.execute_script("return window.exported"))
    chat = subprocess.run([BINARY, "chat", "demo"], input=f"/load {file}\n/bye\n", capture_output=True, text=True, timeout=60)
    assert chat.returncode == 0 and "exchanges loaded" in chat.stderr, (chat.returncode, chat.stderr)


def markup_is_text(page):
    ask(page, "<img src=x onerror=\"document.title='bad'\"> **hi**", Keys.ENTER)
    is_answered(page, len(answers(page)))
    assert not page.find_elements(By.CSS_SELECTOR, "#messages img")
    hostile = "# Title\n\n<script>document.title='bad'</script> <img src=x onerror=alert(1)>\n\n[x](javascript:alert(1)) [y](https://a.example/?a=1&b=2) **bold** *soft* `code<b>`\n\n```js\nlet a = '<b>';\n```\n\n1. one\n2. two\n\n- a\n- b\n\n"
    head, words = "|".join(["Configuration"] * 9), "|".join(["incomprehensibilities"] * 9)
    hostile += f"|{head}|\n|{'-|' * 9}\n|{words}|\n"
    page.execute_async_script(
        "const done = arguments[1]; Promise.all([import('/web/markdown.js'), import('/web/scrolling.js')]).then(([{ render }, { showStops }]) => {"
        " const node = document.createElement('div'); node.className = 'message assistant'; node.id = 'hostile';"
        " document.getElementById('messages').append(node); render(node, arguments[0]); showStops(); done(); });",
        hostile,
    )
    node = find(page, "#hostile")
    for selector in ["script", "img", "a[href^='javascript']", "[onerror]"]:
        assert not node.find_elements(By.CSS_SELECTOR, selector), selector
    for selector in ["strong", "em", "code", "pre code", "ol li", "ul li", "a[href^='https://a.example']"]:
        assert node.find_elements(By.CSS_SELECTOR, selector), selector
    assert page.title != "bad"
    lines = "const cell = arguments[0]; return cell.clientHeight / parseFloat(getComputedStyle(cell).lineHeight)"
    for cell in node.find_elements(By.CSS_SELECTOR, "th, td"):
        assert page.execute_script(lines, cell) < 2, "a word in a table is not broken"
    page.execute_script("arguments[0].scrollIntoView()", node)
    page.save_screenshot(shots / "markdown-dark.png")
    accessible(page)


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
    assert re.search(r"Stopped\. \d+ tokens, ", answers(page)[0].text), answers(page)[0].text
    assert re.fullmatch(r"Context\s*\d+ of 512 tokens", find(page, "#context").text), find(page, "#context").text
    page.save_screenshot(shots / "settings-dark.png")


def load(url, stop):
    """Keeps the engine busy, so that there is something to see."""
    fields = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "n": 3}
    while not stop.is_set():
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(fields).encode())
        urllib.request.urlopen(request).read()


def engine_view(page, url):
    color(page, "light")
    time.sleep(2.5)
    find(page, "#show-engine").click()
    assert len(page.find_elements(By.CSS_SELECTOR, "#plots svg")) == 4
    assert len(page.find_elements(By.CSS_SELECTOR, "#plots path.line")) == 5, "the time before it was opened is shown"
    stop = threading.Event()
    loads = [threading.Thread(target=load, args=(url, stop)) for _ in range(2)]
    for thread in loads:
        thread.start()
    try:
        until(page, "the rate moves", lambda: page.execute_script("return parseFloat(document.querySelector('#figures dd').textContent)") > 0)
        time.sleep(2)
        page.save_screenshot(shots / "engine-light.png")
        accessible(page)
        color(page, "dark")
        page.save_screenshot(shots / "engine-dark.png")
        color(page, "light")
    finally:
        stop.set()
        for thread in loads:
            thread.join()
    assert find(page, "#engine-error").text == ""
    assert "Context memory in use" in find(page, "#figures").text
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
        scrolling(page)
        several(page)
        two_tabs(page, server.url)
        settings(page)
        failing(page)
        changing(page)
        tools(page)
        cut_answers(page)
        markup_is_text(page)
        stopping(page)
        engine_view(page, server.url)
        keyboard(page)
        phone(page)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
    finally:
        page.quit()
    loading(server.url)
    assert not any('"/web/' in line for line in server.log), "the page's files are not logged"
full_context()
without_key()
print(f"the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
