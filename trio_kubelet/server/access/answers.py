"""Answers of the API server that hold for a while: who wants one that is under way waits for it.

Errors are kept by nobody. The table is bounded: what was used least recently goes first.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio
from attrs import define, field, frozen

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ANSWERS = 4096


@frozen
class Answer(Generic[V]):
    """An answer, and for how many seconds it holds."""

    value: V
    seconds: float


@define
class _Asking(Generic[V]):
    """A question under way. Cancelled, it ends with neither answer nor error."""

    ended: trio.Event = field(factory=trio.Event)
    answer: Answer[V] | None = None
    error: Exception | None = None


class Answers(Generic[K, V]):
    """Answers by what was asked."""

    def __init__(self, max_answers: int = MAX_ANSWERS) -> None:
        self._max_answers = max_answers
        self._kept: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._asking: dict[K, _Asking[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[Answer[V]]]) -> V:
        """The answer that holds, or that of `ask`; raises what that raises."""
        while True:
            if key in self._kept:
                value, until = self._kept[key]
                if trio.current_time() < until:
                    self._kept.move_to_end(key)
                    return value
            asking = self._asking.get(key)
            if asking is None:
                return await self._ask(key, ask)
            await asking.ended.wait()
            if asking.answer is not None:
                return asking.answer.value
            if asking.error is not None:
                raise asking.error

    async def _ask(self, key: K, ask: Callable[[], Awaitable[Answer[V]]]) -> V:
        asking = self._asking[key] = _Asking[V]()
        try:
            asking.answer = answer = await ask()
        except Exception as error:
            asking.error = error
            raise
        finally:
            del self._asking[key]
            asking.ended.set()
        self._kept[key] = answer.value, trio.current_time() + answer.seconds
        self._kept.move_to_end(key)
        while len(self._kept) > self._max_answers:
            self._kept.popitem(last=False)
        return answer.value
