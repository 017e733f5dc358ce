"""What changes of large objects do to others, which come over the same watch: nothing.

The API server is the one in memory, on a socket; a real one has other attacks, in
`tests/e2e/test_hostile_objects.py`.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from benchmarks.idle import resident_mib
from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.processes import wait_until
from tests.apiserver.served import ServedApi
from tests.apiserver.server import ApiServer
from tests.hostile.victims import GOOD_PODS, Victims
from trio_kubelet.k8s.kinds import KINDS, PODS

NODE = "hostile-node"
KIND = {kind.kind: kind for kind in KINDS}
KEPT = [f"kept-{number}" for number in range(GOOD_PODS)]
"""Good pods of the API server, beside those of the folder of manifests."""

GATE = "example.com/gate"

DEADLINE_SECONDS = 120
CHANGES = 500
PAUSE_SECONDS = 0.02


def pod(name: str, namespace: str, env: tuple[Json, ...] = (), **spec: object) -> Json:
    container = {"name": "c", "image": "c", "env": list(env)}
    manifest = pod_manifest(name, container, nodeName=NODE, **spec)
    manifest["metadata"]["namespace"] = namespace
    return manifest


def service(ports: int) -> Json:
    each = [{"name": f"p{n}", "port": 1 + n, "targetPort": 1 + n} for n in range(ports)]
    metadata = {"name": "hostile", "namespace": "hostile", "uid": "s1"}
    spec = {"clusterIP": "10.96.0.9", "ports": each}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def api() -> Iterator[ServedApi]:
    with ServedApi() as served:
        yield served


@pytest.fixture(scope="module")
def victims(api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """Ten good pods of the folder of manifests, and ten of the API server."""
    folder: Path = tmp_path_factory.mktemp("objects")
    flags = ("--kubeconfig", str(api.kubeconfig(folder)), "--hostname-override", NODE)
    with LabAgent(folder, flags=flags) as agent:
        found = Victims.of(agent, {"name": "c", "image": "good"})
        for name in KEPT:
            put(api, pod(name, "good", readinessGates=[{"conditionType": GATE}]))
        api.do(partial(tell_all, status="True"))
        yield found
        api.do(delete_all_pods)


async def delete_pod(server: ApiServer, name: str, namespace: str) -> None:
    server.delete(PODS, name, namespace, grace_seconds=0)


async def delete_all_pods(server: ApiServer) -> None:
    for each in server.all(PODS):
        server.delete(PODS, each.metadata.name, each.metadata.namespace, grace_seconds=0)


def put(api: ServedApi, manifest: Json) -> None:
    """Store an object, as it is, with the UID of its name."""
    manifest["metadata"].setdefault("uid", f"uid-of-{manifest['metadata']['name']}")

    async def work(server: ApiServer) -> None:
        server.put_raw(KIND[manifest["kind"]], manifest)

    api.do(work)


@contextmanager
def changed_again_and_again(api: ServedApi, manifest: Json) -> Iterator[list[int]]:
    """Change an object, at least `CHANGES` times. Yields how often it was changed so far."""
    made = [0]
    ends = trio.Event()

    async def change(server: ApiServer) -> None:
        kind, name = KIND[manifest["kind"]], manifest["metadata"]["name"]
        resource, key = (kind.group, kind.resource), (manifest["metadata"]["namespace"], name)
        while made[0] < CHANGES or not ends.is_set():
            found = server.storage.get(resource, key) or manifest
            made[0] += 1
            annotations = {"changed": str(made[0])}
            metadata = {**found["metadata"], "annotations": annotations}
            server.put_raw(kind, {**found, "metadata": metadata})
            await trio.sleep(PAUSE_SECONDS)

    async def end(_server: ApiServer) -> None:
        ends.set()

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(api.do, change)
        try:
            yield made
        finally:
            api.do(end)
            changing.result()


async def tell_all(server: ApiServer, status: str) -> None:
    """Tell the agent by readiness gates how ready good pods are; wait until it says so, too."""
    body = {"status": {"conditions": [{"type": GATE, "status": status}]}}
    for name in KEPT:
        server.patch(PODS, name, "good", body=body, subresource="status")
    await server.until(lambda: all(condition_of(server, name, "Ready") == status for name in KEPT))


def condition_of(server: ApiServer, name: str, type_: str) -> str:
    conditions = server.get(PODS, name, "good").status.conditions
    return next((each.status for each in conditions if each.type == type_), "")


ATTACKS = {
    "pod": pod(
        "hostile", "hostile", env=tuple({"name": f"E{n}", "value": "x" * 60} for n in range(10_000))
    ),
    "service": service(12_000),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_object_of_a_megabyte_that_is_changed_again_and_again(
    victims: Victims, api: ServedApi, name: str
) -> None:
    """The part of the changes that is decoded is counted in `test_read_ahead.py`."""
    attack = ATTACKS[name]
    with victims.undisturbed():
        put(api, attack)
        if attack["kind"] == "Pod":
            victims.wait_pod("hostile", is_running)
        with changed_again_and_again(api, attack) as made:
            for status in ("False", "True"):
                api.do(partial(tell_all, status=status))
            seen_after = made[0]
        assert seen_after < CHANGES, "updates of good pods came after those of the attacker"


MAPS = 120
MAPS_MOST_MEBIBYTES = 42
"""Of which 17 are at hand; the agent grows by 27 MiB."""
MAPS_LEFT_MEBIBYTES = 20
"""After it; 12 are left, in pieces too small to be given back."""


def config_map(name: str, size_bytes: int) -> Json:
    metadata = {"name": name, "namespace": "hostile"}
    data = {"k": "x" * size_bytes}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_more_config_maps_of_a_megabyte_than_a_namespace_may_have_at_hand(
    victims: Victims, api: ServedApi
) -> None:
    """What was at hand is given back when the pod has gone."""
    names = [f"m{number}" for number in range(MAPS)]
    for name in names:
        put(api, config_map(name, 1 << 20))
    attack = pod(
        "hostile-maps",
        "hostile",
        volumes=[{"name": name, "configMap": {"name": name}} for name in names],
    )
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names]
    attack["spec"]["containers"][0]["volumeMounts"] = mounts
    pid = victims.agent.pid
    before = resident_mib(pid)
    with victims.undisturbed(most_mebibytes=MAPS_MOST_MEBIBYTES):
        put(api, attack)
        victims.wait_journal("cannot be kept at hand")
    api.do(partial(delete_pod, name="hostile-maps", namespace="hostile"))
    wait_until(
        lambda: resident_mib(pid) < before + MAPS_LEFT_MEBIBYTES,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{resident_mib(pid) - before} MiB are left of the config maps",
    )


RESIZES = 10
RESIZED_CONTAINERS = 200
"""Fewer than a pod may have: the runtime, which is in the same process, keeps them, too."""


def amounts(number: int) -> Json:
    """Resources of a container that differ from those of the numbers before."""
    requests = {"cpu": f"{1 + number % 3}m", "memory": f"{1 + number % 2}Mi"}
    limits = {"cpu": f"{10 + number}m", "memory": f"{10 + number % 5}Mi"}
    return {"requests": requests, "limits": limits}


def limits_told(server: ApiServer, name: str) -> list[str]:
    """The CPU limits of a pod's containers, as its status tells; not decoded, which takes long."""
    found = server.storage.get(("", "pods"), ("hostile", name)) or {}
    told = found.get("status", {}).get("containerStatuses", ())
    return [each.get("resources", {}).get("limits", {}).get("cpu", "") for each in told]


