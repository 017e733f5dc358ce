"""Drivers of dynamic resource allocation, on a real API server and scheduler."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import trio

from lab.cluster_api import AwayError, Json, RefusedError
from lab.device_plugin import RESOURCE as DEVICE_RESOURCE
from lab.device_plugin import LabDevicePlugin
from lab.dra_driver import NAME, LabDRADriver
from lab.go_kubelet import GoKubelet
from lab.orphans import marked
from lab.processes import wait_until
from tests.e2e.cluster import (
    DEADLINE_SECONDS,
    Namespace,
    container,
    is_ready,
    until_term,
    waiting,
)
from tests.e2e.local import AGENT, LocalCluster
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs import v1 as wire

GROUP = "/apis/resource.k8s.io/v1"
DEVICES = 4
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
CHECKPOINT = "dra_manager_state"
PUBLISHED_EVERY_SECONDS = 1.0


@pytest.fixture
def devices(local_cluster: LocalCluster) -> Iterator[None]:
    """Devices of the driver on the node, and the class that pods name."""
    with device_class(local_cluster), published(local_cluster):
        yield
    with suppress(RefusedError):
        local_cluster.api.delete(f"{GROUP}/resourceslices/lab-slice")


@contextmanager
def device_class(cluster: LocalCluster) -> Iterator[None]:
    """The class that pods name."""
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    body = {"metadata": {"name": NAME}, "spec": {"selectors": [selector]}}
    cluster.api.create(f"{GROUP}/deviceclasses", body)
    yield
    cluster.api.delete(f"{GROUP}/deviceclasses/{NAME}")


@contextmanager
def published(cluster: LocalCluster) -> Iterator[None]:
    """Have the devices known, though kubelets remove those of a driver that has gone.

    A driver that runs publishes them again; here they stay without one, so that pods get them.
    """
    put_slice(cluster)
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(PUBLISHED_EVERY_SECONDS):
            with suppress(AwayError):
                put_slice(cluster)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def put_slice(cluster: LocalCluster) -> None:
    """Publish the devices if they are not."""
    spec = {
        "driver": NAME,
        "nodeName": cluster.node,
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"device-{number}"} for number in range(DEVICES)],
    }
    with suppress(RefusedError):
        body = {"metadata": {"name": "lab-slice"}, "spec": spec}
        cluster.api.create(f"{GROUP}/resourceslices", body)


@pytest.fixture
def folder() -> Iterator[Path]:
    """The driver's folder, with a short path, since there will be a socket in it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@contextmanager
def driver(cluster: LocalCluster, folder: Path, *options: str) -> Iterator[LabDRADriver]:
    """The driver as a process of its own, which is killed at the end; its socket is gone then."""
    with killed_driver(cluster, folder, *options):
        yield LabDRADriver(folder)
    registry_socket(cluster).unlink(missing_ok=True)


@contextmanager
def killed_driver(cluster: LocalCluster, folder: Path, *options: str) -> Iterator[None]:
    """The driver as a process of its own; killed at the end, it leaves its sockets behind."""
    command = [sys.executable, "-m", "lab.dra_driver", "--folder", str(folder)]
    command += [
        "--registry-socket",
        str(registry_socket(cluster)),
        "--cdi",
        str(cluster.containerd.cdi_specifications),
        *options,
    ]
    with subprocess.Popen(command, env=marked(os.environ)) as process:
        try:
            yield
        finally:
            process.kill()


def registry_socket(cluster: LocalCluster) -> Path:
    """The socket at which the driver registers."""
    return cluster.agent.root / "plugins_registry" / "dra.sock"


def claim_spec() -> Json:
    """A claim on one device."""
    request = {"name": "gpu", "exactly": {"deviceClassName": NAME}}
    return {"spec": {"devices": {"requests": [request]}}}


def add_claim(namespace: Namespace, name: str) -> str:
    """Make a claim; returns its UID."""
    path = f"{GROUP}/namespaces/{namespace.name}/resourceclaims"
    made = namespace.api.create(path, {"metadata": {"name": name}, **claim_spec()})
    uid: str = made["metadata"]["uid"]
    return uid


