"""OpenAI's and Anthropic's own Python packages against `tokenmill serve demo`."""

import concurrent.futures
import json
import time
import urllib.request

import anthropic
import openai
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from server import Server

KEY = "sesame"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def raises(kind, code, call):
    try:
        call()
    except kind as error:
        assert code is None or error.code == code, (error.code, code)
        return error
    raise AssertionError(f"expected {kind.__name__}")


def chats(client):
    def ask(**fields):
        fields = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 32, **fields}
        return client.chat.completions.create(**fields)

    whole = ask(logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens > 0
    assert "".join(token.token for token in whole.choices[0].logprobs.content) == text
    assert all(len(token.top_logprobs) == 2 for token in whole.choices[0].logprobs.content)

    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    # Whole pages of 16 tokens are cached; the last token is always computed.
    cached = chunks[-1].usage.prompt_tokens_details.cached_tokens
    assert cached == (whole.usage.prompt_tokens - 1) // 16 * 16

    several = ask(n=3, temperature=1, seed=5)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    again = ask(n=3, temperature=1, seed=5)
    assert [c.message.content for c in several.choices] == [c.message.content for c in again.choices]
    stopped = ask(stop=[text[10:14]])
    assert stopped.choices[0].message.content == text[: text.find(text[10:14])]
    assert stopped.choices[0].finish_reason == "stop"
    ask(max_completion_tokens=3, max_tokens=3, logit_bias={"5": -100}, presence_penalty=0.5, frequency_penalty=0.5,
        top_p=0.9, user="someone", extra_body={"top_k": 5, "min_p": 0.1})

    def number(i):
        return ask(messages=[{"role": "user", "content": f"Tell me story number {i}."}], seed=i, temperature=0.9)

    alone = [number(i).choices[0].message.content for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = [answer.choices[0].message.content for answer in pool.map(number, range(16))]
    assert together == alone


def other_endpoints(client):
    completion = client.completions.create(model="demo", prompt=["Once upon a time", "The cat"], max_tokens=8, echo=True, logprobs=1, temperature=0)
    assert completion.choices[0].text.startswith("Once upon a time") and completion.choices[1].index == 1
    assert completion.choices[0].logprobs.token_logprobs[0] is None
    streamed = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "Once upon a time" + "".join(c.choices[0].text for c in streamed) == completion.choices[0].text

    # The package asks for base64 by itself and decodes it.
    embedding = client.embeddings.create(model="demo", input=["The cat sat.", "A dog ran."])
    floats = client.embeddings.create(model="demo", input="The cat sat.", encoding_format="float")
    assert len(embedding.data) == 2 and len(embedding.data[0].embedding) == 256
    assert max(abs(a - b) for a, b in zip(embedding.data[0].embedding, floats.data[0].embedding)) < 1e-6

    cut = client.responses.create(model="demo", input="Tell me a story.", max_output_tokens=4)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    fields = {"model": "demo", "input": "What is 3 + 4?", "temperature": 0, "max_output_tokens": 100}
    response = client.responses.create(**fields)
    with client.responses.stream(**fields) as events:
        for _ in events:
            pass
        assert events.get_final_response().output_text == response.output_text != ""
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
ADD = {"name": "add_numbers", "description": "Adds two numbers.", "parameters": PARAMETERS}
SUM = {"role": "user", "content": "What is 3 + 4?"}


def call_loops(openai_client, anthropic_client):
    """The demo model calls a tool, is given the result, and answers."""
    chat = {"model": "demo", "tools": [{"type": "function", "function": ADD}], "temperature": 0}
    message = openai_client.chat.completions.create(messages=[SUM], **chat).choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add_numbers", {"x": 3, "y": 4})
    history = [SUM, message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    answer = openai_client.chat.completions.create(messages=history, **chat).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content, answer

    fields = {"model": "demo", "tools": [{"type": "function", **ADD}], "temperature": 0}
    response = openai_client.responses.create(input=[SUM], **fields)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"x": 3, "y": 4}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    whole = openai_client.responses.create(input=[SUM, *response.output, result], **fields)
    stored = openai_client.responses.create(input=[result], previous_response_id=response.id, **fields)
    assert whole.output_text == stored.output_text == answer.message.content, (whole, stored)

    tool = {"name": "add_numbers", "description": "Adds two numbers.", "input_schema": PARAMETERS}
    fields = {"model": "demo", "tools": [tool], "max_tokens": 64, "extra_body": {"temperature": 0}}
    message = anthropic_client.messages.create(messages=[SUM], **fields)
    [use] = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason, use.input) == ("tool_use", {"x": 3, "y": 4})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7"}
    history = [SUM, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    last = anthropic_client.messages.create(messages=history, **fields)
    assert last.stop_reason == "end_turn" and last.content[0].text == answer.message.content, last


def refusals(client, url):
    def ask(**fields):
        return lambda: client.chat.completions.create(**{"model": "demo", "messages": MESSAGES, **fields})

    raises(openai.NotFoundError, "model_not_found", ask(model="gpt-4o"))
    raises(openai.BadRequestError, "invalid_value", ask(messages=[]))
    raises(openai.BadRequestError, "invalid_value", ask(temperature=9))
    tools = [{"type": "function", "function": {"name": "f"}}]
    absent = {"type": "function", "function": {"name": "g"}}
    raises(openai.BadRequestError, "invalid_value", ask(tools=tools, tool_choice=absent))
    raises(openai.BadRequestError, "unknown_parameter", ask(extra_body={"temprature": 1}))
    error = raises(openai.BadRequestError, "context_length_exceeded", ask(messages=[{"role": "user", "content": "word " * 2000}]))
    assert "512" in str(error)
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, "invalid_api_key", lambda: stranger.models.list())


def messages(client):
    fields = {"model": "demo", "max_tokens": 32, "messages": MESSAGES, "system": "Be kind."}
    # The newest package has no argument for it; the endpoint has the field.
    fields["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**fields)
    assert whole.content[0].text and whole.usage.output_tokens > 0
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(model="demo", messages=MESSAGES, system="Be kind.")
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    stopped = client.messages.create(**{**fields, "stop_sequences": ["e"]})
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "e")
    raises(anthropic.BadRequestError, None, lambda: client.messages.create(**{**fields, "messages": []}))
    raises(anthropic.NotFoundError, None, lambda: client.messages.create(**{**fields, "model": "claude"}))


def figures(url, accept=None):
    headers = {"authorization": f"Bearer {KEY}"} | ({"accept": accept} if accept else {})
    with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=headers)) as response:
        kind, text = response.headers["content-type"], response.read().decode()
    parse = open_metrics_families if accept else text_string_to_metric_families
    assert kind.startswith("application/openmetrics-text" if accept else "text/plain; version=0.0.4"), kind
    families = {family.name: family for family in parse(text)}
    # A family that the parser could not read would have no type.
    assert all(family.type in ("gauge", "counter", "histogram") for family in families.values())
    return {sample.name: sample.value for family in families.values() for sample in family.samples}


