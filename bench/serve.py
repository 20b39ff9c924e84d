#!/usr/bin/env python3
"""Compares `tokenmill serve` with llama.cpp's `llama-server` under the same load, both measured by `tokenmill bench-serve`.

    bench/serve.py LOAD MODEL.gguf OUT_DIR --tokenmill PATH --peer PATH/llama-server [--rounds 3] [--threads 2]

Loads: `streams8` (8 clients, each sends its next request when its last is answered), `stream1` (one client), `open`
(requests at random times, `--rate` a second). The servers take turns, and each round starts them anew. Everything that
bench-serve measured is left in OUT_DIR as JSON with the command lines; needs nothing but Python.
"""

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import time
import urllib.request

SLOTS = 8
CONTEXT = 512
LOADS = {
    "streams8": ["--concurrency", "8", "--requests", "16", "--prompt-words", "20", "--max-tokens", "64"],
    "stream1": ["--concurrency", "1", "--requests", "2", "--prompt-words", "20", "--max-tokens", "64"],
    "open": ["--requests", "12", "--prompt-words", "20", "--max-tokens", "32"],
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def commands(arguments, port):
    """The two servers, with equal threads, slots and context for each slot."""
    model, threads = str(arguments.model), str(arguments.threads)
    return {
        "tokenmill": [
            arguments.tokenmill, "serve", model, "--port", port, "-t", threads, "-c", str(CONTEXT),
            "--max-num-seqs", str(SLOTS), "--kv-cache-tokens", str(SLOTS * CONTEXT),
        ],
        "llama-server": [
            arguments.peer, "-m", model, "--host", "127.0.0.1", "--port", port, "-t", threads, "-tb", threads,
            "-np", str(SLOTS), "-c", str(SLOTS * CONTEXT), "--no-webui",
        ],
    }


def wait_ready(url, process):
    for _ in range(1200):
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def run(name, round_, arguments):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = commands(arguments, port)[name]
    label = f"{arguments.model.stem}-{arguments.load}-{name}-{round_}"
    out = arguments.out / f"{label}.json"
    load = [*LOADS[arguments.load], *(["--rate", str(arguments.rate)] if arguments.load == "open" else [])]
    client = [arguments.tokenmill, "bench-serve", url, *load, "--ignore-eos", "--seed", str(round_ + 1), "--json", str(out)]
    process = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(url, process)
        subprocess.run(client, check=True, stdout=subprocess.DEVNULL)
    finally:
        process.kill()
        process.wait()
    measured = json.loads(out.read_text())
    plain = lambda command: [pathlib.Path(word).name if "/" in word and not word.startswith("http") else word for word in command]
    measured = {"server_command": plain(server), "client_command": plain(client), **measured}
    # One number a line would be a million lines.
    out.write_text(json.dumps(measured) + "\n")
    return measured


def summary(measured):
    """The figures of one run that the comparison is about."""
    report, requests = measured["report"], measured["requests"]
    assert report["answered"] == len(requests), report["first_failure"]
    # From a stream's first piece to its last, over the tokens after the first: what a token costs its reader.
    spans = [(r["pieces_ms"][-1] - r["first_ms"], r["completion_tokens"] - 1) for r in requests]
    own = [r["server_timings"] for r in requests if r.get("server_timings")]
    return {
        "tokens_per_s": report["completion_tokens_per_s"],
        "ms_per_token": sum(s for s, _ in spans) / sum(n for _, n in spans),
        "engine_ms_per_token": sum(t["predicted_ms"] for t in own) / max(1, sum(t["predicted_n"] - 1 for t in own)),
        "ttft_p50_ms": report["first_token_ms"]["p50"],
        "ttft_p99_ms": report["first_token_ms"]["p99"],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokenmill", default="target/release/tokenmill")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of the load `open`")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures = {"tokenmill": [], "llama-server": []}
    for round_ in range(arguments.rounds):
        for name in figures:
            figures[name].append(summary(run(name, round_, arguments)))
            print(arguments.model.stem, arguments.load, name, json.dumps(figures[name][-1]), flush=True)
    medians = {
        name: {key: round(statistics.median(r[key] for r in rounds), 3) for key in rounds[0]}
        for name, rounds in figures.items()
    }
    print(json.dumps(medians, indent=1))
    whole = {"model": arguments.model.stem, "load": arguments.load, "rate": arguments.rate, "medians": medians, "rounds": figures}
    (arguments.out / f"summary-{arguments.model.stem}-{arguments.load}.json").write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
