"""The layout of the web page in headless Chromium: the box and its button, a phone with and without its keyboard, and ways about.

Writes screenshots (wide, tablet, phone, phone with a keyboard) to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import json
import sys

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chromium import SLOWLY, accessible, answers, ask, browser, color, entries, find, is_answered, is_idle, script, shots, until
from server import ROOT, Server

FORMULAS = r"""Euler: $e^{i\pi} + 1 = 0$, for $5 or $6.

$$\sum_{k=0}^{\infty} \frac{x^k}{k!} = e^x \quad \begin{pmatrix} a & b \\ c & d \end{pmatrix}$$

- [x] done
- [ ] to do, at https://example.org/a_b.

|left|right|
|:---|----:|
|`a|b`|x<br>y|

```html
<b>it's</b>
```
"""


def opened(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")


def size(page, width, height, is_phone=False):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": is_phone})


def nothing_sticks_out(page):
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"


def to_end(page):
    page.execute_script("scrollTo(0, document.documentElement.scrollHeight)")


def box(page):
    """The box grows with its text, to 40 % of the window, and is small again when the message is sent."""
    size(page, 1280, 800)
    small = find(page, "#prompt").rect["height"]
    assert small < 60, small
    find(page, "#prompt").send_keys(*[f"line{Keys.SHIFT}{Keys.ENTER}{Keys.NULL}"] * 5)
    middle = find(page, "#prompt").rect["height"]
    assert 120 < middle < 200, middle
    find(page, "#prompt").send_keys(*[f"line{Keys.SHIFT}{Keys.ENTER}{Keys.NULL}"] * 20)
    large = find(page, "#prompt").rect["height"]
    assert 300 <= large <= 0.4 * 800 + 1, large
    page.refresh()
    until(page, "a draft has its height", lambda: find(page, "#prompt").rect["height"] == large)
    find(page, "#prompt").clear()
    find(page, "#prompt").send_keys("x")
    assert find(page, "#prompt").rect["height"] == small
    find(page, "#prompt").clear()


def one_button(page):
    """Send becomes Stop in its place, and the figures are one line."""
    page.execute_script(SLOWLY)
    place = find(page, "#send").rect
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "text streams in", lambda: find(page, "#rate").text)
    stop = find(page, "#stop").rect
    assert not find(page, "#send").is_displayed() and abs(stop["x"] + stop["width"] - place["x"] - place["width"]) < 2, (stop, place)
    find(page, "#stop").click()
    until(page, "it stops", lambda: is_idle(page))
    assert find(page, "#send").is_displayed() and not find(page, "#stop").is_displayed()
    opened(page, page.current_url)
    ask(page, "Tell me a story.", Keys.ENTER)
    is_answered(page, 2)
    for selector in ["#rate", "#context-words"]:
        shown = find(page, selector)
        assert shown.text and shown.rect["height"] < 30, (selector, shown.rect)
    middles = [find(page, selector).rect["y"] + find(page, selector).rect["height"] / 2 for selector in ["#attach", "#rate", "#context-words", "#send"]]
    assert max(middles) - min(middles) < 8, middles


def ways(page):
    """A button leads to the end, a shortcut to a new conversation; the menus close by Escape and by a click elsewhere."""
    for _ in range(2):
        ask(page, "Tell me a story.", Keys.ENTER)
        is_answered(page, len(answers(page)))
        until(page, "it is idle", lambda: is_idle(page))
    assert not find(page, "#to-end").is_displayed()
    page.execute_script("scrollTo(0, 0)")
    until(page, "the button is there", lambda: find(page, "#to-end").is_displayed())
    accessible(page)
    page.save_screenshot(shots / "to-end-light.png")
    find(page, "#to-end").click()
    until(page, "it is gone at the end", lambda: not find(page, "#to-end").is_displayed())
    assert page.execute_script("return innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
    # The settings are at hand everywhere.
    find(page, "#settings summary").click()
    until(page, "they are shown", lambda: find(page, "#temperature").is_displayed())
    accessible(page)
    page.save_screenshot(shots / "settings-light.png")
    find(page, "#history summary").click()
    until(page, "one menu is open", lambda: not find(page, "#temperature").is_displayed() and find(page, "#import").is_displayed())
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert find(page, "#history").get_attribute("open") is None
    find(page, "#settings summary").click()
    find(page, "#prompt").click()
    assert find(page, "#settings").get_attribute("open") is None
    # A conversation that is opened from the engine's view is shown.
    find(page, "#show-engine").click()
    assert not find(page, "#prompt").is_displayed()
    entries(page)[0][0].click()
    assert find(page, "#prompt").is_displayed() and answers(page)
    find(page, "#prompt").send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    until(page, "the conversation is new", lambda: not answers(page))
    assert page.switch_to.active_element == find(page, "#prompt")


def formulas(page):
    """Formulas are MathML, prices are text, and wide things do not widen the page."""
    script(page, [{"content": FORMULAS}], "stop")
    ask(page, "Euler?", Keys.ENTER)
    is_answered(page, 1)
    answer = answers(page)[0]
    inside = lambda selector: answer.find_elements(By.CSS_SELECTOR, selector)
    assert len(inside("math")) == 2 and len(inside("math[display=block] munderover")) == 1 and len(inside("mtable mtr")) == 2
    assert "for $5 or $6." in answer.text
    fraction, above = find(page, "mfrac").rect, find(page, "mfrac > :first-child").rect
    assert fraction["height"] > 1.5 * above["height"] > 0, "a fraction is drawn as one"
    assert inside("a[href='https://example.org/a_b']") and inside("td br") and inside("td.right")
    assert find(page, ".code .language").text == "html" and find(page, ".code-keyword").text == "<b"
    for scheme in ["light", "dark"]:
        color(page, scheme)
        accessible(page)
        page.save_screenshot(shots / f"formulas-{scheme}.png")
    color(page, "light")


def phone(page, url):
    """With a keyboard most of the height is the conversation's; Enter makes a line; nothing sticks out."""
    size(page, 390, 844, is_phone=True)
    opened(page, url)
    assert find(page, "#prompt").get_attribute("placeholder") == "Message"
    find(page, "#prompt").click()
    ask(page, "one", Keys.ENTER)
    ask(page, "two")
    assert find(page, "#prompt").get_attribute("value") == "one\ntwo" and is_idle(page)
    find(page, "#prompt").clear()
    count = len(answers(page))
    ask(page, "Tell me a story.")
    find(page, "#send").click()
    is_answered(page, count + 1)
    assert page.switch_to.active_element != find(page, "#prompt"), "the keyboard stays closed"
    for width, height, name in [(390, 844, "phone"), (390, 480, "phone-keyboard"), (768, 1024, "tablet"), (1280, 800, "wide")]:
        size(page, width, height, is_phone=width < 500)
        to_end(page)
        nothing_sticks_out(page)
        head = max(0, page.execute_script("return document.querySelector('header').getBoundingClientRect().bottom"))
        top = page.execute_script("return document.getElementById('composer').getBoundingClientRect().top")
        assert top - head > 0.6 * height, (name, head, top)
        for scheme in ["light", "dark"]:
            color(page, scheme)
            page.save_screenshot(shots / f"layout-{name}-{scheme}.png")
            accessible(page)
        color(page, "light")
    # A long name of a model gives way to what is next to it.
    size(page, 390, 844, is_phone=True)
    page.execute_script("document.getElementById('model').textContent = 'a-model-with-a-very-long-name-as-files-of-the-hub-have-them-Q4_K_M'")
    assert find(page, "header").rect["height"] < 110 and find(page, "#model").rect["width"] >= 48, find(page, "header").rect
    page.save_screenshot(shots / "phone-long-name-light.png")
    page.execute_script("document.getElementById('model').textContent = 'demo'")
    # With a keyboard the header scrolls with the page; its menus open below it.
    for height in [480, 844]:
        size(page, 390, height, is_phone=True)
        page.execute_script("scrollTo(0, 0)")
        for fold in ["history", "settings", "about"]:
            find(page, f"#{fold} summary").click()
            nothing_sticks_out(page)
            menu = find(page, f"#{fold} .menu").rect
            assert menu["x"] >= 0 and menu["x"] + menu["width"] <= 390, menu
            assert 60 < menu["y"] < 120 and menu["y"] + menu["height"] <= height, menu
            accessible(page)
            page.save_screenshot(shots / f"phone-{height}-{fold}-light.png")
        find(page, "#about summary").click()


