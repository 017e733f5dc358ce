"""Asking the API server for what pods refer to, with patience for an authorizer that lags behind.

The Node authorizer lets a node see an object once it knows of a pod here that refers to it. It
may learn that a moment later than the node does: a 403 that soon after is nobody's fault.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio

from trio_kubelet.k8s.client import ApiError

R = TypeVar("R")

LAG_SECONDS = 5.0
"""How long a refusal right after a pod's arrival is taken for the authorizer's lag."""

ANSWER_SECONDS = 10.0
"""How long one answer may take: a pod waits, and the next attempt may find a better connection."""

_FIRST_PAUSE_SECONDS = 0.05
_GROWTH = 1.5
_LONGEST_PAUSE_SECONDS = 15.0
_JITTER = 0.25


async def ask(request: Callable[[], Awaitable[R]]) -> R:
    """Return the answer to a request; one that is refused is repeated for LAG_SECONDS.

    Raises ApiError.
    """
    deadline = trio.current_time() + LAG_SECONDS
    pauses_between = pauses()
    while True:
        try:
            return await request()
        except ApiError as error:
            left = deadline - trio.current_time()
            if not is_lag(error) or left <= 0:
                raise
        await trio.sleep(min(next(pauses_between), left))


def is_lag(error: ApiError) -> bool:
    """Return whether an error may only say that the server does not know yet of the pod."""
    about_pod = error.is_not_found and error.details.get("kind") == "pods"
    return error.is_forbidden or about_pod


def pauses() -> Iterator[float]:
    """The seconds between attempts, growing, for ever; never the same for two who began at once."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - it only spreads load
        pause = min(_GROWTH * pause, _LONGEST_PAUSE_SECONDS)