def user(claim: str = "c") -> Json:
    """A container that shows which claims it has, and stays."""
    return until_term("c", "env | grep LAB_CLAIM", resources={"claims": [{"name": claim}]})


def of_claim(name: str) -> Json:
    return {"resourceClaims": [{"name": "c", "resourceClaimName": name}]}


def shown(namespace: Namespace, name: str) -> set[str]:
    """The UIDs of the claims whose devices a pod's container has."""
    lines = namespace.kubectl("logs", name).split()
    return {line.partition("=")[2] for line in lines}


def times(driver: LabDRADriver, call: str, uid: str) -> int:
    """How often the driver was called for a claim."""
    return sum(uid in each["claims"] for each in driver.calls(call))


def wait_unprepared(driver: LabDRADriver) -> None:
    """Wait until the driver has undone all that it has prepared."""
    wait_until(
        lambda: not driver.prepared(),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{driver.prepared()} are prepared still",
    )


def test_pods_share_a_claim_until_the_last_of_them_has_gone(
    local_cluster: LocalCluster, namespace: Namespace, devices: None, folder: Path
) -> None:
    uid = add_claim(namespace, "shared")
    with driver(local_cluster, folder) as said:
        for name in ("first", "second"):
            namespace.run(name, user(), **of_claim("shared"))
            assert shown(namespace, name) == {uid}
        assert times(said, PREPARE, uid) == 1
        namespace.api.delete(namespace.path("Pod", "first"))
        namespace.wait_gone("first")
        assert said.prepared() == {uid}
        namespace.api.delete(namespace.path("Pod", "second"))
        namespace.wait_gone("second")
        wait_unprepared(said)


def health(pod: Json) -> list[tuple[str, str, str]]:
    """What the status of a pod's container says of the devices of its claims."""
    return [
        (status["name"], device["health"], device.get("message", ""))
        for status in container(pod).get("allocatedResourcesStatus", ())
        for device in status["resources"]
    ]


def monitored(cluster: LocalCluster, namespace: Namespace, name: str) -> list[tuple[str, str, str]]:
    """Claim, driver and device of a pod, as monitoring agents are told."""
    socket = cluster.agent.root / "pod-resources" / "kubelet.sock"
    request = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace.name)

    async def ask() -> wire.GetPodResourcesResponse:
        async with open_rpc_loop():
            with closing(Channel(str(socket))) as channel:
                return await channel.unary(
                    wire.PodResourcesListerStub.get, request, deadline_seconds=DEADLINE_SECONDS
                )

    return [
        (claim.claim_name, device.driver_name, device.device_name)
        for told in trio.run(ask).pod_resources.containers
        for claim in told.dynamic_resources
        for device in claim.claim_resources
    ]


def test_the_health_of_devices_is_in_the_status_and_monitoring_agents_are_told_of_them(
    local_cluster: LocalCluster, namespace: Namespace, devices: None, folder: Path
) -> None:
    add_claim(namespace, "one")
    with driver(local_cluster, folder, "--health") as said:
        said.tell_health(device={"health": 2, "message": "too hot", "timeout": 3600})
        namespace.run("first", user(), **of_claim("one"))
        unhealthy = [("claim:c", "Unhealthy", "too hot")]
        namespace.wait("first", lambda pod: health(pod) == unhealthy)
        assert monitored(local_cluster, namespace, "first") == [("one", NAME, "device")]
        said.tell_health(device={"health": 1})
        namespace.wait("first", lambda pod: health(pod) == [("claim:c", "Healthy", "")])
        namespace.api.delete(namespace.path("Pod", "first"))
        namespace.wait_gone("first")
        wait_unprepared(said)


