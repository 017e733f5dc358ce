"""What the model of a pod's life knows of its containers, probes and stops."""

import math

from attrs import define, field, frozen

from state_machines.probe import ProbeKind
from tests.properties.lifecycle.scripts import ContainerScript, ProbeScript


@define(eq=False)
class Asked:
    """A probe of an instance. `state` is what its threshold was reached for last, if any was.

    `doubtful` are the moments of failures that count if the container runs on.
    """

    script: ProbeScript
    state: bool | None = None
    runs: int = 0
    in_a_row: int = 0
    last: bool | None = None
    begun: bool = False
    over: bool = False
    doubtful: list[float] = field(factory=list)

    def take(self, succeeded: bool) -> bool:
        """One more answer; whether it changes what holds."""
        self.in_a_row = self.in_a_row + 1 if self.last is succeeded else 1
        self.last = succeeded
        needed = self.script.successes if succeeded else self.script.failures
        if self.in_a_row < needed:
            return False
        before = self.holds
        self.state = succeeded
        ends = {ProbeKind.STARTUP: True, ProbeKind.LIVENESS: not succeeded}
        self.over = ends.get(self.script.kind, False)
        return self.holds is not before

    @property
    def holds(self) -> bool | None:
        """What it says of the container."""
        if self.state is not None:
            return self.state
        return {ProbeKind.LIVENESS: True, ProbeKind.READINESS: False}.get(self.script.kind)


@define(eq=False)
class Instance:
    """One instance of a container. `end` is when its process ends as things stand, with a code."""

    name: str
    attempt: int
    started: float
    end: float
    code: int
    probes: dict[ProbeKind, Asked] = field(factory=dict)
    ended: bool = False
    seen_running: bool = False
    seen_ended: bool = False
    signalled: bool = False
    replaced: bool = False

    def says(self, kind: ProbeKind) -> bool:
        """What its probe of that kind says; one that it does not have has nothing against it."""
        return kind not in self.probes or self.probes[kind].holds is True

    @property
    def has_failed(self) -> ProbeKind | None:
        """The probe for which it is restarted."""
        for kind in (ProbeKind.STARTUP, ProbeKind.LIVENESS):
            if kind in self.probes and self.probes[kind].holds is False:
                return kind
        return None


@define(eq=False)
class Stopping:
    """The stop of one instance: its hook, the turn of who goes before, the signal, the kill."""

    instance: Instance
    began: float
    grace: int
    hook_ends: float
    after: tuple["Stopping", ...] = ()
    signalled_at: float = math.inf
    kill_at: float = math.inf

    def done(self, now: float) -> bool:
        """Whether it has stopped."""
        return self.signalled_at <= now and self.instance.ended


@define(eq=False)
class Known:
    """What there is of one container."""

    script: ContainerScript
    instances: list[Instance] = field(factory=list)
    delay: float | None = None
    decided_at: float = 0.0

    @property
    def newest(self) -> Instance | None:
        """The newest instance."""
        return self.instances[-1] if self.instances else None


@frozen
class Plan:
    """What is to be done now; `due` is when the next start may be."""

    stop: tuple[Instance, ...] = ()
    start: tuple[Known, ...] = ()
    ends: bool = False
    due: float = math.inf
