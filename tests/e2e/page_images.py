"""Images on the web page in headless Chromium: picked, dropped and pasted, sent and shown, edited, kept, exported; and what is refused.

Writes screenshots (light, dark, phone) to target/e2e-screenshots. Skipped where Chromium or its driver is absent.
"""

import base64
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zlib

from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from chromium import WATCH, accessible, answers, ask, browser, color, entries, erase, find, is_answered, is_idle, press, setting, shots, until
from server import BINARY, ROOT, Server

FAMILIES = ROOT / "tests/data/vision"
PHOTO = FAMILIES / "gemma3/0.png"
OTHER = FAMILIES / "gemma3/1.png"
N_TOKENS = 6
QUESTION = "What is it?"

# Gives the page files as a mouse or the clipboard does; each is a name, a type and base64.
GIVE = """
const [how, files, text] = arguments;
const data = new DataTransfer();
for (const [name, type, base64] of files) {
  data.items.add(new File([Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0))], name, { type }));
}
if (text) data.setData("text/plain", text);
const init = { bubbles: true, cancelable: true };
const prompt = document.getElementById("prompt");
if (how === "paste") return !prompt.dispatchEvent(new ClipboardEvent("paste", { ...init, clipboardData: data }));
const over = new DragEvent("dragover", { ...init, dataTransfer: data });
document.body.dispatchEvent(over);
window.wasDropping = document.body.classList.contains("dropping");
const isTaken = !document.body.dispatchEvent(new DragEvent("drop", { ...init, dataTransfer: data }));
return over.defaultPrevented && isTaken;
"""
# A browser that keeps no images.
NO_DATABASE = """
const real = IDBFactory.prototype.open;
IDBFactory.prototype.open = function (name, ...more) {
  if (name === "tokenmill.images") throw new Error("not here");
  return real.call(this, name, ...more);
};
"""

# The server has not read the model's files yet.
UNREAD = """
const told = window.fetch;
window.fetch = async (path, options) => {
  const response = await told(path, options);
  if (path !== "/v1/models") return response;
  const list = await response.json();
  for (const model of list.data) Object.assign(model, { has_chat_template: null, status: { value: "unloaded" }, max_model_len: null });
  return Response.json(list);
};
"""


def png(width, height, pixel):
    """A picture of pixels (red, green, blue), not compressed."""
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def noise(side, seed=1):
    values = random.Random(seed)
    return png(side, side, lambda x, y: values.randbytes(3))


def url(path):
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def give(page, how, *files, text=""):
    """Drops or pastes files, each a name, a type and bytes; whether the page took them from the browser."""
    coded = [[name, kind, base64.b64encode(data).decode()] for name, kind, data in files]
    return page.execute_script(GIVE, how, coded, text)


# The names of the images below a node, as far as they are shown; in one go, for lists are drawn anew.
NAMES = "const names = (node) => [...node.querySelectorAll('img')].filter((image) => image.naturalWidth).map(({ alt }) => alt);"


def attached(page):
    """The images above the box."""
    return page.execute_script(f"{NAMES} return names(document.getElementById('attached'))")


def sent(page):
    """The images of the conversation's own messages, message by message."""
    return page.execute_script(f"{NAMES} return [...document.querySelectorAll('.message.user')].map(names)")


def has(page, *names):
    until(page, f"{names} are attached", lambda: attached(page) == list(names))


def remove_all(page):
    while attached(page):
        find(page, "#attached button").click()


def error(page):
    return find(page, "#error").text


def refuses(page, word):
    until(page, f"it is said: {word}", lambda: word in error(page))


def opened(page, address, name):
    page.get(address)
    until(page, "the model is named", lambda: find(page, "#model").text == name)
    setting(page, temperature=0, max_tokens=N_TOKENS)
    page.execute_script(WATCH)


def bodies(page):
    return [json.loads(body) for body in page.execute_script("return window.bodies")]


def of_api(address, messages):
    """The answer of the API, which the page must show."""
    fields = {"messages": messages, "temperature": 0, "max_tokens": N_TOKENS}
    request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(fields).encode())
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]


def shown_answer(page, at):
    return answers(page)[at].find_element(By.CSS_SELECTOR, ".body").get_property("textContent")


