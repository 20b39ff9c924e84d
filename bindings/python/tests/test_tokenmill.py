"""The package as programs use it, on the demo model. TOKENMILL names the program whose answers must be equal."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from tokenmill import Answer, Decision, LoadError, Model, RequestError

VISION = pathlib.Path(__file__).parents[3] / "tests/data/vision/gemma3"
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


def program(*arguments: str) -> str:
    command = [os.environ["TOKENMILL"], *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def run_program(*arguments: str, model: str = "demo") -> dict:
    return json.loads(program("run", model, "--json", "--device", "cpu", *arguments))


def test_answers_equal_those_of_the_program(model):
    for arguments, params in [
        (["--temp", "0"], {}),
        (["--temp", "0.9", "--seed", "7", "--top-k", "0"], {"temperature": 0.9, "seed": 7}),
        (["--temp", "1.2", "--seed", "3", "--top-k", "20"], {"temperature": 1.2, "seed": 3, "top_k": 20}),
    ]:
        told = run_program("Once upon a time", "--raw", "-n", "40", *arguments, "--top-p", "1", "--min-p", "0")
        answer = model.complete("Once upon a time", max_tokens=40, **params)
        assert answer.text == told["text"]
        assert answer.usage.completion_tokens == 40
        assert answer.finish_reason == "length"


def test_chats_equal_those_of_the_program(model):
    question = QUESTION[0]["content"]
    for arguments, params in [
        (["--temp", "0"], {}),
        (["--temp", "0.9", "--seed", "7", "--top-k", "0"], {"temperature": 0.9, "seed": 7}),
    ]:
        told = run_program(question, "--chat", "-n", "40", *arguments, "--top-p", "1", "--min-p", "0")
        answer = model.chat(QUESTION, max_tokens=40, **params)
        assert answer.text == told["text"] and answer.text
        assert answer.usage.prompt_tokens == len(told["prompt_ids"])


def test_tokens_equal_those_of_the_program(model):
    for text in ["Once upon a time", "naïve 🐻 text\n\n  with  spaces", "<|im_start|>"]:
        assert model.tokenize(text) == [int(id) for id in program("tokenize", "demo", text, "--ids").split()]


def test_vectors_equal_those_of_the_program(model, tmp_path):
    texts = ["a cat", "a dog that barks", "Once upon a time there was a bear."]
    body = {"input": texts}
    request = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(request) + "\n")
    program("batch", "demo", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--device", "cpu", "-c", "1024")
    rows = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]["data"]
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), model.embed(texts))


def test_logits_equal_those_of_the_program(model, tmp_path):
    n_ctx = 32
    (tmp_path / "text").write_text("Once upon a time there was a little bear who lived in the woods with her mother. " * 6)
    options = ["-c", str(n_ctx), "--chunks", "1", "--save-logits", str(tmp_path / "logits"), "--device", "cpu"]
    program("perplexity", "demo", str(tmp_path / "text"), *options)
    saved = (tmp_path / "logits").read_bytes()
    assert saved[:8] == b"_logits_"
    _, n_vocab, n_chunks = np.frombuffer(saved, np.uint32, 3, 8)
    tokens = np.frombuffer(saved, np.uint32, n_ctx, 20).tolist()
    assert (n_vocab, n_chunks) == (model.n_vocab, 1)
    # The program scores each chunk with what begins a text in its first place.
    begin = model.tokenize("")
    tokens[: len(begin)] = begin
    n_row_bytes = 8 + 2 * (n_vocab + n_vocab % 2)
    rows = model.logits(tokens)[n_ctx // 2 : -1]
    at = 20 + 4 * n_ctx
    assert len(saved) == at + len(rows) * n_row_bytes
    for logits in rows:
        # The file keeps the distance from the least logit in 16 bits, and their unit whole.
        most = logits.max()
        least = max(logits.min(), most - np.float32(16))
        unit = (most - least) / np.float32(65535)
        assert np.frombuffer(saved, np.float32, 1, at)[0] == unit
        steps = ((np.maximum(logits, least) - least) / unit).astype(np.float64)
        assert np.array_equal(np.frombuffer(saved, np.uint16, n_vocab, at + 8), np.floor(steps + 0.5).astype(np.uint16))
        at += n_row_bytes


def test_images_are_seen_as_by_the_program():
    path, picture = VISION / "model.gguf", VISION / "0.png"
    told = run_program(
        "What is it?", "--image", str(picture), "-n", "8", "--temp", "0", "-c", "256", model=str(path)
    )
    url = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": parts}]
    answer = Model(path, context=256, device="cpu").chat(messages, max_tokens=8, logprobs=0)
    assert [token.id for token in answer.tokens] == told["ids"][: len(answer.tokens)]
    assert answer.text == told["text"] and answer.usage.prompt_tokens == len(told["prompt_ids"])
    named = Model(path, context=256, device="cpu", mmproj=VISION / "mmproj-model.gguf")
    assert named.chat(messages, max_tokens=8).text == answer.text
    with pytest.raises(RequestError, match="without an image encoder"):
        Model(path, context=256, device="cpu", mmproj=False).chat(messages, max_tokens=8)
    with pytest.raises(TypeError):
        Model(path, mmproj=3)


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


def test_an_awaited_stream_is_its_answer(model):
    async def all_of_them(questions):
        return await asyncio.gather(*(model.chat_stream(question, max_tokens=16) for question in questions))

    questions = [[{"role": "user", "content": f"What is {n} + 4?"}] for n in range(4)]
    answers = asyncio.run(all_of_them(questions))
    assert [answer.text for answer in answers] == [model.chat(question, max_tokens=16).text for question in questions]

    async def give_up():
        stream = model.stream("Once upon a time", ignore_eos=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stream, 0.01)
        return stream

    assert asyncio.run(give_up()).answer().finish_reason == "cancelled"


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
    assert call.name == "add_numbers" and call.arguments == {"x": 3, "y": 4}
    assert json.loads(call.arguments_json) == call.arguments
    called = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
    assert call.to_openai() == called
    messages = QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [call.to_openai()]},
        {"role": "tool", "tool_call_id": call.id, "content": "7"},
    ]
    assert "7" in model.chat(messages, tools=TOOLS, max_tokens=64).text


def test_a_call_that_was_cut_has_the_arguments_that_are_whole(model):
    whole = model.chat(QUESTION, tools=TOOLS, tool_choice="required", max_tokens=128)
    cut = None
    for max_tokens in range(whole.usage.completion_tokens - 1, 0, -1):
        cut = model.chat(QUESTION, tools=TOOLS, tool_choice="required", max_tokens=max_tokens).cut_call
        if cut is not None and cut.arguments == {"x": 3}:
            break
    assert cut is not None and cut.arguments_json.startswith("{") and cut.arguments == {"x": 3}


def test_a_question_is_a_conversation(model):
    text = QUESTION[0]["content"]
    told = model.chat(QUESTION, max_tokens=16).text
    assert model.chat(text, max_tokens=16).text == told
    assert model.chat_stream(text, max_tokens=16).answer().text == told
    assert [answer.text for answer in model.chat_batch([text, QUESTION], max_tokens=16)] == [told, told]
    assert model.render_chat(text) == model.render_chat(QUESTION)


def test_a_model_is_closed():
    with Model("demo", context=256, device="cpu") as model:
        text = model.complete("Once", max_tokens=4).text
        assert text
    for call in (lambda: model.complete("Once"), lambda: model.chat("Hi"), lambda: model.embed("a"), lambda: model.name):
        with pytest.raises(RequestError, match="the model is closed"):
            call()
    assert repr(model) == "Model(closed)"
    model.close()
    with pytest.raises(KeyError):
        with Model("demo", context=256, device="cpu") as model:
            raise KeyError
    with pytest.raises(RequestError, match="closed"):
        model.n_ctx


def write_adapter(folder: pathlib.Path, seed: int) -> pathlib.Path:
    """An adapter of rank 2 on the demo model, as the PEFT library writes it."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 32}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    module = "base_model.model.model.layers.1.mlp.down_proj"
    matrices = {
        f"{module}.lora_A.weight": random.standard_normal((2, 768), np.float32),
        f"{module}.lora_B.weight": random.standard_normal((256, 2), np.float32),
    }
    header, data = {}, b""
    for name, matrix in matrices.items():
        begin = len(data)
        data += matrix.tobytes()
        header[name] = {"dtype": "F32", "shape": list(matrix.shape), "data_offsets": [begin, len(data)]}
    header = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


def test_adapters(model, tmp_path):
    poet, clerk = write_adapter(tmp_path / "poet", 1), write_adapter(tmp_path / "clerk", 2)

    def text(model, **params):
        return model.complete("Once upon a time", max_tokens=16, **params).text

    base = text(model)
    options = {"context": 256, "device": "cpu"}
    named = Model("demo", lora={"poet": poet, "clerk": (clerk, 0.5)}, **options)
    assert sorted(named.loras) == ["clerk", "poet"]
    poem, letter = text(named, lora="poet"), text(named, lora="clerk")
    assert len({base, poem, letter}) == 3 and text(named) == base
    told = run_program("Once upon a time", "--raw", "-n", "16", "--temp", "0", "--lora", f"poet={poet}")
    assert poem == told["text"]
    with pytest.raises(RequestError, match="nobody"):
        text(named, lora="nobody")
    named.unload_lora("poet")
    with pytest.raises(RequestError, match="poet"):
        text(named, lora="poet")
    named.load_lora("poet", poet)
    assert text(named, lora="poet") == poem
    only = Model("demo", lora=poet, **options)
    assert text(only) == poem and text(only, lora=False) == base
    assert text(Model("demo", lora=(clerk, 0.5), **options)) == letter
    with pytest.raises(LoadError, match="nothing-here"):
        Model("demo", lora=tmp_path / "nothing-here", **options)
    for wrong in (3, [poet], {"poet": None}):
        with pytest.raises(TypeError, match="lora"):
            Model("demo", lora=wrong, **options)


def test_layers_of_a_gpu():
    for layers in (0, "auto"):
        options = {"device": "cpu"} if layers == 0 else {}
        model = Model("demo", context=256, gpu_layers=layers, **options)
        assert model.complete("Once", max_tokens=2).usage.completion_tokens == 2
    assert "CPU" in Model("demo", context=256, gpu_layers=0).device
    for layers, device in [(1, "cpu"), ("all", "cpu"), (0, "cuda"), (-2, "auto"), ("some", "auto")]:
        with pytest.raises(ValueError, match="gpu_layers"):
            Model("demo", gpu_layers=layers, device=device)


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


def test_a_batch_of_conversations_gives_each_its_answer(model):
    conversations = [QUESTION, [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "word " * 3000}]]
    answers = model.chat_batch(conversations, max_tokens=12)
    assert [type(answer) for answer in answers] == [Answer, Answer, RequestError]
    assert answers[0].text == model.chat(QUESTION, max_tokens=12).text
    with pytest.raises(TypeError, match="messages"):
        model.chat_batch([QUESTION, {"role": "user", "content": "Hello"}])


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
        model.chat({"role": "user", "content": "Hello"})
    with pytest.raises(RequestError, match="does not rank"):
        model.rerank("a", ["b"])


def test_decisions_equal_those_of_the_program(model, tmp_path):
    state = "The cat sat on the mat, and the dog was sad."
    questions = {
        "sad": {"type": "noul", "instructions": "Was the dog sad?"},
        "who": {"type": "choice", "instructions": "Who sat?", "criteria": {"cat": "an animal", "dog": None}},
        "mood": {"type": "score", "instructions": "How happy is the dog?", "criteria": ["sad", "calm", "happy"]},
    }
    files = [tmp_path / "state.txt", tmp_path / "questions.json"]
    files[0].write_text(state)
    files[1].write_text(json.dumps(questions))
    arguments = ["--state", str(files[0]), "--questions", str(files[1]), "--json", "--device", "cpu"]
    told = json.loads(program("decide", "demo", *arguments))["answers"]
    answers = model.decide(state, questions)
    assert list(answers) == list(questions)
    sad, who, mood = answers.values()
    assert all(isinstance(answer, Decision) for answer in answers.values())
    assert (sad.type, who.type, mood.type) == ("noul", "choice", "score")
    assert sad.noul == told["sad"]["noul"] == sad.probabilities["yes"]
    assert sad.choice == ("yes" if sad.noul >= 0.5 else "no") and sad.score is sad.confidence is None
    assert who.probabilities == told["who"]["probabilities"] and who.choice == told["who"]["choice"]
    assert who.confidence == told["who"]["confidence"] and who.noul is who.score is None
    assert list(mood.probabilities) == ["sad", "calm", "happy"]
    assert (mood.score, mood.confidence) == (told["mood"]["score"], told["mood"]["confidence"])
    assert 0 < who.label_mass == told["who"]["x_label_mass"] and "who" not in repr(who)
    both = model.decide(state, {"who": questions["who"]}, permutations=2)["who"]
    assert both.probabilities != who.probabilities
    flat = model.decide(state, {"who": questions["who"]}, temperature=1000.0, timeout=60)["who"]
    assert abs(flat.probabilities["cat"] - 0.5) < 0.05
    assert model.decide({"cat": "sad"}, {"a": questions["sad"]})["a"].noul == model.decide('{"cat":"sad"}', {"a": questions["sad"]})["a"].noul
    for wrong, message in [({}, "0 questions"), ({"a": {"type": "box"}}, "questions.a.type")]:
        with pytest.raises(RequestError, match=message):
            model.decide(state, wrong)
    with pytest.raises(TypeError, match="questions: must be a dict"):
        model.decide(state, [])
    with pytest.raises(ValueError, match="timeout"):
        model.decide(state, questions, timeout=-1)
    with pytest.raises(RequestError, match="permutations|orders"):
        model.decide(state, questions, permutations=0)


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


