"""`serve --prefix-dir`: what was computed of a prompt is found again after a restart, after kill -9, and by two models of one folder."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from server import BINARY, Server

STORY = "Once upon a time there was a little girl who lived in a small house near the forest. " * 6


def ask(server, text, key=None, **fields):
    """The answer, the prompt tokens that were not computed, and the seconds to it."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    body = {"prompt": text, "max_tokens": 8, "temperature": 0, **fields}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), headers)
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as response:
        answer = json.load(response)
    seconds = time.monotonic() - began
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["text"], cached, answer["usage"]["prompt_tokens"], seconds


def figures(server):
    with urllib.request.urlopen(server.url + "/metrics") as response:
        text = response.read().decode()
    found = re.findall(r"^tokenmill_prefix_dir_(\w+?)(?:_total)?\{[^}]*\} (\S+)$", text, re.M)
    return {name: float(value) for name, value in found}


def settle(server):
    """Waits until all is written."""
    before = None
    while before != (now := figures(server)) or now["pages"] == 0:
        before = now
        time.sleep(0.3)
    return before


def restart(folder):
    flags = ["--prefix-dir", str(folder)]
    with Server(*flags) as server:
        text, cached, n_tokens, _ = ask(server, STORY)
        assert cached == 0, cached
        server.signal()
        assert server.wait() == 0
    for number in (signal.SIGKILL, signal.SIGTERM):
        with Server(*flags) as server:
            again, cached, _, _ = ask(server, STORY)
            assert again == text, (again, text)
            assert cached == (n_tokens - 1) // 16 * 16, (cached, n_tokens)
            now = settle(server)
            assert now["hits"] == 1 and now["read_pages"] > 0 and now["failed_writes"] == 0, now
            assert now["bytes"] == sum(file.stat().st_size for file in folder.glob("*/*")), now
            # Others continue from it, and it is not read twice.
            _, cached, _, _ = ask(server, STORY + "One day")
            assert cached >= (n_tokens - 1) // 16 * 16 - 16, cached
            settle(server)
            second = subprocess.run([BINARY, "serve", "demo", "--port", "0", *flags], capture_output=True, text=True)
            assert second.returncode == 3 and "in use" in second.stderr, second
            assert len(second.stderr.strip().splitlines()) <= 2, second.stderr
            server.signal(number)
            server.wait()
    # Another arrangement of the memory, and a damaged file: computed.
    with Server(*flags, "--cache-type-k", "q8_0", "--cache-type-v", "q8_0") as server:
        assert ask(server, STORY)[1] == 0
    for file in folder.glob("*/*"):
        file.write_bytes(file.read_bytes()[:-1])
    with Server(*flags) as server:
        again, cached, _, _ = ask(server, STORY)
        assert (again, cached) == (text, 0), (again, cached)
        assert figures(server)["refused_files"] == 1


def keys(folder):
    flags = ["--prefix-dir", str(folder), "--api-key", "one", "--api-key", "two"]
    with Server(*flags) as server:
        ask(server, STORY, key="one", cache_salt="a")
        server.signal()
        server.wait()
    with Server(*flags) as server:
        assert ask(server, STORY, key="two", cache_salt="a")[1] == 0
        assert ask(server, STORY, key="one")[1] == 0
        assert ask(server, STORY, key="one", cache_salt="a")[1] > 0


def full_disk(folder):
    """A disk of 256 KiB, where one can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        print("skipped: no small disk can be mounted here")
        return
    try:
        with Server("--prefix-dir", str(folder)) as server:
            for n in range(6):
                text, _, _, _ = ask(server, f"Number {n}. {STORY}")
                assert text
            time.sleep(1)
            assert figures(server)["failed_writes"] >= 1, figures(server)
            server.signal()
            assert server.wait() == 0
            warnings = [line for line in server.log if "cannot write to" in line]
            assert len(warnings) == 1, server.log
    finally:
        subprocess.run(["umount", folder], check=True)


def measure(model, folder, n_words):
    """First token of a long prompt, computed and restored."""
    flags = ["--prefix-dir", str(folder), "-c", "8192"]
    text = " ".join(f"{n * 7919 % 997}" for n in range(n_words))
    with Server(*flags, model=model) as server:
        ask(server, "warm", max_tokens=1)
        first = ask(server, text, max_tokens=1)
        began = time.monotonic()
        now = settle(server)
        print(f"computed {first[2]} tokens: {first[3]:.3f} s; written: {now['written_bytes'] / 2**20:.0f} MiB")
        server.signal()
        server.wait()
    with Server(*flags, model=model) as server:
        ask(server, "warm", max_tokens=1)
        again = ask(server, text, max_tokens=1)
        assert again[0] == first[0]
        print(f"restored {again[1]} of {again[2]}: {again[3]:.3f} s, {first[3] / again[3]:.1f} times sooner")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        if len(sys.argv) > 1:
            measure(sys.argv[1], place / "measured", int(sys.argv[2]))
        else:
            restart(place / "restart")
            keys(place / "keys")
            full_disk(place / "full")
            print("prefix_dir: ok")
