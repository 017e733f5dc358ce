"""What must be true of the claims of a DRA driver, whatever goes wrong with agent and driver.

A claim is prepared before a container starts that uses it, and the container has its devices; it is
unprepared after the last container of the pods that use it has ended; what was answered well is
undone before it is asked for again by the same agent, and one call for a claim is made at a time.
"""

from collections.abc import Callable, Collection, Iterator

import trio
from attrs import define, field

from tests.simulation.node import Node
from tests.simulation.record import Kind, Life, Record
from tests.simulation.shapes import DRA_DRIVER
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.k8s import PODS, RESOURCE_CLAIMS, TERMINAL_PHASES


def device_of(uid: str) -> str:
    """The CDI device that the driver prepares for a claim."""
    return f"{DRA_DRIVER}/claim={uid}"


@define(eq=False)
class ClaimRules:
    """Watches the driver of one node, which tells of each call, and just before its effect.

    `prepared` is the driver's own table. `violated` is called with the words of what must not be.
    """

    node: Node
    record: Record
    violated: Callable[..., None]
    prepared: set[str] = field(factory=set)
    _answers: dict[str, tuple[int, float]] = field(factory=dict)
    """By UID: the agent that has a good answer, and since when; until the next call about it."""
    _calls: dict[str, tuple[int, str]] = field(factory=dict)
    """By UID: the agent whose call is under way, and which."""

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Observer of the runtime's events: a container starts with all that it claims."""
        pod = sandbox.config.metadata.uid
        wanted = self.record.wanted.get(pod)
        is_start = kind == Kind.CONTAINER_STARTED_EVENT and container_id != sandbox.id
        if wanted is None or not is_start:
            return
        config = sandbox.containers[container_id].config
        has = {each.name for each in config.cdi_devices}
        for name in wanted.shape.resource_claims:
            claim = self.node.api.get(RESOURCE_CLAIMS, name).metadata.uid
            what = config.metadata.name
            if claim not in self.prepared:
                self.violated(what, "of pod", pod, "started, and", name, "is not prepared")
            is_user = what in wanted.shape.regular_names
            if is_user is not (device_of(claim) in has):
                self.violated(what, "of pod", pod, "started with the devices", *sorted(has))

    def on_call(self, what: str, uids: Collection[str]) -> None:
        """The driver is asked to prepare claims, or to undo that."""
        for uid in uids:
            life, other = self._calls.get(uid, (0, ""))
            if life == self.node.lives:
                self.violated("claim", uid, "is to be", what, "while it is", other)
            self._calls[uid] = self.node.lives, what

    def on_call_ended(self, uids: Collection[str]) -> None:
        """A call is over, or its caller has gone."""
        for uid in uids:
            self._calls.pop(uid, None)

    def on_prepare(self, uid: str) -> None:
        """A claim is not prepared again if the agent knows that it is."""
        self.record.note("driver prepares", uid)
        life, since = self._answers.pop(uid, (0, 0.0))
        if uid in self.prepared and life == self.node.lives and trio.current_time() > since:
            self.violated("claim", uid, "is prepared twice")
        self.prepared.add(uid)

    def on_answer(self, uid: str) -> None:
        """The agent has a good answer, unless it has been killed meanwhile."""
        self._answers[uid] = self.node.lives, trio.current_time()

    def on_unprepare(self, uid: str) -> None:
        """A claim is unprepared after the containers of its pods have ended."""
        self.record.note("driver unprepares", uid)
        self._answers.pop(uid, None)
        self.prepared.discard(uid)
        for life in self._running(uid):
            self.violated("claim", uid, "is unprepared, and", life.name, "of", life.uid, "runs")

    def lose_power(self) -> None:
        """Nothing is prepared after a boot."""
        self.prepared.clear()
        self._answers.clear()
        self._calls.clear()

    def leftovers(self) -> Iterator[str]:
        """What is prepared still, of which no pod has a need."""
        shown = {each.metadata.uid: each.status.phase for each in self.node.api.all(PODS)}
        needed = {
            name
            for uid, wanted in self.record.wanted.items()
            if not wanted.deleted and shown.get(uid) not in TERMINAL_PHASES
            for name in wanted.shape.resource_claims
        }
        for claim in self.node.api.all(RESOURCE_CLAIMS):
            if claim.metadata.uid in self.prepared and claim.metadata.name not in needed:
                yield f"claim {claim.metadata.name} is prepared, and no pod uses it"

    def _running(self, uid: str) -> Iterator[Life]:
        """The containers that have the devices of a claim."""
        for lives in self.record.lives.values():
            for life in lives.values():
                has = (each.name for each in life.container.config.cdi_devices)
                if (
                    life.started_at is not None
                    and life.ended_at is None
                    and not life.removed
                    and life.container.id not in self.record.lost
                    and device_of(uid) in has
                ):
                    yield life
