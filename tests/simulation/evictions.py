"""Rules about a node's pressures, and about the pods that go or are kept away for them.

The rules compare what the agent observes and says with the load of the machine (`load.py`), which
they know at any time. What changed while the agent was measuring may have been seen or not.
"""

import re
from collections.abc import Callable, Iterator

import trio
from attrs import define, field, frozen

from tests.simulation.load import (
    HARD_MEMORY,
    SOFT_GRACE_SECONDS,
    SOFT_MEMORY,
    Limit,
    Load,
)
from tests.simulation.node import Node
from tests.simulation.record import Eviction, Record, Wanted
from trio_kubelet.config.eviction import Resource
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.k8s import (
    PODS,
    TERMINAL_PHASES,
    NodeConditionType,
    Pod,
    PodQOSClass,
    Quantity,
)
from trio_kubelet.k8s.codec import decode
from trio_kubelet.pod_source import SYSTEM_CRITICAL_PRIORITY
from trio_kubelet.resources import pod_requests, qos_class
from trio_kubelet.telemetry.events import RecordedEvent

EVICTED = "Evicted"
KEPT_AWAY = "The node had condition: "
SHOWN = (
    (NodeConditionType.MEMORY_PRESSURE, "memory"),
    (NodeConditionType.DISK_PRESSURE, "disk"),
    (NodeConditionType.PID_PRESSURE, "pid"),
)
TRANSITION_SECONDS = 300.0
LONGEST_UNOBSERVED_SECONDS = 35.0
"""The longest time between two observations: ten seconds, and the patience of one with disks."""
MEASUREMENT_SECONDS = 31.0
"""The longest time that pods are measured before a decision."""
WALK_SECONDS = 90.0
"""The age of what is known of the files of pods."""
OWN_FILES = {Resource.STORAGE: 1 << 20, Resource.INODES: 100}
"""The most that a pod uses beside its containers' layers: its volumes' files, and its logs."""
LATE_SECONDS = 30.0
DISKS_LATE_SECONDS = 120.0
"""The time beyond its grace after which a victim is not waited for any longer."""
DISKS = (Resource.STORAGE, Resource.INODES)
LEAST_GRACE_SECONDS = 2
"""The time that any container gets, however little is asked for: as in the Go kubelet."""
WRITE_SECONDS = 2.5
"""The time that the record of a decision may take, in which the node may be observed again."""
RECORD_SECONDS = 12.0
"""The age of the record of pressures that another agent finds, with the time to write it."""
JUMP_SECONDS = 6.0
"""The clock may be set back by so much without making a record useless."""
_STARVED = re.compile(r"The node was low on resource: ([a-z-]+)\. ")


@frozen(kw_only=True)
class _Observation:
    """The limits that were crossed when the agent observed the machine, or may have been."""

    at: float
    crossed: frozenset[Limit]
    soft_since: float