def first_message(page, address):
    """Images come in three ways, can be removed, and are seen by the model."""
    assert find(page, "#attach").get_attribute("aria-label") == "Add images or text files"
    find(page, "#files").send_keys(f"{PHOTO}\n{OTHER}")
    has(page, "0.png", "1.png")
    assert page.switch_to.active_element == find(page, "#prompt")
    assert give(page, "drop", ("dropped.png", "image/png", noise(40)))
    assert page.execute_script("return window.wasDropping") and "dropping" not in find(page, "body").get_attribute("class")
    assert give(page, "paste", ("image.png", "image/png", noise(30)))
    has(page, "0.png", "1.png", "dropped.png", "image.png")
    assert "4 images" in find(page, "#attached-words").get_property("textContent")
    accessible(page)
    page.save_screenshot(shots / "images-light.png")
    # A table of an office program is a text, and the picture of it is not meant.
    assert not give(page, "paste", ("image.png", "image/png", noise(30)), text="1\t2")
    for name in ["1.png", "dropped.png", "image.png"]:
        find(page, f"#attached button[aria-label='Remove {name}']").click()
    has(page, "0.png")
    assert page.switch_to.active_element.get_attribute("aria-label") == "Remove 0.png", "the focus stays in the list"
    # A reload finds the message as it was.
    find(page, "#prompt").send_keys(QUESTION)
    page.refresh()
    has(page, "0.png")
    assert find(page, "#prompt").get_attribute("value") == QUESTION
    page.execute_script(WATCH)
    ask(page, "", Keys.ENTER)
    is_answered(page, 1)
    image = {"type": "image_url", "image_url": {"url": url(PHOTO)}}
    message = {"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}
    assert bodies(page)[0]["messages"] == [message], bodies(page)[0]
    expected = of_api(address, [message])
    assert expected.strip() and shown_answer(page, 0).strip() == expected.strip(), (shown_answer(page, 0), expected)
    assert expected != of_api(address, [{"role": "user", "content": QUESTION}]), "the image makes a difference"
    assert attached(page) == []
    until(page, "the image is shown", lambda: sent(page) == [["0.png"]])
    return message


def conversation(page, address, first):
    """The next request has the image too; a message of an image alone is one; editing and answering again keep images."""
    ask(page, "And?", Keys.ENTER)
    is_answered(page, 2)
    assert bodies(page)[1]["messages"][0] == first
    give(page, "drop", ("1.png", "image/png", OTHER.read_bytes()))
    has(page, "1.png")
    find(page, "#send").click()
    is_answered(page, 3)
    until(page, "the images are shown", lambda: sent(page) == [["0.png"], [], ["1.png"]])
    alone = bodies(page)[2]["messages"][-1]["content"]
    assert alone == [{"type": "image_url", "image_url": {"url": url(OTHER)}}], alone
    press(page, "Regenerate")
    until(page, "it is asked again", lambda: len(bodies(page)) == 4)
    is_answered(page, 3)
    assert bodies(page)[3]["messages"] == bodies(page)[2]["messages"]
    press(page, "Edit")
    has(page, "1.png")
    press(page, "Cancel")
    assert attached(page) == []
    press(page, "Edit")
    has(page, "1.png")
    ask(page, "This?", Keys.ENTER)
    is_answered(page, 3)
    edited = bodies(page)[4]["messages"][-1]["content"]
    assert edited == [*alone, {"type": "text", "text": "This?"}], edited
    page.save_screenshot(shots / "images-sent-light.png")
    accessible(page)
    color(page, "dark")
    give(page, "drop", ("0.png", "image/png", PHOTO.read_bytes()))
    has(page, "0.png")
    accessible(page)
    page.save_screenshot(shots / "images-dark.png")
    find(page, "#attached button").click()
    color(page, "light")
    page.refresh()
    until(page, "the images are kept", lambda: sent(page) == [["0.png"], [], ["1.png"]])
    assert page.execute_script("return innerHeight + scrollY >= document.documentElement.scrollHeight - 2"), "a reload opens at the end"
    page.execute_script(WATCH)


def refusals(page):
    """A file that is not an image, or an empty one, is refused in words, and nothing that was written is lost."""
    ask(page, "Look:")
    give(page, "drop", ("0.png", "image/png", PHOTO.read_bytes()))
    has(page, "0.png")
    notes = b"Not an image at all."
    for name, kind, data, word in [
        ("notes.bin", "application/octet-stream", b"\0" + notes, "notes.bin cannot be sent. Text files and PNG, JPEG, WebP, BMP or GIF images can."),
        ("words.pdf", "application/pdf", b"%PDF-1.4\n% words\n", "words.pdf cannot be sent."),
        ("photo.png", "image/png", notes, "photo.png cannot be sent"),
        ("empty.png", "image/png", b"", "empty.png is empty"),
        ("BMW.bmp", "image/bmp", b"BMW is a make of cars.", "BMW.bmp is damaged"),
        ("cut.png", "image/png", PHOTO.read_bytes()[:40], "cut.png is damaged"),
    ]:
        assert give(page, "drop", (name, kind, data)), "the browser does not leave the page for the file"
        refuses(page, word)
        assert attached(page) == ["0.png"] and find(page, "#prompt").get_attribute("value") == "Look:"
    accessible(page)
    page.save_screenshot(shots / "images-refused-light.png")
    # The images among several files are taken.
    give(page, "drop", ("a.png", "image/png", notes), ("b.png", "image/png", OTHER.read_bytes()))
    has(page, "0.png", "b.png")
    assert "a.png cannot be sent" in error(page)
    remove_all(page)
    assert error(page) == "", "nothing is left of what was refused"
    find(page, "#prompt").clear()


def exporting(page, model):
    """An exported file is a conversation of `tokenmill chat` with its images."""
    page.execute_script("URL.createObjectURL = (file) => { file.text().then((text) => (window.exported = text)); return '#'; }")
    find(page, "#history summary").click()
    find(page, "#export").click()
    find(page, "#history summary").click()
    until(page, "a file is offered", lambda: page.execute_script("return window.exported"))
    exported = page.execute_script("return window.exported")
    assert exported.count(url(PHOTO)) == 1 and exported.count(url(OTHER)) == 1
    file = ROOT / "target/e2e-conversation-images.json"
    file.write_text(exported)
    command = [BINARY, "chat", model, "--device", "cpu", "-c", "512", "-n", "4"]
    chat = subprocess.run(command, input=f"/load {file}\nAnd?\n/stats\n/bye\n", capture_output=True, text=True, timeout=60)
    assert chat.returncode == 0 and "[3 exchanges loaded" in chat.stderr, (chat.returncode, chat.stderr)
    assert "the context holds" in chat.stderr, chat.stderr


def keys(page):
    """The images that the browser keeps."""
    return page.execute_async_script(
        "const done = arguments[0]; const open = indexedDB.open('tokenmill.images', 1); open.onsuccess = () => {"
        " const all = open.result.transaction('images').objectStore('images').getAllKeys();"
        " all.onsuccess = () => { open.result.close(); done(all.result); }; };"
    )


def kept(page):
    """Images go with their conversation; those that the browser gave up leave a note and the text."""
    stored = page.execute_async_script(
        "const done = arguments[0]; import('/web/conversations.js').then(({ read }) =>"
        " done({ messages: read(sessionStorage.getItem('tokenmill.open')) }));"
    )
    named = [image["key"] for message in stored["messages"] for image in message.get("images", [])]
    assert len(named) == 2 and set(named) <= set(keys(page))
    assert len(json.dumps(stored)) < 4000, "the room of the texts has none of the images"
    gone = named[0]
    page.execute_async_script(
        "const done = arguments[1]; const open = indexedDB.open('tokenmill.images', 1); open.onsuccess = () => {"
        " const change = open.result.transaction('images', 'readwrite'); change.objectStore('images').delete(arguments[0]);"
        " change.oncomplete = () => { open.result.close(); done(); }; };",
        gone,
    )
    page.refresh()
    until(page, "the note is there", lambda: "0.png: this image is no longer kept" in find(page, ".message.user").text)
    until(page, "the other image is shown", lambda: sent(page) == [[], [], ["1.png"]])
    accessible(page)
    page.execute_script(WATCH)
    ask(page, "Still?", Keys.ENTER)
    is_answered(page, 4)
    messages = bodies(page)[0]["messages"]
    assert messages[0]["content"] == QUESTION and messages[4]["content"][0]["image_url"]["url"] == url(OTHER), messages
    # A message that was never sent keeps its images for a day; a conversation's go with it.
    erase(entries(page)[0][2])
    until(page, "its images are deleted", lambda: not set(named) & set(keys(page)))


def phone(page):
    metrics = {"width": 390, "height": 780, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wide = png(320, 60, lambda x, y: (x % 256, 4 * y, 128))
    give(page, "drop", ("wide.png", "image/png", wide))
    has(page, "wide.png")
    ask(page, QUESTION, Keys.ENTER)
    is_answered(page, 1)
    for name in ["wide.png", "0.png", "1.png", "2.png", "3.png"]:
        give(page, "drop", (name, "image/png", wide if name == "wide.png" else noise(30)))
    until(page, "they are attached", lambda: len(attached(page)) == 5)
    assert not find(page, "#history .menu").is_displayed(), "the box has the focus, so the list is closed"
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390, "nothing sticks out"
    page.save_screenshot(shots / "images-phone.png")
    box = find(page, "#attached button").rect
    assert box["width"] >= 24 and box["height"] >= 24, "a finger finds the button"
    accessible(page)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    remove_all(page)


def no_room(page, address):
    """A browser that keeps no images says so; the text is stored."""
    script = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_DATABASE})
    opened(page, address, "eye")
    find(page, "#clear").click()
    give(page, "drop", ("0.png", "image/png", PHOTO.read_bytes()))
    has(page, "0.png")
    ask(page, QUESTION, Keys.ENTER)
    is_answered(page, 1)
    refuses(page, "no room for the images")
    assert len(bodies(page)[0]["messages"][0]["content"]) == 2
    page.refresh()
    until(page, "the text is kept", lambda: "no longer kept" in find(page, ".message.user").text)
    assert QUESTION in find(page, ".message.user").text
    page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script["identifier"]})


