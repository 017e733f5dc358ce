"""Asking the API server for what pods refer to, with patience for an authorizer that lags behind.

The Node authorizer lets a node see an object once it knows of a pod here that refers to it. It
may learn that a moment later than the node does: a 403 that soon after is nobody's fault.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.retries import Retries

R = TypeVar("R")

LAG_SECONDS = 5.0
"""How long a refusal right after a pod's arrival is taken for the authorizer's lag."""

ANSWER_SECONDS = 10.0
"""How long one answer may take: a pod waits, and the next attempt may find a better connection."""

RETRY = BackoffPolicy(initial_seconds=0.04, cap_seconds=12.0, growth=1.5, jitter=0.5)


async def ask(request: Callable[[], Awaitable[R]]) -> R:
    """Return the answer to a request; one that is refused is repeated for LAG_SECONDS.

    Raises ApiError.
    """
    deadline = trio.current_time() + LAG_SECONDS
    retries = Retries(RETRY)
    while True:
        try:
            return await request()
        except ApiError as error:
            left = deadline - trio.current_time()
            if not is_lag(error) or left <= 0:
                raise
        await trio.sleep(min(retries.next_seconds(), left))


def is_lag(error: ApiError) -> bool:
    """Return whether an error may only say that the server does not know yet of the pod."""
    about_pod = error.is_not_found and error.details.get("kind") == "pods"
    return error.is_forbidden or about_pod
