"""Ways about the web page in headless Chromium: drafts and edits, deletion, menus and Escape, following an answer, answers
of other conversations, search.

Writes screenshots to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import pathlib
import sys
import tempfile

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chromium import LATE, SLOWLY, accessible, answers, ask, asked, browser, entries, erase, find, is_answered, is_idle, press, reset, script, setting, shots, until
from server import ROOT, Server


def opened(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")


def answered(page, question, answer="An answer."):
    """A turn with this answer is added."""
    count = len(answers(page))
    script(page, [{"content": answer}], "stop")
    ask(page, question, Keys.ENTER)
    is_answered(page, count + 1)


def text(page):
    return find(page, "#prompt").get_attribute("value")


def empty(page):
    """Takes the text out of the box as a reader does: the driver's own way says nothing to the page."""
    find(page, "#prompt").send_keys(Keys.CONTROL, "a")
    find(page, "#prompt").send_keys(Keys.BACKSPACE)


def attached(page):
    return find(page, "#attached").text.split("×")[0].strip()


def drafts(page, folder):
    """An edit puts the draft aside, files too; Cancel, Escape, a reload and its end give it back. Each conversation has its own."""
    find(page, "#clear").click()
    answered(page, "First?")
    notes = folder / "notes.md"
    notes.write_text("words\n")
    find(page, "#files").send_keys(str(notes))
    until(page, "it is attached", lambda: attached(page) == "notes.md")
    ask(page, "A draft")
    press(page, "Edit")
    assert text(page) == "First?" and attached(page) == ""
    assert "edited" in find(page, ".message.user").get_attribute("class")
    accessible(page)
    page.save_screenshot(shots / "edited-light.png")
    press(page, "Cancel")
    assert (text(page), attached(page)) == ("A draft", "notes.md")
    assert "edited" not in find(page, ".message.user").get_attribute("class")
    press(page, "Edit")
    ask(page, "?")
    page.refresh()
    until(page, "the message is still edited", lambda: find(page, "#editing").is_displayed() and text(page) == "First??")
    find(page, "#prompt").send_keys(Keys.ESCAPE)
    assert not find(page, "#editing").is_displayed() and (text(page), attached(page)) == ("A draft", "notes.md")
    # A refusal gives the edited message back to the edit, and the draft waits.
    press(page, "Edit")
    script(page, [], "refused")
    ask(page, " Again", Keys.ENTER)
    until(page, "the refusal is shown", lambda: "busy" in find(page, "#error").text and is_idle(page))
    assert text(page) == "First? Again" and find(page, "#editing").is_displayed()
    script(page, [{"content": "Another answer."}], "stop")
    ask(page, "", Keys.ENTER)
    until(page, "it is answered", lambda: asked(page) == ["First? Again"] and is_idle(page))
    assert (text(page), attached(page)) == ("A draft", "notes.md"), "the draft comes back after the edit"
    page.refresh()
    until(page, "it is kept", lambda: (text(page), attached(page)) == ("A draft", "notes.md"))
    # An edit stays with its conversation, and so does a draft; one of a conversation that has not begun is in the list.
    press(page, "Edit")
    ask(page, "!")
    find(page, "#clear").click()
    assert (text(page), attached(page)) == ("", "") and not find(page, "#editing").is_displayed()
    ask(page, "Later?")
    entries(page)[0][0].click()
    assert text(page) == "First? Again!" and find(page, "#editing").is_displayed()
    assert "edited" in find(page, ".message.user").get_attribute("class") and state_of(page, "Later?") == "draft"
    page.refresh()
    until(page, "the edit is kept", lambda: text(page) == "First? Again!" and find(page, "#editing").is_displayed())
    find(page, "#history summary").click()
    accessible(page)
    page.save_screenshot(shots / "draft-light.png")
    find(page, "#conversations .title").click()
    assert text(page) == "Later?" and not asked(page) and state_of(page, "Later?") is None
    entries(page)[0][0].click()
    press(page, "Cancel")
    assert (text(page), attached(page)) == ("A draft", "notes.md")
    # The draft of a deleted conversation goes with it.
    erase(entries(page)[0][-1])
    find(page, "#history summary").click()
    assert state_of(page, "Later?") is None and text(page) == "A draft"
    find(page, "#attached button").click()
    empty(page)


def edits(page):
    """An edit continues beside another answer; where its message is replaced, or another one is edited, the changed text stays in the box."""
    find(page, "#clear").click()
    answered(page, "One?")
    answered(page, "Two?")
    edit = lambda at: page.find_elements(By.XPATH, "//button[text()='Edit']")[at].click()
    edit(0)
    ask(page, " More")
    script(page, [{"content": "Again."}], "stop")
    press(page, "Regenerate")
    until(page, "it is answered", lambda: is_idle(page) and "Again." in answers(page)[-1].text)
    assert text(page) == "One? More" and find(page, "#editing").is_displayed() and asked(page) == ["One?", "Two?"]
    # An edit of the same message goes on; that of another one puts the text aside.
    edit(0)
    assert text(page) == "One? More"
    edit(1)
    assert text(page) == "Two?"
    press(page, "Cancel")
    assert text(page) == "One? More" and not find(page, "#editing").is_displayed()
    empty(page)
    ask(page, "A draft")
    version = lambda: page.execute_script("return document.querySelector('.versions').textContent")
    for n_others, words in [(1, ""), (2, "!")]:
        edit(1)
        ask(page, words)
        script(page, [{"content": "First again."}], "stop")
        page.find_elements(By.XPATH, "//button[text()='Regenerate']")[0].click()
        until(page, "it is answered", lambda: is_idle(page) and "First again." in answers(page)[-1].text)
        assert text(page) == ("Two?!\nA draft" if words else "A draft") and not find(page, "#editing").is_displayed()
        for at in range(n_others, 0, -1):
            find(page, ".versions button").click()
            until(page, "the version before is shown", lambda: version() == f"‹{at}/{n_others + 1}›")
        assert asked(page) == ["One?", "Two?"]
    empty(page)


def deletion(page):
    """A double click deletes nothing; the question ends when the list is closed, when the button is left, and after 4 seconds."""
    find(page, "#clear").click()
    answered(page, "Keep me?")
    count = find(page, "#n-conversations").text
    button = lambda: find(page, "#conversations li button:last-child")
    find(page, "#history summary").click()
    ActionChains(page).double_click(button()).perform()
    assert find(page, "#n-conversations").text == count and button().text == "Delete?"
    find(page, "#history summary").click()
    find(page, "#history summary").click()
    until(page, "it asks no more after the list was closed", lambda: button().text == "Delete", 2)
    button().click()
    assert button().get_attribute("aria-label") == "Delete? Keep me?"
    button().send_keys(Keys.SHIFT, Keys.TAB)
    assert button().text == "Delete" and button().get_attribute("aria-label") == "Delete: Keep me?"
    button().click()
    until(page, "it asks no more after a while", lambda: button().text == "Delete", 6)
    erase(button())
    assert find(page, "#n-conversations").text == str(int(count) - 1)
    find(page, "#history summary").click()


