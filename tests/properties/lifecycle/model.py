"""What must become of a pod: a small model of upstream's rules, which knows nothing of the agent.

Time passes from one moment at which something happens to the next. A pod is synced as a whole,
one thing after another: while a container is stopped or a hook runs, nothing else of the pod is
dealt with, though processes go on and end, and probes go on.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from attrs import define, field

from state_machines.container import ContainerRole
from state_machines.probe import ProbeKind
from tests.properties.lifecycle.records import Asked, Instance, Known, Plan, Stopping
from tests.properties.lifecycle.scripts import (
    CUT_OFF,
    ERROR,
    KILLED,
    SUCCESS,
    ContainerScript,
    PodScript,
)

FIRST_BACK_OFF, LONGEST_BACK_OFF, FORGOTTEN_AFTER = 10.0, 300.0, 600.0
LEAST_GRACE = 2


class RemovedError(Exception):
    """The pod is removed now, whatever is under way."""


@define(eq=False)
class Model:
    """A pod as it must live."""

    script: PodScript
    now: float = 0.0
    starts: list[tuple[float, str, int]] = field(factory=list)
    ends: list[tuple[float, str, int, int]] = field(factory=list)
    turned: list[tuple[float, str, bool]] = field(factory=list)
    phase: str = ""
    restarts: dict[str, int] = field(factory=dict)
    known: dict[str, Known] = field(init=False)
    _moments: list[tuple[float, int, Callable[[], None]]] = field(factory=list)
    _numbers: Iterator[int] = field(factory=itertools.count)
    _stops: list[Stopping] = field(factory=list)
    _told: dict[str, bool] = field(factory=dict)
    _counted: dict[str, int] = field(factory=dict)
    _awake: bool = True
    _is_removed: bool = False

    def __attrs_post_init__(self) -> None:
        self.known = {c.name: Known(c) for c in self.script.containers}

    def live(self) -> None:
        """Live until the pod is removed, and until nothing of it runs."""
        try:
            while not self.phase:
                due = self._sync()
                if not self.phase:
                    self._pass_time(until=lambda: self._awake, at_most=due)
            self._pass_time(until=lambda: False)
        except RemovedError:
            self._is_removed = True
            self.restarts = dict(self._counted)
            self._stop_all(max(self.script.grace, 1))

    # Time

    def _at(self, moment: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._moments, (moment, next(self._numbers), then))

    def _pass_time(self, *, until: Callable[[], bool], at_most: float = math.inf) -> None:
        """Let what happens happen, moment by moment. Raises Removed."""
        while not until():
            moment = self._moments[0][0] if self._moments else math.inf
            limit = math.inf if self._is_removed else self.script.removed_after
            if min(moment, at_most) > limit:
                self.now = limit
                raise RemovedError
            if at_most < moment:
                self.now = at_most
                self._awake = True
                return
            if moment == math.inf:
                return
            self.now = moment
            while self._moments and self._moments[0][0] == moment:
                heapq.heappop(self._moments)[2]()

    def _wait(self, seconds: float) -> None:
        end = self.now + seconds
        if seconds:
            self._pass_time(until=lambda: self.now >= end, at_most=end)

    # Processes

    def _start(self, known: Known) -> None:
        newest = known.newest
        if newest is not None:
            is_first = known.delay is None or newest.end - known.decided_at > FORGOTTEN_AFTER
            known.delay = FIRST_BACK_OFF if is_first else (known.delay or 0.0) * 2
            known.delay, known.decided_at = min(known.delay, LONGEST_BACK_OFF), self.now
        script, attempt = known.script, len(known.instances)
        seconds = self.script.life_seconds(script, attempt)
        instance = Instance(
            name=script.name,
            attempt=attempt,
            started=self.now,
            end=math.inf if seconds is None else self.now + seconds,
            code=script.life(attempt).exit_code,
        )
        known.instances.append(instance)
        self.starts.append((self.now, script.name, attempt))
        self._end_at(instance, instance.end, instance.code)
        self._wait(script.post_start)

    def _end_at(self, instance: Instance, end: float, code: int) -> None:
        if instance.ended or end > instance.end or end == math.inf:
            return
        instance.end, instance.code = end, code

        def ends() -> None:
            if not instance.ended and instance.end == end:
                instance.ended = True
                self._awake = True
                self.ends.append((end, instance.name, instance.attempt, code))

        self._at(end, ends)

    # Stopping

    def _stop(self, groups: Iterable[Iterable[tuple[Instance, int]]]) -> None:
        """Stop instances with their graces: all hooks begin now, the signals go group by group."""
        began = self.now
        before: tuple[Stopping, ...] = ()
        self._stops = []
        for group in groups:
            turn: list[Stopping] = []
            for instance, grace in group:
                hook = min(self.known[instance.name].script.pre_stop, grace)
                turn.append(Stopping(instance, began, grace, began + hook, before))
                self._at(began + hook, lambda: None)
                self._at(began + grace, lambda: None)
            self._stops += turn
            before = tuple(turn)
        self._signal()
        self._pass_time(until=self._have_stopped)
        self._stops = []

    def _have_stopped(self) -> bool:
        self._signal()
        return all(stopping.done(self.now) for stopping in self._stops)

    def _signal(self) -> None:
        """Send the signals and kills whose time has come."""
        for stopping in self._stops:
            is_turn = all(other.done(self.now) for other in stopping.after)
            is_ready = self.now >= stopping.hook_ends and is_turn
            is_late = self.now >= stopping.began + stopping.grace
            if stopping.signalled_at == math.inf and (is_ready or is_late):
                self._terminate(stopping)
            if stopping.kill_at <= self.now:
                stopping.kill_at = math.inf
                self._end_at(stopping.instance, self.now, KILLED)
                self._run_due()

    def _terminate(self, stopping: Stopping) -> None:
        instance = stopping.instance
        stopping.signalled_at = self.now
        spent = round(self.now - stopping.began)
        left = max(stopping.grace - spent, LEAST_GRACE)
        if instance.ended:
            return
        script = self.known[instance.name].script
        if not instance.signalled:
            instance.signalled = True
            if script.obeys is not None:
                self._end_at(instance, self.now + script.obeys, script.term_code)
        stopping.kill_at = self.now + left
        self._at(stopping.kill_at, lambda: None)

    def _run_due(self) -> None:
        while self._moments and self._moments[0][0] <= self.now:
            heapq.heappop(self._moments)[2]()

    def _stop_all(self, grace: int) -> None:
        running = [k.newest for k in self.known.values() if k.newest and not k.newest.ended]
        sidecars = [c.name for c in reversed(self.script.init) if c.role is ContainerRole.SIDECAR]
        first = [(each, grace) for each in running if each.name not in sidecars]
        then = [[(each, grace) for each in running if each.name == name] for name in sidecars]
        self._stop([group for group in (first, *then) if group])

    # Syncing

    def _sync(self) -> float:
        """Deal with the pod until there is nothing to do now; when there will be."""
        self._awake = False
        self._see()
        self._report()
        has_acted = False
        while True:
            plan = self._plan()
            if plan.ends:
                self._stop_all(max(self.script.grace, LEAST_GRACE))
                self._see()
                self.phase = self._phase()
                self._report()
                return math.inf
            if not plan.stop and not plan.start:
                self._report()
                return plan.due
            were_running = any(k.newest and not k.newest.seen_ended for k in self.known.values())
            if plan.stop:
                self._stop([[(each, self._probe_grace(each)) for each in plan.stop]])
            if plan.start and (were_running or has_acted):
                # What there is is told of before images are got, which may take long.
                self._see()
                self._report()
            for known in plan.start:
                self._start(known)
            self._see()
            if plan.stop:
                self._report()
            has_acted = True

    def _probe_grace(self, instance: Instance) -> int:
        grace = self.script.grace
        kind = instance.has_failed
        own = instance.probes[kind].script.grace if kind is not None else None
        return max(grace if own is None else own, LEAST_GRACE)

    def _plan(self) -> Plan:
        init = [self.known[c.name] for c in self.script.init]
        regular = [self.known[c.name] for c in self.script.regular]
        made = [position for position, known in enumerate(init) if known.newest]
        furthest = len(init) if any(known.newest for known in regular) else max(made, default=0)
        considered: list[Known] = []
        for position, known in enumerate(init):
            is_sidecar = known.script.role is ContainerRole.SIDECAR
            if position < furthest and not is_sidecar:
                continue
            considered.append(known)
            if position < furthest or self._is_through(known):
                continue
            if self._is_over(known):
                return Plan(ends=True)
            return self._steps(considered)
        if all(self._is_over(known) for known in regular):
            return Plan(ends=True)
        return self._steps([*considered, *regular])

    def _is_through(self, known: Known) -> bool:
        """Whether an init container lets the next one begin."""
        newest = known.newest
        if newest is None:
            return False
        if known.script.role is ContainerRole.SIDECAR:
            has_failed = newest.has_failed is not None
            return not newest.seen_ended and newest.says(ProbeKind.STARTUP) and not has_failed
        return newest.seen_ended and newest.code == 0

    def _is_over(self, known: Known) -> bool:
        """Whether nothing of it runs, or will when what failed its probe has been stopped."""
        newest = known.newest
        if newest is None or newest.replaced:
            return False
        if not newest.seen_ended:
            has_failed = newest.has_failed is not None and not newest.ended
            return has_failed and not self._restarts(known.script, KILLED)
        return not self._restarts(known.script, newest.code)

    def _restarts(self, script: ContainerScript, code: int) -> bool:
        if script.policy and code in script.rule:
            return True
        policy = script.policy or self.script.policy
        if script.role is ContainerRole.SIDECAR:
            return True
        if script.role is ContainerRole.INIT and policy == "Always":
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    def _steps(self, considered: list[Known]) -> Plan:
        stop: list[Instance] = []
        start: list[Known] = []
        due = math.inf
        for known in considered:
            newest = known.newest
            if newest is not None and not newest.seen_ended:
                if newest.has_failed is not None and not newest.ended:
                    newest.replaced = self._restarts(known.script, KILLED)
                    stop.append(newest)
            elif newest is None or newest.replaced or self._restarts(known.script, newest.code):
                may_start = self._may_start(known)
                if may_start <= self.now:
                    start.append(known)
                else:
                    due = min(due, may_start)
        return Plan(tuple(stop), tuple(start), due=due)

    def _may_start(self, known: Known) -> float:
        newest = known.newest
        if newest is None or known.delay is None:
            return self.now
        if newest.end - known.decided_at > FORGOTTEN_AFTER:
            return self.now
        if newest.replaced and len(known.instances) > 1:
            before = known.instances[-2]
            if newest.end - before.end >= known.delay:
                return self.now
        return newest.end + known.delay

    def _phase(self) -> str:
        codes = [known.newest.code if known.newest else 1 for known in self._regular()]
        return "Failed" if any(codes) else "Succeeded"

    def _regular(self) -> list[Known]:
        return [self.known[c.name] for c in self.script.regular]

    # What is seen and told

    def _see(self) -> None:
        for known in self.known.values():
            newest = known.newest
            if newest is None or newest.seen_ended:
                continue
            if newest.ended:
                newest.seen_ended = True
                for asked in newest.probes.values():
                    asked.over = True
            elif not newest.seen_running:
                newest.seen_running = True
                newest.probes = {p.kind: Asked(p) for p in known.script.probes}
                is_held = ProbeKind.STARTUP in newest.probes
                for kind, asked in newest.probes.items():
                    if kind is ProbeKind.STARTUP or not is_held:
                        self._begin(newest, asked)

    def _report(self) -> None:
        for known in self.known.values():
            newest = known.newest
            seen = [each for each in known.instances if each.seen_running or each.seen_ended]
            self._counted[known.script.name] = seen[-1].attempt if seen else 0
            if newest is None:
                ready = False
            elif known.script.role is ContainerRole.INIT:
                ready = newest.seen_ended and newest.code == 0
            else:
                runs = newest.seen_running and not newest.seen_ended
                started = runs and newest.says(ProbeKind.STARTUP)
                ready = started and newest.says(ProbeKind.READINESS)
            if ready is not self._told.get(known.script.name, False):
                self._told[known.script.name] = ready
                self.turned.append((self.now, known.script.name, ready))

    # Probes

    def _begin(self, instance: Instance, asked: Asked) -> None:
        script = asked.script
        asked.begun = True
        patience = script.delay
        if script.kind is not ProbeKind.READINESS:
            patience = max(patience, script.period)
        wait = min(max(patience - (self.now - instance.started), 0.0), patience)
        self._ask_at(instance, asked, self.now + wait)

    def _ask_at(self, instance: Instance, asked: Asked, due: float) -> None:
        self._at(max(due, self.now), lambda: self._ask(instance, asked, due))

    def _ask(self, instance: Instance, asked: Asked, due: float) -> None:
        if asked.over or self._is_removed:
            return
        if instance.ended:
            self._refused(instance, asked, due)
            return
        outcome = asked.script.outcome(asked.runs)
        asked.runs += 1
        takes = self.script.answer_seconds(instance.name, asked.script.kind, outcome)
        self._at(self.now + takes, lambda: self._answered(instance, asked, outcome))
        period = asked.script.period
        missed = max(0.0, self.now + takes - due - period) // period
        following = due + period + missed * period
        again = max(following, self.now + takes)
        self._at(again, lambda: self._ask(instance, asked, following))

    def _refused(self, instance: Instance, asked: Asked, due: float) -> None:
        """It has ended, and nobody has seen it, as its pod is busy: it serves nobody all the same.

        No probe but readiness counts what fails as its container has ended, and a command that
        cannot be run never counts.
        """
        if asked.script.kind is ProbeKind.READINESS and not asked.script.by_command:
            self._count(instance, asked, succeeded=False)
            self._ask_at(instance, asked, due + asked.script.period)

    def _counts(self, instance: Instance, asked: Asked) -> bool:
        return not instance.ended or asked.script.kind is ProbeKind.READINESS

    def _answered(self, instance: Instance, asked: Asked, outcome: str) -> None:
        if outcome == CUT_OFF:
            failed_at, kind = self.now, asked.script.kind
            asked.doubtful.append(failed_at)
            known_at = failed_at + self.script.doubt_seconds(instance.name, kind)
            self._at(known_at, lambda: self._known(instance, asked, failed_at))
        elif outcome == SUCCESS:
            before, asked.doubtful = asked.doubtful, []
            for succeeded in (*(False for _ in before), True):
                self._count(instance, asked, succeeded=succeeded)
        elif outcome != ERROR and self._counts(instance, asked):
            self._count(instance, asked, succeeded=False)

    def _known(self, instance: Instance, asked: Asked, failed_at: float) -> None:
        """What looked as the end of the container was none, or it was."""
        if failed_at in asked.doubtful:
            asked.doubtful.remove(failed_at)
            if self._counts(instance, asked):
                self._count(instance, asked, succeeded=False)

    def _count(self, instance: Instance, asked: Asked, *, succeeded: bool) -> None:
        if asked.over or self._is_removed or not asked.take(succeeded):
            return
        if asked.script.kind is ProbeKind.STARTUP and asked.holds:
            for other in instance.probes.values():
                if not other.begun:
                    self._begin(instance, other)
        self._awake = True
        self._report()
