"""tokenmill as a language model of LangChain, in the process: `python langchain_model.py [MODEL]`."""

from __future__ import annotations

import sys
from typing import Any, Iterator, Optional

from langchain_core.language_models.llms import LLM
from langchain_core.outputs import GenerationChunk
from langchain_core.prompts import PromptTemplate

from tokenmill import Model


class Tokenmill(LLM):
    """Continues a text."""

    model: Any
    max_tokens: int = 64

    @property
    def _llm_type(self) -> str:
        return "tokenmill"

    def _call(self, prompt: str, stop: Optional[list[str]] = None, run_manager: Any = None, **kwargs: Any) -> str:
        return self.model.complete(prompt, max_tokens=self.max_tokens, stop=stop).text

    def _stream(
        self, prompt: str, stop: Optional[list[str]] = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[GenerationChunk]:
        for piece in self.model.stream(prompt, max_tokens=self.max_tokens, stop=stop):
            yield GenerationChunk(text=piece.text)


if __name__ == "__main__":
    llm = Tokenmill(model=Model(sys.argv[1] if len(sys.argv) > 1 else "demo"), max_tokens=24)
    chain = PromptTemplate.from_template("Once upon a time, there was a {what}") | llm
    print(chain.invoke({"what": "cat"}))
    for text in chain.stream({"what": "dog"}):
        print(text, end="", flush=True)
    print()