DEMO = pathlib.Path(__file__).parents[3] / "crates/tokenmill/assets/tokenmill-demo-Q8_0.gguf"


def put_into_cache(cache: pathlib.Path, *names: str) -> None:
    """Puts the demo model into a cache of the Hub under these names of files, as `org/demo-GGUF`."""
    repository = cache / "models--org--demo-GGUF"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    for folder in (repository / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs/main").write_text(snapshot.name)
    for name in names:
        (snapshot / name).write_bytes(DEMO.read_bytes())


def test_a_name_that_fits_several_files_is_refused_with_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    put_into_cache(tmp_path, "first-Q8_0.gguf", "second-Q8_0.gguf")
    for model in ("org/demo-GGUF:Q8_0", "org/demo-GGUF"):
        with pytest.raises(LoadError) as refused:
            Model(model, device="cpu", download=False)
        assert "first-Q8_0.gguf" in str(refused.value) and "second-Q8_0.gguf" in str(refused.value)
    named = Model("org/demo-GGUF:second-Q8_0.gguf", device="cpu", download=False)
    assert named.complete("Once", max_tokens=2).usage.completion_tokens == 2


def test_a_draft_model_may_be_a_name_of_the_hub(model: Model, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    put_into_cache(tmp_path, "demo-Q8_0.gguf")
    options = {"context": 1024, "device": "cpu", "download": False}
    guessing = Model("demo", draft="org/demo-GGUF:Q8_0", **options)
    params = {"temperature": 0.8, "seed": 3, "max_tokens": 40}
    assert guessing.complete("Once upon a time", **params).text == model.complete("Once upon a time", **params).text
    with pytest.raises(LoadError, match="`org/other-GGUF` is not on this machine; download=True downloads it"):
        Model("demo", draft="org/other-GGUF", **options)
