"""What was wanted of the node, what was done to it, and what its runtime did: the facts of a run.

The world writes down what it wants and what it breaks, the runtime's events tell what happened.
All of it goes into one digest, together with the agents' logs and journals: two runs of a seed
are the same run if their digests are.
"""

import hashlib
import re
from collections import Counter
from pathlib import Path

import trio
from attrs import define, field, frozen

from tests.simulation.health import ContainerHealth, health_of
from tests.simulation.node import LogEntry
from tests.simulation.shapes import RESTARTS_ALL, Shape
from trio_kubelet.hollow.records import HollowContainer, HollowSandbox
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.security import IdMapping
from trio_kubelet.telemetry.journal import Entry

Kind = cri.ContainerEventType
_PATH_HASH = re.compile(r"(?<=/file-)[0-9a-f]{32}")
"""What the copy of a manifest is named after."""


@define(eq=False)
class Wanted:
    """A pod that a source has.

    `made_at` is when its owner created it, `touched_at` when he last changed it (trio's clock).
    """

    shape: Shape
    is_static: bool
    made_at: float
    touched_at: float
    deleted: bool = False
    forced: bool = False
    """It was deleted without asking the node: containers may outlive the object."""
    harmed: bool = False
    """Somebody killed a container or a sandbox of it."""
    ids: IdMapping | None = None
    """The range of ids that it was given."""
    amounts: dict[str, tuple[int, int]] = field(factory=dict)
    """The amounts that its containers were made with first, as `Shape.amounts`."""
    placements: dict[str, tuple[str, str]] = field(factory=dict)
    """The lists of NUMA nodes and of CPUs of their own that its containers were given first."""
    former: list[Shape] = field(factory=list)
    """As its owner wanted it before, the first version first."""

    @property
    def feasible(self) -> tuple[Shape, ...]:
        """As its owner wanted it at some time, and the node can have it."""
        shapes = (*self.former, self.shape)
        return tuple(each for each in shapes if not each.asks_for_too_much)

    @property
    def may_begin_anew(self) -> bool:
        """Whether it may be initialized once more: it lost its sandbox, or restarts as a whole."""
        return self.harmed or bool(self.shape.restarting_names)


@define(eq=False)
class Life:
    """One container as the runtime's events told of it, in seconds of trio's clock."""

    container: HollowContainer
    agent_life: int
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    removed_at: float | None = None

    @property
    def removed(self) -> bool:
        """Whether the runtime has nothing of it any more."""
        return self.removed_at is not None

    @property
    def uid(self) -> str:
        """The UID of its pod."""
        return str(self.container.sandbox.config.metadata.uid)

    @property
    def name(self) -> str:
        """The container's name in its pod."""
        return str(self.container.config.metadata.name)

    @property
    def attempt(self) -> int:
        """Its number among the containers of its name."""
        return int(self.container.config.metadata.attempt)

    @property
    def never_started(self) -> bool:
        """Whether nobody has asked for its start, or whoever did went away meanwhile."""
        return self.started_at is None and (
            not self.container.finished_at or self.container.message.endswith("context canceled")
        )

    @property
    def image(self) -> str:
        """The image that the pod's spec named when the container was made."""
        return str(self.container.config.image.user_specified_image)

    @property
    def sandbox_id(self) -> str:
        """The sandbox that it is in."""
        return self.container.sandbox.id

    @property
    def health(self) -> ContainerHealth | None:
        """How it answers its probes, if it has any."""
        return health_of(self.container)

    @property
    def has_failed_a_probe(self) -> bool:
        """Whether it is right to restart it."""
        return self.health is not None and bool(self.health.has_failed)

    @property
    def is_steady(self) -> bool:
        """Whether it ends only when somebody ends it."""
        behaviour = self.container.behaviour
        return behaviour.run_seconds is None and not behaviour.start_error


@frozen(kw_only=True)
class Eviction:
    """The decision of an agent to evict a pod; `resource` is empty for a limit of the pod's own."""

    at: float
    resource: str
    message: str
    agent_life: int


