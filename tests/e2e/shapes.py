"""Answers in a shape, asked for by the official packages and judged by Python's `jsonschema`.

`TOKENMILL_TEST_DATA` names a folder with real schemas (`schemas/maskbench`); without it those of this file are asked for.
"""

import concurrent.futures
import json
import os
import pathlib

import jsonschema
import openai
import pydantic

from server import Server

SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"value": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "cannot be enforced": {"not": {"type": "string"}},
}
# Number of real schemas that are known not to be enforceable.
MOST_REFUSED = 50


class Weather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=10)
    degrees: int = pydantic.Field(ge=-50, le=60)


def schemas():
    data = os.environ.get("TOKENMILL_TEST_DATA")
    folder = pathlib.Path(data, "schemas/maskbench") if data else None
    if folder and folder.is_dir():
        return {path.name: json.loads(path.read_text())["schema"] for path in sorted(folder.glob("*.json"))}
    return SCHEMAS


def ask(client, name, schema):
    """Asks for a schema at a temperature at which the model babbles. Returns what became of it."""
    try:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Say something."}],
            temperature=2,
            seed=1,
            max_tokens=300,
            response_format={"type": "json_schema", "json_schema": {"name": "shape", "schema": schema}},
        )
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema", (name, error)
        return "refused"
    choice = answer.choices[0]
    if choice.finish_reason == "length":
        return "cut"
    assert choice.finish_reason == "stop", (name, choice)
    jsonschema.validate(json.loads(choice.message.content), schema)
    return "valid"


with Server() as server:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    counts = {"valid": 0, "cut": 0, "refused": 0}
    asked = schemas()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda item: ask(client, *item), asked.items()):
            counts[result] += 1
    print(f"schemas: {counts}")
    assert counts["valid"] > 0 and counts["refused"] <= MOST_REFUSED, counts

    parsed = client.chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": "Weather?"}], response_format=Weather, max_tokens=200
    )
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    response = client.responses.parse(model="demo", input="Weather?", text_format=Weather, max_output_tokens=200)
    assert isinstance(response.output_parsed, Weather)
    streamed = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Pick one."}],
        stream=True,
        extra_body={"guided_choice": ["left", "right"]},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text in ("left", "right"), text
print("shapes: done")
