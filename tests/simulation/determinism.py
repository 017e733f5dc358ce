"""What makes a run repeat itself: all chance from one seed, the work of threads done in place.

Trio runs ready tasks in random order; here that order comes from the seed, so every seed is
another interleaving. Threads would end when the machine likes: file work is done in the calling
task, after some milliseconds of simulated time in which others run (`tests/file_work.py`).
Calls have their deadlines by the run's clock. Nothing here depends on the machine's speed or cores,
nor on where in memory an object lies. The order of a set of texts is that of the process's hash
seed, which `nox -s tests` and `python -m tests.simulation` fix.
"""

import itertools
import os
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import grpclib.client
import grpclib.metadata
import grpclib.protocol
import grpclib.server
import structlog
import trio
from trio._core import _run

from tests.file_work import in_place
from trio_kubelet.agent import cluster
from trio_kubelet.agent import start as agent
from trio_kubelet.rpc import server as rpc_server

READ_THE_SYSTEMS_CLOCK = (
    grpclib.client,
    grpclib.metadata,
    grpclib.protocol,
    grpclib.server,
    rpc_server,
)
"""Modules that compute the deadlines of calls with `time.monotonic`, and use nothing else of it."""

CANCELLED_FROM_SETS: tuple[type, ...] = (_run.Task, _run.CancelStatus, grpclib.server.Handler)
"""Classes of objects that trio and grpclib keep in sets, and cancel in the order of the set."""

LONGEST_FILE_WORK_SECONDS = 0.02
HASH_SEED = "0"


class _Chance(random.Random):
    """A source of chance that, where it is given no seed, takes one from the run's."""

    def __init__(self, x: int | None = None) -> None:
        super().__init__(random.getrandbits(64) if x is None else x)


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """While this is held, `trio.run` with a mock clock always takes the same course."""
    before = random.getstate()
    logging = structlog.get_config()
    with ExitStack() as stack:
        stack.callback(random.setstate, before)
        stack.callback(lambda: structlog.configure(**logging))
        stack.enter_context(patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True))
        stack.enter_context(in_place(lambda: random.uniform(0.0, LONGEST_FILE_WORK_SECONDS)))
        # Whether a turn is long is the machine's affair; `tests/turns.py` sees to it.
        stack.enter_context(patch.object(agent, "metered", nullcontext))
        stack.enter_context(patch.object(os, "cpu_count", new=lambda: 2))
        clock = SimpleNamespace(monotonic=trio.current_time)
        for module in READ_THE_SYSTEMS_CLOCK:
            stack.enter_context(patch.object(module, "time", clock))
        for kind in CANCELLED_FROM_SETS:
            stack.enter_context(_numbered(kind))
        random.seed(seed)
        stack.enter_context(patch.object(random, "Random", new=_Chance))
        stack.enter_context(patch.object(secrets, "randbits", new=random.getrandbits))
        cluster.CHANCE.seed(seed)
        _run._r.seed(seed)  # not exported; trio hands it to Hypothesis for the same purpose
        yield


@contextmanager
def _numbered(kind: type) -> Iterator[None]:
    """While this is held, new objects of a class are hashed by when they were made.

    Otherwise the order of a set of them is that of their addresses.
    """
    numbers: dict[int, int] = {}
    count = itertools.count()
    make: Callable[..., None] = vars(kind)["__init__"]

    def numbered(self: object, *args: object, **options: object) -> None:
        numbers[id(self)] = next(count)
        make(self, *args, **options)

    with (
        patch.object(kind, "__init__", new=numbered),
        patch.object(kind, "__hash__", new=lambda self: numbers[id(self)]),
    ):
        yield