def read_aloud(page):
    """While an answer runs the log is busy, so its end is read once; messages that were there stay, with their folds, and are not read again."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    script(page, [{"reasoning_content": "Hm."}, {"content": "Well."}], "stop")
    ask(page, "First?", Keys.ENTER)
    is_answered(page, 1)
    find(page, ".reasoning summary").click()
    nodes = page.find_elements(By.CSS_SELECTOR, ".message")
    busy = lambda: find(page, "#messages").get_attribute("aria-busy")
    assert busy() == "false", busy()
    page.execute_script(SLOWLY)
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "text streams in", lambda: len(answers(page)) == 2 and len(answers(page)[1].text) > 40)
    assert busy() == "true"
    shown = [button.text for button in page.find_elements(By.CSS_SELECTOR, ".actions button") if button.is_displayed()]
    assert shown == ["Copy"] * 3, shown
    find(page, "#stop").click()
    is_answered(page, 2)
    assert busy() == "false"
    assert page.find_elements(By.CSS_SELECTOR, ".message")[:2] == nodes and find(page, ".reasoning").get_attribute("open")


def state_of(page, title):
    """The word of the list on a conversation."""
    script = "return [...document.querySelectorAll('#conversations li')].find((row) => row.firstChild.textContent === arguments[0])?.querySelector('.state')?.textContent"
    return page.execute_script(script, title)


def background(page):
    """An answer goes on while another conversation is open, is kept in its own, and the list says so; a failure waits there too."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    setting(page, max_tokens=40)
    page.execute_script(SLOWLY)
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "text streams in", lambda: answers(page) and len(answers(page)[0].text) > 20)
    count = find(page, "#n-conversations").text
    find(page, "#clear").click()
    assert not answers(page) and is_idle(page)
    assert find(page, "#told").text == "The answer in “Tell me a story.” goes on.", find(page, "#told").text
    assert state_of(page, "Tell me a story.") == "answering" and find(page, "#n-conversations").text == count
    # Another one runs beside it, and each ends in its own.
    ask(page, "What is 3 + 4?", Keys.ENTER)
    until(page, "it is said", lambda: find(page, "#told").text == "“Tell me a story.” has a new answer.")
    is_answered(page, 1)
    assert asked(page) == ["What is 3 + 4?"] and state_of(page, "Tell me a story.") == "new answer"
    find(page, "#history summary").click()
    accessible(page)
    page.save_screenshot(shots / "background-light.png")
    find(page, "#conversations").find_element(By.XPATH, ".//button[text()='Tell me a story.']").click()
    note = answers(page)[0].find_element(By.CSS_SELECTOR, ".note").text
    assert asked(page) == ["Tell me a story."] and "40 tokens" in note and "Stopped" not in note, note
    assert state_of(page, "Tell me a story.") is None
    reset(page)
    # A deleted one ends, and leaves nothing.
    find(page, "#clear").click()
    ask(page, "Delete me?", Keys.ENTER)
    until(page, "it runs", lambda: not is_idle(page))
    find(page, "#history summary").click()
    erase(find(page, "#conversations li .delete"))
    assert not asked(page) and is_idle(page) and find(page, "#prompt").get_attribute("value") == ""
    find(page, "#history summary").click()
    opened(page, page.current_url)
    assert state_of(page, "Delete me?") is None and find(page, "#n-conversations").text == str(int(count) + 1)
    # So do the words about one that is deleted while another is open.
    find(page, "#clear").click()
    page.execute_script(SLOWLY)
    ask(page, "Delete me too?", Keys.ENTER)
    until(page, "it runs", lambda: not is_idle(page))
    find(page, "#clear").click()
    assert find(page, "#told").text == "The answer in “Delete me too?” goes on."
    erase(entries(page)[0][-1])
    assert find(page, "#told").get_attribute("textContent") == "" and state_of(page, "Delete me too?") is None
    find(page, "#history summary").click()
    opened(page, page.current_url)
    # A first message that is refused comes back with its system message.
    find(page, "#clear").click()
    setting(page, **{"system-here": "You are an owl."})
    script(page, [], "refused")
    page.execute_script(LATE)
    ask(page, "Lost?", Keys.ENTER)
    find(page, "#clear").click()
    setting(page, **{"system-here": "You are a fox."})
    until(page, "it is said", lambda: find(page, "#told").text == "“Lost?” was not finished; open it to see why.")
    assert state_of(page, "Lost?") == "failed" and text(page) == ""
    entries(page)[0][0].click()
    assert find(page, "#error").text == "busy. Your message is kept." and text(page) == "Lost?"
    assert find(page, "#system-here").get_attribute("value") == "You are an owl."
    empty(page)
    # After a reload it is a draft of its conversation.
    find(page, "#clear").click()
    script(page, [], "refused")
    page.execute_script(LATE)
    ask(page, "Lost too?", Keys.ENTER)
    find(page, "#clear").click()
    ask(page, "Else")
    until(page, "it is said", lambda: find(page, "#told").text.startswith("“Lost too?” was not finished"))
    opened(page, page.current_url)
    assert text(page) == "Else" and state_of(page, "Lost too?") == "draft"
    find(page, "#history summary").click()
    find(page, "#conversations").find_element(By.XPATH, ".//button[text()='Lost too?']").click()
    assert text(page) == "Lost too?" and state_of(page, "Else") == "draft"
    empty(page)
    erase(entries(page)[0][-1])
    find(page, "#history summary").click()
    assert state_of(page, "Else") is None


# A file is read once `release()` was called.
UNREAD = """
const read = Blob.prototype.arrayBuffer;
const released = new Promise((resolve) => (window.release = resolve));
Blob.prototype.arrayBuffer = async function () {
  await released;
  return read.call(this);
};
"""


