"""Answers on the web page in headless Chromium: the longest ones, those that broke off, versions, thinking, and models that cannot chat.

Writes screenshots to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import json
import sys
import urllib.request

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from chromium import SLOWLY, WATCH, accessible, answers, ask, asked, browser, color, entries, find, is_answered, is_idle, press, reset, script, setting, shots, until
from server import ROOT, Server

BASE = ROOT / "tests/data/networks/minicpm/model-BF16.gguf"
# The model says that it can think.
THINKS = """
const told = window.fetch;
window.fetch = async (path, options) => {
  const response = await told(path, options);
  if (path !== "/api/show") return response;
  const shown = await response.json();
  return Response.json({ ...shown, capabilities: [...shown.capabilities, "thinking"] });
};
"""
# The list of models says nothing of the context, and then is answered no more.
NO_LIST = """
const listed = window.fetch;
let isAnswered = false;
window.fetch = async (path, options) => {
  if (path !== "/v1/models") return listed(path, options);
  if (isAnswered) return new Promise(() => {});
  isAnswered = true;
  const { data } = await (await listed(path, options)).json();
  return Response.json({ data: data.map((each) => ({ ...each, max_model_len: null })) });
};
import("/web/models.js").then(({ look }) => look()).then(arguments[0]);
"""
# The time that the page waits for that list does not end.
ENDLESS = "const after = window.setTimeout; window.setTimeout = (act, ms, ...rest) => (ms === 2000 ? 0 : after(act, ms, ...rest));"


def bodies(page):
    return [json.loads(body) for body in page.execute_script("return window.bodies")]


def opened(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    page.execute_script(WATCH)


# In one go, for messages are drawn again.
TEXTS = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent.trim())"


def body_of(page, at=-1):
    return page.execute_script(TEXTS, ".message.assistant .body")[at]


def note_of(page, at=-1):
    return answers(page)[at].find_element(By.CSS_SELECTOR, ".note").text


def buttons(page):
    return [button.text for button in page.find_elements(By.CSS_SELECTOR, ".actions")[-1].find_elements(By.TAG_NAME, "button")]


def of_api(url, messages):
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps({"messages": messages, "temperature": 0}).encode())
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"].strip()


def continued(page, url):
    """Without a number an answer takes what the context has; one that reached a number continues where it ended."""
    opened(page, url)
    assert find(page, "#max_tokens").get_attribute("value") == ""
    setting(page, temperature=0)
    ask(page, "Tell me a story.", Keys.ENTER)
    is_answered(page, 1)
    assert "max_tokens" not in bodies(page)[0], bodies(page)[0]
    whole = body_of(page)
    assert whole == of_api(url, [{"role": "user", "content": "Tell me a story."}]) and len(whole) > 200, whole
    assert "Continue" not in buttons(page)

    find(page, "#clear").click()
    setting(page, max_tokens=20)
    ask(page, "Tell me a story.", Keys.ENTER)
    is_answered(page, 1)
    first = body_of(page)
    assert "reached its limit of tokens" in note_of(page) and whole.startswith(first) and first != whole, first
    assert buttons(page) == ["Copy", "Continue", "Regenerate"], buttons(page)
    accessible(page)
    page.save_screenshot(shots / "continue-light.png")
    press(page, "Continue")
    is_answered(page, 1)
    sent = bodies(page)[-1]
    assert sent["continue_final_message"] is True and sent["add_generation_prompt"] is False, sent
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant"]
    second = body_of(page)
    assert whole.startswith(second) and len(second) > len(first), (first, second)
    assert "40 tokens, " in note_of(page), note_of(page)
    # It is kept as one answer, which can be continued again.
    page.refresh()
    is_answered(page, 1)
    assert body_of(page) == second
    setting(page, max_tokens="")
    press(page, "Continue")
    is_answered(page, 1)
    assert body_of(page) == whole, (body_of(page), whole)
    assert "Continue" not in buttons(page), buttons(page)
    # A failure loses nothing of what is there.
    setting(page, max_tokens=20)
    ask(page, "Tell me another story.", Keys.ENTER)
    is_answered(page, 2)
    before = body_of(page)
    script(page, [], "refused")
    press(page, "Continue")
    until(page, "the refusal is shown", lambda: "busy" in find(page, "#error").text and is_idle(page))
    assert body_of(page) == before and "Continue" in buttons(page)
    assert find(page, "#error").text == "busy.", "no message was sent that could be kept"
    script(page, [], "refused")
    press(page, "Regenerate")
    until(page, "the refusal is shown", lambda: find(page, "#error").text == "busy." and is_idle(page))
    assert body_of(page) == before
    setting(page, max_tokens="")


def shown_version(page, at=-1):
    return page.execute_script(TEXTS, ".versions")[at]


def turn_to(page, label, at=-1):
    before = shown_version(page, at)
    page.find_elements(By.CSS_SELECTOR, f".versions button[aria-label='{label}']")[at].click()
    until(page, "another version is shown", lambda: shown_version(page, at) != before)


def versions(page, url):
    """Another answer and an edit keep what was there, with what followed it."""
    opened(page, url)
    find(page, "#clear").click()
    for text in ["one", "two", "three"]:
        script(page, [{"content": f"Answer {text}."}], "stop")
        if text == "one":
            ask(page, "What is it?", Keys.ENTER)
        else:
            press(page, "Regenerate")
        until(page, "it is answered", lambda: answers(page) and body_of(page) == f"Answer {text}." and is_idle(page))
    assert shown_version(page) == "‹3/3›"
    accessible(page)
    page.save_screenshot(shots / "versions-light.png")
    turn_to(page, "Previous version")
    assert body_of(page) == "Answer two." and shown_version(page) == "‹2/3›"
    assert page.switch_to.active_element.get_attribute("aria-label") == "Previous version", "it can be pressed again"
    # The next turn belongs to this version.
    script(page, [{"content": "And more."}], "stop")
    ask(page, "And?", Keys.ENTER)
    is_answered(page, 2)
    turn_to(page, "Next version", 0)
    assert [body_of(page, at) for at in range(len(answers(page)))] == ["Answer three."]
    page.refresh()
    until(page, "the version is kept", lambda: answers(page) and body_of(page) == "Answer three.")
    turn_to(page, "Previous version", 0)
    assert [body_of(page, at) for at in range(len(answers(page)))] == ["Answer two.", "And more."]
    # An answer that is not the last can be given again.
    script(page, [{"content": "Answer four."}], "stop")
    page.find_elements(By.XPATH, "//button[text()='Regenerate']")[0].click()
    until(page, "it is answered again", lambda: answers(page) and body_of(page) == "Answer four." and is_idle(page))
    assert shown_version(page) == "‹4/4›" and len(answers(page)) == 1
    for _ in range(2):
        turn_to(page, "Previous version")
    assert [body_of(page, at) for at in range(len(answers(page)))] == ["Answer two.", "And more."]
    # An edited message is a version too.
    page.find_elements(By.XPATH, "//button[text()='Edit']")[0].click()
    find(page, "#prompt").clear()
    script(page, [{"content": "Something else."}], "stop")
    ask(page, "What else?", Keys.ENTER)
    is_answered(page, 1)
    assert asked(page) == ["What else?"] and shown_version(page) == "‹2/2›"
    turn_to(page, "Previous version")
    assert asked(page) == ["What is it?", "And?"] and body_of(page, 1) == "And more."
    # Only what is shown is sent.
    page.execute_script(WATCH)
    ask(page, "So?", Keys.ENTER)
    is_answered(page, 3)
    assert [message["content"] for message in bodies(page)[-1]["messages"]] == ["What is it?", "Answer two.", "And?", "And more.", "So?"]


def system_messages(page, url):
    """Each conversation has its own system message; a new one begins with that of the settings."""
    opened(page, url)
    find(page, "#clear").click()
    setting(page, system="You are brief.")
    assert find(page, "#system-here").get_attribute("value") == "You are brief."
    setting(page, **{"system-here": "You are an owl."})
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    assert bodies(page)[-1]["messages"][0] == {"role": "system", "content": "You are an owl."}
    find(page, "#clear").click()
    ask(page, "What is 1 + 4?", Keys.ENTER)
    is_answered(page, 1)
    assert bodies(page)[-1]["messages"][0] == {"role": "system", "content": "You are brief."}
    setting(page, system="You are long.")
    page.refresh()
    until(page, "the conversation is kept", lambda: len(answers(page)) == 1)
    assert find(page, "#system-here").get_attribute("value") == "You are brief.", "a conversation keeps its own"
    entries(page)[1][0].click()
    assert find(page, "#system-here").get_attribute("value") == "You are an owl."
    setting(page, **{"system-here": "You are a fox."})
    page.refresh()
    until(page, "the conversation is kept", lambda: len(answers(page)) == 1)
    assert find(page, "#system-here").get_attribute("value") == "You are a fox."
    reset(page)
    assert find(page, "#system-here").get_attribute("value") == "You are a fox."
    find(page, "#clear").click()
    assert find(page, "#system-here").get_attribute("value") == ""


def thinking(page, url):
    """The switch is there for a model that can think; what it says and the repeat penalty go with each request."""
    opened(page, url)
    assert not find(page, "#thinking").is_displayed()
    tag = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": THINKS})
    opened(page, url)
    until(page, "the switch is there", lambda: find(page, "#thinking").is_displayed())
    find(page, "#clear").click()
    accessible(page)
    page.save_screenshot(shots / "thinking-light.png")
    setting(page, repeat_penalty=1.2, thinking_budget=64)
    count = 0
    for value, field in [("", {}), ("on", {"enable_thinking": True}), ("off", {"enable_thinking": False}), ("high", {"reasoning_effort": "high"})]:
        Select(find(page, "#thinking")).select_by_value(value)
        ask(page, "What is 3 + 4?", Keys.ENTER)
        is_answered(page, count := count + 1)
        sent = bodies(page)[-1]
        assert {key: sent[key] for key in ["enable_thinking", "reasoning_effort"] if key in sent} == field, sent
        assert sent["repeat_penalty"] == 1.2 and sent["thinking_budget"] == 64, sent
    find(page, "#about summary").click()
    assert "chat" in find(page, "#card").text and "thinking" in find(page, "#card").text, find(page, "#card").text
    find(page, "#about summary").click()
    page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": tag["identifier"]})
    opened(page, url)
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, count + 1)
    assert not {"enable_thinking", "reasoning_effort", "thinking_budget"} & set(bodies(page)[-1]), "what is not shown is not sent"
    reset(page)


def template_variables(page, url):
    """Variables for the chat template go with each request, are kept, and are refused in the page's own words."""
    opened(page, url)
    find(page, "#clear").click()
    setting(page, template_variables='{"enable_thinking": false, "style": "short"}')
    page.refresh()
    opened(page, url)
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    assert bodies(page)[-1]["chat_template_kwargs"] == {"enable_thinking": False, "style": "short"}, bodies(page)[-1]
    for text, words in [("{", "The template's variables are not valid JSON."), ("[1]", "The template's variables are not an object")]:
        setting(page, template_variables=text)
        ask(page, "" if find(page, "#prompt").get_attribute("value") else "Hm?", Keys.ENTER)
        until(page, "it is refused", lambda: find(page, "#error").text.startswith(words))
        assert find(page, "#prompt").get_attribute("value") == "Hm?" and len(bodies(page)) == 1
    find(page, "#prompt").clear()
    reset(page)
    ask(page, "What is 1 + 4?", Keys.ENTER)
    is_answered(page, 2)
    assert "chat_template_kwargs" not in bodies(page)[-1]


