"""Models of tokenmill in the command `llm`: `llm -m tokenmill/demo "Once upon a time"`.

A model is named by its file, without the folder and `.gguf`, behind `tokenmill/`. It is found in the folders of TOKENMILL_MODELS.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Iterator, Optional

import llm
from pydantic import Field

from . import Model

_open = lru_cache(maxsize=1)(Model)


@llm.hookimpl
def register_models(register) -> None:
    names = ["demo"]
    for folder in filter(None, os.environ.get("TOKENMILL_MODELS", "").split(os.pathsep)):
        names += sorted(str(file) for file in Path(folder).expanduser().glob("*.gguf"))
    for name in names:
        register(Tokenmill(name))


class Tokenmill(llm.Model):
    can_stream = True

    class Options(llm.Options):
        max_tokens: Optional[int] = Field(default=None, description="Most tokens of an answer")
        temperature: Optional[float] = Field(default=None, description="0 takes the likeliest token each time")
        seed: Optional[int] = Field(default=None, description="Of the draws at temperatures above 0")

    def __init__(self, path: str) -> None:
        self.path = path
        self.model_id = f"tokenmill/{path if path == 'demo' else Path(path).stem}"

    def execute(self, prompt, stream, response, conversation=None) -> Iterator[str]:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        for turn in conversation.responses if conversation else []:
            messages.append({"role": "user", "content": turn.prompt.prompt})
            messages.append({"role": "assistant", "content": turn.text()})
        messages.append({"role": "user", "content": prompt.prompt})
        pieces = _open(self.path).chat_stream(messages, **prompt.options.model_dump(exclude_none=True))
        for piece in pieces:
            yield piece.text
        usage = pieces.answer().usage
        response.set_usage(input=usage.prompt_tokens, output=usage.completion_tokens)