@define(eq=False)
class EvictionRules:
    """Watches the pressures of one node. Each method yields what is wrong."""

    record: Record
    node: Node | None = None
    on_eviction: Callable[[], None] = lambda: None
    """Called with each decision to evict a pod, before the agent acts on it."""
    _observations: list[_Observation] = field(factory=list)
    """The last ones of this agent, the newest last."""
    _shown_since: dict[NodeConditionType, float] = field(factory=dict)
    """By this agent, since when without a break."""
    _seen_at: dict[NodeConditionType, float] = field(factory=dict)
    """The start of the last observation that must have seen a crossing, as far as this agent can
    know of it."""
    _first_seen_at: dict[NodeConditionType, float] = field(factory=dict)
    """The first one of this agent without a break."""
    _perhaps_seen_at: dict[NodeConditionType, float] = field(factory=dict)
    """The end of the last observation of any agent that may have seen one."""
    _found: str = ""
    """The decisions that this agent has found on the disk."""
    _told: set[str] = field(factory=set)
    """The UIDs of the pods that this agent has evicted."""

    def observed(self, assessment: Assessment) -> Iterator[str]:
        """The agent has observed the node."""
        now, at = trio.current_time(), assessment.observed.at
        self._note_life()
        last_at = self._observations[-1].at if self._observations else at
        if at - last_at > LONGEST_UNOBSERVED_SECONDS:
            yield f"the node was not observed for {at - last_at:.0f} s"
        levels = self._load.levels
        crossed = {limit for limit, level in levels.items() if not level.was(crossed=False, at=at)}
        soft = levels[SOFT_MEMORY]
        soft_since = soft.since if soft.is_crossed else now
        observation = _Observation(at=at, crossed=frozenset(crossed), soft_since=soft_since)
        self._observations = [*self._observations[-20:], observation]
        for condition, name in SHOWN:
            is_shown = bool(getattr(assessment.pressures, name))
            yield from self._wrongly_shown(condition, at, is_shown=is_shown)
            if is_shown is not (condition in self._shown_since):
                self.record.pressure_changed_at = now
            if is_shown:
                self._shown_since.setdefault(condition, now)
            else:
                self._shown_since.pop(condition, None)

    def _wrongly_shown(
        self, condition: NodeConditionType, at: float, *, is_shown: bool
    ) -> Iterator[str]:
        levels = [
            level for limit, level in self._load.levels.items() if limit.condition is condition
        ]
        if any(level.was(crossed=True, at=at) for level in levels):
            self._seen_at[condition] = at
            self._first_seen_at.setdefault(condition, at)
        if not all(level.was(crossed=False, at=at) for level in levels):
            self._perhaps_seen_at[condition] = trio.current_time()
        seconds = at - self._seen_at.get(condition, float("-inf"))
        if seconds < TRANSITION_SECONDS and not is_shown:
            yield f"{condition} is not shown {seconds:.1f} s after it was crossed"
        if not is_shown:
            self._first_seen_at.pop(condition, None)
        perhaps_at = self._perhaps_seen_at.get(condition, float("-inf"))
        seconds = at - perhaps_at
        has_jumped = self.record.clock_jumped_at > perhaps_at  # The record goes by the time of day.
        if seconds > TRANSITION_SECONDS + JUMP_SECONDS * has_jumped and is_shown:
            yield f"{condition} is shown {seconds:.1f} s after it was crossed"

    def told(self, event: RecordedEvent) -> Iterator[str]:
        """The agent has recorded an event with the reason Evicted."""
        assert event.pod is not None
        self._note_life()
        if event.message.startswith(KEPT_AWAY):
            yield from self._kept_away(event.pod, event.message)
            return
        found = _STARVED.match(event.message)
        eviction = Eviction(
            at=trio.current_time(),
            resource=found[1] if found else "",
            message=event.message,
            agent_life=self.record.agent_life,
        )
        uid = event.pod.metadata.uid
        known = self.record.evictions.get(uid)
        self.record.evictions.setdefault(uid, eviction)
        self._told.add(uid)
        if known is None and uid in self._found:
            return  # It is the decision of an agent that was killed before it told of it.
        if known is not None and known.agent_life != self.record.agent_life:
            if known.message != event.message:
                yield f"pod {uid} was evicted for {known.message!r}, and now {event.message!r}"
            return
        if known is not None:
            yield f"pod {uid} was evicted twice"
        yield from self._wrong_victim(uid, eviction)
        self.on_eviction()

    def _wrong_victim(self, uid: str, eviction: Eviction) -> Iterator[str]:
        wanted = self.record.wanted.get(uid)
        if wanted is None:
            return
        if is_critical(wanted):
            yield f"pod {uid} is critical, and was evicted"
        if not eviction.resource:
            yield from self._within_own_limits(uid, wanted)
            return
        resource = Resource(eviction.resource)
        yield from self._without_need(uid, resource)
        yield from self._unfair(uid, wanted, resource)
        yield from self._too_soon(uid, eviction)

    def _without_need(self, uid: str, resource: Resource) -> Iterator[str]:
        """A pod goes for what the newest observation has found short, a soft limit for long."""
        now = trio.current_time()
        newest, earlier = self._observations[-1:], self._observations[:-1]
        recent = [*newest, *(each for each in earlier if now - each.at < WRITE_SECONDS)]
        short = {limit for each in recent for limit in each.crossed if limit.resource is resource}
        if not short:
            yield f"pod {uid} was evicted for {resource}, of which there was enough"
        since = min((each.soft_since for each in recent), default=now)
        is_late = now - since >= SOFT_GRACE_SECONDS
        if resource is Resource.MEMORY and HARD_MEMORY not in short and not is_late:
            yield f"pod {uid} was evicted {now - since:.0f} s after a soft limit was crossed"

    def _unfair(self, uid: str, wanted: Wanted, resource: Resource) -> Iterator[str]:
        """No pod goes that uses no more than its request, while another uses more than that."""
        since = trio.current_time() - MEASUREMENT_SECONDS
        if resource is Resource.PIDS or self._excess(wanted, resource, since)[1] > 0:
            return
        for other_uid, other in self.record.wanted.items():
            has_gone = other.deleted or self._is_leaving(other_uid) or self._is_over(other_uid)
            if has_gone or is_critical(other):
                continue
            if (excess := self._excess(other, resource, since)[0]) > 0:
                yield f"pod {uid} was evicted, and {other_uid} uses {excess} of {resource} more"

    def _is_leaving(self, uid: str) -> bool:
        return uid in self.record.evictions or uid in self.record.kept_away

    def _excess(self, wanted: Wanted, resource: Resource, since: float) -> tuple[int, int]:
        """The least and the most that a pod has used beyond its request since a time."""
        shapes = (*wanted.former, wanted.shape) if wanted.touched_at > since else (wanted.shape,)
        asked = [
            pod_requests(decode(Pod, each.document)).get(str(resource), Quantity(0)).value
            for each in shapes
        ]
        least, most = self._load.use_since(wanted.shape.uid, resource, since)
        return least - max(asked), most + OWN_FILES.get(resource, 0) - min(asked)

    def _too_soon(self, uid: str, eviction: Eviction) -> Iterator[str]:
        """One victim at a time: the next one goes after an observation newer than its end."""
        for other_uid, other in self.record.evictions.items():
            if other_uid == uid or other.agent_life != self.record.agent_life or not other.resource:
                continue
            late_seconds = DISKS_LATE_SECONDS if other.resource in DISKS else LATE_SECONDS
            if eviction.at - other.at > late_seconds:
                continue
            lives = self.record.lives.get(other_uid, {}).values()
            is_of_disk = eviction.resource in DISKS
            ends = [
                life.removed_at if is_of_disk else life.ended_at
                for life in lives
                if life.started_at is not None
            ]
            ended_at = max((at for at in ends if at is not None), default=other.at)
            if None in ends:
                yield f"pod {uid} was evicted while {other_uid} was still ending"
            elif not any(each.at >= ended_at for each in self._observations):
                yield f"pod {uid} was evicted before the end of {other_uid} was measured"

    def _within_own_limits(self, uid: str, wanted: Wanted) -> Iterator[str]:
        """A pod goes for a limit of its own that it has exceeded lately."""
        since = trio.current_time() - WALK_SECONDS
        _, most = self._load.use_since(uid, Resource.STORAGE, since)
        if not wanted.shape.storage_limit_bytes:
            yield f"pod {uid} was evicted for a limit that it has not"
        elif most <= wanted.shape.storage_limit_bytes:
            yield f"pod {uid} was evicted within its own limits"

    def _kept_away(self, pod: Pod, message: str) -> Iterator[str]:
        """A pod was rejected for pressure."""
        uid = pod.metadata.uid
        self.record.kept_away.setdefault(uid, message)
        conditions = message.removeprefix(KEPT_AWAY).strip("[]. ").split()
        if set(conditions) != set(map(str, self._shown_since)):
            yield f"pod {uid} was rejected for {conditions}, and {[*self._shown_since]} are shown"
        wanted = self.record.wanted.get(uid)
        if wanted is None:
            return
        if is_critical(wanted):
            yield f"pod {uid} is critical, and was rejected"
        if self.record.lives.get(uid):
            yield f"pod {uid} was rejected, and had containers"
        memory_only = conditions == [NodeConditionType.MEMORY_PRESSURE]
        if memory_only and not is_best_effort(wanted):
            yield f"pod {uid} was rejected for memory, and is not best-effort"

    def let_in(self, uid: str) -> Iterator[str]:
        """A pod has got a sandbox. None does that came when it had to be rejected."""
        wanted = self.record.wanted.get(uid)
        self._note_life()
        if wanted is None or is_critical(wanted) or self.record.lives.get(uid):
            return
        self.record.kept_away.pop(uid, None)  # The agent that had rejected it could not say so.
        for condition, since in self._shown_since.items():
            if condition is NodeConditionType.MEMORY_PRESSURE and not is_best_effort(wanted):
                continue
            if since <= wanted.made_at:
                yield f"pod {uid} was let in under {condition}"

    def shown(self, pod: Pod) -> Iterator[str]:
        """The API shows a pod. One that was evicted, or kept away, runs nothing any more."""
        uid = pod.metadata.uid
        if pod.status.reason != EVICTED:
            return
        if not self._is_leaving(uid):
            yield f"pod {uid} is shown as evicted: {pod.status.message}"
        lives = self.record.lives.get(uid, {}).values()
        running = [life.name for life in lives if life.started_at and life.ended_at is None]
        if running:
            yield f"pod {uid} is shown as evicted, and runs {sorted(running)}"

    def needs_room_of(self, uid: str) -> bool:
        """True if what is left of a pod may go: it was evicted, or is over, and the disk short."""
        is_short = NodeConditionType.DISK_PRESSURE in self._perhaps_seen_at
        return uid in self.record.evictions or (is_short and self._is_over(uid))

    def _is_over(self, uid: str) -> bool:
        """True if the API shows that a pod has ended."""
        assert self.node is not None
        shown = (each for each in self.node.api.all(PODS) if each.metadata.uid == uid)
        return any(each.status.phase in TERMINAL_PHASES for each in shown)

    def stopped(self, uid: str, grace_seconds: int) -> Iterator[str]:
        """A container of an evicted pod is told to stop."""
        self._note_life()
        if uid not in self._told:
            return  # An agent that finds it ended, and some of it there still, ends the rest.
        eviction = self.record.evictions[uid]
        longest = 5 if eviction.resource == Resource.MEMORY else LEAST_GRACE_SECONDS
        if grace_seconds > longest:
            yield f"pod {uid} was evicted, and has {grace_seconds} s to end"

    @property
    def _load(self) -> Load:
        assert self.node is not None, "the node is made before anything happens"
        return self.node.load

    def _note_life(self) -> None:
        """Another agent knows what the one before has recorded, but for the last seconds."""
        assert self.node is not None
        if self.node.lives == self.record.agent_life:
            return
        self.record.agent_life = self.node.lives
        lost_after = (
            min((each.at for each in self._observations[-1:]), default=float("inf")) - WRITE_SECONDS
        )
        unwritten_at = max(
            self.record.disk_full_until, self.record.power_failed_at, self.record.clock_jumped_at
        )
        self._seen_at = {
            condition: seen_at - RECORD_SECONDS
            for condition, seen_at in self._seen_at.items()
            if self._first_seen_at.get(condition, seen_at) < lost_after
            and unwritten_at < seen_at - RECORD_SECONDS
        }
        if self.record.power_failed_at > max(self._perhaps_seen_at.values(), default=0.0):
            self._perhaps_seen_at.clear()  # A record of another boot counts for nothing.
        self._found = self.node.eviction_records()
        self._told.clear()
        self._first_seen_at.clear()
        self._observations.clear()
        self._shown_since.clear()


def is_critical(wanted: Wanted) -> bool:
    """True if the pod is never evicted, and never kept away."""
    priority = int(wanted.shape.document["spec"].get("priority", 0))
    return wanted.is_static or priority >= SYSTEM_CRITICAL_PRIORITY


def is_best_effort(wanted: Wanted) -> bool:
    """True if the pod asks for nothing."""
    return qos_class(decode(Pod, wanted.shape.document)) is PodQOSClass.BEST_EFFORT
