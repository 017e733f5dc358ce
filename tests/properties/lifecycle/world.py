"""One pod on the real parts that act on pods, on the hollow runtime and a clock that jumps.

What is left out is what has no say in a pod's life: sources, admission, the API server. No call
and no file work takes any time, so each moment is exact.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import structlog.testing
import trio
import trio.testing
from attrs import evolve, field, frozen
from trio._core import _run

from state_machines.pod import PodEvent, PodState
from state_machines.pod_ending import Ending
from state_machines.probe import ProbeKind
from tests.file_work import in_place
from tests.properties.lifecycle.scripts import (
    CUT_OFF,
    ERROR,
    FAILURE,
    IMAGE,
    KILLED,
    LATE,
    SUCCESS,
    PodScript,
    behaviours_of,
    pod_of,
)
from tests.simulation.transport import RuntimeTransport
from tests.trio_clock import TrioClock
from trio_kubelet.agent.cluster import Standalone
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.pod_parts import AnsweredRuntime, make_pod_parts
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.hollow import (
    HollowOptions,
    HollowRuntime,
    Latencies,
)
from trio_kubelet.hollow.host import hollow_host
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.k8s import Pod, PodStatus, Probe
from trio_kubelet.node.machine import MachineInfo, read_machine
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult, failure
from trio_kubelet.pod_clients.share import Target
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.health import RuntimeState
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.sync.pod_task import Beginning, PodRequest, PodTask, SharedByTasks

LONG_SECONDS = 600.0
EXIT_CODES = {SUCCESS: 0, FAILURE: 1, CUT_OFF: KILLED}
"""Of the commands of probes."""
TRIES = 3
"""How often a probe that cannot be run is tried."""
QUICK = Latencies(list=1e-4)
"""A list must be younger than a call to show what came of it."""
UP = RuntimeState(answered=True, up=True, network_ready=True)
Kind = cri.ContainerEventType


@frozen(kw_only=True)
class Lived:
    """What became of a pod, each with the seconds after its beginning.

    `starts` and `ends` are those of instances, with the number of their attempt, and the exit
    code; `turned` is when containers turned ready, or not ready. `phase` and `restarts` are what
    its status said before its removal; the phase is empty while it was not over.
    """

    starts: tuple[tuple[float, str, int], ...]
    ends: tuple[tuple[float, str, int, int], ...]
    turned: tuple[tuple[float, str, bool], ...]
    phase: str
    restarts: Mapping[str, int]
    errors: tuple[str, ...] = ()


@contextmanager
def _repeatable() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True))
        stack.enter_context(in_place())
        _run._r.seed(0)
        yield


class _Health:
    """How the pod's containers answer: each instance by itself, in the order of its script."""

    def __init__(self, script: PodScript) -> None:
        self.script = script
        self._runs: dict[tuple[str, ProbeKind], int] = {}
        self._tries: dict[tuple[str, ProbeKind], int] = {}

    def next(self, container_id: str, name: str, kind: ProbeKind) -> str:
        """How the next run comes out; one that cannot be run is tried some times."""
        key = container_id, kind
        probe = self.script.container(name).probe(kind)
        assert probe is not None, "who has no probe is not asked"
        outcome = probe.outcome(self._runs.get(key, 0))
        self._tries[key] = self._tries.get(key, 0) + 1
        if outcome != ERROR or self._tries[key] == TRIES:
            self._runs[key] = self._runs.get(key, 0) + 1
            self._tries[key] = 0
        return outcome


class _Runtime(HollowRuntime):
    """Commands in containers come out as the script says."""

    health: _Health

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        container = self.containers.find(request.container_id)
        if container.state != cri.ContainerState.CONTAINER_RUNNING:
            raise RpcError(Code.UNKNOWN, "container is not running")
        name, kind = container.config.metadata.name, ProbeKind(request.cmd[1])
        outcome = self.health.next(container.id, name, kind)
        if outcome == ERROR:
            raise RpcError(Code.UNKNOWN, "no such process")
        await trio.sleep(self.health.script.answer_seconds(name, kind, outcome))
        if outcome == LATE:
            raise RpcError(Code.DEADLINE_EXCEEDED, "timeout exceeded")
        return cri.ExecSyncResponse(exit_code=EXIT_CODES[outcome])


@frozen(kw_only=True)
class _World:
    """What is observed of one pod."""

    began: float
    starts: list[tuple[float, str, int]] = field(factory=list)
    ends: list[tuple[float, str, int, int]] = field(factory=list)
    turned: list[tuple[float, str, bool]] = field(factory=list)

    def seconds(self) -> float:
        return trio.current_time() - self.began

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        container = sandbox.containers.get(container_id)
        if container is None:
            return
        name, attempt = container.config.metadata.name, container.config.metadata.attempt
        if kind == Kind.CONTAINER_STARTED_EVENT:
            self.starts.append((self.seconds(), name, attempt))
        elif kind == Kind.CONTAINER_STOPPED_EVENT:
            self.ends.append((self.seconds(), name, attempt, container.exit_code))

    def on_status(self, _pod: Pod, status: PodStatus) -> None:
        known = {name: ready for _, name, ready in self.turned}
        for shown in (*status.init_container_statuses, *status.container_statuses):
            if shown.ready is not known.get(shown.name, False):
                self.turned.append((self.seconds(), shown.name, shown.ready))


