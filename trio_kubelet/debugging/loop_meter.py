"""The holders of the event loop: turns of tasks that use the processor for long.

All pods share one event loop. While a task has its turn, from one `await` that waits to the next,
nobody else has theirs; so what holds up a probe or a heartbeat is found in the turn before it. The
meter notes each turn with more than `LONG_SECONDS` of CPU time of the loop's thread, with the task
and the pod that it works for. Waiting for a processor, or for the interpreter's lock, is
no use of the CPU: a busy machine makes no turn long.

To be cheap the meter reads the thread's CPU time, which is a system call, only every few
milliseconds: a turn's figure may have up to `PRECISION_SECONDS` of the turns before it. It costs
less than a microsecond a turn (docs/benchmarks.md).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import structlog
import trio
from attrs import asdict, frozen

from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ADMIN, Route
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("loop")

LONG_SECONDS = 0.05
"""So long nobody is held up who could tell; probes have timeouts of a second and more."""
PRECISION_SECONDS = 0.005
KEPT_TURNS = 200
LOG_SECONDS = 1.0


@frozen(kw_only=True)
class LongTurn:
    """A turn of a task; `pod` is `namespace/name`, or empty where it works for no pod."""

    time_ns: int
    task: str
    pod: str
    cpu_seconds: float


class LoopMeter(trio.abc.Instrument):
    """An instrument of the run that it is added to; one meter for one run.

    `on_long_turn` is called after each long turn, in the event loop.
    """

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.on_long_turn: Callbacks[[LongTurn]] = Callbacks()
        self._now_ns = now_ns
        self._kept: deque[LongTurn] = deque(maxlen=KEPT_TURNS)
        self._count = 0
        self._task: trio.lowlevel.Task | None = None
        self._began = self._read_at = time.perf_counter()
        self._cpu = time.thread_time()

    @property
    def count(self) -> int:
        """The number of long turns."""
        return self._count

    @property
    def kept(self) -> Sequence[LongTurn]:
        """The last of them, oldest first."""
        return tuple(self._kept)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """The turn of the task before has ended by now. Called for each turn: it must be cheap."""
        now = time.perf_counter()
        if now - self._read_at > PRECISION_SECONDS:
            self._read(now)
        self._began = now
        self._task = task

    def _read(self, now: float) -> None:
        before, self._cpu = self._cpu, time.thread_time()
        self._read_at = now
        used = self._cpu - before
        # The wall clock never shows less than the CPU's: a turn that was short by it was short.
        if used > LONG_SECONDS < now - self._began and self._task is not None:
            self._note(self._task, used)

    def _note(self, task: trio.lowlevel.Task, cpu_seconds: float) -> None:
        pod = task.context.run(structlog.contextvars.get_contextvars).get("pod", "")
        turn = LongTurn(
            time_ns=self._now_ns(), task=task.name, pod=str(pod), cpu_seconds=cpu_seconds
        )
        self._count += 1
        self._kept.append(turn)
        self.on_long_turn.call(turn)


class LongTurnLog:
    """Logs long turns, `LOG_SECONDS` apart at least: a task may hold the loop again and again."""

    def __init__(self) -> None:
        self._unlogged = 0
        self._logged_at_ns: int | None = None

    def take(self, turn: LongTurn) -> None:
        """Log a turn, or count it for the next line."""
        before = self._logged_at_ns
        if before is not None and 0 <= turn.time_ns - before < LOG_SECONDS * 1e9:
            self._unlogged += 1
            return
        self._logged_at_ns = turn.time_ns
        facts = {"pod": turn.pod} if turn.pod else {}
        log.warning(
            "event loop held by one task",
            task=turn.task,
            cpu_ms=round(1000 * turn.cpu_seconds),
            unlogged=self._unlogged,
            **facts,
        )
        self._unlogged = 0


@contextmanager
def metered(meter: LoopMeter) -> Iterator[None]:
    """Meter the run of the calling task until the end of the block."""
    trio.lowlevel.add_instrument(meter)
    try:
        yield
    finally:
        with suppress(KeyError):  # trio has removed an instrument that raised.
            trio.lowlevel.remove_instrument(meter)


def turn_routes(meter: LoopMeter) -> Sequence[Route]:
    """`/debug/turns`: how many long turns there were, and the last of them."""

    async def show(_request: Request) -> Response:
        turns = [asdict(turn) for turn in meter.kept]
        body = dumps({"longerThanSeconds": LONG_SECONDS, "count": meter.count, "turns": turns})
        return Response(content_type="application/json", body=body)

    return (Route("GET", "/debug/turns", show, ADMIN),)