def narrow(page):
    """On a phone the row below the box cuts nothing, and a wide formula scrolls by keys too."""
    size(page, 390, 844, is_phone=True)
    wide = "$$" + " + ".join(f"x_{{{i}}}^{{2}}" for i in range(40)) + "$$"
    script(page, [{"content": f"{wide}\n\n![a photo](https://example.org/a.png)"}], "stop")
    ask(page, "Wide?")
    count = len(answers(page))
    find(page, "#send").click()
    is_answered(page, count + 1)
    nothing_sticks_out(page)
    formula = answers(page)[-1].find_element(By.CSS_SELECTOR, "math")
    assert page.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", formula), "it scrolls"
    assert answers(page)[-1].find_element(By.TAG_NAME, "a").text == "Image: a photo"
    page.execute_script("for (const id of ['thinking-choice', 'thinking-most']) document.getElementById(id).hidden = false")
    page.execute_script("import('/web/model.js').then(({ model, showContext }) => { model.nContext = 131072; showContext(130000); })")
    until(page, "the share is shown", lambda: find(page, "#context").text == "100% full")
    for selector in ["#attach", "#thinking", "#context-words .short", "#send"]:
        place = find(page, selector).rect
        assert place["x"] >= 0 and place["x"] + place["width"] <= 390 and place["height"] < 45, (selector, place)
    figures, words = find(page, ".figures").rect, find(page, "#context-words .short").rect
    assert words["x"] >= figures["x"], (words, figures)
    accessible(page)
    page.save_screenshot(shots / "phone-thinking-light.png")


def wide_in_lines(page):
    """A wide formula within a line of any block scrolls; it does not widen the page."""
    size(page, 390, 844, is_phone=True)
    wide = "$" + " + ".join(f"x_{{{i}}}^{{2}}" for i in range(40)) + "$"
    script(page, [{"content": f"In a line {wide} it goes on.\n\n- {wide}\n\n> {wide}\n\n# Wide {wide}\n\n|a|\n|-|\n|{wide}|"}], "stop")
    count = len(answers(page))
    ask(page, "In lines?")
    find(page, "#send").click()
    is_answered(page, count + 1)
    nothing_sticks_out(page)
    page.save_screenshot(shots / "phone-formulas-light.png")


def code(page):
    """The button that copies code covers none of it, stays where the code scrolls, and says only for a while that it did."""
    size(page, 390, 844, is_phone=True)
    script(page, [{"content": f"```\n{'wide ' * 40}\n```\n\n```py\nif a: # b\n```"}], "stop")
    count = len(answers(page))
    ask(page, "Code?")
    find(page, "#send").click()
    is_answered(page, count + 1)
    first, second = answers(page)[-1].find_elements(By.CSS_SELECTOR, ".code")
    shown = first.find_element(By.TAG_NAME, "pre")
    button = first.find_element(By.TAG_NAME, "button")
    assert button.rect["y"] + button.rect["height"] <= first.find_element(By.TAG_NAME, "code").rect["y"]
    place = button.rect
    page.execute_script("arguments[0].scrollLeft = 300", shown)
    assert page.execute_script("return arguments[0].scrollLeft", shown) > 0 and button.rect == place
    assert second.find_element(By.CSS_SELECTOR, ".language").text == "py"
    nothing_sticks_out(page)
    page.save_screenshot(shots / "phone-code-light.png")
    button.click()
    until(page, "it says so", lambda: button.text in ("Copied", "Selected"))
    until(page, "it can be pressed again", lambda: button.text == "Copy", 4)


