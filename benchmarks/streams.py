"""What passes through a node for its users, beside the Go kubelet: logs, exec, port-forward.

Both are nodes of one real control plane, and kubectl moves the same bytes through each in turn, as
a user does. While they move through the agent, its own socket is asked again and again how the
sync loop is: who waits long for that answer would wait long for anything else, too. In the end
pods are started, with and without streams that go on at a steady rate, as those of users do who
watch a log or copy something: at full speed they would take the machine from the runtime.
"""

import http.client
import os
import socket
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from attrs import Factory, frozen

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.watched_pods import WatchedPods, kubeconfig_flags
from lab import LabError
from lab.agent import LabAgent
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.images import BUSYBOX
from lab.ports import LOOPBACK, free_port
from lab.processes import run, wait_until

NAME = "streams"
ROUNDS = 5
MEBIBYTES = 48
GOAL = 1 / 0.7
"""The largest ratio of times to the Go kubelet's: at least 0.7 of its throughput."""
LATENCY_GOAL_MS = 50.0
STARTED_PODS = 50
START_ROUNDS = 3
START_GOAL = 1.2
"""How much longer the pods may take while streams run."""

STEADY_BYTES, STEADY_SECONDS = 1 << 18, 0.25
"""What each steady stream moves, and how often."""

READ_BYTES = 1 << 18
ASK_SECONDS = 0.02
ALONE, BESIDE = "pods alone", "pods beside streams"
DEADLINE_SECONDS = 180.0
_LINE = "x" * 79
_SIZE = MEBIBYTES << 20
_SCRIPT = (
    f"mkdir /www; dd if=/dev/zero of=/www/file bs=1M count={MEBIBYTES}; httpd -p 8080 -h /www; "
    f"yes {_LINE} | head -n {_SIZE // len(_LINE + ' ')}; echo over; sleep 1000000"
)


@frozen
class StreamingNode:
    """A node under test, its pod, and how long each kind of stream took."""

    plane: ControlPlane
    kubelet: LabAgent
    pod: str
    pods: WatchedPods
    seconds: dict[str, list[float]] = Factory(dict)

    def command(self, *words: str) -> list[str]:
        """The command line of kubectl."""
        return self.plane.kubectl_command(*words)


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    latencies: list[float] = []
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        theirs, ours = (
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", LabAgent))
        )
        for number in range(rounds or ROUNDS):
            for name, move in KINDS.items():
                for node in (theirs, ours) if number % 2 else (ours, theirs):
                    asked = latencies if node is ours else []
                    with _asking(ours.kubelet, asked):
                        began_at = time.monotonic()
                        moved = move(node)
                        node.seconds.setdefault(name, []).append(time.monotonic() - began_at)
                    if moved < _SIZE // 2:
                        raise LabError(f"{node.pod}: {name} moved {moved} bytes only")
        for number in range(min(rounds, START_ROUNDS) or START_ROUNDS):
            for node in (theirs, ours) if number % 2 else (ours, theirs):
                _start_pods(node, number, ours.kubelet, latencies if node is ours else [])
    return [
        *(_figure(name, ours.seconds[name], theirs.seconds[name]) for name in KINDS),
        Figure(
            benchmark=NAME,
            name="answer of the sync loop's check meanwhile, 95 of 100",
            value=statistics.quantiles(latencies, n=20)[-1] * 1000,
            unit="ms",
            goal=LATENCY_GOAL_MS,
            how=f"{len(latencies)} answers, median {statistics.median(latencies) * 1000:.1f} ms",
        ),
        Figure(
            benchmark=NAME,
            name=f"{STARTED_PODS} pods at once beside streams, of their time without",
            value=_slowdown(ours),
            unit="x",
            goal=START_GOAL,
            how=f"{spread(ours.seconds[BESIDE])}; Go kubelet {_slowdown(theirs):.2f} x",
        ),
    ]


def _slowdown(node: StreamingNode) -> float:
    return ratio_of_medians(node.seconds[BESIDE], node.seconds[ALONE])


def _start_pods(node: StreamingNode, number: int, asked: LabAgent, latencies: list[float]) -> None:
    """Start pods twice, once with streams, and note how long it took until all were Ready."""
    for beside in (False, True) if number % 2 else (True, False):
        names = [f"{node.pod}-{number}-{beside:d}-{each}" for each in range(STARTED_PODS)]
        streams = _steady_streams(node) if beside else nullcontext()
        with streams, _asking(asked, latencies if beside else []):
            began_at = node.pods.create(names)
            took = max(node.pods.wait_ready(names).values()) - began_at
        node.seconds.setdefault(BESIDE if beside else ALONE, []).append(took)
        node.pods.delete(names)
        node.pods.wait_gone(names)


