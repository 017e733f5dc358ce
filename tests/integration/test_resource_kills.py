"""kill -9 of the agent before each of its steps with devices, exclusive CPUs and claims.

A pod that has a device, a CPU for itself and a claim is created and deleted, again and again. Each
time the agent dies one step later of its start, and of its end: `mortal_agent.py` says what a step
is. There is one such CPU, and one device but for that of a pod that stays, so a pod that follows
would not run if anything had been lost, or would share it if it were given twice. Plugin and driver
are processes of their own, the API server is the one in memory, on a socket.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from attrs import define

from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from lab.device_plugin import RESOURCE, LabDevicePlugin
from lab.dra_driver import NAME as DRIVER
from lab.dra_driver import VARIABLE, LabDRADriver
from lab.processes import wait_until
from tests.apiserver.served import ServedApi
from tests.apiserver.server import ApiServer
from tests.containerds import VERSIONS
from tests.integration.mortal_agent import DIES_AT, STEPS
from tests.integration.pods import until_term
from tests.missing import do_without
from trio_kubelet.k8s import PODS, RESOURCE_CLAIMS, ContainerStatus, PodStatus
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus

NODE = "mortal"
DEADLINE_SECONDS = 120
ALL = parsed_cpus(cpu_list(os.sched_getaffinity(0)))
RESERVED, *OTHERS = sorted(ALL)
STAYING = "staying"
DEVICES = {"dev-0": "Healthy", "dev-1": "Healthy"}
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"

Records = tuple[set[str], set[str], set[str]]


@define
class MortalNode:
    """A node whose agent can be told at which step to die, and what was asked of its plugins."""

    agent: LabAgent
    containerd: Containerd
    api: ServedApi
    folder: Path
    plugin: LabDevicePlugin
    driver: LabDRADriver

    def pod(self, name: str, **amounts: str) -> Json:
        """A pod that asks for these amounts, writes what it has into a file, and stays."""
        has = f"$LAB_DEVICES ${VARIABLE}{name.replace('-', '_')}"
        cpus = "$(grep Cpus_allowed_list /proc/self/status | cut -f2)"
        amounts |= {"memory": "32Mi", RESOURCE: "1"}
        container = until_term(
            "c",
            f'echo "{name} {has} {cpus}" >>/starts/{name}',
            resources={"limits": amounts, "requests": amounts, "claims": [{"name": "claim"}]},
            volumeMounts=[{"name": "starts", "mountPath": "/starts"}],
        )
        manifest = pod_manifest(
            name,
            container,
            nodeName=NODE,
            resourceClaims=[{"name": "claim", "resourceClaimName": name}],
            volumes=[{"name": "starts", "hostPath": {"path": str(self.starts_folder)}}],
        )
        manifest["metadata"] |= {"namespace": "default", "uid": uid_of(name)}
        return manifest

    @property
    def starts_folder(self) -> Path:
        return self.folder / "starts"

    def starts(self, name: str) -> list[list[str]]:
        """What a pod had each time that its container began: device, claim, CPUs."""
        path = self.starts_folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines]

    def add(self, name: str, **amounts: str) -> None:
        self.api.do(partial(put, manifest=self.pod(name, **amounts)))

    def status(self, name: str) -> PodStatus | None:
        return self.api.do(partial(status, name=name))

    def container(self, name: str) -> ContainerStatus:
        found = self.status(name)
        assert found is not None
        (container,) = found.container_statuses
        return container

    def delete(self, name: str) -> None:
        self.api.do(partial(delete, name=name))

    def is_ready(self, name: str) -> bool:
        found = self.status(name)
        return found is not None and any(each.ready for each in found.container_statuses)

    def is_gone(self, name: str) -> bool:
        folder = self.agent.root / "pods" / uid_of(name)
        return self.status(name) is None and not folder.exists()

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        wait_until(
            holds,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{what}; last steps {self.steps()[-3:]}; {self.agent.last_words()}",
        )

    def steps(self) -> list[str]:
        path = self.folder / STEPS
        return path.read_text().splitlines() if path.exists() else []

    def dies(self, number: int, act: Callable[[], None], comes: Callable[[], bool]) -> bool:
        """Do something, have the agent die before that step, and start another one.

        Returns False if what was to come came in fewer steps.
        """
        (self.folder / STEPS).unlink(missing_ok=True)
        (self.folder / DIES_AT).write_text(str(number))
        act()
        self.wait(lambda: len(self.steps()) == number or comes(), "neither died nor done")
        died = len(self.steps()) >= number
        (self.folder / DIES_AT).unlink()
        self.agent.kill()
        self.agent.start()
        return died

    def cpus(self, name: str) -> str:
        """The CPUs on which the container of a pod runs now."""
        tasks = (line.split() for line in self.containerd.ctr("tasks", "list").splitlines()[1:])
        pids = {words[0]: words[1] for words in tasks}
        pid = pids[self.container(name).container_id.partition("//")[2]]
        lines = Path(f"/proc/{pid}/status").read_text()
        return lines.partition("Cpus_allowed_list:")[2].split()[0]

    def wait_for_cpus(self, name: str, cpus: str) -> None:
        self.wait(lambda: self.cpus(name) == cpus, f"{name} is not on the CPUs {cpus}")

    def wait_for_start(self, name: str) -> None:
        self.wait(lambda: bool(self.starts(name)), f"{name} has not begun")

    def wait_for_records(self, records: Records) -> None:
        self.wait(lambda: self.recorded() == records, f"the records are not {records}")

    def driver_calls(self, call: str, name: str) -> int:
        """How often the driver was called for the claim of a pod."""
        return sum(claim_uid_of(name) in each["claims"] for each in self.driver.calls(call))

    def recorded(self) -> Records:
        """The UIDs of the pods with devices, with CPUs, and those of the claims, on the disk."""
        devices = json.loads(
            (self.agent.root / "device-plugins/kubelet_internal_checkpoint").read_text()
        )
        cpus = json.loads((self.agent.root / "cpu_manager_state").read_text())
        claims = json.loads(json.loads((self.agent.root / "dra_manager_state").read_text())["Data"])
        return (
            {each["PodUID"] for each in devices["Data"]["PodDeviceEntries"] or ()},
            set(cpus.get("entries", ())),
            {each["ClaimUID"] for each in claims["ClaimInfoStateList"] or ()},
        )


def uid_of(name: str) -> str:
    return f"uid-of-{name}"


def claim_uid_of(name: str) -> str:
    return f"claim-of-{name}"


async def put(server: ApiServer, manifest: Json) -> None:
    """Store a pod, and the claim of its name, which it may use."""
    name, user = manifest["metadata"]["name"], manifest["metadata"]["uid"]
    result = {"driver": DRIVER, "pool": "pool", "device": name, "request": "r"}
    server.put_raw(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": claim_uid_of(name)},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": user}],
            },
        },
    )
    server.put_raw(PODS, manifest)


async def delete(server: ApiServer, name: str) -> None:
    server.delete(PODS, name, "default")


async def status(server: ApiServer, name: str) -> PodStatus | None:
    pod = server.find(PODS, name, "default")
    return pod.status if pod is not None else None


@pytest.fixture
def node(containerd: Containerd) -> Iterator[MortalNode]:
    """The node, with a pod that has a device and a claim. Its folder has a short path."""
    if len(ALL) < 2:
        do_without("a machine with two CPUs")
    with tempfile.TemporaryDirectory(prefix="kills-") as name, ServedApi() as api:
        folder = Path(name)
        for each in ("starts", "plugin", "driver"):
            (folder / each).mkdir()
        agent = LabAgent(
            folder / "n",
            endpoint=containerd.endpoint,
            settings={"cpuManagerPolicy": "static", "reservedSystemCPUs": str(RESERVED)},
            flags=("--kubeconfig", str(api.kubeconfig(folder)), "--hostname-override", NODE),
            run_by=(sys.executable, "-m", "tests.integration.mortal_agent", name),
        )
        plugin = LabDevicePlugin(folder / "plugin", agent.root / "device-plugins")
        plugin.set_devices(DEVICES)
        node = MortalNode(
            agent, containerd, api, folder, plugin, driver=LabDRADriver(folder / "driver")
        )
        with agent, plugins_of(node):
            node.add(STAYING)
            node.wait(partial(node.is_ready, STAYING), "the pod does not start")
            yield node
            for pod in api.do(names):
                node.delete(pod)
                node.wait(partial(node.is_gone, pod), f"{pod} is not gone")


async def names(server: ApiServer) -> list[str]:
    return [each.metadata.name for each in server.all(PODS)]


@contextmanager
def plugins_of(node: MortalNode) -> Iterator[None]:
    """The plugin and the driver, each as a process, until the end of the block."""
    plugin = ["-m", "lab.device_plugin", "--folder", str(node.plugin.folder)]
    plugin += ["--plugins", str(node.plugin.agent)]
    driver = ["-m", "lab.dra_driver", "--folder", str(node.driver.folder)]
    driver += ["--registry-socket", str(node.agent.root / "plugins_registry" / "dra.sock")]
    driver += ["--cdi", str(node.containerd.cdi_specifications)]
    with (
        subprocess.Popen([sys.executable, *plugin]) as first,
        subprocess.Popen([sys.executable, *driver]) as second,
    ):
        try:
            yield
        finally:
            first.kill()
            second.kill()


@pytest.mark.parametrize(
    "containerd", [v for v in VERSIONS if v == "2.1"], indirect=True, ids="containerd-{}".format
)
@pytest.mark.parametrize("first", [1, 2], ids=["odd steps", "even steps"])
def test_nothing_is_lost_or_given_twice_at_whichever_step_the_agent_dies(
    node: MortalNode, first: int
) -> None:
    node.wait_for_start(STAYING)
    ((device, claim, shared),) = node.starts(STAYING)
    assert (claim, shared) == (claim_uid_of(STAYING), cpu_list(ALL))
    before = node.container(STAYING)
    (other,) = DEVICES.keys() - {device}
    alone = OTHERS[0]
    for number in itertools.count(first, 2):
        name = f"pod-{number}"
        is_ready, is_gone = partial(node.is_ready, name), partial(node.is_gone, name)
        died = node.dies(number, partial(node.add, name, cpu="1"), is_ready)
        node.wait(is_ready, f"{name} does not run")
        node.wait_for_start(name)
        assert node.starts(name) == [[other, claim_uid_of(name), str(alone)]]
        assert node.container(name).restart_count == 0
        node.wait_for_cpus(STAYING, cpu_list(ALL - {alone}))
        has_all = {uid_of(STAYING), uid_of(name)}
        assert node.recorded() == (has_all, {uid_of(name)}, node.driver.usable())
        assert node.driver.usable() == {claim_uid_of(STAYING), claim_uid_of(name)}

        died |= node.dies(number, partial(node.delete, name), is_gone)
        node.wait(is_gone, f"{name} does not go")
        node.wait_for_cpus(STAYING, cpu_list(ALL))
        remains = ({uid_of(STAYING)}, set[str](), {claim_uid_of(STAYING)})
        node.wait_for_records(remains)
        assert node.driver.prepared() == {claim_uid_of(STAYING)}
        assert len(node.starts(name)) == 1, "its container ran twice"
        if not died:
            break
    assert node.container(STAYING) == before
    asked = [call["ids"] for call in node.plugin.calls("Allocate")]
    assert asked.count([device]) == 1, "what runs is not asked for again"
    assert node.driver_calls(PREPARE, STAYING) == 1
    assert node.driver_calls(UNPREPARE, STAYING) == 0