def at_end(page):
    """A reader at the end stays there where the window, the box or its words get another size; one who reads above stays there too."""
    below = lambda: page.execute_script("return Math.round(document.documentElement.scrollHeight - innerHeight - scrollY)")
    top = lambda: page.execute_script("return document.getElementById('composer').getBoundingClientRect().top")
    find(page, "#clear").click()
    size(page, 390, 844, is_phone=True)
    script(page, [{"content": "line\n\n" * 60}], "stop")
    ask(page, "Long?")
    find(page, "#send").click()
    is_answered(page, 1)
    until(page, "it is at the end", lambda: below() == 0)
    # A keyboard comes and goes, and the phone is turned.
    for width, height in [(390, 480), (390, 844), (844, 390), (390, 844)]:
        size(page, width, height, is_phone=True)
        until(page, f"the end is seen at {width} by {height}", lambda: below() == 0, 5)
    height = find(page, "#composer").rect["height"]
    grown = lambda: find(page, "#composer").rect["height"] > height
    find(page, "#files").send_keys(str(ROOT / "Cargo.toml"))
    until(page, "the end is seen above a file", lambda: grown() and below() == 0, 5)
    find(page, "#attached button").click()
    until(page, "the file is gone", lambda: not grown())
    page.execute_script("document.getElementById('told').textContent = 'A notice.'")
    until(page, "the end is seen above a notice", lambda: grown() and below() == 0, 5)
    page.execute_script("document.getElementById('told').textContent = ''")
    until(page, "the notice is gone", lambda: not grown())
    enter = "const box = document.getElementById('prompt'); box.value = arguments[0]; box.dispatchEvent(new Event('input'))"
    for n_lines in [3, 5, 4, 1]:
        page.execute_script(enter, "\n".join("x" * n_lines))
        until(page, f"the end is seen above {n_lines} lines", lambda: below() == 0, 5)
    place = top()
    page.execute_script("scrollTo(0, 300)")
    until(page, "the button is there", lambda: find(page, "#to-end").is_displayed())
    assert abs(top() - place) < 1, (top(), place)
    button, text = find(page, "#to-end").rect, find(page, "#prompt").rect
    assert button["y"] >= text["y"] + text["height"], "the button covers no words"
    page.execute_script(enter, "x\nx\nx")
    size(page, 390, 480, is_phone=True)
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.execute_script("return scrollY") == 300
    page.execute_script(enter, "")
    size(page, 390, 844, is_phone=True)


def head(page):
    """The header has one row where it can, else two; a link that skips it moves nothing."""
    name = find(page, "#model").text
    page.execute_script("document.getElementById('model').textContent = 'a-name-of-twenty-six-signs'")
    for width, n_rows in [(320, 2), (390, 2), (600, 2), (768, 1), (1280, 1)]:
        size(page, width, 800, is_phone=width < 800)
        nothing_sticks_out(page)
        assert find(page, "header").rect["height"] < 20 + 48 * n_rows, (width, find(page, "header").rect)
        shown = page.execute_script("const { clientWidth, scrollWidth } = document.getElementById('model'); return [clientWidth, scrollWidth]")
        assert shown[0] == shown[1] or width < 400, (width, shown)
    page.execute_script("document.getElementById('model').textContent = arguments[0]", name)
    place = find(page, "header").rect
    page.execute_script("document.querySelector('.skip').focus()")
    skip = find(page, ".skip")
    assert find(page, "header").rect == place and skip.rect["x"] >= 0 and skip.rect["height"] >= 30, (place, skip.rect)
    background = skip.value_of_css_property("background-color")
    assert background == find(page, "header").value_of_css_property("background-color"), background
    page.save_screenshot(shots / "skip-link-light.png")
    find(page, "#history summary").click()
    assert find(page, "#history").get_attribute("open"), "a click meets what it aims at"
    find(page, "#history summary").click()
    page.execute_script("document.querySelector('.skip').focus()")
    skip.send_keys(Keys.ENTER)
    assert page.switch_to.active_element == find(page, "#prompt")


# Ratios of the relative luminances of the borders of fields and of placeholders to what is around them.
CONTRASTS = """
const luminance = (color) => {
  const part = (value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = color.match(/[\\d.]+/g).map((value) => part(Number(value)));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const ratio = (...colors) => {
  const [low, high] = colors.map(luminance).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const around = getComputedStyle(document.body).backgroundColor;
return [...document.querySelectorAll("textarea, input:not([type=file]), select")].map((field) => {
  const { borderTopColor: border, backgroundColor: within } = getComputedStyle(field);
  const { color, opacity } = getComputedStyle(field, "::placeholder");
  return [field.id, Math.min(ratio(border, within), ratio(border, around)), ratio(color, within), opacity];
});
"""