def own_conversation(page, folder):
    """A message and its files go to no other conversation that is opened while they are read."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    page.execute_script(UNREAD)
    find(page, "#files").send_keys(str(folder / "notes.md"))
    ask(page, "To whom?", Keys.ENTER)
    find(page, "#clear").click()
    ask(page, "Somebody else")
    page.execute_script("window.release()")
    empty(page)
    assert state_of(page, "To whom?") == "draft" and (text(page), attached(page)) == ("", "")
    find(page, "#history summary").click()
    find(page, "#conversations").find_element(By.XPATH, ".//button[text()='To whom?']").click()
    until(page, "it is attached", lambda: attached(page) == "notes.md")
    assert not asked(page) and is_idle(page) and text(page) == "To whom?"
    find(page, "#attached button").click()
    empty(page)


def deleted_elsewhere(page, url):
    """The focus stays on its button when the word of a running answer appears; a deletion in another tab ends the answer."""
    opened(page, url)
    find(page, "#clear").click()
    answered(page, "Gone?")
    count = int(find(page, "#n-conversations").text)
    page.execute_script(STEPS)
    ask(page, "More?", Keys.ENTER)
    until(page, "it is asked", lambda: page.execute_script("return Boolean(window.say)"))
    for name in ["rename", "delete"]:
        find(page, "#history summary").click()
        find(page, f"#conversations li .{name}").send_keys(Keys.CONTROL, Keys.SHIFT, "o")
        until(page, "the word appears", lambda: state_of(page, "Gone?") == "answering")
        assert page.switch_to.active_element.get_attribute("class") == name
        find(page, "#conversations li .title").click()
    page.execute_script("window.say('Some words.')")
    until(page, "they are shown", lambda: "Some words." in answers(page)[-1].text)
    first, gone = page.current_window_handle, page.execute_script("return sessionStorage.getItem('tokenmill.open')")
    page.switch_to.new_window("tab")
    opened(page, url)
    erase(entries(page)[0][-1])
    until(page, "it is deleted", lambda: find(page, "#n-conversations").text == str(count - 1))
    page.close()
    page.switch_to.window(first)
    until(page, "the answer is ended", lambda: not asked(page) and is_idle(page))
    page.execute_script("window.end()")
    page.execute_async_script("import('/web/conversations.js').then(({ rename }) => rename(...arguments)).then(arguments[2])", gone, "Back")
    page.refresh()
    until(page, "the list is there", lambda: find(page, "#n-conversations").text == str(count - 1))
    assert state_of(page, "Gone?") is None and "Gone?" not in find(page, "#conversations").get_attribute("textContent")


def places(page):
    """The engine, a new title and a deletion leave the reader where they were."""
    opened(page, page.current_url)
    for question in ["Other?", "Long?"]:
        find(page, "#clear").click()
        answered(page, question, "line\n\n" * 60)
    place = lambda: page.execute_script("return scrollY")
    page.execute_script("scrollTo(0, 300)")
    until(page, "the reader is there", lambda: place() == 300)
    find(page, "#show-engine").click()
    find(page, "#show-chat").click()
    assert place() == 300, place()
    count = int(find(page, "#n-conversations").text)
    entries(page)[0][1].click()
    page.switch_to.active_element.send_keys("Longer", Keys.ENTER)
    until(page, "it is renamed", lambda: page.title == "Longer – tokenmill")
    until(page, "the focus is in its row", lambda: page.switch_to.active_element.text == "Longer")
    erase(page.find_elements(By.CSS_SELECTOR, "#conversations li .delete")[1])
    until(page, "it is deleted", lambda: find(page, "#n-conversations").text == str(count - 1))
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert place() == 300, place()


def to_end(page):
    """The button that leads to the end is there only where there is an end to go to."""
    find(page, "#clear").click()
    answered(page, "Short?")
    find(page, "#clear").click()
    answered(page, "Long?", "line\n\n" * 60)
    page.execute_script("scrollTo(0, 0)")
    until(page, "the button is there", lambda: find(page, "#to-end").is_displayed())
    find(page, "#clear").click()
    until(page, "a new conversation has none", lambda: not find(page, "#to-end").is_displayed(), 3)
    for at, is_long in [(0, True), (1, False)]:
        entries(page)[at][0].click()
        if is_long:
            page.execute_script("scrollTo(0, 0)")
        until(page, "it is there for the long one", lambda: find(page, "#to-end").is_displayed() == is_long, 3)


STEPS = """
const plain = window.fetch;
window.fetch = async (path, options) => {
  if (!options?.body) return plain(path, options);
  const encoder = new TextEncoder();
  const send = (out, event) => out.enqueue(encoder.encode(`data: ${JSON.stringify(event)}\\n\\n`));
  const stream = new ReadableStream({
    start(out) {
      window.say = (content) => send(out, { choices: [{ delta: { content } }] });
      window.end = () => {
        send(out, { choices: [{ delta: {}, finish_reason: "stop" }] });
        send(out, { choices: [], timings: { predicted_per_second: 9 }, usage: { completion_tokens: 3, total_tokens: 9 } });
        out.close();
      };
    },
  });
  return new Response(stream);
};
"""
DISTANCE = "return document.documentElement.scrollHeight - innerHeight - scrollY"


def following(page):
    """A reader who goes up by a few lines is left there; one who goes back to the end is taken along."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    page.execute_script(STEPS)
    ask(page, "Go on.", Keys.ENTER)
    distance = lambda: page.execute_script(DISTANCE)
    says = lambda text: (page.execute_script("window.say(arguments[0])", text), until(page, "it is drawn", lambda: text.split()[-1] in answers(page)[0].text))
    until(page, "it is asked", lambda: page.execute_script("return Boolean(window.say)"))
    says("line\n\n" * 60 + "one")
    until(page, "it follows", lambda: distance() <= 2)
    page.execute_script("scrollBy(0, -80)")
    until(page, "it went up", lambda: distance() >= 78)
    place = page.execute_script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(scrollY))))")
    for word in ["two", "three"]:
        says(f"\n\n{word}")
        assert page.execute_script("return scrollY") == place, "the reader is not pulled back"
    page.execute_script("scrollBy(0, 5000)")
    until(page, "it is at the end", lambda: distance() <= 2)
    page.execute_script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    says("\n\nfour\n\nfive")
    until(page, "it follows again", lambda: distance() <= 2)
    page.execute_script("window.end()")
    is_answered(page, 1)


