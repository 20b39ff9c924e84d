"""Several models in one server, with OpenAI's and Ollama's own Python packages."""

import json
import pathlib
import random
import shutil
import tempfile
import threading
import time
import urllib.request

import ollama
import openai

from server import ROOT, Server

DEMO = ROOT / "crates/tokenmill/assets/tokenmill-demo-Q8_0.gguf"
ENCODER = ROOT / "tests/data/encoders/nomic_bert/model-Q4_K_M.gguf"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]

MODELS = """
[defaults]
ctx-size = 128
max-num-seqs = 4
threads = 1

[models.anna]
model = "anna.gguf"

[models.berta]
model = "berta.gguf"
alias = ["gpt-4o"]

[models.clara]
model = "clara.gguf"

[models.embed]
model = "embed.gguf"
embedding = true
pin = true

[models.gone]
model = "gone.gguf"
"""


def status(url, model):
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        entries = json.load(reply)["data"]
    return next(entry["status"] for entry in entries if entry["id"] == model)


def await_status(url, model, value):
    deadline = time.monotonic() + 60
    while status(url, model)["value"] != value:
        assert time.monotonic() < deadline, f"{model} does not become {value}: {status(url, model)}"
        time.sleep(0.02)


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def openai_package(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    names = [model.id for model in client.models.list()]
    assert names == ["anna", "berta", "gpt-4o", "clara", "embed", "gone"], names
    answers = {}
    for name in ("anna", "gpt-4o", "clara"):
        reply = client.chat.completions.create(model=name, messages=MESSAGES, temperature=0, max_tokens=12)
        answers[name] = reply.choices[0].message.content
    # The files are the same, so a switch changes no answer.
    assert len(set(answers.values())) == 1, answers
    stream = client.chat.completions.create(model="anna", messages=MESSAGES, temperature=0, max_tokens=12, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answers["anna"]
    vectors = client.embeddings.create(model="embed", input=["one", "two"]).data
    assert len(vectors) == 2 and len(vectors[0].embedding) > 8
    try:
        client.chat.completions.create(model="ana", messages=MESSAGES)
        raise AssertionError("the model is not there")
    except openai.NotFoundError as error:
        assert "near it: anna" in str(error), error
    try:
        client.chat.completions.create(model="gone", messages=MESSAGES)
        raise AssertionError("the file is not there")
    except openai.InternalServerError as error:
        assert error.status_code == 503 and "gone.gguf" in str(error), error


def ollama_package(server):
    client = ollama.Client(host=server.url)
    assert {model.model for model in client.list().models} >= {"anna:latest", "berta:latest", "clara:latest", "embed:latest"}
    options = {"temperature": 0, "num_predict": 8}
    whole = client.chat("clara:latest", MESSAGES, options=options, keep_alive="10m")
    assert whole.message.content
    running = {model.name: model for model in client.ps().models}
    assert running["clara:latest"].expires_at.year < 9000 and running["embed:latest"].expires_at.year == 9999, running
    assert client.generate("clara", "", keep_alive=0).done_reason == "unload"
    await_status(server.url, "clara", "unloaded")
    assert "clara:latest" not in {model.name for model in client.ps().models}
    assert client.generate("clara", "").done_reason == "load"
    assert "clara:latest" in {model.name for model in client.ps().models}
    assert client.show("anna").details.family, "a model that is not loaded is described by its file"
    assert len(client.embed("embed", ["one", "two"]).embeddings) == 2


def managed(server):
    assert post(server.url, "/models/unload", {"model": "clara"})["success"]
    await_status(server.url, "clara", "unloaded")
    assert post(server.url, "/models/load", {"model": "clara"})["success"]
    await_status(server.url, "clara", "loaded")


def random_order(server, n_requests=1000, n_clients=8):
    """Requests for three models, of which two fit: none is lost, and answers come from the requested model."""
    waits, errors = [], []
    lock = threading.Lock()

    def client(seed):
        choice = random.Random(seed)
        for _ in range(n_requests // n_clients):
            name = choice.choice(["anna", "berta", "clara"])
            begun = time.monotonic()
            body = {"model": name, "prompt": "Once", "max_tokens": 4, "temperature": 0}
            try:
                reply = post(server.url, "/v1/completions", body)
                assert reply["model"] == name, reply
            except Exception as error:  # noqa: BLE001: all of them are told
                errors.append(error)
            with lock:
                waits.append(time.monotonic() - begun)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[:3]
    waits.sort()
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        metrics = reply.read().decode()
    loads = sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("tokenmill_model_loads_total"))
    median, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    print(f"{len(waits)} requests, {loads:.0f} loads; median {median * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms")
    assert len(waits) == n_requests and loads > 4


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model in ("anna", "berta", "clara"):
            shutil.copy(DEMO, folder / f"{model}.gguf")
        shutil.copy(ENCODER, folder / "embed.gguf")
        (folder / "models.toml").write_text(MODELS)
        flags = ["--models", str(folder / "models.toml")]
        with Server(*flags, model=None) as server:
            await_status(server.url, "embed", "loaded")
            openai_package(server)
            ollama_package(server)
            managed(server)
            assert status(server.url, "gone")["failed"], "the missing file is told"
            taken = {}
            with urllib.request.urlopen(f"{server.url}/metrics") as reply:
                for line in reply.read().decode().splitlines():
                    if line.startswith("tokenmill_model_bytes{"):
                        taken[line.split('"')[1]] = int(float(line.split()[-1]))
            server.signal()
            assert server.wait() == 0
        # Room for the pinned one and two others.
        budget = taken["embed"] + 2 * taken["clara"] + 1
        with Server(*flags, "--memory-budget", str(budget), model=None) as server:
            random_order(server)
            server.signal()
            assert server.wait() == 0
    print("several models: OpenAI's and Ollama's packages, loads and unloads, a budget")


main()
