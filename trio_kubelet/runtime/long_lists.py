"""Lists that may be longer than runtimes send (16 MiB): those are asked for in parts.

With the feature gate CRIListStreaming a runtime that can sends them in many messages (KEP-5825).
A tenant can make a list long: labels and annotations of a pod are in the entries of its sandboxes,
and paths in those of its containers. Whoever needs the list must not go without it.
"""

from collections.abc import Awaitable, Callable

import structlog

from trio_kubelet.rpc import Code, RpcError

log = structlog.get_logger("runtime")

SHORT_LIST_BYTES = 8 << 20
"""A list that has become as short is asked for as a whole again."""


MOST_STREAMED_BYTES = 256 << 20
"""Of a list that comes in many messages."""


class ListStream:
    """Remembers whether the runtime sends a list in many messages, where that `is_wanted`."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_used = is_wanted

    async def ask(
        self, streamed: Callable[[], Awaitable[bytes]], listed: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the list as the runtime encodes it, from now on `listed` if it has no stream.

        Raises RpcError: a stream that breaks is no list.
        """
        if self._is_used:
            try:
                return await streamed()
            except RpcError as error:
                if error.code is not Code.UNIMPLEMENTED:
                    raise
                log.info("runtime does not stream this list", error=error.message)
                self._is_used = False
        return await listed()


class LongList:
    """Remembers of a list whether it is too long; `words` are logged when it becomes so."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._is_long = False

    async def ask(
        self, whole: Callable[[], Awaitable[bytes]], parts: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the list as the runtime encodes it, asked for as a whole or in parts.

        Lists behind one another are a list that has the entries of all. Raises RpcError.
        """
        if not self._is_long:
            try:
                return await whole()
            except RpcError as error:
                if error.code is not Code.RESOURCE_EXHAUSTED:
                    raise
        answer = await parts()
        is_long = len(answer) > SHORT_LIST_BYTES
        if is_long and not self._is_long:
            log.warning(self._words, size_bytes=len(answer))
        self._is_long = is_long
        return answer