def metrics_in_both_formats(url):
    # A counter that llama.cpp names without `_total` gets it from the parser of the classic form.
    names = [{name.removesuffix("_total") for name in figures(url, accept)} for accept in (None, "application/openmetrics-text")]
    assert names[0] == names[1], names[0] ^ names[1]
    assert figures(url)["vllm:cache_config_info"] == 1


def disconnects(client, url):
    for _ in range(8):
        stream = client.chat.completions.create(
            model="demo", messages=MESSAGES, stream=True, max_tokens=400, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    deadline = time.monotonic() + 10
    while figures(url)["tokenmill_kv_pages_in_use"] > 0:
        assert time.monotonic() < deadline, "the pages of clients that left are still held"
        time.sleep(0.02)


def log_lines(server):
    lines = [json.loads(line) for line in server.log]
    requests = [line for line in lines if line.get("target") == "tokenmill::request"]
    chat = next(line for line in requests if line["path"] == "/v1/chat/completions")
    for name in ["method", "status", "duration_ms", "request_id", "prompt_tokens", "completion_tokens", "cache_miss"]:
        assert name in chat, (name, chat)
    assert any(line.get("disconnected") for line in requests)
    assert any(line.get("error") == "invalid_api_key" for line in requests)
    assert KEY not in "".join(server.log)


with Server("--api-key", KEY, "--strict-model-names") as server:
    openai_client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    anthropic_client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
    chats(openai_client)
    other_endpoints(openai_client)
    refusals(openai_client, server.url)
    messages(anthropic_client)
    call_loops(openai_client, anthropic_client)
    metrics_in_both_formats(server.url)
    disconnects(openai_client, server.url)
    openai_client.close()
    anthropic_client.close()
    server.signal()
    assert server.wait() == 0, server.log[-5:]
    log_lines(server)
print(f"openai {openai.__version__} and anthropic {anthropic.__version__}: all passed")
