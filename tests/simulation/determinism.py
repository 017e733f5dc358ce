"""What makes a run repeat itself: all chance from one seed, the work of threads done in place.

Trio runs ready tasks in random order; here that order comes from the seed, so every seed is
another interleaving. Threads would end when the machine likes: file work is done in the calling
task, after some milliseconds of simulated time in which others run (`tests/file_work.py`).
Nothing here depends on the machine's speed or cores. The order of a set of texts is that of the
process's hash seed, which `nox -s tests` and `python -m tests.simulation` fix.
"""

import os
import random
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import structlog
from trio._core import _run

from tests.file_work import in_place
from trio_kubelet.agent import cluster
from trio_kubelet.agent import start as agent

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
        random.seed(seed)
        stack.enter_context(patch.object(random, "Random", new=_Chance))
        stack.enter_context(patch.object(secrets, "randbits", new=random.getrandbits))
        cluster.CHANCE.seed(seed)
        _run._r.seed(seed)  # not exported; trio hands it to Hypothesis for the same purpose
        yield