def menus(page):
    """The first Escape closes an open menu, wherever the focus is, and the answer continues; a tab out of a menu closes it."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    page.execute_script(SLOWLY)
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "text streams in", lambda: answers(page) and len(answers(page)[0].text) > 20)
    is_open = lambda: find(page, "#history").get_attribute("open") is not None
    page.execute_script("document.getElementById('history').open = true; document.getElementById('prompt').focus()")
    find(page, "#prompt").send_keys(Keys.ESCAPE)
    assert not is_open() and not is_idle(page), "the menu is closed, and the answer continues"
    assert page.switch_to.active_element == find(page, "#prompt")
    find(page, "#history summary").click()
    assert is_open()
    find(page, "#import").send_keys(Keys.TAB)
    assert not is_open() and page.switch_to.active_element == find(page, "#clear")
    # The end of the answer takes nobody out of a menu.
    find(page, "#settings summary").click()
    find(page, "#temperature").click()
    page.execute_script("document.getElementById('stop').dispatchEvent(new Event('click'))")
    until(page, "it stops", lambda: is_idle(page))
    assert page.switch_to.active_element == find(page, "#temperature") and find(page, "#settings").get_attribute("open")
    find(page, "#settings summary").click()
    opened(page, page.current_url)
    page.execute_script(SLOWLY)
    ask(page, "Tell me a story.", Keys.ENTER)
    until(page, "it runs", lambda: not is_idle(page))
    find(page, "#prompt").send_keys(Keys.ESCAPE)
    until(page, "it stops", lambda: is_idle(page))


def focus_is_seen(page):
    """A link that gets the focus is not hidden by the box, however high that is."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    answered(page, "Links?", "line\n\n" * 30 + "[there](https://example.org)\n\n" + "line\n\n" * 30)
    find(page, "#prompt").send_keys(*[f"line{Keys.SHIFT}{Keys.ENTER}{Keys.NULL}"] * 20)
    edge = lambda what, side: page.execute_script(f"return {what}.getBoundingClientRect().{side}")
    link = "document.querySelector('.message a')"
    # It is in the window, under the box.
    page.execute_script(f"scrollBy(0, {link}.getBoundingClientRect().bottom - innerHeight + 200)")
    top = edge("document.getElementById('composer')", "top")
    until(page, "it is under the box", lambda: edge(link, "top") > top, 3)
    page.execute_script(f"{link}.focus()")
    until(page, "it is above the box", lambda: 0 < edge(link, "bottom") <= top, 3)
    empty(page)


def directions(page):
    """Words that run from the right do so, each block by itself; code and the other blocks do not."""
    opened(page, page.current_url)
    find(page, "#clear").click()
    empty(page)
    hebrew = "שלום עולם"
    ask(page, hebrew)
    runs = lambda selector: page.execute_script("return [...document.querySelectorAll(arguments[0])].map((node) => getComputedStyle(node).direction)", selector)
    assert runs("#prompt") == ["rtl"]
    empty(page)
    answered(page, hebrew, f"{hebrew}\n\nHello.\n\n> {hebrew}\n\n- {hebrew}\n\n|{hebrew}|\n|-|\n|{hebrew}|\n\n```\n{hebrew}\n```\n\n$$x$$")
    assert runs(".message.user") == ["rtl"]
    assert runs(".message.assistant .body > *") == ["rtl", "ltr", "rtl", "rtl", "rtl", "ltr", "ltr"]
    page.save_screenshot(shots / "right-to-left-light.png")


MANY = """
const [done] = arguments;
import("/web/conversations.js").then(async ({ addConversations }) => {
  const turn = (question, answer) => [{ role: "user", content: question }, { role: "assistant", content: answer }];
  const given = [...Array(80).keys()].map((i) => ({ title: `Number ${i}`, system: "", updated: 1000 + i, messages: turn("What?", "That.") }));
  given[3].messages[0].files = [{ name: "recipe.txt", text: "cardamom" }];
  given[4].messages[1].versions = { at: 1, tails: [[{ role: "assistant", content: "saffron" }], null] };
  await addConversations(given);
  done();
});
"""


def search(page):
    """Words of files and of other versions are found, an opened conversation ends the search, and a long list scrolls by itself."""
    page.execute_async_script(MANY)
    page.refresh()
    until(page, "all are there", lambda: int(find(page, "#n-conversations").text) >= 80)
    titles = lambda: page.execute_script("return [...document.querySelectorAll('#conversations .title')].map((node) => node.textContent)")
    count = len(titles())
    for word, title in [("cardamom", "Number 3"), ("recipe.txt", "Number 3"), ("SAFFRON", "Number 4")]:
        find(page, "#history summary").click()
        find(page, "#filter").send_keys(word)
        assert titles() == [title], (word, titles())
        find(page, "#conversations .title").click()
        until(page, "it is open", lambda: page.title.startswith(title))
        assert find(page, "#filter").get_attribute("value") == "" and len(titles()) == count
    # Escape takes the words back, and then closes the list.
    find(page, "#history summary").click()
    find(page, "#filter").send_keys("saffron")
    assert len(titles()) == 1
    find(page, "#filter").send_keys(Keys.ESCAPE)
    assert find(page, "#filter").is_displayed() and find(page, "#filter").get_attribute("value") == "" and len(titles()) == count
    find(page, "#filter").send_keys(Keys.ESCAPE)
    assert not find(page, "#filter").is_displayed()
    for width, height in [(390, 844), (1280, 800)]:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        find(page, "#history summary").click()
        page.execute_script("document.querySelector('#conversations li:last-child').scrollIntoView()")
        menu = find(page, "#history .menu").rect
        for selector in ["#filter", "#export", "#import", "#conversations li:last-child .title"]:
            box = find(page, selector).rect
            assert menu["y"] <= box["y"] and box["y"] + box["height"] <= menu["y"] + menu["height"] <= height, (selector, box, menu)
        accessible(page)
        page.save_screenshot(shots / f"many-{width}-light.png")
        find(page, "#history summary").click()
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


try:
    page = browser()
except WebDriverException as error:
    print(f"skipped: Chromium does not start here: {error.msg}")
    sys.exit(0)
try:
    with Server("-c", "2048") as server, tempfile.TemporaryDirectory() as folder:
        opened(page, server.url)
        drafts(page, pathlib.Path(folder))
        edits(page)
        deletion(page)
        read_aloud(page)
        background(page)
        own_conversation(page, pathlib.Path(folder))
        deleted_elsewhere(page, server.url)
        places(page)
        to_end(page)
        following(page)
        menus(page)
        focus_is_seen(page)
        directions(page)
        search(page)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
finally:
    page.quit()
print(f"ways about the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
