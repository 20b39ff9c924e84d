"""Gateways made for other servers, before two replicas: vllm-router and SMG, each on the loopback address.

TOKENMILL_GATEWAYS names a folder with `vllm-router` and `smg`; `tests/e2e/run` makes one of the list in `gateways.txt`.
"""

import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

from server import Server

PATIENCE_S = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(url, path, body, timeout=30):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return response.read().decode()


def wait_until_it_answers(url, gateway):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert gateway.poll() is None, "the gateway has ended"
        try:
            return post(url, "/v1/completions", {"model": "demo", "prompt": "One", "max_tokens": 1})
        except (OSError, urllib.error.URLError) as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.5)


def cached_tokens(replicas):
    found = []
    for replica in replicas:
        with urllib.request.urlopen(f"{replica.url}/metrics") as response:
            lines = response.read().decode().splitlines()
        line = next(line for line in lines if line.startswith("tokenmill_prefix_cache_hit_tokens_total{"))
        found.append(float(line.rsplit(" ", 1)[1]))
    return found


def check(url, replicas):
    system = "You are a patient storyteller who never ends a story before its time. " * 4
    for turn in range(6):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Part {turn}"}]
        body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0}
        whole = json.loads(post(url, "/v1/chat/completions", body))
        assert whole["usage"]["completion_tokens"] > 0, whole
        text = whole["choices"][0]["message"]["content"]
        events = post(url, "/v1/chat/completions", body | {"stream": True})
        chunks = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
        assert chunks.pop() == "[DONE]", events
        parts = [choice["delta"].get("content") or "" for chunk in chunks for choice in json.loads(chunk)["choices"]]
        assert "".join(parts) == text, (parts, text)
    hits = cached_tokens(replicas)
    assert max(hits) > 0, hits
    # One replica ends in order; the other goes on answering.
    replicas[0].signal()
    assert replicas[0].wait() == 0
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            post(url, "/v1/completions", {"model": "demo", "prompt": "One", "max_tokens": 1})
            return
        except (OSError, urllib.error.URLError) as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.5)


def try_gateway(command):
    port = free_port()
    with Server() as first, Server() as second:
        command = [*command, "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
        command += ["--prometheus-port", str(free_port()), "--worker-urls", first.url, second.url]
        log = open("target/e2e-gateway.log", "w")
        gateway = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_it_answers(url, gateway)
            check(url, [first, second])
        finally:
            gateway.terminate()
            try:
                gateway.wait(10)
            except subprocess.TimeoutExpired:
                gateway.kill()


folder = os.environ.get("TOKENMILL_GATEWAYS")
for name, arguments in [("vllm-router", []), ("smg", ["launch"])]:
    program = folder and pathlib.Path(folder) / name
    if program and program.exists():
        try_gateway([str(program), *arguments])
        print(f"{name}: passed")
    else:
        print(f"skipped: TOKENMILL_GATEWAYS names no folder with {name}")