def too_large(page, model):
    """The limit of the server is known to the page; what only the server knows comes back in its words."""
    flags = ["--device", "cpu", "-c", "512", "--served-model-name", "eye", "--max-body-bytes", "65536"]
    with Server(*flags, model=model) as server:
        opened(page, server.url, "eye")
        ask(page, QUESTION)
        give(page, "drop", ("large.png", "image/png", noise(150)))
        refuses(page, "large.png is too large")
        assert "takes 0.086 MiB" in error(page) and "this server takes 0.063 MiB (--max-body-bytes)" in error(page), error(page)
        give(page, "drop", ("fits.png", "image/png", noise(100)))
        has(page, "fits.png")
        give(page, "drop", ("second.png", "image/png", noise(100, 2)))
        refuses(page, "besides the other images")
        assert attached(page) == ["fits.png"]
        ask(page, "", Keys.ENTER)
        is_answered(page, 1)
        # One fits and the conversation with it does not.
        give(page, "drop", ("second.png", "image/png", noise(100, 2)))
        has(page, "second.png")
        ask(page, "And this?", Keys.ENTER)
        refuses(page, "start a new conversation")
        until(page, "the message is back", lambda: is_idle(page) and attached(page) == ["second.png"])
        assert find(page, "#prompt").get_attribute("value") == "And this?" and len(bodies(page)) == 1
        # The encoder's own limit: one side is more than 200 times as long as the other.
        find(page, "#clear").click()
        find(page, "#attached button").click()
        give(page, "drop", ("line.png", "image/png", png(900, 2, lambda x, y: (x % 256, y, 9))))
        has(page, "line.png")
        ask(page, "", Keys.ENTER)
        until(page, "the server refuses it", lambda: "image" in error(page) and is_idle(page))
        assert attached(page) == ["line.png"] and find(page, "#prompt").get_attribute("value") == "And this?"
        find(page, "#attached button").click()
        find(page, "#prompt").clear()


