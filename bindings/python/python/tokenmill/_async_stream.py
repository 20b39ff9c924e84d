"""`async for` over a stream, and `await` of its answer.

The engine computes on threads of its own, so only the wait has to leave the event loop. Each stream
that is waited for takes a thread of a pool; streams beyond its size wait for their turn and lose nothing.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ._native import Answer, Piece, Stream

_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tokenmill")


async def _waited(stream: Stream, call: Callable[..., Any], *arguments: Any) -> Any:
    """Waits for a call on a thread of the pool. A task that is cancelled meanwhile ends the generation."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(_THREADS, call, *arguments)
    except asyncio.CancelledError:
        stream.cancel()
        raise


async def answer_of(stream: Stream) -> Answer:
    """The whole answer of a stream."""
    return await _waited(stream, stream.answer)


class AsyncStream:
    """The pieces of a stream, for `async for`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        piece = await _waited(self._stream, next, self._stream, None)
        if piece is None:
            raise StopAsyncIteration
        return piece
