"""What a CSI driver can do to others by its answers, or by none: nothing."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attrs import define, field

from lab.agent import Json, LabAgent, is_running
from lab.processes import wait_until
from tests.apiserver.served import ServedApi
from tests.apiserver.server import ApiServer
from tests.hostile.lying_csi_driver import LyingDriver
from tests.hostile.served_objects import NODE, pod, put
from tests.hostile.victims import DEADLINE_SECONDS, Victims
from trio_kubelet.k8s.kinds import CSI_NODES, PODS

GOOD, HOSTILE = "good.csi.example.com", "hostile.csi.example.com"
CAPABILITIES = [1, 2]
"""It stages volumes, and tells their space."""
REPEAT = 20_000
"""More than a message may have fields."""
HANGING_PODS = 12


@define
class DriverProcess:
    """A driver as a process, which may be killed and started again."""

    name: str
    said: LyingDriver
    socket: Path
    options: tuple[str, ...] = ("--stages",)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.hostile.lying_csi_driver", "--name", self.name]
        command += ["--folder", str(self.said.folder), "--registry-socket", str(self.socket)]
        self._process = subprocess.Popen([*command, *self.options])

    def stop_serving(self) -> None:
        """Kill it, and leave its registration."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        self.stop_serving()
        self.socket.unlink(missing_ok=True)

    def calls(self, method: str, step: str | None = "done") -> list[Json]:
        lines = self.said.log.read()
        return [line for line in lines if line["method"] == method and line.get("step") == step]

    def wait_registered(self) -> None:
        """Wait until the agent has said what came of its registration."""
        self.wait_called("NotifyRegistrationStatus", step=None)

    def wait_called(self, method: str, times: int = 1, step: str | None = "begun") -> None:
        """Wait until it was called so often."""
        wait_until(
            lambda: len(self.calls(method, step)) >= times,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{method} is not called: {self.said.log.read()}",
        )


@pytest.fixture(scope="module")
def api() -> Iterator[ServedApi]:
    with ServedApi() as served:
        spec = {"attachRequired": False, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}
        for name in (GOOD, HOSTILE):
            kind = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver"}
            put(served, {**kind, "metadata": {"name": name}, "spec": spec})
        yield served


@pytest.fixture(scope="module")
def victims(api: ServedApi) -> Iterator[Victims]:
    """Ten good pods. Their node's folder has a short path, since there will be sockets below."""
    with tempfile.TemporaryDirectory(prefix="csi-") as name:
        folder = Path(name)
        flags = ("--kubeconfig", str(api.kubeconfig(folder)), "--hostname-override", NODE)
        with LabAgent(folder, flags=flags, settings={"volumeStatsAggPeriod": "1s"}) as agent:
            yield Victims.of(agent, {"name": "c", "image": "good"})


@contextmanager
def driver(victims: Victims, name: str) -> Iterator[DriverProcess]:
    with tempfile.TemporaryDirectory(prefix="csi-") as folder:
        socket_path = victims.agent.root / "plugins_registry" / f"{name[:4]}.sock"
        made = DriverProcess(name, LyingDriver(Path(folder)), socket_path)
        made.start()
        try:
            yield made
        finally:
            made.kill()


@pytest.fixture
def good(victims: Victims) -> Iterator[DriverProcess]:
    with driver(victims, GOOD) as made:
        made.wait_registered()
        yield made


@pytest.fixture
def hostile(victims: Victims, api: ServedApi, good: DriverProcess) -> Iterator[DriverProcess]:
    with driver(victims, HOSTILE) as made:
        made.wait_registered()
        yield made
        # Of a test that failed.
        made.said.set_faults()
        delete_pods(api, "")
        wait_gone(victims, "hostile-")


def put_pod(api: ServedApi, name: str, driver_name: str) -> None:
    """Have a pod that mounts a volume of the driver by a claim."""
    common = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}
    claim = {"metadata": {"name": name, "namespace": name}, "status": {"phase": "Bound"}}
    source = {"csi": {"driver": driver_name, "volumeHandle": f"handle-of-{name}"}}
    reference = {"namespace": name, "name": name, "uid": f"uid-of-{name}"}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    put(api, {**kind, **claim, "spec": {**common, "volumeName": name}})
    volume = {**common, **source, "claimRef": reference, "capacity": {"storage": "1Gi"}}
    kind = {"apiVersion": "v1", "kind": "PersistentVolume"}
    put(api, {**kind, "metadata": {"name": name}, "spec": volume})
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
    made = pod(name, name, volumes=volumes, terminationGracePeriodSeconds=1)
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    put(api, made)


def delete_pods(api: ServedApi, prefix: str) -> None:
    async def work(server: ApiServer) -> None:
        for each in server.all(PODS):
            if each.metadata.name.startswith(prefix):
                name, namespace = each.metadata.name, each.metadata.namespace
                server.delete(PODS, name, namespace, grace_seconds=0)

    api.do(work)


def wait_gone(victims: Victims, prefix: str) -> None:
    victims.agent.wait_for(lambda pods: not any(name.startswith(prefix) for name in pods))


def neighbour_comes_and_goes(victims: Victims, api: ServedApi) -> None:
    """A pod with a volume of the other driver starts and ends."""
    put_pod(api, "neighbour", GOOD)
    victims.wait_pod("neighbour", is_running)
    delete_pods(api, "neighbour")
    wait_gone(victims, "neighbour")


def wait_undone(victims: Victims, *drivers: DriverProcess) -> None:
    """Wait until nothing is published or staged, nor on the disk."""
    pods = victims.agent.root / "pods"
    wait_until(
        lambda: (
            not any(each.said.published() or each.said.staged() for each in drivers)
            and not list(pods.glob("uid-of-*"))
        ),
        deadline_seconds=2 * DEADLINE_SECONDS,
        else_say=lambda: f"left: {[(e.said.published(), e.said.staged()) for e in drivers]}",
    )


SETS_UP = ("NodeGetCapabilities", "NodeStageVolume", "NodePublishVolume")
TEARS_DOWN = ("NodeUnpublishVolume", "NodeUnstageVolume")


@pytest.mark.parametrize("method", SETS_UP)
def test_a_driver_that_hangs_while_volumes_are_set_up(
    victims: Victims, api: ServedApi, good: DriverProcess, hostile: DriverProcess, method: str
) -> None:
    hostile.said.set_faults(**{method: {"hang": True}})
    with victims.undisturbed():
        for number in range(HANGING_PODS):
            put_pod(api, f"hostile-{number}", HOSTILE)
        if method != "NodeGetCapabilities":
            hostile.wait_called(method, HANGING_PODS)
        neighbour_comes_and_goes(victims, api)
        pods = victims.agent.pods()
        assert not any(is_running(pods[name]) for name in pods if name.startswith("hostile-"))
        delete_pods(api, "hostile-1")  # and those from 10 on
        wait_gone(victims, "hostile-1")
        hostile.said.set_faults()
        hostile.kill()
        hostile.start()
        victims.wait_pod("hostile-0", is_running)
        delete_pods(api, "hostile-")
        wait_gone(victims, "hostile-")
        wait_undone(victims, good, hostile)


@pytest.mark.parametrize("method", TEARS_DOWN)
def test_a_driver_that_hangs_while_volumes_are_taken_away(
    victims: Victims, api: ServedApi, good: DriverProcess, hostile: DriverProcess, method: str
) -> None:
    with victims.undisturbed():
        for number in range(HANGING_PODS):
            put_pod(api, f"hostile-{number}", HOSTILE)
        for number in range(HANGING_PODS):
            victims.wait_pod(f"hostile-{number}", is_running)
        hostile.said.set_faults(**{method: {"hang": True}})
        delete_pods(api, "hostile-")
        hostile.wait_called(method, HANGING_PODS)
        neighbour_comes_and_goes(victims, api)
        hostile.said.set_faults()
        hostile.kill()
        hostile.start()
        wait_gone(victims, "hostile-")
        wait_undone(victims, good, hostile)
    for done in TEARS_DOWN:
        assert len({each["target"] for each in hostile.calls(done)}) == HANGING_PODS


NONSENSE = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\xff" * 65536, b"HTTP/1.1 200 OK\r\n\r\n"
"""Settings of HTTP/2, which are what a client waits for; bytes that are no frames; another
protocol."""


