"""The shares of the node for probes and hooks: connections, and time of the event loop.

What a container answers costs the node more than the container: a frame of nine bytes is 40
microseconds of the event loop. So the work that answers make is counted, by what it took or is
known to cost, and a pod whose probes have used up what is theirs waits before its next ones run. So
do the pods of a namespace that has used up its own, and they take turns: a tenant may have many
pods. Others do not notice.

Runs that are under way already may all be answered in the same moment. So what is received is taken
piece by piece, a few in each round of the event loop, namespaces in turns; and where pieces have
cost far more than there was, the next ones wait, too, while the time of their run goes on.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

import structlog
import trio
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import Container
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.turns import Turn, Turns

log = structlog.get_logger("probes")

SHARE = 0.05
"""Of a processor, for one pod; two hundred ordinary probes a second take half of it."""
SAVED_SECONDS = 0.5
"""The time that a pod may use at once after it has used nothing."""
NAMESPACE_SHARE = 0.25
NAMESPACE_SAVED_SECONDS = 1.0
"""For all pods of a namespace: five that use up theirs, or 500 ordinary probes a second."""
READ_SECONDS = 30e-6
LINE_SECONDS = 5e-6
PIECE_SECONDS = 15e-6
REDIRECT_SECONDS = 2e-3
"""Another connection, perhaps with another handshake."""
BYTE_SECONDS = 10e-9
RUN_SECONDS = 500e-6
"""A run itself: a connection, or a call of the runtime, and what follows from its result."""
CONNECTIONS = 2048
CONNECTIONS_OF_A_NAMESPACE = 512
CONNECTIONS_OF_A_POD = 64
"""Of probes, at a time: each takes a descriptor, and some ten KiB over TLS."""


_LESS_OF_POD = "answers to probes cost too much, running probes of the pod less often"
_LESS_OF_NAMESPACE = "answers to probes cost too much, running probes of the namespace less often"


class _Budget:
    """Seconds of work: they come with the time, and may be used up before they have come.

    Whoever waits for them stands in a line, owners in turns; `words` say so, once a minute.
    """

    __slots__ = (
        "_complaints",
        "_filled_at",
        "_left_seconds",
        "_most",
        "_pieces",
        "_runs",
        "_share",
        "_words",
    )

    def __init__(self, share: float, most_seconds: float, words: str) -> None:
        self._share = share
        self._left_seconds = self._most = most_seconds
        self._filled_at: float | None = None
        self._runs, self._pieces = FairLimiter(1, 1), FairLimiter(1, 1)
        self._complaints = Retries(BackoffPolicy(initial_seconds=1.0, cap_seconds=1.0))
        self._words = words

    def use(self, seconds: float) -> None:
        """Count work that was done."""
        self._left_seconds -= seconds

    async def wait_for_run(self, owner: str) -> None:
        """Return when something is left, and it is the owner's turn; count a run."""
        await self._wait(self._runs, owner, 0.0)
        self.use(RUN_SECONDS)

    async def wait_for_piece(self, owner: str) -> None:
        """Return when little more is used than there was, and it is the owner's turn."""
        await self._wait(self._pieces, owner, self._most)

    @property
    def is_in_debt(self) -> bool:
        """True if so much more is used than there was that pieces wait."""
        return self._wait_seconds(self._most) > 0.0

    async def _wait(self, line: FairLimiter, owner: str, debt_seconds: float) -> None:
        if line.held or self._wait_seconds(debt_seconds) > 0.0:
            self._complaints.warn(log, self._words)
            async with line.share(owner):
                await trio.sleep(self._wait_seconds(debt_seconds))

    def _wait_seconds(self, debt_seconds: float) -> float:
        """The time until no more is used than there was and this debt; zero if that is so."""
        now = trio.current_time()
        passed = max(0.0, now - self._filled_at) if self._filled_at is not None else 0.0
        self._left_seconds = min(self._most, self._left_seconds + passed * self._share)
        self._filled_at = now
        return max(0.0, -(self._left_seconds + debt_seconds) / self._share)


class NamespaceShare:
    """The share of the pods of one namespace."""

    def __init__(self) -> None:
        self.budget = _Budget(NAMESPACE_SHARE, NAMESPACE_SAVED_SECONDS, _LESS_OF_NAMESPACE)


class ProbeShare:
    """The share of one pod, whose `uid` and `namespace` these are, in that of its namespace.

    `turn` waits for a turn of the namespace in a round of the event loop, `connections` are the
    pod's slots for runs that have one.
    """

    def __init__(
        self,
        uid: str = "",
        namespace: str = "",
        shared: NamespaceShare | None = None,
        turn: Turn = trio.lowlevel.checkpoint,
        connections: FairLimiter | None = None,
    ) -> None:
        self.uid = uid
        self.namespace = namespace
        self.turn = turn
        self.connections: Share = (connections or _connections()).share_of(self)
        self._budget = _Budget(SHARE, SAVED_SECONDS, _LESS_OF_POD)
        self._shared = shared or NamespaceShare()

    def use(self, seconds: float) -> None:
        """Count work that was done for the pod."""
        self._budget.use(seconds)
        self._shared.budget.use(seconds)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work for the pod in the block, which does not wait; its CPU time is counted."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.use(time.thread_time() - began)

    async def wait(self) -> None:
        """Return when the pod may run a probe, and count the run. Cancelled, nothing has changed.

        That is when neither the pod nor its namespace has used up its share.
        """
        await self._budget.wait_for_run("")
        await self._shared.budget.wait_for_run(self.uid)
        await self.turn()

    async def wait_for_piece(self) -> None:
        """Return when the pod may take the next piece of what has come, in this round of the loop.

        Ordinary pieces of runs under way do not wait for those that are to begin: that would make
        probes late of which there are only many.
        """
        budgets = (self._budget, self._shared.budget)
        while True:
            await self._budget.wait_for_piece("")
            await self._shared.budget.wait_for_piece(self.uid)
            await self.turn()
            # Hundreds may have come here together, and those before this one have done their work.
            if not any(budget.is_in_debt for budget in budgets):
                return


class ProbeShares:
    """The shares of all pods. Pod and namespace cost nothing once nobody has the pod's share."""

    def __init__(self) -> None:
        self._namespaces = WeakValueDictionary[str, NamespaceShare]()
        self._pods = WeakValueDictionary[str, ProbeShare]()
        self._turns = Turns()
        self._connections = _connections()

    async def give_turns(self) -> None:
        """Let pods take what has come for them, until cancelled."""
        await self._turns.give()

    def of(self, uid: str, namespace: str) -> ProbeShare:
        """The share of a pod, the same for all who ask while one of them has it."""
        share = self._pods.get(uid)
        if share is None:
            shared = self._namespaces.get(namespace)
            if shared is None:
                shared = self._namespaces[namespace] = NamespaceShare()
            turn = partial(self._turns.wait, namespace)
            share = ProbeShare(uid, namespace, shared, turn, self._connections)
            self._pods[uid] = share
        return share


def _connections() -> FairLimiter:
    return FairLimiter(CONNECTIONS, CONNECTIONS_OF_A_NAMESPACE, CONNECTIONS_OF_A_POD)


@frozen(kw_only=True)
class Target:
    """Whom a probe asks: an instance of a container, with the address and share of its pod."""

    container: Container
    container_id: str
    pod_ip: str
    share: ProbeShare
