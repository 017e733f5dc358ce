"""How the containers of a simulated day answer their probes, and what that must come to.

A container answers as its pod's annotation says, until the world lets it be ill for a while. What
reaches the agent is written down where it reaches it, and from that alone follows what each
container may be held to be: a model beside the agent's, which knows thresholds and nothing else.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import trio
from attrs import define, evolve, field, frozen

from state_machines.probe import ProbeKind
from trio_kubelet.hollow import Behaviour, ExecResult, Invocation, behaviour_of
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import Probe
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult, failure
from trio_kubelet.pod_clients.share import Target
from trio_kubelet.probes import AskOverNetwork
from trio_kubelet.probes.exec import KILLED
from trio_kubelet.rpc import Code, RpcError

HEALTH_ANNOTATION = "simulation.trio-kubelet.dev/health"
COMMAND = "probe"
"""A probe's command is this word and its kind."""
LONGEST_LOOK_SECONDS = 10.0
"""From an answer to what follows from it: the runtime may be asked whether the container runs."""


class Mood(StrEnum):
    """How a container answers one of its probes."""

    WELL = "well"
    ILL = "ill"
    FLAPS = "flaps"
    SLOW = "slow"
    """It answers, sometimes too late."""
    HANGS = "hangs"
    BREAKS = "breaks"
    """What asks it is cut off, as if it had ended."""
    ERRS = "errs"
    """The probe cannot be run."""


@frozen(kw_only=True)
class Nature:
    """One probe of a container that is left alone: from when on it succeeds, and its numbers.

    `well_after` is in seconds after the start; None: it never succeeds.
    """

    well_after: float | None
    delay: int
    period: int
    timeout: int
    success_threshold: int
    failure_threshold: int

    @property
    def decided_after_seconds(self) -> float:
        """How old a container is at most when a constant answer has made a verdict."""
        runs = max(self.success_threshold, self.failure_threshold) + 1
        return max(self.delay, self.period) + runs * (self.period + self.timeout)


@define(eq=False)
class _Model:
    """What the answers to one probe come to. `verdict` is None before a threshold is reached."""

    nature: Nature
    verdict: bool | None = None
    changed_at: float = -math.inf
    answered_at: float = -math.inf
    succeeded: bool = False
    in_a_row: int = 0

    def take(self, *, succeeded: bool) -> None:
        """One more answer."""
        self.in_a_row = self.in_a_row + 1 if succeeded is self.succeeded else 1
        self.succeeded, self.answered_at = succeeded, trio.current_time()
        nature = self.nature
        threshold = nature.success_threshold if succeeded else nature.failure_threshold
        if self.in_a_row >= threshold and self.verdict is not succeeded:
            self.verdict, self.changed_at = succeeded, trio.current_time()

    def was(self, verdict: bool) -> bool:
        """Whether this is its verdict, or was it a moment ago."""
        is_new = trio.current_time() - self.changed_at < LONGEST_LOOK_SECONDS
        return self.verdict is verdict or is_new