def several(page, folder):
    """The button follows the chosen model, also where none is loaded."""
    (folder / "eye").mkdir()
    for name in ["model.gguf", "mmproj-model.gguf"]:
        shutil.copy(FAMILIES / "gemma3" / name, folder / "eye" / name)
    shutil.copy(ROOT / "crates/tokenmill/assets/tokenmill-demo-Q8_0.gguf", folder / "blind.gguf")
    (folder / "models.toml").write_text('[models.blind]\nmodel = "blind.gguf"\n[models.eye]\nmodel = "eye/model.gguf"\nctx-size = 512\n')
    with Server("--models", folder / "models.toml", "--device", "cpu", model=None) as server:
        page.get(server.url)
        until(page, "models can be chosen", lambda: find(page, "#chooser").is_displayed())
        chooser = Select(find(page, "#chooser"))
        assert chooser.first_selected_option.get_attribute("value") == "blind"
        assert find(page, "#attach").get_attribute("aria-label") == "Add text files"
        assert give(page, "drop", ("0.png", "image/png", PHOTO.read_bytes())), "the browser does not leave the page for the file"
        refuses(page, "blind takes no images. Choose a model that does: eye.")
        chooser.select_by_value("eye")
        until(page, "it takes images", lambda: "images" in find(page, "#attach").get_attribute("aria-label"))
        assert error(page) == "", "another model is chosen"
        assert "the next message loads it" in find(page, "#model-state").text
        page.save_screenshot(shots / "images-chooser-light.png")
        give(page, "drop", ("0.png", "image/png", PHOTO.read_bytes()))
        has(page, "0.png")
        ask(page, QUESTION)
        chooser.select_by_value("blind")
        until(page, "the button takes none", lambda: "images" not in find(page, "#attach").get_attribute("aria-label"))
        ask(page, "", Keys.ENTER)
        refuses(page, "Remove those of the message, or choose another model")
        assert attached(page) == ["0.png"] and find(page, "#prompt").get_attribute("value") == QUESTION
        chooser.select_by_value("eye")
        ask(page, "", Keys.ENTER)
        is_answered(page, 1)
        chooser.select_by_value("blind")
        ask(page, "And?", Keys.ENTER)
        refuses(page, "start a new one, or choose another model")
        assert find(page, "#prompt").get_attribute("value") == "And?"


