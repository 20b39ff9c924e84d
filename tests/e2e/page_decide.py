"""The decide view of the web page in headless Chromium: questions with the keyboard alone, bars, refusals in words, a phone.

Writes screenshots to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import sys

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chromium import accessible, browser, color, find, shots, until
from server import ROOT, Server


def opened(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    find(page, "#show-decide").click()
    assert find(page, "#decide-view").is_displayed() and not find(page, "#chat-view").is_displayed()


def type_in(page, *keys):
    page.switch_to.active_element.send_keys(*keys)


def question(page, nth):
    return page.find_elements(By.CSS_SELECTOR, "#questions li")[nth - 1]


def bars(page, nth):
    """The names and the probabilities of a question's options, as written and as drawn."""
    rows = question(page, nth).find_elements(By.CSS_SELECTOR, ".bar")
    return [(*row.text.split("\n"), float(row.find_element(By.TAG_NAME, "meter").get_attribute("value"))) for row in rows]


def told(page):
    return find(page, "#decide-told").text


def failure(page):
    return find(page, "#decide-error").text


def decided(page):
    until(page, "it is decided", lambda: "tokens read" in told(page))
    assert failure(page) == ""


def options(page, nth, text):
    box = question(page, nth).find_element(By.CSS_SELECTOR, ".options")
    box.clear()
    box.send_keys(text)


def by_keyboard(page):
    """A text and three questions are entered and decided without a pointer."""
    find(page, "#state").click()
    type_in(page, "The card was stolen, and there are three charges in an hour.", Keys.TAB, Keys.NULL)
    type_in(page, "Is it fraud?", Keys.TAB, Keys.NULL)
    # The first question cannot be removed; the next stop is the button that adds one.
    type_in(page, Keys.TAB)
    type_in(page, Keys.ENTER)
    type_in(page, "Who takes it?", Keys.TAB)
    type_in(page, "o", Keys.TAB)
    type_in(page, "10: card desk\n2\nloans")
    find(page, "#add-question").send_keys(Keys.ENTER)
    type_in(page, "How urgent?", Keys.TAB)
    type_in(page, "a", Keys.TAB)
    type_in(page, "can wait\ntoday\nnow", Keys.CONTROL, Keys.ENTER)
    decided(page)
    for nth, names in [(1, ["yes", "no"]), (2, ["10", "2", "loans"]), (3, ["can wait", "today", "now"])]:
        shown = bars(page, nth)
        assert [name for name, _, _ in shown] == names, shown
        assert abs(sum(drawn for *_, drawn in shown) - 1) < 1e-6, shown
        assert all(abs(float(written) - drawn) <= 0.0006 for _, written, drawn in shown), shown
    said = question(page, 2).find_element(By.CSS_SELECTOR, ".answer p").text
    likeliest = max(bars(page, 2), key=lambda bar: bar[2])[0]
    assert said.startswith(f"{likeliest}, confidence 0."), said
    accessible(page)
    page.save_screenshot(shots / "decide-light.png")
    color(page, "dark")
    accessible(page)
    page.save_screenshot(shots / "decide-dark.png")
    color(page, "light")


def changes(page):
    """An answer goes with what it was asked about; the answers of other questions stay when one is changed."""
    question(page, 2).find_element(By.CSS_SELECTOR, ".instructions").send_keys("?")
    assert [len(bars(page, nth)) for nth in (1, 2, 3)] == [2, 0, 3] and told(page) == ""
    find(page, "#state").send_keys("!")
    assert [len(bars(page, nth)) for nth in (1, 2, 3)] == [0, 0, 0]
    find(page, "#show-chat").click()
    find(page, "#show-decide").click()
    assert find(page, "#state").get_attribute("value").endswith("!"), "the view keeps what is in it"
    question(page, 3).find_element(By.CSS_SELECTOR, ".remove").click()
    assert page.execute_script("return document.activeElement.id") == "add-question"
    assert len(page.find_elements(By.CSS_SELECTOR, "#questions li")) == 2


def refusals(page):
    """What is missing is told before anything is sent, and the server's words name the question."""
    options(page, 2, "a")
    find(page, "#decide").click()
    assert failure(page) == "Question 2 needs two options or more.", failure(page)
    options(page, 2, "a: one\nb\na")
    find(page, "#decide").click()
    assert failure(page) == "Question 2 has the option “a” twice.", failure(page)
    fill = "const box = arguments[0]; box.value = 'x'.repeat(17000) + '\\ny'; box.dispatchEvent(new Event('input', { bubbles: true }));"
    page.execute_script(fill, question(page, 2).find_element(By.CSS_SELECTOR, ".options"))
    find(page, "#decide").click()
    until(page, "the refusal is shown", lambda: failure(page))
    assert failure(page).startswith("Question 2: ") and "16384" in failure(page) and "`questions" not in failure(page), failure(page)
    accessible(page)
    options(page, 2, "a\nb")
    assert failure(page) == ""
    find(page, "#decide").click()
    decided(page)
    find(page, "#state").clear()
    find(page, "#decide").click()
    assert failure(page) == "There is no text to decide about.", failure(page)
    find(page, "#state").send_keys("The card was stolen.")


def phone(page):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    find(page, "#decide").click()
    decided(page)
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert find(page, "header").rect["height"] < 110, find(page, "header").rect
    heights = [node.rect["height"] for node in page.find_elements(By.CSS_SELECTOR, "#deciding :is(button, input, select)") if node.is_displayed()]
    assert min(heights) >= 40, heights
    assert all(meter.rect["width"] > 100 for meter in page.find_elements(By.CSS_SELECTOR, ".bar meter"))
    accessible(page)
    page.save_screenshot(shots / "decide-phone.png")


def no_server(page, server):
    server.process.kill()
    server.process.wait()
    find(page, "#decide").click()
    until(page, "the failure is shown", lambda: failure(page))
    assert failure(page) == "The server does not answer; is `tokenmill serve` running?", failure(page)


with Server() as server:
    try:
        page = browser()
    except WebDriverException as error:
        print(f"skipped: Chromium does not start: {error.msg}")
        sys.exit(0)
    try:
        opened(page, server.url)
        accessible(page)
        by_keyboard(page)
        changes(page)
        refusals(page)
        phone(page)
        no_server(page, server)
    finally:
        page.quit()
print(f"the decide view works; screenshots are in {shots.relative_to(ROOT)}")
