"""Ollama's own Python package against `tokenmill serve demo`."""

import json

import ollama

from server import Server

MESSAGES = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0, "num_predict": 24}


def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: Where.
    """
    return f"It rains in {city}."


def answers(client):
    whole = client.chat("demo", MESSAGES, options=GREEDY)
    assert whole.done and whole.done_reason in ("stop", "length") and whole.message.content
    assert whole.eval_count > 0 and 0 < whole.eval_duration <= whole.total_duration
    pieces = list(client.chat("demo:latest", MESSAGES, options=GREEDY, stream=True))
    assert len(pieces) > 2 and pieces[-1].done
    assert "".join(piece.message.content for piece in pieces) == whole.message.content

    generated = client.generate("demo", "Tell me a story.", options=GREEDY, keep_alive="10m")
    assert generated.response == whole.message.content
    streamed = client.generate("demo", "Tell me a story.", options=GREEDY, stream=True)
    assert "".join(piece.response for piece in streamed) == generated.response
    assert client.generate("demo", "").done_reason == "load"


def shapes(client):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Basel"]}, "degrees": {"type": "integer", "minimum": 0, "maximum": 40}},
        "required": ["city", "degrees"],
        "additionalProperties": False,
    }
    options = {"temperature": 1.2, "seed": 5, "num_predict": 80}
    value = json.loads(client.chat("demo", MESSAGES, format=schema, options=options).message.content)
    assert value["city"] in ("Bern", "Basel") and 0 <= value["degrees"] <= 40


def tools(client):
    # What comes of an offer is the model's choice; a call and its result are read back in any case.
    offered = client.chat("demo", MESSAGES, tools=[weather], options=GREEDY)
    assert offered.done
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    history = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]
    history.append({"role": "tool", "tool_name": "weather", "content": weather("Bern")})
    assert client.chat("demo", history, tools=[weather], options=GREEDY).message.content is not None


def models(client):
    assert [model.model for model in client.list().models] == ["demo"]
    shown = client.show("demo")
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"]
    running = client.ps().models[0]
    assert running.model == "demo" and running.size > 0 and running.context_length > 0
    vectors = client.embed("demo", ["The cat sat.", "A dog ran."]).embeddings
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4
    assert len(client.embeddings("demo", "The cat sat.").embedding) == len(vectors[0])


def refusals(client):
    for status, ask in [
        (404, lambda: client.chat("other", MESSAGES)),
        (400, lambda: client.chat("demo", MESSAGES, options={"mirostat": 2})),
        (400, lambda: client.chat("demo", MESSAGES, keep_alive=0)),
        (501, lambda: client.pull("llama3.2")),
    ]:
        try:
            ask()
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error, error
        else:
            raise AssertionError(f"expected {status}")


with Server() as server:
    client = ollama.Client(server.url)
    for test in (answers, shapes, tools, models, refusals):
        test(client)
        print(f"ok: {test.__name__}")
