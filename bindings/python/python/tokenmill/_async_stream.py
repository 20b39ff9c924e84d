"""`async for` over a stream.

The engine computes on threads of its own, so only the wait for the next piece has to leave the event loop. Each stream
that is waited for takes a thread of a pool; streams beyond its size wait for their turn and lose nothing.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import Piece, Stream

_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tokenmill")


class AsyncStream:
    """The pieces of a stream, for `async for`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        loop = asyncio.get_running_loop()
        try:
            piece = await loop.run_in_executor(_THREADS, next, self._stream, None)
        except asyncio.CancelledError:
            self._stream.cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece
