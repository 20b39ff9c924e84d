"""Gateways made for other servers, before three replicas: vllm-router and SMG, each on the loopback address. Conversations stay with
their replica; then the one that they are at is killed, and the next one ends in order. Each time chats go on, whole and streamed.

TOKENMILL_GATEWAYS names a folder with `vllm-router` and `smg`; `tests/e2e/run` makes one of the list in `gateways.txt`.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from server import Server

PATIENCE_S = 120


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


def requests_of(replica):
    """How many requests a replica has answered."""
    with urllib.request.urlopen(f"{replica.url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("tokenmill_request_seconds_count{")).rsplit(" ", 1)[1]))


def chat(url, system, turn):
    """One turn of a conversation, whole and streamed: the same text, and prompt tokens that were known before."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Part {turn}"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0}
    whole = json.loads(post(url, "/v1/chat/completions", body))
    assert whole["usage"]["completion_tokens"] > 0, whole
    text = whole["choices"][0]["message"]["content"]
    events = post(url, "/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    chunks = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    assert chunks.pop() == "[DONE]", events
    chunks = [json.loads(chunk) for chunk in chunks]
    parts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(parts) == text, (parts, text)
    usages = [whole["usage"], chunks[-1]["usage"]]
    return [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]


def check_affinity(url, replicas):
    """Every request of a conversation goes to one replica, which knows its beginning. Returns the last one's."""
    for name in ["storyteller", "gardener", "captain", "librarian"]:
        system = f"{name.upper()}: you are a patient {name}, and as a {name} you never end your report before its time. " * 3
        before = [requests_of(replica) for replica in replicas]
        cached = [count for turn in range(4) for count in chat(url, system, turn)]
        grown = [requests_of(replica) - count for replica, count in zip(replicas, before)]
        assert sorted(grown) == [0] * (len(replicas) - 1) + [len(cached)], (name, grown)
        assert all(count > 0 for count in cached[1:]), (name, cached)
    return replicas[grown.index(len(cached))]


def wait_until_it_chats(url):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return chat(url, "You are back.", 0)
        except (OSError, urllib.error.URLError) as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.5)


def check_that_chats_go_on(url, replicas):
    """The gateway notices soon, and every conversation is answered by a replica that is there. Returns the busiest one."""
    wait_until_it_chats(url)
    before = [requests_of(replica) for replica in replicas]
    for turn in range(6):
        chat(url, f"Number {turn}: you answer in few words. " * 4, turn)
    grown = [requests_of(replica) - count for replica, count in zip(replicas, before)]
    assert sum(grown) == 12, grown
    return replicas[grown.index(max(grown))]


def check(url, replicas):
    killed = check_affinity(url, replicas)
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    replicas.remove(killed)
    drained = check_that_chats_go_on(url, replicas)
    drained.signal()
    assert drained.wait() == 0
    replicas.remove(drained)
    check_that_chats_go_on(url, replicas)


def try_gateway(command):
    port = free_port()
    with Server() as first, Server() as second, Server() as third:
        command = [*command, "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
        command += ["--prometheus-port", str(free_port()), "--worker-urls", first.url, second.url, third.url]
        log = open("target/e2e-gateway.log", "w")
        gateway = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_it_answers(url, gateway)
            check(url, [first, second, third])
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
