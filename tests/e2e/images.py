"""Images by OpenAI's, Anthropic's and Ollama's own Python packages, to tiny models of each family that sees: the answers are those of
transformers."""

import base64
import json

import anthropic
import ollama
import openai

from server import ROOT, Server

FAMILIES = ["gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe"]
N_TOKENS = 6
QUESTION = "What is it?"


def said(ids):
    """The text of ids up to the first special one, which ends an answer: the printing characters, a space, and a new line."""
    n_said = next((at for at, id in enumerate(ids) if id > 95), len(ids))
    ids = ids[:n_said]
    return "".join({94: " ", 95: "\n"}.get(id, chr(ord("!") + id)) for id in ids)


def check(family):
    folder = ROOT / "tests/data/vision" / family
    case = json.loads((folder / "ref.json").read_text())["cases"][0]
    # Some clients' texts come without blanks at their ends.
    expected = said(case["greedy"][:N_TOKENS]).strip()
    data = base64.b64encode((folder / case["images"][0]).read_bytes()).decode()
    url = f"data:image/png;base64,{data}"
    flags = ["--device", "cpu", "-c", "512", "--served-model-name", "eye"]
    with Server(*flags, model=folder / "model.gguf") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
        answer = client.chat.completions.create(
            model="eye", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=N_TOKENS
        )
        assert answer.choices[0].message.content.strip() == expected, (family, answer)
        assert answer.usage.prompt_tokens == len(case["prompt"]), (family, answer.usage)
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
        answer = client.responses.create(
            model="eye", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=N_TOKENS
        )
        assert answer.output_text.strip() == expected, (family, answer)
        source = {"type": "base64", "media_type": "image/png", "data": data}
        parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
        answer = anthropic.Anthropic(base_url=server.url, api_key="none").messages.create(
            model="eye", messages=[{"role": "user", "content": parts}], max_tokens=N_TOKENS, extra_body={"temperature": 0}
        )
        assert answer.content[0].text.strip() == expected, (family, answer)
        message = {"role": "user", "content": QUESTION, "images": [data]}
        options = {"num_predict": N_TOKENS, "temperature": 0, "repeat_penalty": 1}
        answer = ollama.Client(server.url).chat("eye", messages=[message], options=options)
        assert answer.message.content.strip() == expected, (family, answer)
        # A file that is not an image gets an error of one line, as does an image that is too narrow for the families that keep the proportion.
        for bad in ["data:image/png;base64,aGVsbG8=", f"data:image/png;base64,{data[:60]}"]:
            try:
                client.chat.completions.create(
                    model="eye",
                    messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": bad}}]}],
                    max_tokens=1,
                )
            except openai.BadRequestError as error:
                assert "image" in str(error) and "\n" not in error.message, error
            else:
                raise AssertionError(f"{family} took {bad[:40]}")


for family in FAMILIES:
    check(family)
print(f"images: {len(FAMILIES)} families by 4 APIs")
