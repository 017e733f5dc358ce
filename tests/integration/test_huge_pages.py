"""Huge pages on a real containerd: what a pod may use of them, and that it gives them back.

Where no hierarchy of cgroup v1 has the controller, containerd and agent see one that is mounted for
them alone. Programs that use pages run in the host's files, as the lab's image has no Python.

Meanwhile no other container of the machine may be limited, as its cgroups lack that hierarchy: so
this is a session of its own, `nox -s huge_pages`.
"""

import os
import shlex
import sys
from collections.abc import Iterator

import pytest

from lab import UnavailableError, host
from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from tests.containerds import ASKED_FOR, VERSIONS
from tests.huge_pages import PAGE_BYTES, USE_PAGES, controller_of_v1, free_pages, set_aside
from tests.integration.pods import CGROUPS, Node, container_ids, one_shot, shell, until_term
from tests.missing import do_without

pytestmark = pytest.mark.skipif(
    "TRIO_KUBELET_HUGE_PAGES" not in os.environ,
    reason="takes a controller of the machine; nox -s huge_pages",
)
PAGES = 32
LIMIT_PAGES = 4
LIMIT = LIMIT_PAGES * PAGE_BYTES
RESOURCES = {"limits": {"hugepages-2Mi": "8Mi", "memory": "64Mi", "cpu": "100m"}}
FILES: Json = {"name": "files", "mountPath": "/files"}
USE_IN_HOST_FILES = f"chroot /host {shlex.quote(sys.executable)} -c {shlex.quote(USE_PAGES)}"


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"containerd-{version}")
def node(
    request: pytest.FixtureRequest, real_containers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """An agent that found the machine with huge pages, on a containerd of its own."""
    folder = tmp_path_factory.mktemp("huge")
    with set_aside(PAGES), controller_of_v1():
        containerd = Containerd(request.param, folder / "containerd", limits_huge_pages=True)
        try:
            containerd.start()
        except UnavailableError as reason:
            do_without(str(reason), asked_for=bool(ASKED_FOR))
        try:
            with LabAgent(folder / "agent", endpoint=containerd.endpoint) as agent:
                yield Node(agent=agent, containerd=containerd)
        finally:
            containerd.stop()


def limits(path: str) -> set[str]:
    """What the kernel holds a cgroup to, in pages used and in pages reserved."""
    is_unified = host.cgroup_version() == 2
    folder = (CGROUPS if is_unified else CGROUPS / "hugetlb") / path.lstrip("/")
    name = "max" if is_unified else "limit_in_bytes"
    return {file.read_text().strip() for file in folder.glob(f"hugetlb.2MB*.{name}")}


def in_host_files(*scripts: str) -> Json:
    """A pod that runs scripts once, one after another, with the host's files at /host."""
    mount = {"name": "host", "mountPath": "/host"}
    main = shell("c", "\n".join(scripts), resources=RESOURCES, volumeMounts=[mount])
    host_files = {"name": "host", "hostPath": {"path": "/"}}
    return one_shot("user", main, volumes=[host_files])


def test_pod_and_container_are_held_to_the_limit(node: Node) -> None:
    pod = node.run(pod_manifest("held", until_term("c", resources=RESOURCES)))
    plain = node.run(pod_manifest("plain", until_term("c")))
    kubepods = f"{node.agent.cgroup_root}/kubepods"
    parent = f"{kubepods}/pod{pod['metadata']['uid']}"
    assert limits(kubepods) == {str(PAGES * PAGE_BYTES)}
    assert limits(parent) == {str(LIMIT)}
    # The limit of reserved pages is the kubelet's affair: runtimes set that of used ones.
    assert str(LIMIT) in limits(f"{parent}/{container_ids(pod)['c']}")
    assert limits(f"{kubepods}/besteffort/pod{plain['metadata']['uid']}") == {"0"}
    node.remove("held", "plain")


def test_pages_up_to_the_limit_can_be_used_and_no_more_be_mapped(node: Node) -> None:
    manifest = in_host_files(
        f"{USE_IN_HOST_FILES} {LIMIT_PAGES}", f"{USE_IN_HOST_FILES} {LIMIT_PAGES + 1} 2>&1"
    )
    pod = node.finish(manifest)
    said = node.output(pod, "c")
    assert said[0] == f"used {LIMIT_PAGES}"
    assert said[-1] == "OSError: [Errno 12] Cannot allocate memory"
    assert pod["status"]["phase"] == "Failed"
    node.remove("user")


@pytest.mark.parametrize("medium", ["HugePages", "HugePages-2Mi"])
def test_a_volume_of_huge_pages_holds_as_many_as_its_pod_may_use(node: Node, medium: str) -> None:
    script = (
        "grep ' /files ' /proc/mounts; fallocate -l 8M /files/a && echo filled; "
        "fallocate -l 2M /files/b 2>&1"
    )
    main = until_term("c", script, resources=RESOURCES, volumeMounts=[FILES])
    volumes = [{"name": "files", "emptyDir": {"medium": medium}}]
    pod = node.run(pod_manifest("volume", main, volumes=volumes))
    full = "fallocate: fallocate '/files/b': No space left on device"
    mounted, *said = node.wait_for_output(pod, "c", full)
    assert mounted.split()[2] == "hugetlbfs"
    assert "pagesize=2M" in mounted.split()[3].split(",")
    assert said == ["filled", full]
    assert free_pages() == PAGES - LIMIT_PAGES
    node.remove("volume")
    node.wait_gone("volume")
    assert free_pages() == PAGES


def test_a_critical_pod_that_asks_for_more_than_is_left_is_rejected(node: Node) -> None:
    node.run(pod_manifest("first", until_term("c", resources=RESOURCES)))
    most = {"limits": {**RESOURCES["limits"], "hugepages-2Mi": f"{PAGES * 2}Mi"}}
    pod = node.finish(one_shot("second", until_term("c", resources=most)))
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    nobody = f"no set of running pods found to reclaim resources: [(res: hugepages-2Mi, q: {LIMIT})"
    assert nobody in pod["status"]["message"]
    node.remove("first", "second")