def refused_settings(page, url):
    """A setting that the server refuses is marked with its words, until it is changed; then the failure ends."""
    opened(page, url)
    find(page, "#clear").click()
    tool = '[{"type": "function", "function": {"name": "a b"}}]'
    for name, value, fault, words, right in [
        ("seed", "1e30", "Expected a whole number, found `1e+30`.", "`seed`: expected a whole number, found `1e+30`. See “Settings”.", 7),
        ("tools", tool, "`tools[0].function.name`: a name is at most", "`tools[0].function.name`: a name is at most", " "),
        ("template_variables", '{"messages": 1}', "`chat_template_kwargs.messages`: this variable", "`chat_template_kwargs.messages`: this variable", " "),
    ]:
        setting(page, **{name: value})
        assert not page.find_elements(By.CSS_SELECTOR, ".fault"), "the page knows nothing against it"
        ask(page, "" if find(page, "#prompt").get_attribute("value") else "Hm?", Keys.ENTER)
        until(page, "it is refused", lambda: find(page, "#error").text.startswith(words) and is_idle(page))
        assert find(page, "#error").text.endswith("See “Settings”. Your message is kept."), find(page, "#error").text
        find(page, "#settings summary").click()
        marked = page.find_elements(By.CSS_SELECTOR, "#settings [aria-invalid=true]")
        assert [field.get_attribute("id") for field in marked] == [name] and find(page, "#settings .fault").text.startswith(fault)
        accessible(page)
        page.save_screenshot(shots / f"refused-{name}-light.png")
        find(page, "#settings summary").click()
        setting(page, **{name: right})
        assert find(page, "#error").text == "" and not page.find_elements(By.CSS_SELECTOR, ".fault, [aria-invalid]")
    ask(page, "", Keys.ENTER)
    is_answered(page, 1)
    reset(page)
    # The browser notes each refusal.
    severe = [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("400 (Bad Request)" in message for message in severe), severe


def without_list(page, url):
    """A list of models that does not come holds an answer back for two seconds, or until Stop."""
    opened(page, url)
    find(page, "#clear").click()
    page.execute_async_script(NO_LIST)
    script(page, [{"content": "One."}], "length")
    ask(page, "First?", Keys.ENTER)
    until(page, "it ends", lambda: answers(page) and is_idle(page), 20)
    assert "reached its limit of tokens" in note_of(page), note_of(page)
    page.execute_script(ENDLESS)
    script(page, [{"content": "Two."}], "length")
    ask(page, "Second?", Keys.ENTER)
    until(page, "it has come", lambda: len(answers(page)) == 2 and body_of(page) == "Two.")
    assert not is_idle(page)
    find(page, "#stop").click()
    is_answered(page, 2)
    assert "Stopped" not in note_of(page), note_of(page)


def left(page, url):
    """The text that came before the page was left is there afterwards, and can be continued."""
    opened(page, url)
    find(page, "#clear").click()
    page.execute_script(SLOWLY)
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "text streams in", lambda: answers(page) and len(body_of(page)) > 20)
    page.refresh()
    until(page, "the turn is kept", lambda: asked(page) == ["Tell me a story."] and answers(page) and len(body_of(page)) > 20)
    assert note_of(page).startswith("Interrupted.") and find(page, "#prompt").get_attribute("value") == ""
    assert "Continue" in buttons(page)


