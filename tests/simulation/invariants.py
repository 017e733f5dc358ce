"""What must be true at every moment, whatever goes wrong: checked at each event of the runtime.

Each rule is one function that yields what is wrong. A rule makes an exception only where the
world itself is to blame: it killed the container, set the clock, cut a call off.
"""

import math
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile

import trio
from betterproto import Message

from state_machines.pod import PodState
from state_machines.probe import ProbeKind
from tests.apiserver.storage import Change
from tests.simulation.evictions import EVICTED, EvictionRules
from tests.simulation.given import (
    beyond_its_pods_limits,
    made_of_anothers_image,
    removed_in_use,
    resized,
    wrong_ids,
)
from tests.simulation.node import LogEntry, Node
from tests.simulation.record import Kind, Life, Record
from tests.simulation.shapes import RETRIED
from tests.simulation.statuses import ENDS, serves_without_being_ready, steps_back
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.hollow.records import HollowContainer, HollowSandbox
from trio_kubelet.k8s import PODS, ContainerStatus, Pod, PodStatus
from trio_kubelet.k8s.codec import decode
from trio_kubelet.pod_source import is_static
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.sources.apiserver import is_mirror
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.telemetry.journal import Entry

FIRST_BACKOFF_SECONDS = 10.0
LAST_BACKOFF_SECONDS = 300.0
FORGOTTEN_AFTER_SECONDS = 600.0
SLACK_SECONDS = 30.0
"""How far the agent's notes of a time may be from the runtime's, with slow calls between."""
CUT_OFF_SECONDS = 10.0
LONGEST_UNSEEN_SECONDS = 320.0
"""From the end of a container until a relist shows it, if nothing else does."""
DAMAGED = frozenset(
    {
        "image pull record is malformed",
        "user namespace of a pod is unreadable",
        "damaged state file set aside",
        "manifest copy is unreadable",
    }
)
"""What the agent logs of files that it has written itself; no failure of power damages them."""


