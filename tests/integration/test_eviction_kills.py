"""An agent that is killed between its decision to evict a pod and the end of the pod.

The pod exceeds a limit of its own and obeys no signal, so that its grace is time enough for a kill;
on a slow machine the kill comes later, and what follows is the same.
The API server is the one in memory, on a socket.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab import host
from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from lab.processes import wait_until
from tests.apiserver.served import ServedApi
from tests.apiserver.server import ApiServer
from tests.integration.pods import shell
from trio_kubelet.eviction.records import FILE, FILE_BYTES
from trio_kubelet.k8s import EVENTS, PODS, PodStatus
from trio_kubelet.volumes.mount import mount

MI = 1 << 20
NODE, NAME, UID = "evicting", "victim", "uid-of-victim"
ROOT_MIB = 48
MESSAGE = 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
DEADLINE_SECONDS = 180
DEAF = "trap '' TERM; while :; do sleep 1; done"


@pytest.fixture
def api() -> Iterator[ServedApi]:
    with ServedApi() as served:
        yield served


@pytest.fixture
def agent(containerd: Containerd, api: ServedApi, tmp_path: Path) -> Iterator[LabAgent]:
    """An agent whose root folder is on a small disk."""
    root = tmp_path / "node" / "root"
    root.mkdir(parents=True)
    mount("tmpfs", root, "tmpfs", options=f"size={ROOT_MIB}m")
    agent = LabAgent(
        tmp_path / "node",
        endpoint=containerd.endpoint,
        settings={"evictionHard": {"memory.available": "1Mi"}, "volumeStatsAggPeriod": "1s"},
        flags=("--kubeconfig", str(api.kubeconfig(tmp_path)), "--hostname-override", NODE),
        cgroup_root=containerd.cgroup_root,
    )
    with agent:
        yield agent
        api.do(delete_pod)
        wait_until(
            lambda: not (root / "pods" / UID).exists(),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=agent.last_words,
        )
    host.detach_mounts_below(tmp_path)


def victim() -> Json:
    volume = {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}
    deaf = shell("c", DEAF, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    manifest = pod_manifest(NAME, deaf, volumes=[volume], nodeName=NODE)
    manifest["metadata"] |= {"namespace": "default", "uid": UID}
    return manifest


async def delete_pod(server: ApiServer) -> None:
    server.delete(PODS, NAME, "default", grace_seconds=0)


async def put_pod(server: ApiServer, manifest: Json) -> None:
    server.put_raw(PODS, manifest)


async def status(server: ApiServer) -> PodStatus:
    return server.get(PODS, NAME, "default").status


async def messages(server: ApiServer) -> set[str]:
    """What events say of evictions."""
    return {each.message for each in server.all(EVENTS) if each.reason == "Evicted"}


def fill(folder: Path) -> Path:
    """Use up the room of a disk; returns the file that has to go for some again."""
    filling = folder / "filling"
    with filling.open("wb", buffering=0) as file:
        for size in (MI, 4096):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    assert os.statvfs(folder).f_bavail * 4096 < FILE_BYTES
    return filling


@pytest.mark.parametrize("full", [False, True], ids=["disk with room", "full disk"])
def test_the_next_agent_ends_the_pod_for_the_same_reason(
    full: bool, agent: LabAgent, api: ServedApi, containerd: Containerd
) -> None:
    """Also if the decision was made on a full disk: room for it is kept."""
    api.do(partial(put_pod, manifest=victim()))
    wait_until(
        lambda: api.do(status).phase == "Running",
        deadline_seconds=DEADLINE_SECONDS,
        else_say=agent.last_words,
    )
    [container] = api.do(status).container_statuses
    records = agent.root / FILE
    [volume] = (agent.root / "pods" / UID / "volumes").glob("*/v")
    (volume / "file").write_bytes(bytes(2 * MI))
    filling = fill(agent.root) if full else None
    wait_until(
        lambda: UID in records.read_text(),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"no decision: {agent.last_words()}",
    )
    agent.kill()
    assert "eviction record write failed" not in agent.log.read_text()
    if filling is not None:
        filling.unlink()
    agent.start()
    wait_until(
        lambda: api.do(status).phase == "Failed",
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{api.do(status)}; {agent.last_words()}",
    )
    shown = api.do(status)
    assert (shown.reason, shown.message) == ("Evicted", MESSAGE)
    wait_until(
        lambda: '"is_open": false' in records.read_text(),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"the record is open: {agent.last_words()}",
    )
    assert MESSAGE in api.do(messages)
    assert container.container_id.partition("//")[2] not in containerd.ctr("containers", "list")
