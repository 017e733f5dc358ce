"""What pods have of a machine that is all theirs: OOM scores below zero, devices, AppArmor."""

from collections.abc import Iterator

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.images import BUSYBOX, SLEEPER
from tests.guest.node import Node

MIB = 1 << 20
REQUESTED_MIB = 256
# By pod: what its container is given, and further fields of its spec.
PODS: dict[str, tuple[Json, Json]] = {
    "best-effort": ({}, {}),
    "burstable": ({"requests": {"memory": f"{REQUESTED_MIB}Mi"}}, {}),
    "guaranteed": ({"limits": {"cpu": "100m", "memory": "32Mi"}}, {}),
    "critical": ({}, {"priorityClassName": "system-node-critical"}),
}

PROFILE = """
profile no-notes flags=(attach_disconnected, mediate_deleted) {
  capability,
  file,
  network,
  signal,
  umount,
  deny /notes w,
}
"""
ANNOTATION = "container.apparmor.security.beta.kubernetes.io"
LOCALHOST = {"type": "Localhost", "localhostProfile": "no-notes"}
# By container: its profile, what the kernel then calls it, whether it may write notes.
CONFINED: dict[str, tuple[Json | None, str, bool]] = {
    "own": (LOCALHOST, "no-notes (enforce)", False),
    "annotated": (None, "no-notes (enforce)", False),
    "free": ({"type": "Unconfined"}, "unconfined", True),
    "default": ({"type": "RuntimeDefault"}, "cri-containerd.apparmor.d (enforce)", True),
    "unsaid": (None, "cri-containerd.apparmor.d (enforce)", True),
}


def shell(name: str, script: str, **context: object) -> Json:
    """A container that runs a script; `context` are fields of its security context."""
    command = ["sh", "-c", script]
    return {"name": name, "image": BUSYBOX, "command": command, "securityContext": context}


def is_over(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def output(node: Node, pod: str, container: str) -> list[str]:
    """The lines that a container wrote, without the runtime's prefixes."""
    folder = f"/var/log/pods/default_{node.full_name(pod)}_*/{container}"
    return [line.split(" ", 3)[3] for line in node.guest.run(f"cat {folder}/0.log").splitlines()]


def container_ids(pod: Json) -> list[str]:
    return [each["containerID"].partition("://")[2] for each in pod["status"]["containerStatuses"]]


def oom_score_adj(node: Node, pid: int) -> int:
    return int(node.guest.run("cat", f"/proc/{pid}/oom_score_adj"))


def test_containers_are_as_safe_from_the_oom_killer_as_their_class_and_sandboxes_safer(
    node: Node,
) -> None:
    for name, (resources, spec) in PODS.items():
        container = {"name": "main", "image": SLEEPER, "resources": resources}
        node.add(pod_manifest(name, container, **spec))
    pods = {name: container_ids(node.wait_for_pod(name)) for name in PODS}
    processes = node.processes()
    capacity = int(node.guest.run("grep MemTotal /proc/meminfo").split()[1]) << 10
    seen = {name: oom_score_adj(node, processes.pop(found)) for name, (found,) in pods.items()}
    assert seen == {
        "best-effort": 1000,
        "burstable": 1000 - 1000 * REQUESTED_MIB * MIB // capacity,
        "guaranteed": -997,
        "critical": -997,
    }
    assert [oom_score_adj(node, pid) for pid in processes.values()] == [-998] * len(PODS)
    node.remove(*PODS)


def test_who_is_privileged_makes_devices_on_the_host_network_and_others_do_not(
    node: Node,
) -> None:
    def script(device: str) -> str:
        return f"ip link add {device} type dummy && test -b /dev/ubda && echo made"

    containers = (shell("able", script("made0"), privileged=True), shell("not", script("made1")))
    node.add(pod_manifest("devices", *containers, restartPolicy="Never", hostNetwork=True))
    node.wait_for_pod("devices", is_over)
    assert output(node, "devices", "able") == ["made"]
    assert output(node, "devices", "not") == ["ip: RTNETLINK answers: Operation not permitted"]
    assert node.guest.run("ls /sys/class/net | grep made") == "made0\n"
    node.guest.run("ip", "link", "delete", "made0")
    node.remove("devices")


@pytest.fixture
def profile(node: Node) -> Iterator[str]:
    """A profile that is loaded, under which nobody may write `/notes`."""
    node.guest.write("/root/no-notes", PROFILE)
    node.guest.run("apparmor_parser", "--replace", "/root/no-notes")
    yield "no-notes"
    node.guest.run("apparmor_parser", "--remove", "/root/no-notes")


def test_a_container_is_confined_by_the_profile_that_it_names(node: Node, profile: str) -> None:
    script = "cat /proc/self/attr/current; (echo x >/notes) 2>/dev/null && echo written"
    containers = (
        shell(name, script, **({"appArmorProfile": wanted} if wanted else {}))
        for name, (wanted, _, _) in CONFINED.items()
    )
    manifest = pod_manifest("confined", *containers, restartPolicy="Never")
    manifest["metadata"]["annotations"] = {f"{ANNOTATION}/annotated": f"localhost/{profile}"}
    node.add(manifest)
    node.wait_for_pod("confined", is_over)
    seen = {name: output(node, "confined", name) for name in CONFINED}
    assert seen == {
        name: [label, *(["written"] if writes else [])]
        for name, (_, label, writes) in CONFINED.items()
    }
    node.remove("confined")


def test_a_container_waits_for_a_profile_that_is_not_loaded_and_says_so(node: Node) -> None:
    wanted = {"type": "Localhost", "localhostProfile": "absent"}
    node.add(pod_manifest("unconfined", shell("c", "echo ran", appArmorProfile=wanted)))

    def waiting(pod: Json) -> Json:
        (status,) = pod["status"].get("containerStatuses", [{"state": {}}])
        found: Json = status["state"].get("waiting", {})
        return found

    pod = node.wait_for_pod("unconfined", lambda pod: "absent" in waiting(pod).get("message", ""))
    assert waiting(pod)["reason"] == "CreateContainerError"
    assert not is_running(pod)
    node.remove("unconfined")


def test_a_pod_that_is_to_have_users_of_its_own_is_rejected_though_the_kernel_has_them(
    node: Node,
) -> None:
    node.guest.run("unshare", "--user", "true")
    node.add(pod_manifest("own-users", {"name": "main", "image": SLEEPER}, hostUsers=False))
    pod = node.wait_for_pod("own-users", lambda pod: pod["status"].get("phase") == "Failed")
    assert pod["status"]["reason"] == "UserNamespacesNotSupported"
    assert "does not support user namespaces" in pod["status"]["message"]
    assert "containerStatuses" not in pod["status"]
    node.remove("own-users")


def test_a_pod_that_asks_for_huge_pages_is_rejected_where_the_machine_has_none(
    node: Node,
) -> None:
    resources = {"limits": {"hugepages-2Mi": "4Mi", "memory": "32Mi", "cpu": "100m"}}
    node.add(pod_manifest("huge", {"name": "main", "image": SLEEPER, "resources": resources}))
    pod = node.wait_for_pod("huge", lambda pod: pod["status"].get("phase") == "Failed")
    # A static pod is critical: others would have to make way for it, and nobody has any.
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    nobody = "no set of running pods found to reclaim resources: [(res: hugepages-2Mi, q: 4194304)"
    assert nobody in pod["status"]["message"]
    assert "containerStatuses" not in pod["status"]
    node.remove("huge")