class Invariants:
    """Watches a node and gathers what was wrong, with the time at which it was seen."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.violations: list[str] = []
        self.node: Node | None = None
        self.evictions = EvictionRules(record)
        self._told: dict[str, tuple[object, PodStatus]] = {}
        self._backoffs: dict[tuple[int, str, str], float] = {}
        self._shown_ready: dict[str, bool] = {}
        """What the API shows of containers, by their ids."""

    def violated(self, *words: object) -> None:
        """Note something that must not be."""
        self.record.note("VIOLATED", *words)
        self.violations.append(self.record.lines[-1])

    # What is observed

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Observer of the runtime's events."""
        assert self.node is not None, "the node is made before anything happens"
        self.record.on_event(kind, container_id, sandbox, self.node.lives)
        uid = sandbox.config.metadata.uid
        if container_id == sandbox.id:
            if kind == Kind.CONTAINER_STARTED_EVENT:
                self._note_all(self._two_sandboxes(uid, sandbox))
                self._note_all(self.evictions.let_in(uid))
                self._note_all(wrong_ids(self.record, self.node.runtime, sandbox))
            return
        life = self.record.lives[uid][container_id]
        rules = {
            Kind.CONTAINER_CREATED_EVENT: (
                self._counted_without_a_start,
                partial(made_of_anothers_image, self.record),
                partial(resized, self.record),
                partial(beyond_its_pods_limits, self.record),
            ),
            Kind.CONTAINER_STARTED_EVENT: (
                self._two_running,
                self._started_while_ending,
                self._out_of_order,
                self._restarted_without_the_others,
                self._initialized_twice,
                self._restarted_against_policy,
                self._restarted_too_soon,
            ),
            Kind.CONTAINER_STOPPED_EVENT: (self._stopped_without_reason,),
            Kind.CONTAINER_DELETED_EVENT: (self._removed_while_wanted,),
        }
        for rule in rules.get(Kind(kind), ()):
            self._note_all(rule(uid, life))

    def on_call(self, rpc: str, request: Message) -> None:
        """Observer of the agent's calls to the runtime."""
        assert self.node is not None, "the node is made before anything happens"
        if isinstance(request, cri.RemoveImageRequest):
            self._note_all(removed_in_use(self.node, request.image.image))
        if isinstance(request, cri.StopContainerRequest):
            life = self.record.life(request.container_id)
            if life is not None:
                self._note_all(self.evictions.stopped(life.uid, request.timeout))

    def on_log(self, entry: LogEntry) -> None:
        """Observer of the agent's log: an error is always a bug."""
        self.record.on_log(entry)
        if entry["level"] in ("error", "critical") or "exc_info" in entry:
            trace = traceback.format_exc() if "exc_info" in entry else ""
            self.violated("error in the log:", self.record.lines[-1], trace)
        if entry["event"] == "event rejected by the API server":
            self.record.refused_events.add((str(entry["object"]), str(entry["reason"])))
        if entry["event"] in DAMAGED:
            self.violated("a file that the agent keeps is damaged:", self.record.lines[-1])
        if entry["event"] == "pod status refused":
            self.violated("the API was told what no pod's life allows:", self.record.lines[-1])

    def on_observed(self, assessment: Assessment) -> None:
        """Observer of the agent's observations of the node."""
        self._note_all(self.evictions.observed(assessment))

    def on_recorded(self, event: RecordedEvent) -> None:
        """Observer of the agent's events."""
        if event.reason == EVICTED:
            self._note_all(self.evictions.told(event))

    def on_agent_ended(self, journal: tuple[Entry, ...]) -> None:
        """Observer of the agent's end."""
        self.record.on_agent_ended(journal)

    def on_probe(self, container_id: str, kind: ProbeKind, succeeded: bool) -> None:
        """Observer of the answers to probes that reach the agent."""
        self.record.note("probe", container_id[:12], kind, succeeded)
        life = self.record.life(container_id)
        if life is None or life.health is None:
            self.violated(f"{kind} of container {container_id[:12]} was asked, which has no probes")
            return
        self._note_all(self._asked_out_of_turn(life, kind))
        self._serve(life)
        life.health.take(kind, succeeded=succeeded)

    def on_status(self, pod: Pod, status: PodStatus) -> None:
        """Observer of the statuses that the agent reports."""
        uid = pod.metadata.uid
        self.record.note("status", uid, status.phase, status.reason)
        incarnation = self._incarnation(uid)
        known, before = self._told.get(uid, (None, status))
        self._told[uid] = incarnation, status
        wanted = self.record.wanted.get(uid)
        if known == incarnation and wanted is not None:
            for problem in steps_back(before, status, begins_anew=wanted.may_begin_anew):
                self.violated("status of", uid, problem)
        for told in (*status.init_container_statuses, *status.container_statuses):
            self._note_all(self._wrongly_ready(pod, told))

    def on_write(self, change: Change) -> None:
        """Observer of the API server's storage."""
        if change.resource != (PODS.group, PODS.resource):
            return
        before = decode(Pod, change.before) if change.before is not None else None
        after = decode(Pod, change.after) if change.after is not None else None
        if after is not None:
            self._note_all(serves_without_being_ready(after))
            for shown in (*after.status.init_container_statuses, *after.status.container_statuses):
                self._shown_ready[_id_of(shown)] = shown.ready
            self._note_all(self.evictions.shown(after))
        if before is not None and after is not None:
            self._note_all(self._shown_backwards(before, after))
        elif before is not None:
            self.record.note("api removed", before.metadata.uid, before.metadata.name)
            if not is_mirror(before):
                self._note_all(self._object_gone(before))

    def _incarnation(self, uid: str) -> object:
        """What tells one pod from another of the same UID: which task of which agent it is."""
        assert self.node is not None
        task = self.node.agent.task(uid) if self.node.agent is not None else None
        return self.node.lives, task.incarnation if task is not None else None

    def _note_all(self, problems: Iterator[str]) -> None:
        for problem in problems:
            self.violated(problem)

    def _serve(self, life: Life) -> None:
        """The agent that lives now deals with a container."""
        assert self.node is not None
        if life.health is not None:
            shown = self._shown_ready.get(life.container.id, False)
            life.health.serve(self.node.lives, shown_ready=shown)

    # The rules

    def _asked_out_of_turn(self, life: Life, kind: ProbeKind) -> Iterator[str]:
        assert life.health is not None
        if kind is not ProbeKind.STARTUP and not life.health.may_be_started:
            yield f"{kind} of {life.name} was asked for before it had started up"
        now = trio.current_time()
        age_seconds = now - (life.started_at or 0.0)
        is_early = age_seconds + 1 < life.health.natures[kind].delay
        if is_early and self.record.clock_jumped_at < (life.started_at or 0.0):
            yield f"{kind} of {life.name} was asked for {age_seconds:.1f} s after its start"
        ended_at = life.ended_at or now
        is_late = now - max(ended_at, self.record.runtime_away_until) > LONGEST_UNSEEN_SECONDS
        if is_late and not self.record.loses_events:
            yield f"{kind} of {life.name} was asked for {now - ended_at:.0f} s after its end"

    def _wrongly_ready(self, pod: Pod, told: ContainerStatus) -> Iterator[str]:
        """What a status says of a container against what its probes have answered."""
        life = self.record.life(_id_of(told))
        if life is None or life.health is None or life.container.id in self.record.lost:
            return
        self._serve(life)
        if told.started and not life.health.may_be_started:
            yield f"{told.name} is said to have started up, and its probe has not succeeded"
        if told.ready and not life.health.may_be_ready:
            yield f"{told.name} is said to be ready, and its probes do not say so"
        runs = told.state is not None and told.state.running is not None
        was_ready = self._shown_ready.get(life.container.id, False) and not is_static(pod)
        if runs and was_ready and not (told.ready or life.health.may_be_unready):
            yield f"{told.name} is not ready any more, and no probe of it has failed"

    def _two_sandboxes(self, uid: str, sandbox: HollowSandbox) -> Iterator[str]:
        assert self.node is not None
        ready = [s for s in self.node.runtime.sandboxes if s.ready and _uid(s) == uid]
        if [other for other in ready if other is not sandbox] and not self._is_cut_off():
            yield f"pod {uid} has {len(ready)} ready sandboxes"

    def _two_running(self, uid: str, life: Life) -> Iterator[str]:
        if any(_runs(other) for other in self.record.earlier(uid, life)):
            yield f"two containers {life.name} of pod {uid} run"

    def _counted_without_a_start(self, uid: str, life: Life) -> Iterator[str]:
        for last in self.record.earlier(uid, life)[:1]:
            if last.never_started and life.attempt > last.attempt:
                yield f"{life.name} of pod {uid} counts a restart, but {last.attempt} never started"

    def _started_while_ending(self, uid: str, life: Life) -> Iterator[str]:
        assert self.node is not None
        if self.node.agent is None or self._is_cut_off():
            return
        task = self.node.agent.task(uid)
        if task is None:
            yield f"container {life.name} of pod {uid} started, which has no task"
        elif task.state is not PodState.SYNC_POD:
            yield f"container {life.name} of pod {uid} started while it is {task.state}"

    def _out_of_order(self, uid: str, life: Life) -> Iterator[str]:
        wanted = self.record.wanted.get(uid)
        if wanted is None:
            return
        shape = wanted.shape
        order = shape.init_names
        before = order[: order.index(life.name)] if life.name in order else order
        causes = self.record.restarts_of_all(uid, life.sandbox_id)
        lives = self._made_with(uid, life, causes)
        for name in before:
            here = [each for each in lives if each.name == name]
            if name in shape.sidecar_names:
                if not any(_started_up(each) for each in here):
                    yield f"{life.name} of pod {uid} started before sidecar {name}"
            elif not any(_succeeded(each) for each in here):
                yield f"{life.name} of pod {uid} started before init container {name} succeeded"

    def _made_with(self, uid: str, life: Life, causes: Iterable[Life]) -> list[Life]:
        """The containers in the sandbox of one, since all of the pod was last restarted in it.

        That was for the exits of `causes`.
        """
        began = max(_gone_before(life, causes), default=-math.inf)
        everything = self.record.lives[uid].values()
        here = [each for each in everything if each.sandbox_id == life.sandbox_id]
        return [each for each in here if each.created_at >= began]

    def _restarted_without_the_others(self, uid: str, life: Life) -> Iterator[str]:
        """All run anew after an exit that restarts all, and nothing of before runs beside them."""
        causes = self.record.restarts_of_all(uid, life.sandbox_id)
        if any(each.name == life.name and not each.removed for each in causes):
            yield f"{life.name} of pod {uid} runs again alone, and its exit restarts all"
        if began := _gone_before(life, causes):
            for other in self.record.lives[uid].values():
                is_older = other.created_at < began[-1] and other.sandbox_id == life.sandbox_id
                if is_older and _runs(other):
                    yield f"{other.name} of pod {uid} runs on, and all was to be restarted"

    def _initialized_twice(self, uid: str, life: Life) -> Iterator[str]:
        """An init container that has succeeded runs once for a sandbox, or a restart of all."""
        wanted = self.record.wanted.get(uid)
        if wanted is None or life.name not in wanted.shape.init_names:
            return
        causes = self.record.perhaps_restarts_of_all(uid)
        here = [cause for cause in causes if cause.sandbox_id == life.sandbox_id]
        before = [each for each in self._made_with(uid, life, here) if each.name == life.name]
        done = [each for each in before if each is not life and _succeeded(each)]
        if life.name not in wanted.shape.sidecar_names and done:
            yield f"init container {life.name} of pod {uid} runs again, and had succeeded"

    def _restarted_against_policy(self, uid: str, life: Life) -> Iterator[str]:
        """Under Never an end is final, unless a rule lets the container retry that exit."""
        wanted = self.record.wanted.get(uid)
        if wanted is None or life.name in wanted.shape.sidecar_names:
            return
        is_retried = life.name in wanted.shape.retried_names
        if not (is_retried or wanted.shape.never_restarts) or wanted.touched_at > life.created_at:
            return
        for other in self.record.earlier(uid, life):
            if other.container.id in self.record.lost:
                continue  # how it ended nobody knew
            if other.ended_at is not None and other.created_at > wanted.touched_at:
                if not is_retried or other.container.exit_code != RETRIED:
                    yield f"{life.name} of pod {uid} runs again although its policy is Never"
                return

    def _restarted_too_soon(self, uid: str, life: Life) -> Iterator[str]:
        """Keeps for each container how long it must wait after its next end."""
        key = (life.agent_life, uid, life.name)
        last = next((x for x in self.record.earlier(uid, life) if x.started_at is not None), None)
        if last is None or last.ended_at is None or last.agent_life != life.agent_life:
            return
        if last.container.id in self.record.lost:
            return  # it was replaced to be sure
        if last.sandbox_id in self.record.killed:
            return  # it was stopped for want of a sandbox, and need not wait for another
        wanted = self.record.wanted.get(uid)
        if wanted is None or wanted.touched_at > last.created_at or life.image != last.image:
            self._backoffs.pop(key, None)  # it may have been made while the pod was changed
            return
        if (
            self._was_restarted_with_all(uid, last)
            and life.name not in wanted.shape.restarting_names
        ):
            self._backoffs.pop(key, None)
            return
        delay = self._backoffs.get(key, 0.0)
        ran_seconds = last.ended_at - last.created_at
        jumped = self.record.clock_jumped_at > self._decided_at(uid, last)
        if jumped or ran_seconds > FORGOTTEN_AFTER_SECONDS - SLACK_SECONDS:
            delay = 0.0
        waited = trio.current_time() - last.ended_at
        if waited < delay and not self._was_stopped_late(uid, last, delay):
            yield f"{life.name} of pod {uid} started after {waited:.1f} s instead of {delay:.0f}"
        self._backoffs[key] = min(max(delay * 2, FIRST_BACKOFF_SECONDS), LAST_BACKOFF_SECONDS)

    def _was_restarted_with_all(self, uid: str, life: Life) -> bool:
        """Whether it was there when the exit of one, perhaps its own, restarted all.

        What is left of an earlier sandbox goes with the others.
        """
        return any(
            cause.removed_at is None or cause.removed_at >= life.created_at
            for cause in self.record.perhaps_restarts_of_all(uid)
            if cause.sandbox_id == life.sandbox_id or cause.created_at >= life.created_at
        )

    def _was_stopped_late(self, uid: str, last: Life, delay: float) -> bool:
        """Whether it failed a probe when the back-off of the one before was over: that is at once
        followed by another.
        """
        known = (
            x for x in self.record.earlier(uid, last) if x.container.id not in self.record.lost
        )
        before = next((x for x in known if x.ended_at is not None), None)
        if not last.has_failed_a_probe or before is None or before.ended_at is None:
            return False
        assert last.ended_at is not None
        return last.ended_at - before.ended_at >= delay

    def _decided_at(self, uid: str, life: Life) -> float:
        """When the back-off was last decided on before it started, at the earliest.

        Nothing was decided for those just before it that never came to run, were lost, or went with
        their sandbox. The call that made it may have taken long: it was decided on any time since
        the one before had ended.
        """
        lost, killed = self.record.lost, self.record.killed
        earlier = list(self.record.earlier(uid, life))
        undecided = list(
            takewhile(
                lambda other: (
                    other.never_started or other.container.id in lost or other.sandbox_id in killed
                ),
                earlier,
            )
        )
        ended = [other.ended_at for other in earlier[len(undecided) :][:1] if other.ended_at]
        return min([life.created_at, *(other.created_at for other in undecided), *ended])

    def _stopped_without_reason(self, uid: str, life: Life) -> Iterator[str]:
        wanted = self.record.wanted.get(uid)
        if wanted is None or wanted.deleted or uid in self.record.evictions or not life.is_steady:
            return
        if {life.container.id, life.sandbox_id} & self.record.killed:
            return
        if wanted.touched_at >= life.created_at or wanted.shape.has_deadline:
            return
        if life.image != wanted.shape.images.get(life.name):
            return  # it was made by a sync that had begun before the pod was changed
        if life.has_failed_a_probe or self._was_restarted_with_all(uid, life):
            return
        if life.name in wanted.shape.regular_names or wanted.shape.fate == "runs":
            yield f"container {life.name} of pod {uid} was stopped, and nobody wanted it"

    def _removed_while_wanted(self, uid: str, life: Life) -> Iterator[str]:
        wanted = self.record.wanted.get(uid)
        if wanted is None or wanted.deleted or wanted.touched_at >= life.created_at:
            return
        if life.never_started:
            return  # the next one takes its number
        if life.container.id in self.record.lost:
            return  # it was not the agent
        if self._was_restarted_with_all(uid, life) or self.evictions.needs_room_of(uid):
            return
        lives = self.record.lives[uid].values()
        if not any(x.name == life.name and x.created_at > life.created_at for x in lives):
            yield f"the newest container {life.name} of pod {uid} was removed"

    def _shown_backwards(self, before: Pod, after: Pod) -> Iterator[str]:
        """What a write took back of what the API had shown of a pod.

        A mirror only keeps an end: an agent that was started anew knows no more of a static pod
        than the runtime shows.
        """
        name, was, is_ = before.metadata.name, before.status, after.status
        if not is_mirror(before):
            wanted = self.record.wanted.get(before.metadata.uid)
            begins_anew = wanted is not None and wanted.may_begin_anew
            for problem in steps_back(was, is_, begins_anew=begins_anew):
                yield f"what the API shows of {name}: {problem}"
        elif was.phase in ENDS and is_.phase != was.phase:
            yield f"what the API shows of {name}: phase went from {was.phase} to {is_.phase}"

    def _object_gone(self, pod: Pod) -> Iterator[str]:
        """The object of a pod was removed, by its owner or, at last, by the agent."""
        assert self.node is not None
        uid, name = pod.metadata.uid, pod.metadata.name
        wanted = self.record.wanted.pop(uid, None)
        if wanted is None or not wanted.deleted:
            yield f"the object of pod {uid} ({name}) was removed, and nobody wanted it"
        elif not wanted.forced and pod.status.phase not in ENDS:
            alive = [c for c in self.node.runtime.containers if _belongs(c, uid) and _is_alive(c)]
            if alive:
                yield f"the object of pod {uid} ({name}) was removed while {len(alive)} run"

    def _is_cut_off(self) -> bool:
        return trio.current_time() - self.record.cut_off_at < CUT_OFF_SECONDS


def _gone_before(life: Life, causes: Iterable[Life]) -> list[float]:
    """When all was gone for a restart of all before a container was made; a cause goes last."""
    gone = [cause.removed_at for cause in causes if cause.removed_at is not None]
    return [at for at in gone if at <= life.created_at]


def _is_alive(container: HollowContainer) -> bool:
    """Whether it runs."""
    return bool(container.state == cri.ContainerState.CONTAINER_RUNNING)


def _belongs(container: HollowContainer, uid: str) -> bool:
    return bool(container.sandbox.config.metadata.uid == uid)


def _uid(sandbox: HollowSandbox) -> str:
    return str(sandbox.config.metadata.uid)


def _runs(life: Life) -> bool:
    return life.started_at is not None and life.ended_at is None and not life.removed


def _started_up(life: Life) -> bool:
    health = life.health
    return life.started_at is not None and (health is None or health.may_be_started)


def _id_of(status: ContainerStatus) -> str:
    return status.container_id.rpartition("/")[2]


def _succeeded(life: Life) -> bool:
    return life.ended_at is not None and life.container.exit_code == 0