@define(eq=False)
class ContainerHealth(Mapping[str, ExecResult]):
    """How one container is, as the results of the commands that its probes run in it.

    `started_at` is when it was started, in trio's clock.
    """

    chance: random.Random
    natures: Mapping[ProbeKind, Nature]
    started_at: float = math.inf
    troubles: dict[ProbeKind, Mood] = field(factory=dict)
    has_failed: set[ProbeKind] = field(factory=set)
    """The probes that restart it, of those that have failed for one agent or another."""
    models: dict[ProbeKind, _Model] = field(init=False)
    _agent_life: int = 0

    def __attrs_post_init__(self) -> None:
        self.models = {kind: _Model(nature) for kind, nature in self.natures.items()}

    def __getitem__(self, command: str) -> ExecResult:
        """What a command answers. Raises KeyError, and RpcError where it cannot be run."""
        word, _, kind = command.partition(" ")
        if word != COMMAND:
            raise KeyError(command)
        mood = self.mood(ProbeKind(kind))
        if mood is Mood.ERRS:
            raise RpcError(Code.UNKNOWN, "failed to exec in container: no such process")
        failed = KILLED if mood is Mood.BREAKS else 1
        return ExecResult(
            exit_code=0 if self.succeeds(mood) else failed, run_seconds=self.answer_seconds(mood)
        )

    def __iter__(self) -> Iterator[str]:
        return (f"{COMMAND} {kind}" for kind in self.natures)

    def __len__(self) -> int:
        return len(self.natures)

    def mood(self, kind: ProbeKind) -> Mood:
        """How it answers a probe now."""
        well_after = self.natures[kind].well_after
        age_seconds = trio.current_time() - self.started_at
        is_well = well_after is not None and age_seconds >= well_after
        return self.troubles.get(kind, Mood.WELL if is_well else Mood.ILL)

    def succeeds(self, mood: Mood) -> bool:
        """Whether one answer is that it is well."""
        is_ill = mood in (Mood.ILL, Mood.BREAKS)
        return not is_ill and (mood is not Mood.FLAPS or self.chance.random() < 0.5)

    def answer_seconds(self, mood: Mood) -> float:
        """How long one answer takes."""
        if mood is Mood.HANGS:
            return math.inf
        return self.chance.uniform(0, 3) if mood is Mood.SLOW else 0.0

    # What reached the agent

    def serve(self, agent_life: int, *, shown_ready: bool) -> None:
        """An agent of that number deals with it; `shown_ready` is what the API showed before.

        It counts anew, and goes on from what was shown.
        """
        if agent_life == self._agent_life:
            return
        self._agent_life = agent_life
        for model in self.models.values():
            model.in_a_row = 0
        readiness = self.models.get(ProbeKind.READINESS)
        if readiness is not None and shown_ready:
            readiness.verdict = True

    def take(self, kind: ProbeKind, *, succeeded: bool) -> None:
        """An answer has reached the agent."""
        model = self.models[kind]
        model.take(succeeded=succeeded)
        if kind is not ProbeKind.READINESS and model.verdict is False:
            self.has_failed.add(kind)

    @property
    def may_be_started(self) -> bool:
        """Whether it may be said to have started up."""
        startup = self.models.get(ProbeKind.STARTUP)
        return startup is None or startup.verdict is True

    @property
    def may_be_ready(self) -> bool:
        """Whether it may be said to be ready."""
        readiness = self.models.get(ProbeKind.READINESS)
        return self.may_be_started and (readiness is None or readiness.was(True))

    @property
    def may_be_unready(self) -> bool:
        """Whether what was ready may be said not to be."""
        readiness = self.models.get(ProbeKind.READINESS)
        return readiness is not None and readiness.was(False)

    def not_asked(self) -> tuple[ProbeKind, ...]:
        """The probes that nobody has asked for as often as they say."""
        now = trio.current_time()
        return tuple(
            kind
            for kind, model in self.models.items()
            if now - model.answered_at > 2 * model.nature.period + LONGEST_LOOK_SECONDS
            and not (kind is ProbeKind.STARTUP and model.verdict is True)
        )

    # What becomes of it when it is left alone

    @property
    def is_ready_by_nature(self) -> bool:
        """Whether it becomes ready, and stays so."""
        return all(nature.well_after is not None for nature in self._lasting().values())

    @property
    def ends_by_nature(self) -> bool:
        """Whether it fails a probe that restarts it."""
        return any(
            nature.well_after is None and kind is not ProbeKind.READINESS
            for kind, nature in self._lasting().items()
        )

    def _lasting(self) -> Mapping[ProbeKind, Nature]:
        """The natures that count: a container that flapped as it started up has started up."""
        startup = self.models.get(ProbeKind.STARTUP)
        has_started_up = startup is not None and startup.verdict is True
        return {
            kind: nature
            for kind, nature in self.natures.items()
            if not (kind is ProbeKind.STARTUP and has_started_up)
        }

    @property
    def decided_after_seconds(self) -> float:
        """How old it is at most when all its probes have decided."""
        return sum(nature.decided_after_seconds for nature in self.natures.values())


def health_of(container: HollowContainer) -> ContainerHealth | None:
    """How a container is; None if it has no probes."""
    execs = container.behaviour.execs
    return execs if isinstance(execs, ContainerHealth) else None


def behaviours_with_health(chance: random.Random) -> Callable[[Invocation], Behaviour]:
    """The behaviours of a runtime whose containers answer probes as their annotations say."""

    def behaviour(invocation: Invocation) -> Behaviour:
        text = invocation.pod_annotations.get(f"{HEALTH_ANNOTATION}.{invocation.name}")
        usual = behaviour_of(invocation)
        if not text:
            return usual
        natures = {ProbeKind(kind): Nature(**each) for kind, each in json.loads(text).items()}
        return evolve(usual, execs=ContainerHealth(chance, natures))

    return behaviour


def ask_container(
    find: Callable[[str], HollowContainer | None],
    take: Callable[[str, ProbeKind, bool], None],
    node_ip: str,
) -> AskOverNetwork:
    """Return what runs probes over the network of the simulated node.

    `find` returns a container by its id, `take` is called with each answer: the id, the kind of
    the probe, whether it succeeded. Who asks at a wrong address is refused.
    """

    async def ask(probe: Probe, target: Target, seconds: int) -> ProbeResult:
        kind = _kind(probe, target)
        container = find(target.container_id)
        health = health_of(container) if container is not None else None
        await trio.lowlevel.checkpoint()
        if container is None or health is None or not _listens(container, target.pod_ip, node_ip):
            take(target.container_id, kind, False)
            return failure("connect: connection refused")
        mood = health.mood(kind)
        if mood is Mood.ERRS:
            raise ProbeError("socket: too many open files")
        late = health.answer_seconds(mood)
        with trio.move_on_after(min(seconds, late)):
            await container.stopped.wait()
        succeeded = late <= seconds and health.succeeds(mood) and not container.stopped.is_set()
        take(target.container_id, kind, succeeded)
        if succeeded:
            return ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
        if late > seconds or container.stopped.is_set():
            return failure("i/o timeout")
        if mood is Mood.BREAKS:
            return failure("EOF", cut_off=True)
        return failure("HTTP probe failed with statuscode: 500", by_container=True)

    return ask


def _kind(probe: Probe, target: Target) -> ProbeKind:
    kinds = {
        ProbeKind.STARTUP: target.container.startup_probe,
        ProbeKind.READINESS: target.container.readiness_probe,
        ProbeKind.LIVENESS: target.container.liveness_probe,
    }
    return next(kind for kind, known in kinds.items() if known is probe)


def _listens(container: HollowContainer, pod_ip: str, node_ip: str) -> bool:
    runs = container.process is not None and not container.finished_at
    return runs and pod_ip == (container.sandbox.ip or node_ip)
