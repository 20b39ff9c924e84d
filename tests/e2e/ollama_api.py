"""Ollama's own Python package against `tokenmill serve demo`."""

import json

import ollama

from server import Server

MESSAGES = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0, "num_predict": 24}


def add_numbers(x: int, y: int) -> int:
    """Adds two numbers.

    Args:
        x: One.
        y: The other.
    """
    return x + y


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
    question = {"role": "user", "content": "What is 3 + 4?"}
    options = GREEDY | {"num_predict": 60}
    for stream in (False, True):
        offered = client.chat("demo", [question], tools=[add_numbers], options=options, stream=stream)
        calls = [call for part in (offered if stream else [offered]) for call in part.message.tool_calls or []]
        assert [call.function.arguments for call in calls] == [{"x": 3, "y": 4}], calls
    history = [question, {"role": "assistant", "content": "", "tool_calls": calls}]
    history.append({"role": "tool", "tool_name": "add_numbers", "content": "7"})
    answer = client.chat("demo", history, tools=[add_numbers], options=options)
    assert answer.message.content and not answer.message.tool_calls, answer


def models(client):
    assert [model.model for model in client.list().models] == ["demo:latest"]
    shown = client.show("demo")
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"]
    running = client.ps().models[0]
    assert running.model == "demo:latest" and running.size > 0 and running.context_length > 0
    vectors = client.embed("demo", ["The cat sat.", "A dog ran."]).embeddings
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4
    assert len(client.embeddings("demo", "The cat sat.").embedding) == len(vectors[0])


def refusals(client):
    for status, ask in [
        (404, lambda: client.chat("other", MESSAGES)),
        (400, lambda: client.chat("demo", MESSAGES, options={"mirostat": 3})),
        (400, lambda: client.chat("demo", MESSAGES, keep_alive=0)),
        (501, lambda: client.pull("llama3.2")),
    ]:
        try:
            ask()
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error, error
        else:
            raise AssertionError(f"expected {status}")


with Server("--strict-model-names") as server:
    client = ollama.Client(server.url)
    for test in (answers, shapes, tools, models, refusals):
        test(client)
        print(f"ok: {test.__name__}")
