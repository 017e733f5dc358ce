"""Five hundred probes with a period of a second: what they cost, and how late they are.

The agent and the Go kubelet run the same pods in turn, standalone, each with a containerd of its
own. What is asked are servers of the lab on the host's network, which note who asks when: a probe
is late by what it comes after the time that its earlier runs have set. Then fifty other pods are
started beside them.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import trio
from attrs import frozen

from benchmarks.figures import Figure
from benchmarks.idle import cpu_percent
from benchmarks.manifests import manifest
from lab.agent import Json, LabAgent, is_running
from lab.containerd import Containerd
from lab.go_kubelet import GoKubelet, remove_log_links
from lab.images import SLEEPER
from lab.probe_targets import ProbeTargetsProcess

NAME = "probes"
HTTP, TCP, GRPC = 250, 200, 50
PODS = 25
PERIOD_SECONDS = 1.0
SETTLE_SECONDS = 15.0
WATCHED_SECONDS = 30.0
STARTED = 50
DEADLINE_SECONDS = 300.0
EARLY_SECONDS = 0.05
"""A run that comes so much before its time is that of this time, not a late one."""

SETTINGS: Mapping[str, object] = {
    "maxPods": 200,
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}
"""What a Go kubelet needs to run without an API server, and without a limit that is in the way."""

GOAL_CPU_PERCENT = 20.0
GOAL_LATE_MS = 100.0


@frozen(kw_only=True)
class Measured:
    """What was measured of one kubelet; seconds by which runs were late, in order."""

    cpu_percent: float
    late_alone: Sequence[float]
    late_beside_starts: Sequence[float]


def measure(folder: Path, _rounds: int, containerd: str) -> list[Figure]:
    """Measure one after the other. Blocks. Raises LabError; UnavailableError without Go."""
    with ProbeTargetsProcess(TCP) as targets:
        theirs = _measure(GoKubelet, folder / "go", containerd, targets)
        ours = _measure(LabAgent, folder / "trio", containerd, targets)
    count = f"{HTTP + TCP + GRPC} probes a second"
    return [
        Figure(
            benchmark=NAME,
            name=f"CPU, {count}",
            value=ours.cpu_percent,
            unit="%",
            goal=GOAL_CPU_PERCENT,
            how=f"Go kubelet {theirs.cpu_percent:.1f} %",
        ),
        _lateness(f"latest of {count}", ours.late_alone, theirs.late_alone),
        _lateness(
            f"latest while {STARTED} pods start",
            ours.late_beside_starts,
            theirs.late_beside_starts,
            goal=GOAL_LATE_MS,
        ),
    ]


def _lateness(
    name: str, ours: Sequence[float], theirs: Sequence[float], *, goal: float | None = None
) -> Figure:
    return Figure(
        benchmark=NAME,
        name=name,
        value=1000 * ours[-1],
        unit="ms",
        goal=goal,
        how=f"{_parts(ours)}; Go kubelet {_parts(theirs)}, {1000 * theirs[-1]:.0f} ms at most",
    )


def _parts(late: Sequence[float]) -> str:
    median, most = (1000 * late[int(len(late) * part)] for part in (0.5, 0.99))
    return f"median {median:.0f} ms, 99 % within {most:.0f} ms"


def _measure(
    kind: type[LabAgent], folder: Path, version: str, targets: ProbeTargetsProcess
) -> Measured:
    with Containerd(version, folder / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings=SETTINGS,
            cgroup_root=containerd.cgroup_root,
        )
        try:
            with kubelet:
                return _watched(kubelet, targets)
        finally:
            remove_log_links(containerd.folder)


def _watched(kubelet: LabAgent, targets: ProbeTargetsProcess) -> Measured:
    for name, pod in probed_pods(targets).items():
        kubelet.write(f"{name}.json", pod)
    kubelet.wait_for(_all_ready, deadline_seconds=DEADLINE_SECONDS)
    time.sleep(SETTLE_SECONDS)
    targets.asked()
    percent = trio.run(cpu_percent, kubelet.pid, WATCHED_SECONDS)
    alone = targets.asked()
    began_at = time.monotonic()
    for number in range(STARTED):
        kubelet.write(f"started-{number}.json", manifest(f"started-{number}"))
    kubelet.wait_for(
        lambda pods: len(pods) == PODS + STARTED and all(map(is_running, pods.values())),
        deadline_seconds=DEADLINE_SECONDS,
    )
    ended_at = time.monotonic()
    time.sleep(2 * PERIOD_SECONDS)
    beside = targets.asked()
    due = {who: due_at(times) for who, times in alone.items()}
    return Measured(
        cpu_percent=percent,
        late_alone=sorted(
            each
            for who, times in alone.items()
            for each in lateness(times, due[who], times[0], times[-2])
        ),
        late_beside_starts=sorted(
            each
            for who, at in due.items()
            for each in lateness(beside.get(who, ()), at, began_at, ended_at)
        ),
    )


def due_at(times: Sequence[float]) -> float:
    """A moment at which a probe is due, by the run of it that was the earliest in its period."""
    first = times[0]
    return min(at - round((at - first) / PERIOD_SECONDS) * PERIOD_SECONDS for at in times)


def lateness(times: Sequence[float], due: float, since: float, until: float) -> Iterator[float]:
    """How late each run was that was due in a span of time; infinitely, one that never came."""
    turn = math.ceil((since - due) / PERIOD_SECONDS)
    runs = iter(times)
    at = next(runs, math.inf)
    while (wanted := due + turn * PERIOD_SECONDS) <= until:
        while at < wanted - EARLY_SECONDS:
            at = next(runs, math.inf)
        yield max(0.0, at - wanted)
        turn += 1


def probed_pods(targets: ProbeTargetsProcess) -> Mapping[str, Json]:
    """The pods, by name; each container has a readiness and a liveness probe."""
    actions: list[Json] = [
        *({"httpGet": {"path": f"/200?{n}", "port": targets.http_port}} for n in range(HTTP)),
        *({"tcpSocket": {"port": port}} for port in targets.tcp_ports),
        *({"grpc": {"service": f"{n}", "port": targets.grpc_port}} for n in range(GRPC)),
    ]
    probes = [{**action, "periodSeconds": 1, "failureThreshold": 100} for action in actions]
    containers = [
        {
            "name": f"c{number}",
            "image": SLEEPER,
            "readinessProbe": readiness,
            "livenessProbe": liveness,
        }
        for number, (readiness, liveness) in enumerate(zip(probes[::2], probes[1::2], strict=True))
    ]
    pods = {}
    for number in range(PODS):
        pod = manifest(f"probed-{number}")
        spec = {**pod["spec"], "hostNetwork": True, "containers": containers[number::PODS]}
        pods[f"probed-{number}"] = {**pod, "spec": spec}
    return pods


def _all_ready(pods: Mapping[str, Json]) -> bool:
    return len(pods) == PODS and all(
        each["ready"]
        for pod in pods.values()
        for each in pod["status"].get("containerStatuses") or [{"ready": False}]
    )
