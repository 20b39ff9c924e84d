"""Conversations of the web page in headless Chromium: found, renamed and deleted, saved as files and taken in, and where they are kept.

Writes screenshots to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chromium import accessible, answers, ask, asked, browser, color, entries, erase, find, is_answered, press, script, shots, until
from server import BINARY, ROOT, Server

HOSTILE = "<img src=x onerror=\"document.title='bad'\">"
# A file that is saved goes to `window.saved`, by name.
CATCH = """
window.saved = {};
URL.createObjectURL = (file) => { window.lastFile = file; return "#"; };
HTMLAnchorElement.prototype.click = function () {
  const name = this.download;
  window.lastFile.text().then((text) => (window.saved[name] = text));
};
"""
# A conversation is deleted while a turn of it is being stored; the answer is its title.
DELETED_MEANWHILE = """
const [done] = arguments;
import("/web/conversations.js").then(async ({ addTurn, remove, titleOf }) => {
  const turn = { messages: [{ role: "user", content: "Gone?" }, { role: "assistant", content: "Yes." }] };
  await addTurn("gone", turn);
  const isStored = addTurn("gone", turn);
  await remove("gone");
  await isStored;
  done(titleOf("gone"));
});
"""
# A browser that keeps nothing.
NO_DATABASE = "IDBFactory.prototype.open = () => { throw new Error('not here'); };"


def opened(page, url):
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    page.execute_script(CATCH)


def answered(page, question, answer):
    """A new conversation of one turn."""
    find(page, "#clear").click()
    script(page, [{"content": answer}], "stop")
    ask(page, question, Keys.ENTER)
    is_answered(page, 1)


def titles(page):
    return page.execute_script("return [...document.querySelectorAll('#conversations .title')].map((node) => node.textContent)")


def close(page):
    page.execute_script("document.getElementById('history').open = false")


def saved(page, button, name):
    """The file that a button of the list saves under this name."""
    find(page, "#history summary").click()
    find(page, f"#{button}").click()
    found = lambda: [text for key, text in page.execute_script("return window.saved").items() if key.startswith(name)]
    until(page, f"{name} is offered", found)
    close(page)
    return found()[0]


def shown(page):
    """The text of all messages; in one go, for they are drawn again."""
    return page.execute_script("return document.getElementById('messages').innerText")


def take_in(page, *files):
    find(page, "#import-files").send_keys("\n".join(map(str, files)))


def migrated(page, url):
    """The conversations that earlier versions kept in localStorage are taken over, with their one system message."""
    opened(page, url)
    turn = [{"role": "user", "content": "An old question"}, {"role": "assistant", "content": "An old answer.", "n_tokens": 9}]
    page.execute_script(
        "localStorage.setItem('tokenmill.chat.old-1', arguments[0]); localStorage.setItem('tokenmill.conversation', arguments[1]);"
        "localStorage.setItem('tokenmill.settings', arguments[2]); sessionStorage.clear()",
        json.dumps({"updated": 1_700_000_000_000, "messages": turn}),
        json.dumps([{"role": "user", "content": "The first"}, {"role": "assistant", "content": "Of all."}, {"role": "user", "content": "Lost"}]),
        json.dumps({"temperature": "0.25", "max_tokens": "512", "system": "You are old."}),
    )
    for _ in range(2):
        opened(page, url)
        until(page, "both are there", lambda: find(page, "#n-conversations").text == "2")
        assert asked(page) == ["An old question"] and "An old answer." in answers(page)[0].text
        assert page.title == "An old question – tokenmill", page.title
        assert find(page, "#system-here").get_attribute("value") == "You are old."
        assert find(page, "#temperature").get_attribute("value") == "0.25"
        assert find(page, "#max_tokens").get_attribute("value") == "", "512 was the default"
        left = page.execute_script("return Object.keys(localStorage)")
        assert not [key for key in left if key.startswith(("tokenmill.chat", "tokenmill.conversation"))], left
    find(page, "#history summary").click()
    assert titles(page) == ["An old question", "The first"]
    close(page)


def listed(page, url):
    """A long title leaves room for the buttons; conversations are found by words, renamed and deleted."""
    opened(page, url)
    answered(page, "A question with a title that is far longer than all of the room that a list of them has", "The word is **walrus**.")
    answered(page, "Short", "Nothing.")
    for width, scheme in [(1280, "light"), (768, "dark"), (390, "light")]:
        page.set_window_size(1280, 800)
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        color(page, scheme)
        rows = entries(page)
        menu = find(page, "#history .menu").rect
        for row in rows:
            for button in row:
                box = button.rect
                assert box["x"] >= menu["x"] and box["x"] + box["width"] <= menu["x"] + menu["width"], (width, button.text, box, menu)
                assert box["height"] >= 24, box
        accessible(page)
        page.save_screenshot(shots / f"list-{width}-{scheme}.png")
        close(page)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    color(page, "light")

    find(page, "#history summary").click()
    find(page, "#filter").send_keys("WALRUS word")
    assert [title[:10] for title in titles(page)] == ["A question"], titles(page)
    find(page, "#filter").send_keys(" zebra")
    assert titles(page) == [] and "No conversation matches" in find(page, "#no-conversations").text
    find(page, "#filter").clear()
    find(page, "#filter").send_keys(" ")
    assert titles(page)[0] == "Short" and len(titles(page)) == 4
    close(page)
    entries(page)[0][1].click()
    box = page.switch_to.active_element
    assert box.get_attribute("value") == "Short"
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("Renamed", Keys.ENTER)
    until(page, "it is renamed", lambda: titles(page)[0] == "Renamed")
    assert page.title == "Renamed – tokenmill", page.title
    assert page.execute_async_script(DELETED_MEANWHILE) == "", "it stays deleted"
    page.refresh()
    until(page, "the title is kept", lambda: page.title == "Renamed – tokenmill")
    assert "Gone?" not in titles(page)
    entries(page)[0][1].click()
    page.switch_to.active_element.send_keys("x", Keys.ESCAPE)
    until(page, "Escape takes it back", lambda: titles(page)[0] == "Renamed")
    close(page)


def transfer(page, url, folder):
    """A backup brings everything back, a saved conversation is one of `tokenmill chat`, and each comes in again."""
    opened(page, url)
    answered(page, "One", "First answer.")
    script(page, [{"reasoning_content": "Hm."}, {"content": "Second answer."}], "length")
    press(page, "Regenerate")
    until(page, "it is answered", lambda: "Second answer." in shown(page))
    one = json.loads(saved(page, "export", "One.json"))
    roles = [message["role"] for message in one["messages"]]
    assert roles == ["system", "user", "assistant"] and one["messages"][2]["content"] == "Second answer.", one
    (folder / "one.json").write_text(json.dumps(one))
    markdown = saved(page, "export-markdown", "One.md")
    assert markdown == "# One\n\n## System message\n\nYou are old.\n\n## You\n\nOne\n\n## Model\n\nSecond answer.\n", markdown
    backup = saved(page, "export-all", "tokenmill-conversations-")
    assert json.loads(backup)["format"] == "tokenmill conversations"
    (folder / "all.json").write_text(backup)
    count = int(find(page, "#n-conversations").text)
    before = sorted(titles(page))

    for _ in range(count):
        erase(entries(page)[0][2])
        close(page)
    assert find(page, "#n-conversations").text == "0" and page.title == "tokenmill", page.title
    page.refresh()
    until(page, "nothing is left", lambda: find(page, "#n-conversations").text == "0")
    page.execute_script(CATCH)
    take_in(page, folder / "all.json")
    until(page, "all are there", lambda: find(page, "#n-conversations").text == str(count))
    assert sorted(titles(page)) == before
    page.refresh()
    until(page, "all are kept", lambda: find(page, "#n-conversations").text == str(count))
    entries(page)[titles(page).index("One")][0].click()
    assert "Second answer." in answers(page)[0].text and find(page, "#system-here").get_attribute("value") == "You are old."
    assert page.find_elements(By.XPATH, "//button[text()='Continue']")
    find(page, ".versions button").click()
    until(page, "the other version is there too", lambda: "First answer." in shown(page))

    again_and_changed(page, folder, backup, one, count)

    # A conversation of the terminal comes in with what it has.
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 3}'}}
    messages = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": [{"type": "text", "text": "What is 3 + 4?"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
        {"role": "user", "content": "This has no answer."},
    ]
    (folder / "chat.json").write_text(json.dumps({"messages": messages}))
    page.execute_script(CATCH)
    take_in(page, folder / "chat.json")
    until(page, "it is shown", lambda: asked(page) == ["What is 3 + 4?"])
    assert find(page, "#system-here").get_attribute("value") == "You add."
    assert "Calls add" in answers(page)[0].text and "Result of add: 7" in find(page, ".message.tool").text
    again = json.loads(saved(page, "export", "What-is-3-4.json"))["messages"]
    assert again == [messages[0], {"role": "user", "content": "What is 3 + 4?"}, *messages[2:5]], again
    file = ROOT / "target/e2e-conversation-imported.json"
    file.write_text(json.dumps({"messages": again}))
    chat = subprocess.run([BINARY, "chat", "demo"], input=f"/load {file}\n/bye\n", capture_output=True, text=True, timeout=60)
    assert chat.returncode == 0 and "exchange loaded" in chat.stderr, (chat.returncode, chat.stderr)


def again_and_changed(page, folder, backup, one, count):
    """A conversation that is here already is kept once; a changed one becomes a copy that says so, once too."""

    def told(file, words):
        take_in(page, folder / file)
        until(page, f"it is said: {words}", lambda: find(page, "#told").text == words)

    # A notice goes with the next action, and so does a failure.
    (folder / "bad.json").write_text("{")
    failed = lambda words: until(page, f"it fails: {words}", lambda: find(page, "#error").text == words and find(page, "#told").text == "")
    told("one.json", "1 conversation is already here.")
    take_in(page, folder / "bad.json")
    failed("bad.json is not JSON.")
    told("one.json", "1 conversation is already here.")
    assert find(page, "#error").text == ""
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    find(page, "#files").send_keys(str(folder / "image.png"))
    failed("demo takes no images.")
    # Another version is shown now; that changes nothing.
    told("all.json", f"{count} conversations are already here.")
    told("one.json", "1 conversation is already here.")
    assert "Second answer." in shown(page) or "First answer." in shown(page)
    assert find(page, "#n-conversations").text == str(count)
    accessible(page)
    page.save_screenshot(shots / "imported-again-light.png")
    changed = json.loads(backup)
    for entry in changed["conversations"]:
        if entry["messages"][0]["content"] == "One":
            entry["messages"][-1]["content"] = "Another answer."
    (folder / "changed.json").write_text(json.dumps(changed))
    one["messages"] += [{"role": "user", "content": "More?"}, {"role": "assistant", "content": "More."}]
    (folder / "longer.json").write_text(json.dumps({"messages": one["messages"]}))
    old = json.loads(backup)
    for entry in old["conversations"]:
        del entry["id"]
    (folder / "without-ids.json").write_text(json.dumps(old))
    here = lambda n: f"{n} conversation{' is' if n == 1 else 's are'} already here."
    told("changed.json", f"1 conversation imported. {here(count - 1)}")
    assert page.title == "One (imported copy) – tokenmill" and "Another answer." in shown(page), page.title
    told("changed.json", here(count))
    told("longer.json", "1 conversation imported.")
    assert page.title == "One (imported copy) – tokenmill" and "More." in shown(page), page.title
    told("longer.json", here(1))
    told("without-ids.json", here(count))
    assert find(page, "#n-conversations").text == str(count + 2)
    # One that was deleted comes back, also where a new answer is added to it.
    erase(entries(page)[titles(page).index("Renamed")][2])
    close(page)
    told("all.json", f"1 conversation imported. {here(count - 1)}")
    assert page.title == "Renamed – tokenmill", page.title
    script(page, [{"content": "It is back."}], "stop")
    ask(page, "Is it back?", Keys.ENTER)
    until(page, "it is answered", lambda: "It is back." in shown(page))
    page.refresh()
    until(page, "the answer is kept", lambda: "It is back." in shown(page))
    page.execute_script(CATCH)


def refused(page, url, folder):
    """A file that is no conversation is refused in words; hostile content is text."""
    opened(page, url)
    count = find(page, "#n-conversations").text
    for name, text, words in [
        ("a.json", "{", "a.json is not JSON"),
        ("b.json", '{"a": 1}', "b.json is not a conversation"),
        ("c.json", '{"messages": [{"role": "user", "content": "no answer"}]}', "c.json has no conversation with an answer"),
        ("d.json", '{"conversations": [null, 7, {"messages": [null, "x", {"role": "assistant"}]}]}', "d.json has no conversation"),
    ]:
        (folder / name).write_text(text)
        take_in(page, folder / name)
        until(page, f"it is said: {words}", lambda: words in find(page, "#error").text)
    assert find(page, "#n-conversations").text == count
    wild = {
        "role": "assistant",
        "content": f"{HOSTILE} [x](javascript:alert(1)) $\\text{{{HOSTILE}}}$",
        "note": HOSTILE,
        "calls": [{"name": HOSTILE, "arguments": HOSTILE}, None, 3],
        "images": [{"key": "k", "name": HOSTILE}],
        "versions": {"at": 1, "tails": [[{"role": "assistant", "content": "Other."}, {"role": "nobody"}], None, "x", []]},
        "onclick": "x",
    }
    asking = {
        "role": "user",
        "content": HOSTILE,
        "images": [{"key": "k", "name": HOSTILE}, {"key": "l", "name": "y"}],
        "files": [{"name": HOSTILE, "text": HOSTILE}],
    }
    bad = {"title": HOSTILE, "system": 7, "updated": "never", "messages": [asking, wild]}
    images = {"k": "javascript:alert(1)", "l": "data:text/html;base64,AAAA"}
    (folder / "wild.json").write_text(json.dumps({"conversations": [bad], "images": images}))
    take_in(page, folder / "wild.json")
    until(page, "it is shown", lambda: page.title == f"{HOSTILE} – tokenmill")
    until(page, "images that are none are not kept", lambda: "no longer kept" in shown(page))
    for selector in ["#messages img", "#conversations img", "script:not([src])", "[onerror]", "a[href^='javascript']"]:
        assert not page.find_elements(By.CSS_SELECTOR, selector), selector
    assert find(page, ".versions span").text == "2/2"
    accessible(page)
    find(page, "#history summary").click()
    page.save_screenshot(shots / "hostile-import-light.png")
    close(page)


def text_files(page, url, folder):
    """A text file goes with its name before the words of its message, is folded, and is kept."""
    opened(page, url)
    find(page, "#clear").click()
    notes = folder / "notes.md"
    notes.write_text("line one\nline <b>two</b>\n")
    find(page, "#files").send_keys(str(notes))
    until(page, "it is attached", lambda: "notes.md" in find(page, "#attached").text)
    accessible(page)
    page.save_screenshot(shots / "text-file-light.png")
    page.refresh()
    until(page, "a reload finds it", lambda: "notes.md" in find(page, "#attached").text)
    page.execute_script(CATCH)
    script(page, [{"content": "Read."}], "stop")
    ask(page, "Sum up.", Keys.ENTER)
    is_answered(page, 1)
    assert find(page, ".message.user .file summary").text == "notes.md, 2 lines"
    assert not find(page, "#attached").is_displayed()
    find(page, ".message.user .file summary").click()
    accessible(page)
    assert "line <b>two</b>" in find(page, ".message.user").text
    sent = json.loads(saved(page, "export", "Sum-up.json"))["messages"][-2]
    assert sent == {"role": "user", "content": "File: notes.md\nline one\nline <b>two</b>\n\nSum up."}, sent
    press(page, "Edit")
    until(page, "it is in the box again", lambda: "notes.md" in find(page, "#attached").text)
    find(page, "#attached button").click()
    assert not find(page, "#attached").is_displayed()
    press(page, "Cancel")
    # A text of the time before UTF-8 is read; bytes of no letters are refused.
    (folder / "old.txt").write_bytes("Käse – 3 €\n".encode("cp1252"))
    (folder / "odd.txt").write_bytes(b"\x01\xff\xfe words")
    find(page, "#files").send_keys(f"{folder / 'old.txt'}\n{folder / 'odd.txt'}")
    until(page, "one is attached", lambda: "old.txt" in find(page, "#attached").text and "odd.txt cannot be sent" in find(page, "#error").text)
    script(page, [{"content": "Read."}], "stop")
    ask(page, "Old?", Keys.ENTER)
    is_answered(page, 2)
    page.find_elements(By.CSS_SELECTOR, ".message.user .file summary")[-1].click()
    assert "Käse – 3 €" in shown(page), shown(page)


def large(page, url):
    """There is room for more than the 5 MB of localStorage."""
    opened(page, url)
    page.execute_async_script(
        "const [text, done] = arguments; import('/web/conversations.js').then(async ({ addConversations }) => {"
        " const message = (role, content) => ({ role, content });"
        " done(await addConversations([{ title: 'Large', system: '', updated: 1, messages: [message('user', 'Much'), message('assistant', text.repeat(1600000))] }])); });",
        "word ",
    )
    page.refresh()
    until(page, "it is kept", lambda: "Large" in titles(page))
    kept = page.execute_async_script(
        "const done = arguments[0]; import('/web/conversations.js').then(({ entries }) => done(entries().find(({ title }) => title === 'Large').messages[1].content.length));"
    )
    assert kept == 8_000_000, kept


def nothing_kept(page, url):
    """A browser that keeps nothing says so, and the conversation lives as long as the page; what was kept elsewhere stays there."""
    turn = [{"role": "user", "content": "Kept elsewhere"}, {"role": "assistant", "content": "Yes."}]
    old = json.dumps({"updated": 1, "messages": turn})
    page.execute_script("localStorage.setItem('tokenmill.chat.old-2', arguments[0])", old)
    tag = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_DATABASE})
    page.get(url)
    until(page, "the model is named", lambda: find(page, "#model").text == "demo")
    find(page, "#clear").click()
    ask(page, "What is 3 + 4?", Keys.ENTER)
    is_answered(page, 1)
    until(page, "it is said", lambda: "no room for this" in find(page, "#error").text)
    ask(page, "What is 1 + 4?", Keys.ENTER)
    is_answered(page, 2)
    assert asked(page) == ["What is 3 + 4?", "What is 1 + 4?"]
    assert titles(page) == ["What is 3 + 4?", "Kept elsewhere"], titles(page)
    assert page.execute_script("return localStorage.getItem('tokenmill.chat.old-2')") == old
    assert page.execute_async_script(DELETED_MEANWHILE) == "", "it stays deleted"
    page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": tag["identifier"]})


try:
    page = browser()
except WebDriverException as error:
    print(f"skipped: Chromium does not start here: {error.msg}")
    sys.exit(0)
try:
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        migrated(page, server.url)
        listed(page, server.url)
        transfer(page, server.url, folder)
        refused(page, server.url, folder)
        text_files(page, server.url, folder)
        large(page, server.url)
        nothing_kept(page, server.url)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
finally:
    page.quit()
print(f"conversations of the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