def broken_off():
    """A server that ends leaves what came, says so below it, and the next message stays in the box."""
    with Server() as server:
        page = browser()
        try:
            opened(page, server.url)
            page.execute_script(SLOWLY)
            ask(page, "Tell me a story.", Keys.ENTER)
            until(page, "text streams in", lambda: answers(page) and len(body_of(page)) > 20)
            # The text that has arrived is read slowly; the connection is cut at once.
            page.execute_script("window.cut()")
            server.process.kill()
            until(page, "it ends", lambda: is_idle(page))
            assert "The answer broke off." in note_of(page), note_of(page)
            assert "connection to the server was lost" in find(page, "#error").text, find(page, "#error").text
            assert "Continue" in buttons(page)
            accessible(page)
            page.save_screenshot(shots / "broken-off-light.png")
            ask(page, "Are you there?", Keys.ENTER)
            words = "The server does not answer; is `tokenmill serve` running? Your message is kept."
            until(page, "the failure is shown in words", lambda: find(page, "#error").text == words)
            assert find(page, "#prompt").get_attribute("value") == "Are you there?" and len(answers(page)) == 1
            page.save_screenshot(shots / "no-server-light.png")
            figures = lambda: page.execute_script(TEXTS, "#figures dd")
            find(page, "#show-engine").click()
            until(page, "no figure is shown", lambda: figures() == ["–"] * 5 and "does not answer" in find(page, "#engine-error").text)
            accessible(page)
            page.save_screenshot(shots / "no-figures-light.png")
            with Server("--port", server.url.rsplit(":", 1)[1]):
                until(page, "the failure ends when the server is there again", lambda: find(page, "#error").get_attribute("textContent") == "")
                until(page, "the figures come again", lambda: "–" not in figures() and find(page, "#engine-error").text == "")
                lines = "return [...document.querySelectorAll('#plots .line')].map((line) => line.getAttribute('d').split('M').length - 1)"
                until(page, "the lines have a gap", lambda: min(page.execute_script(lines)) >= 2)
        finally:
            page.quit()