def blind(page):
    """A model without an encoder: images are refused in words, and nothing else changes."""
    with Server() as server:
        page.get(server.url)
        until(page, "the model is named", lambda: find(page, "#model").text == "demo")
        assert find(page, "#attach").get_attribute("aria-label") == "Add text files"
        assert not find(page, "#attached").is_displayed()
        give(page, "paste", ("0.png", "image/png", PHOTO.read_bytes()))
        refuses(page, "demo takes no images")
        # Where it is not known whether a model takes images, the answer tells.
        page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": UNREAD})
        page.refresh()
        until(page, "it is not loaded", lambda: "the next message loads it" in find(page, "#model-state").text)
        assert "images" in find(page, "#attach").get_attribute("aria-label")
        give(page, "paste", ("0.png", "image/png", PHOTO.read_bytes()))
        has(page, "0.png")
        ask(page, QUESTION, Keys.ENTER)
        until(page, "the server refuses it", lambda: error(page) == "demo takes no images. Remove those of the message." and is_idle(page))
        assert attached(page) == ["0.png"] and find(page, "#prompt").get_attribute("value") == QUESTION


try:
    page = browser()
except WebDriverException as error:
    print(f"skipped: Chromium does not start here: {error.msg}")
    sys.exit(0)
try:
    eye = FAMILIES / "gemma3/model.gguf"
    with Server("--device", "cpu", "-c", "512", "--served-model-name", "eye", model=eye) as server:
        opened(page, server.url, "eye")
        first = first_message(page, server.url)
        conversation(page, server.url, first)
        refusals(page)
        exporting(page, eye)
        kept(page)
        phone(page)
        no_room(page, server.url)
        severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
    too_large(page, FAMILIES / "qwen2vl/model.gguf")
    with tempfile.TemporaryDirectory() as folder:
        several(page, pathlib.Path(folder))
    blind(page)
finally:
    page.quit()
print(f"images on the page in Chromium: all passed; screenshots in {shots.relative_to(ROOT)}")
