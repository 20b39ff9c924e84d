"""The types of the compiled module."""

from __future__ import annotations

from os import PathLike
from typing import Any, AsyncIterator, Callable, Generator, Iterator, Literal, Mapping, Sequence, TypedDict, Union

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, Unpack

__version__: str

Message = Mapping[str, Any]
Path = Union[str, PathLike[str]]
Lora = Union[Path, tuple[Path, float]]

class Params(TypedDict, total=False):
    """How tokens are chosen, and when an answer ends. Without any, the likeliest token is taken each time."""

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    samplers: list[str] | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_last_n: int | None
    seed: int | None
    logprobs: int | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str] | None
    schema: Mapping[str, Any] | bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    thinking_budget: int | None
    ignore_eos: bool | None
    lora: str | Literal[False] | None
    timeout: float | None

class Error(Exception): ...
class LoadError(Error): ...
class RequestError(Error): ...

class ToolCall:
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    @property
    def arguments_json(self) -> str: ...
    def to_openai(self) -> dict[str, Any]: ...

class ScoredToken:
    @property
    def id(self) -> int: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...

class Usage:
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...

class Answer:
    @property
    def text(self) -> str: ...
    @property
    def reasoning(self) -> str: ...
    @property
    def calls(self) -> list[ToolCall]: ...
    @property
    def cut_call(self) -> ToolCall | None: ...
    @property
    def tokens(self) -> list[ScoredToken]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def seconds_to_first_token(self) -> float: ...
    @property
    def seconds(self) -> float: ...

class Question(TypedDict, total=False):
    """A question about a state. `criteria` has the options of a choice by name, the levels of a score, or what `true` and `false` mean."""

    type: Literal["noul", "choice", "score"]
    instructions: Any
    criteria: Any

class Decision:
    @property
    def type(self) -> Literal["noul", "choice", "score"]: ...
    @property
    def choice(self) -> str: ...
    @property
    def probabilities(self) -> dict[str, float]: ...
    @property
    def noul(self) -> float | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def confidence(self) -> float | None: ...
    @property
    def label_mass(self) -> float: ...

class Piece:
    @property
    def text(self) -> str: ...
    @property
    def reasoning(self) -> str: ...
    @property
    def tokens(self) -> list[ScoredToken]: ...

class Stream:
    def __iter__(self) -> Iterator[Piece]: ...
    def __next__(self) -> Piece: ...
    def __aiter__(self) -> AsyncIterator[Piece]: ...
    def __await__(self) -> Generator[Any, None, Answer]: ...
    def answer(self) -> Answer: ...
    def cancel(self) -> None: ...

class Model:
    def __init__(
        self,
        path: Path,
        *,
        context: int | None = None,
        sequences: int | None = None,
        device: str = "auto",
        threads: int | None = None,
        kv_type: str | None = None,
        chat_template: str | None = None,
        draft: Path | None = None,
        mmproj: Path | bool | None = None,
        gpu_layers: int | Literal["all", "auto"] | None = None,
        lora: Lora | Mapping[str, Lora] | None = None,
        download: bool = True,
        offline: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def loras(self) -> list[str]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...
    def load_lora(self, name: str, path: Path, *, scale: float = 1.0) -> None: ...
    def unload_lora(self, name: str) -> None: ...
    def complete(self, prompt: str, **params: Unpack[Params]) -> Answer: ...
    def stream(self, prompt: str, **params: Unpack[Params]) -> Stream: ...
    def batch(self, prompts: Sequence[str], **params: Unpack[Params]) -> list[Answer | RequestError]: ...
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> Answer: ...
    def chat_stream(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> Stream: ...
    def chat_batch(
        self,
        conversations: Sequence[str | Sequence[Message]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> list[Answer | RequestError]: ...
    def embed(self, texts: str | Sequence[str]) -> npt.NDArray[np.float32]: ...
    def rerank(self, query: str, documents: Sequence[str]) -> npt.NDArray[np.float32]: ...
    def decide(
        self,
        state: str | Mapping[str, Any] | Sequence[Any],
        questions: Mapping[str, Question],
        *,
        permutations: int = 1,
        temperature: float = 1.0,
        timeout: float | None = None,
    ) -> dict[str, Decision]: ...
    def logits(self, prompt: str | Sequence[int]) -> npt.NDArray[np.float32]: ...
    def save_session(self, path: Path, tokens: Sequence[int]) -> int: ...
    def restore_session(self, path: Path) -> list[int]: ...
    def tokenize(self, text: str, *, special: bool = True) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int]) -> str: ...
    def render_chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str: ...