@define(eq=False)
class Record:
    """The facts of a run, written by the world and by the observers of runtime and agent."""

    root: Path
    wanted: dict[str, Wanted] = field(factory=dict)
    lives: dict[str, dict[str, Life]] = field(factory=dict)
    """By UID of the pod and id of the container, in order of creation."""
    killed: set[str] = field(factory=set)
    """Ids of the containers and sandboxes that somebody killed."""
    lost: set[str] = field(factory=set)
    """Ids of the containers that the runtime lost sight of, or that somebody else removed."""
    evictions: dict[str, Eviction] = field(factory=dict)
    """By UID, as the agent has told of them first."""
    kept_away: dict[str, str] = field(factory=dict)
    """The messages about the pods that a node under pressure has rejected, by their UIDs."""
    agent_life: int = 0
    """The number of the agent that observes the node."""
    pressure_changed_at: float = -1e9
    """When the agent has last begun to show a pressure of the node, or ceased to."""
    steps: Counter[tuple[str, str, str]] = field(factory=Counter)
    """How often agents stepped machines: by machine, event and target."""
    refused_events: set[tuple[str, str]] = field(factory=set)
    """Pods and reasons of events that the API server would not have."""
    loses_events: bool = False
    """Whether events are lost, so that what containers do may be seen minutes later."""
    runtime_away_until: float = -1e9
    """When the runtime that somebody restarted last is back: nobody sees what ends before."""
    clock_jumped_at: float = -1e9
    power_failed_at: float = -1e9
    disk_full_until: float = -1e9
    """When there was room on the disk again, for ever if there is none: nothing was kept before."""
    cut_off_at: float = -1e9
    """When the agent was last killed: its calls may still take effect for some seconds."""
    lines: list[str] = field(factory=list)
    _digest: "hashlib._Hash" = field(factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """What happened so far, in one number."""
        return self._digest.hexdigest()

    def note(self, *words: object) -> None:
        """Write a line into the run's story."""
        text = self._without_root(" ".join(map(str, words)))
        line = f"{trio.current_time():10.3f} {text}"
        self._digest.update(line.encode() + b"\n")
        self.lines.append(line)

    def _without_root(self, text: str) -> str:
        """The text without what differs from run to run: the root, and hashes of paths in it."""
        return _PATH_HASH.sub("HASH", text.replace(str(self.root), "ROOT"))

    def on_log(self, entry: LogEntry) -> None:
        """A line of the agent's log."""
        facts = (f"{key}={entry[key]}" for key in sorted(entry) if key not in ("event", "exc_info"))
        self.note("log", entry["event"], *facts)

    def on_agent_ended(self, journal: tuple[Entry, ...]) -> None:
        """The journal of an agent that has ended."""
        for entry in journal:
            if entry.target:
                self.steps[entry.kind, entry.event, entry.target] += 1
            self._digest.update(self._without_root(repr(entry)).encode())

    def on_runtime_away(self, seconds: float) -> None:
        """Somebody restarts the runtime, which is back after so long."""
        self.runtime_away_until = max(self.runtime_away_until, trio.current_time() + seconds)

    def on_event(
        self, kind: int, container_id: str, sandbox: HollowSandbox, agent_life: int
    ) -> None:
        """Something happened in the runtime."""
        uid = sandbox.config.metadata.uid
        self.note("runtime", Kind(kind).name, uid, container_id[:12])
        if container_id == sandbox.id:
            return
        now, lives = trio.current_time(), self.lives.setdefault(uid, {})
        if kind == Kind.CONTAINER_CREATED_EVENT:
            container = sandbox.containers[container_id]
            lives[container_id] = Life(container=container, agent_life=agent_life, created_at=now)
        elif kind == Kind.CONTAINER_STARTED_EVENT:
            lives[container_id].started_at = now
            if health := lives[container_id].health:
                health.started_at = now
        elif kind == Kind.CONTAINER_STOPPED_EVENT:
            lives[container_id].ended_at = now
        else:
            lives[container_id].removed_at = now

    def life(self, container_id: str) -> Life | None:
        """The container of that id."""
        everything = (lives.get(container_id) for lives in self.lives.values())
        return next(filter(None, everything), None)

    def restarts_of_all(self, uid: str, sandbox_id: str) -> tuple[Life, ...]:
        """The containers in a sandbox whose exits restart all of their pod, in their order."""
        return tuple(
            life
            for life in self.perhaps_restarts_of_all(uid)
            if life.sandbox_id == sandbox_id and life.container.id not in self.lost
        )

    def perhaps_restarts_of_all(self, uid: str) -> tuple[Life, ...]:
        """The same in all sandboxes, with those whose exit the agent may not have learned."""
        wanted = self.wanted.get(uid)
        names = wanted.shape.restarting_names if wanted is not None else ()
        return tuple(
            life
            for life in self.lives.get(uid, {}).values()
            if life.name in names
            and life.ended_at is not None
            and life.container.exit_code == RESTARTS_ALL
        )

    def earlier(self, uid: str, life: Life) -> tuple[Life, ...]:
        """The containers of the same name in the same pod that were made before, newest first."""
        lives = [each for each in self.lives[uid].values() if each.name == life.name]
        return tuple(reversed(lives[: lives.index(life)]))
