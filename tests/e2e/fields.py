"""Every request field that the official packages know stands in the server's description: implemented, or refused by name."""

import json
import urllib.request

from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from server import Server

OFFICIAL = {
    "/v1/chat/completions": chat_create_params.CompletionCreateParamsBase,
    "/v1/completions": completion_create_params.CompletionCreateParamsBase,
    "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
    "/v1/responses": response_create_params.ResponseCreateParamsBase,
    "/v1/messages": message_create_params.MessageCreateParamsBase,
    "/v1/messages/count_tokens": message_count_tokens_params.MessageCountTokensParams,
}
# The packages send these as headers.
HEADERS = {"user_profile_id", "workspace_id", "betas"}
MODEL = {"model": "demo"}
REQUIRED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
}


def post(url, fields):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(fields).encode())) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


with Server() as server:
    with urllib.request.urlopen(f"{server.url}/openapi.json") as response:
        paths = json.load(response)["paths"]
    n_fields, n_refused = 0, 0
    for path, official in OFFICIAL.items():
        known = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        names = set().union(*(getattr(base, "__annotations__", {}) for base in official.__mro__)) - HEADERS
        assert names <= known.keys(), f"{path} does not know {sorted(names - known.keys())}"
        n_fields += len(names)
        for name, field in known.items():
            if not field["deprecated"]:
                continue
            # A refused field says its name when it asks for something, and is silent when it does not.
            # Some are refused for a few values only, which their descriptions list.
            _, but, refused = field["description"].partition("all but ")
            asks = json.loads(refused.partition(",")[0]) if but else {"asks": 1}
            status, answer = post(server.url + path, {**MODEL, **REQUIRED[path], name: asks})
            assert status == 400 and f"`{name}`" in answer["error"]["message"], (path, name, answer)
            status, answer = post(server.url + path, {**MODEL, **REQUIRED[path], name: None})
            assert status == 200, (path, name, answer)
            n_refused += 1
    # Fields that clients send by themselves, and fields of earlier answers that they send back.
    first = post(f"{server.url}/v1/responses", {**MODEL, "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]})[1]
    conversation = [{"role": "user", "content": "Hi"}, *first["output"], {"type": "message", "role": "user", "content": "And?"}]
    harmless = {"text": {"format": {"type": "text"}}, "tool_choice": "auto", "truncation": "disabled", "stream": None}
    status, answer = post(f"{server.url}/v1/responses", {**MODEL, "input": conversation, **harmless, "max_output_tokens": 2})
    assert status == 200, answer
    first = post(f"{server.url}/v1/chat/completions", {**MODEL, "messages": [{"role": "user", "content": "Hi"}]})[1]
    message = {**first["choices"][0]["message"], "annotations": [], "tool_calls": None}
    again = {"messages": [{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "And?"}], "max_tokens": 2}
    status, answer = post(f"{server.url}/v1/chat/completions", {**MODEL, **again, "modalities": ["text"], "tools": []})
    assert status == 200, answer
print(f"{n_fields} fields of the official packages are known; {n_refused} refused ones say their name")
