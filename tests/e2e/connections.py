"""Many idle connections beside many streams: nobody is turned away, and memory stays bounded.

`connections.py [IDLE] [STREAMS] [MODEL] [MAX_TOKENS]`; CI runs a small number on the demo model.
"""

import concurrent.futures
import json
import resource
import socket
import sys
import urllib.parse
import urllib.request

from server import Server

idle, streams = (int(sys.argv[at]) if len(sys.argv) > at else small for at, small in [(1, 200), (2, 16)])
model = sys.argv[3] if len(sys.argv) > 3 else "demo"
max_tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 32
LIMIT_KB = 2 << 20


def memory_kb(server):
    """Resident memory now and at its highest."""
    lines = open(f"/proc/{server.process.pid}/status").read().splitlines()
    values = {line.split(":")[0]: line.split() for line in lines}
    return int(values["VmRSS"][1]), int(values["VmHWM"][1])


def stream(url, index):
    fields = {
        "prompt": f"Story number {index}: once upon a time", "max_tokens": max_tokens, "ignore_eos": True,
        "seed": index, "stream": True, "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(fields).encode())
    with urllib.request.urlopen(request, timeout=600) as response:
        events = [line[6:] for line in response if line.startswith(b"data: ")]
    assert events[-1].strip() == b"[DONE]"
    return json.loads(events[-2])["usage"]["completion_tokens"]


soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
with Server("--max-num-seqs", str(streams), model=model) as server, concurrent.futures.ThreadPoolExecutor(streams) as pool:
    address = urllib.parse.urlparse(server.url)
    loaded, _ = memory_kb(server)
    connections = [socket.create_connection((address.hostname, address.port)) for _ in range(idle)]
    connected, _ = memory_kb(server)
    answers = list(pool.map(lambda index: stream(server.url, index), range(streams)))
    assert answers == [max_tokens] * streams, answers
    # The idle ones were not forgotten: each is answered now.
    for connection in connections:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    for connection in connections:
        assert connection.recv(64).startswith(b"HTTP/1.1 200"), "an idle connection was closed"
        connection.close()
    _, highest = memory_kb(server)
assert highest < LIMIT_KB, f"{highest} kB"
print(
    f"{idle} idle connections and {streams} streams of {max_tokens} tokens on {model}: all answered; resident "
    f"{loaded >> 10} MiB loaded, {connected >> 10} MiB with idle connections, {highest >> 10} MiB at most"
)
