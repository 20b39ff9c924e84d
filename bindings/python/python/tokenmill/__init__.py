"""Run quantized language models in the process: GGUF and safetensors, on the CPU or an NVIDIA GPU.

    from tokenmill import Model

    model = Model("demo")
    print(model.complete("Once upon a time", max_tokens=16).text)
"""

from ._native import (
    Answer,
    Decision,
    Error,
    LoadError,
    Model,
    Piece,
    RequestError,
    ScoredToken,
    Stream,
    ToolCall,
    Usage,
    __version__,
)

__all__ = [
    "Answer",
    "Decision",
    "Error",
    "LoadError",
    "Model",
    "Piece",
    "RequestError",
    "ScoredToken",
    "Stream",
    "ToolCall",
    "Usage",
    "__version__",
]