def test_a_pod_of_a_template_waits_for_a_driver_that_comes_later(
    local_cluster: LocalCluster, namespace: Namespace, devices: None, folder: Path
) -> None:
    namespace.api.create(
        f"{GROUP}/namespaces/{namespace.name}/resourceclaimtemplates",
        {"metadata": {"name": "t"}, "spec": claim_spec()},
    )
    claims = [{"name": "c", "resourceClaimTemplateName": "t"}]
    namespace.add("waits", user(), resourceClaims=claims)
    words = f"Failed to prepare dynamic resources: DRA driver {NAME} is not registered"
    namespace.wait_event("waits", "FailedPrepareDynamicResources", words)
    namespace.wait("waits", lambda pod: waiting(pod).get("reason") == "WaitingForResourceClaims")
    with driver(local_cluster, folder) as said:
        pod = namespace.wait("waits", is_ready)
        (told,) = pod["status"]["resourceClaimStatuses"]
        assert told["name"] == "c"
        assert shown(namespace, "waits") == said.prepared()
        namespace.kubectl("delete", "pod", "waits", "--grace-period=0", "--force")
        wait_unprepared(said)


def test_claims_stay_with_their_pods_over_kills_of_agent_and_driver(
    local_cluster: LocalCluster, namespace: Namespace, devices: None, folder: Path
) -> None:
    uid = add_claim(namespace, "one")
    with driver(local_cluster, folder):
        namespace.run("first", user(), **of_claim("one"))
    local_cluster.kill_agent()
    local_cluster.start_agent()
    namespace.api.delete(namespace.path("Pod", "first"))
    namespace.wait_event("first", "FailedSync", f"DRA driver {NAME} is not registered")
    assert container(namespace.pod("first"))["restartCount"] == 0
    with driver(local_cluster, folder) as said:
        namespace.wait_gone("first")
        wait_unprepared(said)
        assert times(said, PREPARE, uid) == 1
        assert times(said, UNPREPARE, uid) >= 1


def test_a_driver_that_is_killed_and_leaves_its_sockets_has_no_devices_until_it_is_back(
    local_cluster: LocalCluster, namespace: Namespace, folder: Path
) -> None:
    api, path = local_cluster.api, f"{GROUP}/resourceslices/lab-slice"
    said = LabDRADriver(folder)
    with killed_driver(local_cluster, folder):
        wait_registered(said, 1)
        put_slice(local_cluster)
    assert registry_socket(local_cluster).is_socket()
    api.wait_gone(path)
    with driver(local_cluster, folder):
        wait_registered(said, 2)
        put_slice(local_cluster)
        with device_class(local_cluster):
            uid = add_claim(namespace, "one")
            namespace.run("first", user(), **of_claim("one"))
            assert shown(namespace, "first") == {uid}
            api.delete(namespace.path("Pod", "first"))
            namespace.wait_gone("first")
            wait_unprepared(said)
    api.delete(path)


def test_a_call_that_was_cut_off_with_the_agent_is_made_again(
    local_cluster: LocalCluster, namespace: Namespace, devices: None, folder: Path
) -> None:
    uid = add_claim(namespace, "cut")
    with driver(local_cluster, folder) as said:
        said.set_faults(**{PREPARE: {"hang_after": True}})
        namespace.add("first", user(), **of_claim("cut"))
        wait_until(
            lambda: bool(said.calls(PREPARE)),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "the driver is not asked",
        )
        local_cluster.kill_agent()
        file = local_cluster.agent.root / CHECKPOINT
        data = json.loads(json.loads(file.read_text())["Data"])
        assert [each["ClaimUID"] for each in data["ClaimInfoStateList"]] == [uid]
        said.set_faults()
        local_cluster.start_agent()
        namespace.wait("first", is_ready)
        assert shown(namespace, "first") == {uid}
        said.set_faults(**{UNPREPARE: {"hang_after": True}})
        namespace.api.delete(namespace.path("Pod", "first"))
        wait_until(
            lambda: bool(said.calls(UNPREPARE)),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "the driver is not asked to undo it",
        )
        local_cluster.kill_agent()
        said.set_faults()
        local_cluster.start_agent()
        namespace.wait_gone("first")
        wait_until(
            lambda: len(said.calls(UNPREPARE)) > 1,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "the driver is not asked again",
        )
        wait_unprepared(said)


@contextmanager
def device_plugin(cluster: LocalCluster, folder: Path) -> Iterator[None]:
    """A device plugin with two devices of DEVICE_RESOURCE, until the end of the block."""
    plugin = LabDevicePlugin(folder, cluster.agent.root / "device-plugins")
    plugin.set_devices({"plugin-0": "Healthy", "plugin-1": "Healthy"})
    command = [sys.executable, "-m", "lab.device_plugin"]
    command += ["--folder", str(folder), "--plugins", str(plugin.agent)]
    with subprocess.Popen(command, env=marked(os.environ)) as process:
        try:
            yield
        finally:
            process.kill()