def test_a_pod_of_hundreds_of_containers_that_is_resized_again_and_again(
    victims: Victims, api: ServedApi
) -> None:
    name = "hostile-resized"

    def resized(number: int) -> Json:
        part = {
            "image": "resized",
            "imagePullPolicy": "IfNotPresent",
            "resources": amounts(number),
        }
        containers = [{"name": f"c{each}", **part} for each in range(RESIZED_CONTAINERS)]
        manifest = pod_manifest(name, *containers, nodeName=NODE)
        manifest["metadata"] |= {"namespace": "hostile", "generation": 1 + number}
        return manifest

    async def resize(server: ApiServer) -> None:
        key = "hostile", name
        for number in range(1, RESIZES + 1):
            found, wanted = server.storage.get(("", "pods"), key), resized(number)
            assert found is not None
            metadata = {**found["metadata"], "generation": 1 + number}
            server.put_raw(PODS, {**found, "metadata": metadata, "spec": wanted["spec"]})
            await trio.sleep(5 * PAUSE_SECONDS)
        last = [amounts(RESIZES)["limits"]["cpu"]] * RESIZED_CONTAINERS
        await server.until(lambda: limits_told(server, name) == last, DEADLINE_SECONDS)

    put(api, resized(0))
    victims.wait_pod(name, is_running)
    with victims.undisturbed():
        api.do(resize)
    api.do(partial(delete_pod, name=name, namespace="hostile"))
    victims.agent.wait_for(lambda pods: name not in pods)


CROWD = [f"crowd-{number}" for number in range(30)]
"""Pods of one namespace, with many containers each."""


async def wait_running(server: ApiServer, namespace: str, names: list[str], count: int) -> int:
    """Wait until at least so many of the pods run; returns how many do."""

    def running() -> int:
        phases = (server.get(PODS, name, namespace).status.phase for name in names)
        return sum(phase == "Running" for phase in phases)

    await server.until(lambda: running() >= count, DEADLINE_SECONDS)
    return running()


@pytest.mark.usefixtures("victims")
def test_a_pod_that_comes_beside_hundreds_of_containers_of_another_namespace(
    api: ServedApi,
) -> None:
    """It does not wait until all containers of those that have a sandbox were started.

    The newcomer's status is seen late on a busy machine: 6 to 11 of the 30 run by then, and 25 or
    more where namespaces take no turns.
    """
    image = {"image": "crowd", "imagePullPolicy": "IfNotPresent"}
    containers = [{"name": f"c{number}", **image} for number in range(20)]

    def put_pod(name: str, namespace: str, containers: list[Json]) -> None:
        manifest = pod_manifest(name, *containers, nodeName=NODE)
        manifest["metadata"]["namespace"] = namespace
        put(api, manifest)

    put_pod("before", "other", containers[:1])
    api.do(partial(wait_running, namespace="other", names=["before"], count=1))
    for name in CROWD:
        put_pod(name, "crowd", containers)
    api.do(partial(wait_running, namespace="crowd", names=CROWD, count=1))
    put_pod("newcomer", "other", containers[:1])
    api.do(partial(wait_running, namespace="other", names=["newcomer"], count=1))
    running = api.do(partial(wait_running, namespace="crowd", names=CROWD, count=1))
    assert running < len(CROWD) * 2 / 3
