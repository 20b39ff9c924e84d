"""Models by name in the Python package, against a hub on loopback: downloads, what is there already, refusals, and Ctrl-C."""

import base64
import os
import pathlib
import signal
import tempfile
import threading
import time

from hub import COMMIT, DEMO, REPOSITORY, SEES, VISION, Hub

from tokenmill import LoadError, Model, RequestError


def refused(*words, model=REPOSITORY, **arguments):
    """The line with which a model is refused, which has these words."""
    try:
        Model(model, device="cpu", **arguments)
    except LoadError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"{model} was loaded")


class Counter:
    """A thread that counts as long as it may run."""

    def __enter__(self):
        self.count, self.is_done = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.is_done:
            self.count += 1
            time.sleep(0.001)

    def __exit__(self, *_):
        self.is_done = True
        self.thread.join()


far = Hub()
hub = Hub(far)
with tempfile.TemporaryDirectory() as home:
    for name in ["HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"]:
        os.environ.pop(name, None)
    os.environ |= {"HF_HOME": home, "HF_ENDPOINT": hub.url, "OLLAMA_MODELS": home}
    cache = pathlib.Path(home, "hub")

    def snapshot(name, repository=REPOSITORY):
        return cache / f"models--{repository.replace('/', '--')}/snapshots" / COMMIT / name

    refused(REPOSITORY, "is not on this machine", "download=True", download=False)
    refused(REPOSITORY, "downloads are switched off", offline=True)
    refused("there is org/demo-GGUF", model="org/demmo-GGUF")
    refused("it has Q8_0, F16", model=REPOSITORY + ":Q4_K_M")
    refused("nothing-here.gguf", model="nothing-here.gguf")
    assert not far.log
    print("a name is refused where nothing may be downloaded, or there is no such model")

    far.pause = 0.2
    told = []
    with Counter() as counter:
        model = Model(REPOSITORY, device="cpu", context=256, progress=lambda done, total: told.append((done, total)))
    assert counter.count > 20, counter.count
    assert told[-1] == (len(DEMO), len(DEMO)) and told == sorted(told), told
    assert snapshot("demo-Q8_0.gguf").exists()
    assert model.complete("Once", max_tokens=8).text == Model("demo", device="cpu").complete("Once", max_tokens=8).text
    n_before = len(hub.log)
    for arguments in [{}, {"offline": True}, {"download": False}, {"draft": REPOSITORY}]:
        Model(REPOSITORY, device="cpu", context=256, **arguments)
    assert len(hub.log) == n_before, "a model that is there needs no server"
    print("a model is downloaded by its name, and then found without a server")

    class Enough(Exception):
        pass

    def stop(done, total):
        raise Enough

    for is_signal in (False, True):
        began = time.monotonic()
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        try:
            if is_signal:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                timer.start()
            Model(REPOSITORY + ":F16", device="cpu", progress=None if is_signal else stop)
        except (Enough, KeyboardInterrupt) as raised:
            assert isinstance(raised, KeyboardInterrupt) == is_signal
        else:
            raise AssertionError("it went on")
        assert time.monotonic() - began < 3, time.monotonic() - began
        assert not snapshot("demo-F16.gguf").exists()
    # The threads that were told to end have done so, and ask for nothing more.
    time.sleep(1)
    n_before = len(far.log)
    time.sleep(1)
    assert len(far.log) == n_before
    print("an exception and Ctrl-C end a download")

    far.pause = 0
    url = "data:image/png;base64," + base64.b64encode((VISION / "0.png").read_bytes()).decode()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    blind = Model(SEES, device="cpu", context=256, mmproj=False)
    assert not snapshot("mmproj-sees-F16.gguf", SEES).exists()
    try:
        blind.chat(messages, max_tokens=2)
    except RequestError as error:
        assert "without an image encoder" in str(error), error
    else:
        raise AssertionError("it sees")
    for file in [*snapshot("", SEES).iterdir()]:
        file.unlink()
    sees = Model(SEES, device="cpu", context=256)
    assert snapshot("mmproj-sees-F16.gguf", SEES).exists()
    assert sees.chat(messages, max_tokens=2).usage.completion_tokens > 0
    print("the image encoder comes with a model")