@contextmanager
def answering(path: Path, said: bytes) -> Iterator[None]:
    """A server at a driver's socket that says the same to everybody, until the end of the block."""
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        for _ in range(1000):
                            connection.sendall(said)

        answered = pool.submit(answer)
        try:
            yield
        finally:
            path.unlink()
            listener.shutdown(socket.SHUT_RDWR)
            answered.result()


@pytest.mark.parametrize("said", NONSENSE, ids=["settings", "noise", "http_1"])
def test_a_driver_that_answers_what_is_no_grpc(
    victims: Victims, api: ServedApi, good: DriverProcess, hostile: DriverProcess, said: bytes
) -> None:
    with victims.undisturbed():
        put_pod(api, "hostile-0", HOSTILE)
        victims.wait_pod("hostile-0", is_running)
        # Another process serves at the socket that was registered.
        hostile.stop_serving()
        with answering(hostile.said.socket, said):
            put_pod(api, "hostile-1", HOSTILE)
            wait_waiting(victims, "hostile-1", "FailedMount")
            delete_pods(api, "hostile-0")
            neighbour_comes_and_goes(victims, api)
            wait_waiting(victims, "hostile-0", "FailedKillPod")
        hostile.kill()
        hostile.start()
        victims.wait_pod("hostile-1", is_running)
        delete_pods(api, "hostile-")
        wait_gone(victims, "hostile-")
        wait_undone(victims, good, hostile)


def wait_waiting(victims: Victims, name: str, reason: str) -> None:
    """Wait until an event of a pod says what its driver has not done."""
    wait_until(
        lambda: any(
            f"object={name}/{name} " in line and f"reason={reason} " in line
            for line in victims.agent.log.read_text().splitlines()
        ),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"no event {reason} of {name}",
    )


LARGE: dict[str, Json] = {
    "capabilities": {"capabilities": CAPABILITIES, "repeat": REPEAT},
    "usage": {"usage": 2**63 - 1, "repeat": REPEAT},
    "figures": {"usage": 2**63 - 1, "repeat": 4000},
}


@pytest.mark.parametrize("name", LARGE)
def test_answers_of_a_driver_that_are_too_large_or_of_no_use(
    victims: Victims, api: ServedApi, good: DriverProcess, hostile: DriverProcess, name: str
) -> None:
    with victims.undisturbed():
        put_pod(api, "hostile-0", HOSTILE)
        victims.wait_pod("hostile-0", is_running)
        hostile.said.lie(**LARGE[name])
        put_pod(api, "hostile-1", HOSTILE)
        if name == "capabilities":
            wait_waiting(victims, "hostile-1", "FailedMount")
        else:
            victims.wait_pod("hostile-1", is_running)
            hostile.wait_called("NodeGetVolumeStats", 4)
        neighbour_comes_and_goes(victims, api)
        victims.agent.ask("/stats/summary")
        hostile.said.lie()
        victims.wait_pod("hostile-1", is_running)
        delete_pods(api, "hostile-")
        wait_gone(victims, "hostile-")
        wait_undone(victims, good, hostile)


NODES = (
    ({"node_id": "x" * 256, "max_volumes": 2**63 - 1}, True),
    ({"node_id": "y", "topology": ["a.example.com/k"], "repeat": REPEAT}, False),
)


@pytest.mark.parametrize(("lies", "is_taken"), NODES)
def test_what_a_driver_says_of_the_node_is_bounded_and_other_drivers_are_told(
    victims: Victims,
    api: ServedApi,
    hostile: DriverProcess,
    lies: Json,
    is_taken: bool,
) -> None:
    with victims.undisturbed():
        hostile.kill()
        hostile.said.lie(**lies)
        before = len(hostile.calls("NotifyRegistrationStatus", None))
        hostile.start()
        hostile.wait_called("NotifyRegistrationStatus", before + 1, None)
        *_, told = hostile.calls("NotifyRegistrationStatus", None)
        assert told["registered"] == is_taken, told
        expected = {GOOD, HOSTILE} if is_taken else {GOOD}
        wait_until(
            lambda: set(drivers_of_node(api)) == expected,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"the node has other drivers: {drivers_of_node(api)}",
        )


def drivers_of_node(api: ServedApi) -> list[str]:
    async def work(server: ApiServer) -> list[str]:
        return [each.name for node in server.all(CSI_NODES) for each in node.spec.drivers]

    return api.do(work)