def contrast(page):
    """The borders of fields have 3:1, their placeholders 4.5:1, in both schemes."""
    for scheme in ["light", "dark"]:
        color(page, scheme)
        for name, border, placeholder, opacity in page.execute_script(CONTRASTS):
            assert border >= 3 and placeholder >= 4.5 and opacity == "1", (scheme, name, border, placeholder, opacity)
    color(page, "light")


SMALL = """
return [...document.querySelectorAll("button, summary, select, input, textarea")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }) && getComputedStyle(node).left !== "-9999px")
  .map((node) => [node.outerHTML.slice(0, 80), node.getBoundingClientRect()])
  .filter(([, { width, height }]) => width < 40 || height < 40)
  .map(([name, { width, height }]) => [name, width, height]);
"""


def stops(page):
    """Keys reach what scrolls, calls of tools and files too; what does not scroll is no stop."""
    size(page, 390, 844, is_phone=True)
    sums = lambda n: "$$" + " + ".join(f"x_{{{i}}}^{{2}}" for i in range(n)) + "$$"
    tables = [f"|{'a|' * n}\n|{'-|' * n}\n|{'incomprehensibilities|' * n}" for n in [1, 9]]
    codes = [f"```\n{'wide ' * n}\n```" for n in [1, 12, 40]]
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "say", "arguments": json.dumps({"text": "word" * 50})}}]}
    script(page, [{"content": "\n\n".join([sums(2), sums(40), *tables, *codes])}, call], "tool_calls")
    count = len(answers(page))
    ask(page, "Stops?")
    find(page, "#send").click()
    is_answered(page, count + 1)
    stops_of = lambda name: [node.get_attribute("tabindex") for node in answers(page)[-1].find_elements(By.CSS_SELECTOR, name)]
    found = lambda: {name: stops_of(name) for name in ["math", ".table", ".code pre", ".call pre"]}
    assert found() == {"math": [None, "0"], ".table": [None, "0"], ".code pre": [None, "0", "0"], ".call pre": ["0"]}, found()
    accessible(page)
    size(page, 1280, 800)
    until(page, "a wider window needs fewer", lambda: found()[".code pre"] == [None, None, "0"])
    find(page, "#clear").click()


def large_letters(page):
    """With letters of twice the size the row below the box wraps, and nothing in it is cut or sticks out."""
    for width in [390, 768, 1280]:
        size(page, width, 844, is_phone=width < 500)
        page.execute_script("document.documentElement.style.fontSize = '200%'")
        page.execute_script("for (const id of ['thinking-choice', 'thinking-most']) document.getElementById(id).hidden = false")
        page.execute_script("return import('/web/model.js').then(({ showContext }) => showContext(1030))")
        page.execute_script("document.getElementById('rate').textContent = '123.4 tokens/s'")
        # On a phone the button that leads there takes the place of the figures.
        to_end(page)
        until(page, "it is at the end", lambda: not find(page, "#to-end").is_displayed())
        nothing_sticks_out(page)
        row = find(page, "#composer .row").rect
        for selector in ["#attach", "#thinking", "#context-words", "#send", *([] if width == 390 else ["#context label", "#rate"])]:
            place = find(page, selector).rect
            assert row["x"] <= place["x"] and place["x"] + place["width"] <= row["x"] + row["width"] + 1, (width, selector, place, row)
            figures = find(page, ".figures").rect
            assert selector in ("#attach", "#thinking", "#send") or place["x"] >= figures["x"], (width, selector, place, figures)
        page.save_screenshot(shots / f"large-letters-{width}-light.png")
    page.execute_script("document.documentElement.style.fontSize = ''")
    page.refresh()
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")


