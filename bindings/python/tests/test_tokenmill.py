"""The package as programs use it, on the demo model. TOKENMILL names the program whose answers must be equal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from tokenmill import Answer, LoadError, Model, RequestError

QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]
NUMBER = {"type": "number"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add_numbers",
            "description": "Adds two numbers",
            "parameters": {"type": "object", "properties": {"x": NUMBER, "y": NUMBER}, "required": ["x", "y"]},
        },
    }
]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("demo", context=1024, device="cpu")


def run_program(*arguments: str) -> dict:
    command = [os.environ["TOKENMILL"], "run", "demo", "--json", "--device", "cpu", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_answers_equal_those_of_the_program(model):
    for arguments, params in [
        (["--temp", "0"], {}),
        (["--temp", "0.9", "--seed", "7", "--top-k", "0"], {"temperature": 0.9, "seed": 7}),
        (["--temp", "1.2", "--seed", "3", "--top-k", "20"], {"temperature": 1.2, "seed": 3, "top_k": 20}),
    ]:
        told = run_program("Once upon a time", "-n", "40", *arguments, "--top-p", "1", "--min-p", "0")
        answer = model.complete("Once upon a time", max_tokens=40, **params)
        assert answer.text == told["text"]
        assert answer.usage.completion_tokens == 40
        assert answer.finish_reason == "length"


def test_pieces_are_the_answer(model):
    whole = model.complete("Once upon a time", max_tokens=32)
    stream = model.stream("Once upon a time", max_tokens=32)
    assert "".join(piece.text for piece in stream) == whole.text
    assert stream.answer().text == whole.text
    assert next(stream, None) is None
    assert stream.answer().usage.completion_tokens == 32


def test_asynchronous_streams_run_side_by_side(model):
    async def read(prompt):
        return "".join([piece.text async for piece in model.stream(prompt, max_tokens=24)])

    async def all_of_them(prompts):
        return await asyncio.gather(*map(read, prompts))

    prompts = [f"Once upon a time, there was a {what}" for what in ("cat", "dog", "bird", "fish")]
    texts = asyncio.run(all_of_them(prompts))
    assert texts == [model.complete(prompt, max_tokens=24).text for prompt in prompts]


def test_a_cancelled_task_ends_its_generation(model):
    async def give_up():
        stream = model.stream("Once upon a time", ignore_eos=True)

        began = asyncio.Event()

        async def read():
            async for _ in stream:
                began.set()

        task = asyncio.create_task(read())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    answer = asyncio.run(give_up()).answer()
    assert answer.finish_reason == "cancelled"
    assert 0 < answer.usage.completion_tokens < 1000


def test_tools_are_called_and_answered(model):
    answer = model.chat(QUESTION, tools=TOOLS, max_tokens=128)
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.calls
    arguments = json.loads(call.arguments)
    assert call.name == "add_numbers" and arguments == {"x": 3, "y": 4}
    called = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    messages = QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": call.id, "content": "7"},
    ]
    assert "7" in model.chat(messages, tools=TOOLS, max_tokens=64).text


def test_a_tool_can_be_demanded(model):
    answer = model.chat([{"role": "user", "content": "Hello"}], tools=TOOLS, tool_choice="required", max_tokens=128)
    assert [call.name for call in answer.calls] == ["add_numbers"]
    assert model.chat(QUESTION, tools=TOOLS, tool_choice="none", max_tokens=32).calls == []
    with pytest.raises(RequestError, match="subtract"):
        model.chat(QUESTION, tools=TOOLS, tool_choice="subtract")


def test_answers_in_a_shape(model):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    value = json.loads(model.chat(QUESTION, schema=schema, max_tokens=200, temperature=2.0, seed=1).text)
    assert isinstance(value["age"], int)
    assert model.complete("Say", choice=["yes", "no"], max_tokens=8).text in ("yes", "no")
    assert model.complete("Year:", regex="[0-9]{4}", max_tokens=8).text.isdigit()
    with pytest.raises(TypeError, match="only one of"):
        model.complete("Say", regex="a", choice=["b"])
    with pytest.raises(RequestError):
        model.complete("Say", regex="(")


def test_a_batch_gives_each_its_answer(model):
    prompts = ["Once upon a time", "The cat", "word " * 3000]
    answers = model.batch(prompts, max_tokens=12)
    assert [type(answer) for answer in answers] == [Answer, Answer, RequestError]
    assert answers[1].text == model.complete("The cat", max_tokens=12).text


def test_a_session_goes_on_in_another_model(model, tmp_path):
    prompt = "Once upon a time there was a little girl who lived in a small house near the forest with her mother"
    answer = model.complete(prompt, max_tokens=40)
    tokens = model.tokenize(prompt) + [token.id for token in answer.tokens]
    path = tmp_path / "session"
    assert model.save_session(path, tokens) == path.stat().st_size
    other = Model("demo", context=1024, device="cpu")
    assert other.restore_session(path) == tokens
    assert other.complete(prompt, max_tokens=40).text == answer.text
    assert other.complete(prompt, max_tokens=40).usage.cached_tokens >= 16
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RequestError, match="it was cut"):
        other.restore_session(path)


def test_arrays(model):
    vectors = model.embed(["a cat", "a dog", "a cat"])
    assert vectors.dtype == np.float32 and vectors.shape[0] == 3
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.array_equal(vectors[0], vectors[2]) and not np.array_equal(vectors[0], vectors[1])
    tokens = model.tokenize("Once upon a time")
    logits = model.logits(tokens)
    assert logits.shape == (len(tokens), model.n_vocab)
    assert np.array_equal(logits, model.logits("Once upon a time"))
    likeliest = model.complete("Once upon a time", max_tokens=1, logprobs=1).tokens[0]
    assert likeliest.id == int(logits[-1].argmax())
    row = logits[-1].astype(np.float64)
    expected = row.max() - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert abs(likeliest.logprob - expected) < 1e-3


def test_words_come_back(model):
    assert model.detokenize(model.tokenize("Once upon a time", special=False)).strip() == "Once upon a time"
    assert "What is 3 + 4?" in model.render_chat(QUESTION)
    with pytest.raises(ValueError, match="is not one of"):
        model.detokenize([2**31])


def test_what_is_refused_says_why(model, tmp_path):
    with pytest.raises(LoadError, match="nothing-here"):
        Model(tmp_path / "nothing-here.gguf")
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(LoadError):
        Model(tmp_path / "empty.gguf")
    with pytest.raises(ValueError, match="device"):
        Model("demo", device="abacus")
    with pytest.raises(LoadError, match="draft model nothing-here.gguf"):
        Model("demo", device="cpu", draft="nothing-here.gguf")
    with pytest.raises(TypeError, match="temprature"):
        model.complete("a", temprature=1)
    with pytest.raises(TypeError, match="max_tokens"):
        model.complete("a", max_tokens="many")
    with pytest.raises(RequestError, match="temperature"):
        model.complete("a", temperature=-1)
    with pytest.raises(TypeError, match="messages"):
        model.chat("Hello")
    with pytest.raises(RequestError, match="does not rank"):
        model.rerank("a", ["b"])


def test_other_threads_run_meanwhile(model):
    counted = 0
    done = threading.Event()

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    model.complete("Once upon a time", max_tokens=400, ignore_eos=True)
    done.set()
    thread.join()
    assert counted > 10


def test_ctrl_c_ends_a_wait(model):
    # A shell that runs this in the background has the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            model.complete("Once upon a time", ignore_eos=True)
    timer.join()
    assert model.complete("The cat", max_tokens=4).usage.completion_tokens == 4


def test_a_draft_model_changes_no_answer(model: Model) -> None:
    guessing = Model("demo", context=1024, device="cpu", draft="demo")
    params = {"temperature": 0.8, "seed": 3, "max_tokens": 40}
    assert guessing.complete("Once upon a time", **params).text == model.complete("Once upon a time", **params).text