@contextmanager
def _steady_streams(node: StreamingNode) -> Iterator[None]:
    """Let a log be followed, and let bytes go in and out of a command, at a steady rate."""
    over = threading.Event()
    endless = "while :; do cat /www/file; done"
    out = (
        node.command("logs", "--follow", node.pod),
        node.command("exec", node.pod, "--", "sh", "-c", endless),
    )
    into = node.command("exec", "-i", node.pod, "--", "sh", "-c", "cat >/dev/null")
    with ExitStack() as stack:
        for command in (*out, into):
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            )
            move = _write_some if command is into else _read_some
            thread = threading.Thread(target=_move, args=(partial(move, process), over))
            thread.start()
            stack.callback(thread.join)
            stack.callback(process.kill)
        stack.callback(over.set)
        yield


def _move(some: Callable[[], None], over: threading.Event) -> None:
    """Move some bytes at a time, until it is over."""
    while not over.wait(STEADY_SECONDS):
        with suppress(BrokenPipeError):
            some()


def _read_some(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    os.read(process.stdout.fileno(), STEADY_BYTES)


def _write_some(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(bytes(STEADY_BYTES))


def _figure(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    return Figure(
        benchmark=NAME,
        name=f"{MEBIBYTES} MiB by {name}, of the Go kubelet's time",
        value=ratio_of_medians(ours, theirs),
        unit="x",
        goal=GOAL,
        how=f"{spread(ours)}; Go kubelet {spread(theirs)}",
    )


@contextmanager
def _node(
    plane: ControlPlane, kind: type[LabAgent], folder: Path, containerd_version: str
) -> Iterator[StreamingNode]:
    name = f"bench-{folder.name}"
    with Containerd(containerd_version, folder / "containerd") as containerd:
        authority = containerd.folder / "ca.crt"
        authority.write_bytes(plane.authority.certificate)
        hosts = (name, *run(["hostname", "-I"]).split())
        certificate, key = plane.authority.issue("node", hosts=hosts).write(
            containerd.folder, "serving"
        )
        settings: Mapping[str, object] = {
            "enableServer": True,
            "port": free_port(),
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {"x509": {"clientCAFile": str(authority)}},
            "containerLogMaxSize": "1Gi",
            "maxPods": 2 * STARTED_PODS,
        }
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings=settings,
            flags=kubeconfig_flags(plane.node_kubeconfig(name), name),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet, WatchedPods(plane.api, name) as pods:
            node = StreamingNode(plane, kubelet, f"streams-{folder.name}", pods)
            _start_pod(node, name)
            yield node
            plane.kubectl("delete", "pod", node.pod, "--grace-period=1")


def _start_pod(node: StreamingNode, name: str) -> None:
    container = {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", _SCRIPT]}
    spec = {"nodeName": name, "containers": [container], "terminationGracePeriodSeconds": 1}
    metadata = {"name": node.pod, "namespace": "default"}
    node.plane.api.create("/api/v1/namespaces/default/pods", {"metadata": metadata, "spec": spec})

    def has_printed() -> bool:
        try:
            return node.plane.kubectl("logs", "--tail=1", node.pod) == "over\n"
        except LabError:
            return False

    wait_until(
        has_printed,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{node.pod} does not print: {node.kubelet.last_words()}",
    )


def _logs(node: StreamingNode) -> int:
    return _read(node.command("logs", node.pod))


def _exec_output(node: StreamingNode) -> int:
    return _read(node.command("exec", node.pod, "--", "cat", "/www/file"))


def _read(command: Sequence[str]) -> int:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        moved = 0
        while data := process.stdout.read(READ_BYTES):
            moved += len(data)
    return moved


def _exec_input(node: StreamingNode) -> int:
    command = node.command("exec", "-i", node.pod, "--", "wc", "-c")
    done = subprocess.run(command, input=bytes(_SIZE), capture_output=True, check=True)
    return int(done.stdout)


def _port_forward(node: StreamingNode) -> int:
    port = free_port()
    command = node.command("port-forward", f"pod/{node.pod}", f"{port}:8080")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            moved = 0
            with opener.open(f"http://{LOOPBACK}:{port}/file", timeout=DEADLINE_SECONDS) as page:
                while data := page.read(READ_BYTES):
                    moved += len(data)
        finally:
            process.terminate()
    return moved


KINDS: Mapping[str, Callable[[StreamingNode], int]] = {
    "logs": _logs,
    "exec, input": _exec_input,
    "exec, output": _exec_output,
    "port-forward": _port_forward,
}


@contextmanager
def _asking(agent: LabAgent, seconds: list[float]) -> Iterator[None]:
    """Ask the agent how its sync loop is, all the time; how long each answer took."""
    over = threading.Event()
    path = str(agent.root / "agent.sock")

    def ask() -> None:
        while not over.wait(ASK_SECONDS):
            began_at = time.monotonic()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(DEADLINE_SECONDS)
                connection.connect(path)
                connection.sendall(b"GET /healthz/syncloop HTTP/1.0\r\n\r\n")
                response = http.client.HTTPResponse(connection)
                response.begin()
                if response.status != http.client.OK:
                    raise LabError(f"the sync loop is not well: {response.read()!r}")
            seconds.append(time.monotonic() - began_at)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