_MACHINES: dict[str, MachineInfo] = {}


def live(script: PodScript) -> Lived:
    """Let the pod live until it is removed, and end."""
    with (
        tempfile.TemporaryDirectory(prefix="pod-") as folder,
        _repeatable(),
        structlog.testing.capture_logs() as logs,
    ):
        clock = trio.testing.MockClock(autojump_threshold=0)
        lived = trio.run(_live, script, Path(folder), clock=clock)
    return evolve(lived, errors=tuple(str(e) for e in logs if e["log_level"] == "error"))


async def _live(script: PodScript, root: Path) -> Lived:
    clock, pod = TrioClock(), pod_of(script)
    async with trio.open_nursery() as nursery:
        options = HollowOptions(
            name="containerd", images=(IMAGE,), latencies=QUICK, behaviours=behaviours_of(script)
        )
        runtime = _Runtime(clock, nursery, options)
        health = runtime.health = _Health(script)

        async def ask(probe: Probe, target: Target, _seconds: int) -> ProbeResult:
            container = target.container
            kinds = (container.startup_probe, container.readiness_probe, container.liveness_probe)
            order = (ProbeKind.STARTUP, ProbeKind.READINESS, ProbeKind.LIVENESS)
            kind = next(k for k, known in zip(order, kinds, strict=True) if known is probe)
            await trio.lowlevel.checkpoint()
            found = runtime.containers.find(target.container_id)
            if found.state != cri.ContainerState.CONTAINER_RUNNING:
                return failure("connection refused")
            outcome = health.next(target.container_id, container.name, kind)
            if outcome == ERROR:
                raise ProbeError("no route")
            await trio.sleep(script.answer_seconds(container.name, kind, outcome))
            if outcome == LATE:
                return failure("i/o timeout")
            if outcome == SUCCESS:
                return ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
            if outcome == CUT_OFF:
                return failure("EOF", cut_off=True)
            return failure("statuscode: 500", by_container=True)

        machine = _MACHINES.setdefault("here", read_machine(Path("/")))
        host = hollow_host(RuntimeTransport(runtime), machine, ask_over_network=ask)
        parts = NodeParts(_settings(root), clock, host)
        parts.make_folders()
        parts.runtime_health.update(UP)
        await parts.pleg.relist()
        world = _World(began=trio.current_time())
        runtime.events.add_observer(world.on_event)
        parts.statuses.on_change.add(world.on_status)
        driver = AnsweredRuntime(name="containerd", cgroup_driver=CgroupDriver.CGROUPFS)
        pod_parts = await make_pod_parts(parts, driver, Standalone())
        task = PodTask(
            pod,
            pod_parts.sync.open_syncer(pod),
            SharedByTasks(
                journal=parts.journal,
                recorder=parts.recorder,
                resync_seconds=LONG_SECONDS,
                cleaning=CleaningTurns(parts.activity.wait_idle),
            ),
            Beginning(incarnation=1),
        )
        nursery.start_soon(parts.stop_turns.give)
        nursery.start_soon(parts.probe_shares.give_turns)
        nursery.start_soon(task.run)
        nursery.start_soon(_pass_on_probes, parts, task)
        runtime.events.add_observer(
            lambda _kind, _id, _sandbox: nursery.start_soon(_look, parts, task, trio.current_time())
        )
        await trio.sleep_until(world.began + script.removed_after)
        status = parts.statuses.get(pod.metadata.uid) or PodStatus()
        is_over = task.state is not PodState.SYNC_POD and status.phase in ("Succeeded", "Failed")
        turned = tuple(world.turned)
        task.put(PodRequest(ending=Ending(causes=(PodEvent.REMOVED,))))
        with trio.fail_after(LONG_SECONDS):
            await task.finished.wait()
        nursery.cancel_scope.cancel()
    everything = (*status.init_container_statuses, *status.container_statuses)
    return Lived(
        starts=tuple(world.starts),
        ends=tuple(world.ends),
        turned=turned,
        phase=status.phase if is_over else "",
        restarts={shown.name: shown.restart_count for shown in everything},
    )


async def _pass_on_probes(parts: NodeParts, task: PodTask) -> None:
    """As the sync loop does."""
    async for change in parts.probe_changes:
        task.report()
        task.put(PodRequest(why=(change.kind,)))


async def _look(parts: NodeParts, task: PodTask, heard_at: float) -> None:
    """As the event generator does."""
    uid = task.pod.metadata.uid
    await parts.cache.wait_inspection_resumed(uid)
    before = parts.cache.get(uid)
    if before.observed_at >= heard_at:
        return
    after = parts.cache.put(await parts.pleg._inspector.inspect(before))
    if [(c.id, c.state) for c in before.containers] != [(c.id, c.state) for c in after.containers]:
        task.put(PodRequest(why=("event",)))


def _settings(root: Path) -> Settings:
    return Settings(
        configuration=KubeletConfiguration(
            pod_logs_dir=str(root / "logs"), resolv_conf="", healthz_port=0, enable_server=False
        ),
        options=NodeOptions(root_dir=str(root / "kubelet"), hostname_override="node", hollow=True),
    )