def details(page):
    """A small part lines up, has a name, and is as wide and as bright as its place asks for."""
    size(page, 1280, 800)
    find(page, "#clear").click()
    assert find(page, "#model").get_attribute("aria-label") == "Model: demo"
    inactive = lambda: find(page, "#send").get_attribute("aria-disabled")
    assert inactive() == "true"
    ask(page, "Details?")
    assert inactive() == "false"
    lists = "- a\n  - b\n    - c"
    script(page, [{"content": f"{lists}\n\n---\n\n|a|b|\n|-|-|\n|1|{'words ' * 60}|"}], "stop")
    ask(page, "", Keys.ENTER)
    is_answered(page, 1)
    assert inactive() == "true"
    for fold in ["about", "history", "settings"]:
        find(page, f"#{fold} summary").click()
        head, menu, place = find(page, "header").rect, find(page, f"#{fold} .menu").rect, find(page, f"#{fold}").rect
        assert menu["y"] >= head["height"] - 1 and abs(menu["x"] - place["x"]) < 2, (fold, head, menu, place)
    seed, scheme = find(page, "#seed").rect, find(page, "#scheme").rect
    assert (seed["y"], seed["height"]) == (scheme["y"], scheme["height"]), (seed, scheme)
    find(page, "#settings summary").click()
    assert find(page, ".message td").rect["width"] >= 64
    color(page, "dark")
    style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    assert page.execute_script(style, ".message hr", "borderTopColor") == page.execute_script(style, "header", "borderBottomColor")
    page.save_screenshot(shots / "details-dark.png")
    color(page, "light")
    size(page, 390, 844, is_phone=True)
    assert page.execute_script(style, ".message ul", "paddingInlineStart") == "24px"
    page.save_screenshot(shots / "phone-details-light.png")


def touch(page):
    """A button under a finger has 40 pixels each way, and a finger on Rename does not meet Delete."""
    size(page, 390, 844, is_phone=True)
    find(page, "#files").send_keys(str(ROOT / "Cargo.toml"))
    until(page, "it is attached", lambda: find(page, "#attached").is_displayed())
    script(page, [{"reasoning_content": "Hm."}, {"content": "```\ncode\n```\n"}], "stop")
    count = len(answers(page))
    ask(page, "Code?")
    find(page, "#send").click()
    is_answered(page, count + 1)
    script(page, [{"content": "Another."}], "stop")
    page.find_elements(By.XPATH, "//button[text()='Regenerate']")[-1].click()
    until(page, "there are versions", lambda: page.find_elements(By.CSS_SELECTOR, ".versions") and is_idle(page))
    find(page, "#files").send_keys(str(ROOT / "Cargo.toml"))
    until(page, "it is attached", lambda: find(page, "#attached").is_displayed())
    page.find_elements(By.XPATH, "//button[text()='Edit']")[-1].click()
    assert page.execute_script(SMALL) == []
    page.save_screenshot(shots / "phone-touch-light.png")
    for fold in ["history", "settings"]:
        find(page, f"#{fold} summary").click()
        assert page.execute_script(SMALL) == []
        nothing_sticks_out(page)
        if fold == "history":
            rename, erase = [button.rect for button in page.find_elements(By.CSS_SELECTOR, "#conversations li button")[1:3]]
            assert erase["x"] - rename["x"] - rename["width"] >= 12, (rename, erase)
        page.save_screenshot(shots / f"phone-touch-{fold}-light.png")
        find(page, f"#{fold} summary").click()
    find(page, "#cancel-edit").click()
    find(page, "#attached button").click()


def engine(page):
    """The figures are one row where there is room, else rows of two."""
    find(page, "#show-engine").click()
    until(page, "the figures are there", lambda: len(page.find_elements(By.CSS_SELECTOR, "#figures div")) == 5)
    for width, n_rows in [(390, 3), (768, 1), (1280, 1)]:
        size(page, width, 844, is_phone=width < 500)
        nothing_sticks_out(page)
        tops = page.execute_script("return [...document.querySelectorAll('#figures div')].map((node) => node.getBoundingClientRect().top)")
        assert len(set(tops)) == n_rows, (width, tops)
        page.save_screenshot(shots / f"engine-{width}-light.png")
    find(page, "#show-chat").click()


try:
    page = browser()
except WebDriverException as error:
    print(f"skipped: Chromium does not start here: {error.msg}")
    sys.exit(0)
try:
    with Server("-c", "2048") as server:
        opened(page, server.url)
        box(page)
        one_button(page)
        ways(page)
        formulas(page)
        phone(page, server.url)
        narrow(page)
        wide_in_lines(page)
        code(page)
        at_end(page)
        head(page)
        stops(page)
        details(page)
        large_letters(page)
        touch(page)
        contrast(page)
        engine(page)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
finally:
    page.quit()
print(f"the layout of the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