def base_model():
    """A model without a form for messages says so before it is asked, and keeps the message."""
    with Server("--device", "cpu", model=BASE) as server:
        page = browser()
        try:
            page.get(server.url)
            words = "This is a base model: it continues text and cannot chat. Start the server with a model made for chats"
            until(page, "the page says so", lambda: find(page, "#model-state").text.startswith(words))
            find(page, "#about summary").click()
            assert "continuing text" in find(page, "#card").text and "chat" not in find(page, "#card").text.lower(), find(page, "#card").text
            accessible(page)
            page.save_screenshot(shots / "base-model-light.png")
            ask(page, "Hello", Keys.ENTER)
            until(page, "it is refused in words", lambda: find(page, "#error").text.startswith(words))
            assert find(page, "#prompt").get_attribute("value") == "Hello"
            assert not find(page, "#model-state").is_displayed(), "the sentence is there once"
            # The same where the page did not know.
            page.execute_script("import('/web/model.js').then(({ model }) => (model.kind = ''))")
            ask(page, "", Keys.ENTER)
            until(page, "it is refused in words", lambda: find(page, "#error").text.startswith(words) and is_idle(page))
            assert find(page, "#prompt").get_attribute("value") == "Hello"
        finally:
            page.quit()


try:
    page = browser()
except WebDriverException as error:
    print(f"skipped: Chromium does not start here: {error.msg}")
    sys.exit(0)
try:
    with Server() as server:
        continued(page, server.url)
        versions(page, server.url)
        color(page, "dark")
        accessible(page)
        page.save_screenshot(shots / "versions-dark.png")
        color(page, "light")
        system_messages(page, server.url)
        thinking(page, server.url)
        template_variables(page, server.url)
        refused_settings(page, server.url)
        without_list(page, server.url)
        left(page, server.url)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
finally:
    page.quit()
broken_off()
base_model()
print(f"answers on the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
