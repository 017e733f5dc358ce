"""A queue of keys, worked on by a few workers at a time, and never one key by two of them.

The keys have owners, such as the namespaces of pods, which take turns.

For work that brings something outside into line: the work finds what is to be done for a key,
does it, and says whether and when the key is to be tried again. A key that is added while it
waits is there once; one that is added while it is worked on is worked on once more. What has to
wait because nobody answers outside (`Retry.until_reachable`) is tried as soon as somebody got an
answer and says so (`answered`); meanwhile only one of those keys is tried, in place of all.
"""

from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.turns import TurnQueue

log = structlog.get_logger("work")

BUG_RETRY = BackoffPolicy(initial_seconds=10.0, cap_seconds=300.0, jitter=0.2)
NEVER = float("inf")


@frozen(kw_only=True)
class Retry:
    """Try again by this policy, or (`until_reachable`) once anybody gets an answer.

    `at_least_seconds` is what the other side asked for. `until_added`: or once the key is added.
    """

    policy: BackoffPolicy
    at_least_seconds: float | None = None
    until_reachable: bool = False
    until_added: bool = False


Work = Callable[[str], Awaitable[Retry | None]]
"""Does what there is to do for a key; None when all is done."""


class WorkQueue:
    """`add` and `answered` are plain functions; `run` works until it is cancelled.

    Cancelling cancels the work in flight; keys stay in the queue for a next `run`.
    """

    def __init__(
        self,
        work: Work,
        *,
        workers: int,
        name: str,
        owner_of: Callable[[str], str] = lambda _key: "",
    ) -> None:
        self._work = work
        self._owner_of = owner_of
        self._workers = workers
        self._name = name
        self._ready: set[str] = set()
        self._line = TurnQueue[str]()
        """Those that are ready."""
        self._due: dict[str, float] = {}
        self._retries: dict[str, Retries] = {}
        self._for_answers: dict[str, None] = {}
        self._until_added: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._wake = trio.Event()

    def add(self, key: str) -> None:
        """Work on the key: now, after the work on it that goes on, or when its delay is over."""
        if key in self._until_added:
            self._until_added.discard(key)
            del self._due[key]
        if key in self._busy:
            self._again.add(key)
        elif key not in self._due and key not in self._ready:
            self._stand_in_line(key)
            self._wake.set()

    def answered(self) -> None:
        """The other side answers: what waits for that waits no longer."""
        if not self._for_answers:
            return
        for key in self._for_answers:
            del self._due[key]
            self._stand_in_line(key)
        self._for_answers.clear()
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work for ever."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                next_due = self._take_what_is_due()
                while self._ready and len(self._busy) < self._workers:
                    key = self._line.take()
                    self._ready.discard(key)
                    self._busy.add(key)
                    nursery.start_soon(self._work_on, key, name=f"{self._name} {key}")
                with trio.move_on_at(next_due):
                    await self._wake.wait()

    def _stand_in_line(self, key: str) -> None:
        if key not in self._ready:
            self._ready.add(key)
            self._line.put(self._owner_of(key), key)

    def _take_what_is_due(self) -> float:
        """Move on what has waited long enough; when the next one has, in trio's clock."""
        now = trio.current_time()
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            self._for_answers.pop(key, None)
            self._until_added.discard(key)
            self._stand_in_line(key)
        return min(self._due.values(), default=NEVER)

    async def _work_on(self, key: str) -> None:
        try:
            retry = await self._work(key)
        except Exception:
            log.exception("work item failed, will retry", work=self._name, key=key)
            retry = Retry(policy=BUG_RETRY)
        except BaseException:  # cancelled: for the next run
            self._busy.discard(key)
            self._again.discard(key)
            self._stand_in_line(key)
            raise
        self._busy.discard(key)
        self._settle(key, retry)
        self._wake.set()

    def _settle(self, key: str, retry: Retry | None) -> None:
        added_meanwhile = key in self._again
        self._again.discard(key)
        if retry is None:
            self._retries.pop(key, None)
        elif not (added_meanwhile and retry.until_added):
            retries = self._retries.setdefault(key, Retries(retry.policy))
            seconds = retries.next_seconds(at_least=retry.at_least_seconds, policy=retry.policy)
            self._due[key] = trio.current_time() + seconds
            if retry.until_added:
                self._until_added.add(key)
        if added_meanwhile and key not in self._due:
            self._stand_in_line(key)
        if retry is not None and retry.until_reachable:
            if self._is_any_tried():
                self._due[key] = NEVER
            self._for_answers[key] = None
        elif self._for_answers and not self._is_any_tried():
            self._due[next(iter(self._for_answers))] = trio.current_time()

    def _is_any_tried(self) -> bool:
        """True if a key that waits for an answer will be tried without one."""
        return any(self._due[key] < NEVER for key in self._for_answers)
