"""Times between tokens of a model that answers while another one loads, and the time that a switch takes.

Usage: measure.py TOKENMILL RESIDENT.gguf OTHER.gguf
"""

import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time

binary, resident, other = sys.argv[1:]
SECONDS = 60


def start(*flags):
    command = [binary, "serve", *flags, "--port", "0", "--log-format", "json", "-c", "512", "--max-num-seqs", "2", "--spec", "off"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r'"address":"http://([^"]+)"', line)
        if found:
            break
    log = []
    threading.Thread(target=lambda: log.extend(process.stderr), daemon=True).start()
    return process, found[1], log


def ask(address, method, path, body=None):
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
    reply = connection.getresponse()
    return json.loads(reply.read())


def state(address, model):
    entries = ask(address, "GET", "/v1/models")["data"]
    return next(entry["status"]["value"] for entry in entries if entry["id"] == model)


def wait_for(address, model, value):
    while state(address, model) != value:
        time.sleep(0.01)


def stream(address, model, times, until):
    """Streams answers until a time; notes when each piece came, with None between answers."""
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(address, timeout=120)
        body = {"model": model, "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        times.append(None)
        for line in reply:
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
            if time.monotonic() > until:
                break
        connection.close()


def gaps(times, begin, end):
    pairs = zip(times, times[1:])
    return [(b - a) * 1e3 for a, b in pairs if a is not None and b is not None and begin <= a and b <= end]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(name, values):
    print(
        f"{name}: {len(values)} gaps, median {statistics.median(values):.2f} ms, p95 {percentile(values, 0.95):.2f}, "
        f"p99 {percentile(values, 0.99):.2f}, longest {max(values):.2f}"
    )


process, address, log = start(resident, other)
names = [entry["id"] for entry in ask(address, "GET", "/v1/models")["data"]]
for name in names:
    wait_for(address, name, "loaded")
ask(address, "POST", "/models/unload", {"model": names[1]})
wait_for(address, names[1], "unloaded")
times, until = [], time.monotonic() + SECONDS
reader = threading.Thread(target=stream, args=(address, names[0], times, until))
reader.start()
time.sleep(2)
alone, loading, took = [], [], []
while time.monotonic() < until - 12:
    begin = time.monotonic()
    time.sleep(3)
    alone += gaps(list(times), begin, time.monotonic())
    begin = time.monotonic()
    ask(address, "POST", "/models/load", {"model": names[1]})
    wait_for(address, names[1], "loaded")
    end = time.monotonic()
    took.append(end - begin)
    loading += gaps(list(times), begin, end)
    ask(address, "POST", "/models/unload", {"model": names[1]})
    wait_for(address, names[1], "unloaded")
    time.sleep(0.5)
reader.join()
report("alone", alone)
report("while another loads", loading)
print(f"p99 while another loads: {percentile(loading, 0.99) / percentile(alone, 0.99):.2f} times that alone")
print(f"{len(took)} loads next to a stream: " + ", ".join(f"{seconds:.2f}" for seconds in took) + " s")
process.terminate()
process.wait()

# A budget for the larger one alone: each request for the other model is a switch.
process, address, log = start(resident, other)
for name in names:
    wait_for(address, name, "loaded")
connection = http.client.HTTPConnection(address)
connection.request("GET", "/metrics")
figures = connection.getresponse().read().decode()
largest = max(int(float(line.split()[-1])) for line in figures.splitlines() if line.startswith("tokenmill_model_bytes{"))
process.terminate()
process.wait()
process, address, log = start(resident, other, "--memory-budget", str(largest))
switches = []
for turn in range(8):
    begin = time.monotonic()
    ask(address, "POST", "/v1/completions", {"model": names[turn % 2], "prompt": "Once", "max_tokens": 1})
    switches.append(time.monotonic() - begin)
print("switches, from the request to its one token: " + ", ".join(f"{seconds:.2f}" for seconds in switches[1:]) + " s")
process.terminate()
process.wait()