def has_resource(count: int) -> Callable[[Json], bool]:
    """True of a Node on which pods may have so many devices of the device plugin."""
    return lambda node: node["status"]["allocatable"].get(DEVICE_RESOURCE) == str(count)


def test_a_claim_gives_the_extended_resource_of_a_device_plugin_that_was_here_before(
    local_cluster: LocalCluster, namespace: Namespace, devices: None, folder: Path, tmp_path: Path
) -> None:
    api, node = local_cluster.api, f"/api/v1/nodes/{local_cluster.node}"
    with device_plugin(local_cluster, tmp_path):
        api.wait_for(node, has_resource(2))
    local_cluster.kill_agent()
    local_cluster.start_agent()
    api.wait_for(node, has_resource(0))
    path = f"{GROUP}/deviceclasses/{NAME}"
    api.patch(path, {"spec": {"extendedResourceName": DEVICE_RESOURCE}})
    resources = {"limits": {DEVICE_RESOURCE: "1"}}
    with driver(local_cluster, folder) as said:
        pod = namespace.run("first", until_term("c", "env | grep LAB_", resources=resources))
        assert pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
        assert shown(namespace, "first") == said.prepared()
        local_cluster.kill_agent()
        local_cluster.start_agent()
        wait_registered(said, 2)
        assert container(namespace.pod("first"))["restartCount"] == 0
        api.delete(namespace.path("Pod", "first"))
        namespace.wait_gone("first")
        wait_unprepared(said)


def recorded(cluster: LocalCluster) -> dict[str, Json]:
    """The claims in the file of whoever has the node, by UID."""
    data = json.loads(json.loads((cluster.agent.root / CHECKPOINT).read_text())["Data"])
    return {each["ClaimUID"]: each for each in data["ClaimInfoStateList"] or ()}


def given(cluster: LocalCluster, uids: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """The pods and the CDI devices of claims, as the file says."""
    found = recorded(cluster)
    return [
        (
            sorted(found[uid]["PodUIDs"]),
            [
                each
                for device in found[uid]["DriverState"][NAME]["Devices"]
                for each in device["CDIDeviceIDs"]
            ],
        )
        for uid in uids
    ]


@pytest.mark.skipif(AGENT is GoKubelet, reason="the agent has the node first")
def test_a_node_with_prepared_claims_changes_hands_both_ways(
    local_cluster: LocalCluster,
    namespace: Namespace,
    devices: None,
    folder: Path,
    go_kubelet: type[GoKubelet],
) -> None:
    uids = [add_claim(namespace, name) for name in ("one", "two", "three")]
    with driver(local_cluster, folder) as said:
        for name in ("one", "two"):
            namespace.run(name, user(), **of_claim(name))
        ours = given(local_cluster, uids[:2])
        local_cluster.hand_over(go_kubelet)
        wait_registered(said, 2)
        namespace.run("three", user(), **of_claim("three"))
        assert recorded(local_cluster).keys() == set(uids)
        assert given(local_cluster, uids[:2]) == ours
        namespace.api.delete(namespace.path("Pod", "one"))
        namespace.wait_gone("one")
        assert said.prepared() == set(uids[1:])
        local_cluster.hand_over(AGENT)
        wait_registered(said, 3)
        for name in ("two", "three"):
            assert container(namespace.pod(name))["restartCount"] == 0
            namespace.api.delete(namespace.path("Pod", name))
            namespace.wait_gone(name)
        wait_unprepared(said)
        assert [times(said, PREPARE, uid) for uid in uids] == [1, 1, 1], "what runs has its claim"
        assert recorded(local_cluster) == {}


def wait_registered(driver: LabDRADriver, times: int) -> None:
    """Wait until the driver was told so many times that it is registered."""
    wait_until(
        lambda: len(driver.calls("NotifyRegistrationStatus")) >= times,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: "the driver is not registered",
    )
