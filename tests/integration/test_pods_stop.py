"""Pods go when their manifests go: gracefully, within their time, and wholly.

What a container had to say at its end it writes into a file of the host.
"""

import time
from pathlib import Path

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.images import BUSYBOX
from lab.processes import wait_until
from tests.integration.pods import (
    CGROUPS,
    Node,
    container_ids,
    containers_in,
    host_folder,
    mount,
    mounts_below,
    one_shot,
    shell,
    status_of,
    until_term,
    waiting_reason,
)

DEFAULT_GRACE_SECONDS = 30
LONG_GRACE_SECONDS = 600
"""Longer than anybody waits here: who is gone before that has not used it up."""

FAREWELL = "trap 'echo farewell >> /shared/notes; exit 0' TERM; sleep 1000000 & wait"
DEAF = "trap '' TERM; while :; do sleep 0.1; done"


def notes(folder: Path) -> list[str]:
    file = folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


def sharing(name: str, script: str, **fields: object) -> Json:
    """A container with the host's folder that runs a script."""
    return shell(name, script, volumeMounts=[mount("/shared")], **fields)


def go(node: Node, name: str) -> None:
    """Take a pod's manifest away and wait until it is gone."""
    node.remove(name)
    node.wait_gone(name)


def seconds_to_go(node: Node, name: str) -> float:
    """How long it takes until a pod is gone."""
    began = time.monotonic()
    go(node, name)
    return time.monotonic() - began


@pytest.mark.parametrize("grace_seconds", [LONG_GRACE_SECONDS, 999_999_999, 2**63 - 1])
def test_a_process_that_obeys_has_time_for_a_farewell(
    node: Node, tmp_path: Path, grace_seconds: int
) -> None:
    name = f"obeys-{grace_seconds}"
    node.run(
        pod_manifest(
            name,
            sharing("c", FAREWELL),
            terminationGracePeriodSeconds=grace_seconds,
            **host_folder(tmp_path),
        )
    )
    go(node, name)
    assert notes(tmp_path) == ["farewell"]
    assert ("Killing", "Stopping container c") in node.events(name)


def test_a_process_that_does_not_obey_is_killed_when_its_time_is_over(node: Node) -> None:
    node.run(pod_manifest("deaf", shell("c", DEAF), terminationGracePeriodSeconds=3))
    assert seconds_to_go(node, "deaf") >= 3


def test_without_a_grace_period_a_container_still_has_two_seconds(node: Node) -> None:
    node.run(pod_manifest("no-grace", shell("c", DEAF), terminationGracePeriodSeconds=0))
    assert 2 <= seconds_to_go(node, "no-grace") < DEFAULT_GRACE_SECONDS


def test_a_hook_runs_before_the_stop(node: Node, tmp_path: Path) -> None:
    hook = [
        "sh",
        "-c",
        "echo hook begins >> /shared/notes; sleep 1; echo hook ends >> /shared/notes",
    ]
    lifecycle = {"preStop": {"exec": {"command": hook}}}
    node.run(
        pod_manifest(
            "pre-stop", sharing("c", FAREWELL, lifecycle=lifecycle), **host_folder(tmp_path)
        )
    )
    assert seconds_to_go(node, "pre-stop") >= 1
    assert notes(tmp_path) == ["hook begins", "hook ends", "farewell"]


def test_a_hook_has_no_more_time_than_the_pod(node: Node, tmp_path: Path) -> None:
    lifecycle = {"preStop": {"exec": {"command": ["sleep", "1000"]}}}
    node.run(
        pod_manifest(
            "long-hook",
            sharing("c", FAREWELL, lifecycle=lifecycle),
            terminationGracePeriodSeconds=3,
            **host_folder(tmp_path),
        )
    )
    assert seconds_to_go(node, "long-hook") >= 3
    assert notes(tmp_path) == ["farewell"]


@pytest.mark.parametrize("sidecars", [0, 3])
def test_who_has_used_up_its_time_with_a_hook_has_two_seconds_after_its_signal(
    node: Node, tmp_path: Path, sidecars: int
) -> None:
    slow = "trap 'sleep 1.5; echo farewell >> /shared/notes; exit 0' TERM; sleep 1000000 & wait"
    lifecycle = {"preStop": {"exec": {"command": ["sleep", "1000"]}}}
    name = f"slow-{sidecars}"
    node.run(
        pod_manifest(
            name,
            sharing("c", slow, lifecycle=lifecycle),
            initContainers=[
                sharing(f"s{number}", slow, lifecycle=lifecycle, restartPolicy="Always")
                for number in range(sidecars)
            ],
            terminationGracePeriodSeconds=3,
            **host_folder(tmp_path),
        )
    )
    assert seconds_to_go(node, name) >= 4.5
    assert notes(tmp_path) == ["farewell"] * (1 + sidecars)


def test_a_hook_that_fails_is_told_and_the_stop_goes_on(node: Node, tmp_path: Path) -> None:
    lifecycle = {"preStop": {"exec": {"command": ["sh", "-c", "exit 9"]}}}
    node.run(
        pod_manifest(
            "bad-hook",
            sharing("c", FAREWELL, lifecycle=lifecycle),
            terminationGracePeriodSeconds=LONG_GRACE_SECONDS,
            **host_folder(tmp_path),
        )
    )
    go(node, "bad-hook")
    assert notes(tmp_path) == ["farewell"]
    assert ("FailedPreStopHook", "PreStopHook failed") in node.events("bad-hook")


def test_a_hook_runs_after_the_start(node: Node, tmp_path: Path) -> None:
    hook = ["sh", "-c", "echo hook >> /shared/notes"]
    node.run(
        pod_manifest(
            "post-start",
            sharing("c", FAREWELL, lifecycle={"postStart": {"exec": {"command": hook}}}),
            **host_folder(tmp_path),
        )
    )
    wait_until(
        lambda: notes(tmp_path) == ["hook"],
        deadline_seconds=60,
        else_say=lambda: str(notes(tmp_path)),
    )
    node.remove("post-start")


def test_a_container_whose_start_hook_fails_is_stopped_and_started_again(
    node: Node, tmp_path: Path
) -> None:
    hook = ["sh", "-c", "[ -e /shared/once ] || { touch /shared/once; echo no; exit 3; }"]
    node.add(
        pod_manifest(
            "bad-start-hook",
            sharing("c", FAREWELL, lifecycle={"postStart": {"exec": {"command": hook}}}),
            **host_folder(tmp_path),
        )
    )
    pod = node.wait(
        "bad-start-hook", lambda pod: is_running(pod) and status_of(pod, "c")["restartCount"]
    )
    assert status_of(pod, "c")["restartCount"] == 1
    events = node.events("bad-start-hook")
    assert ("FailedPostStartHook", "PostStartHook failed") in events
    assert ("Killing", "FailedPostStartHook") in events
    assert notes(tmp_path) == ["farewell"]
    node.remove("bad-start-hook")


def test_the_status_of_a_failed_start_hook_tells_what_it_said(node: Node) -> None:
    hook = ["sh", "-c", "echo the reason; exit 3"]
    node.add(
        pod_manifest(
            "bad-start-hooks",
            until_term("c", lifecycle={"postStart": {"exec": {"command": hook}}}),
        )
    )
    pod = node.wait("bad-start-hooks", lambda pod: waiting_reason(pod, "c") == "PostStartHookError")
    meta = pod["metadata"]
    assert status_of(pod, "c")["state"]["waiting"]["message"] == (
        f'Exec lifecycle hook ([sh -c echo the reason; exit 3]) for Container "c" in Pod '
        f'"{meta["name"]}_default({meta["uid"]})" failed - error: command '
        "'sh -c echo the reason; exit 3' exited with 3: , message: \"the reason\n\""
    )
    node.remove("bad-start-hooks")


def test_a_pod_that_is_over_goes_with_its_manifest(node: Node) -> None:
    pod = node.finish(one_shot("over", shell("c", "exit 0")))
    node.remove("over")
    node.wait_gone("over")
    assert node.sandboxes(pod["metadata"]["uid"]) == []


def test_of_a_pod_that_is_removed_nothing_is_left(node: Node, tmp_path: Path) -> None:
    memory = [{"name": "memory", "mountPath": "/memory", "subPath": "part"}]
    pod = node.run(
        pod_manifest(
            "traceless",
            until_term("c", volumeMounts=[mount("/shared"), *memory]),
            until_term("d"),
            volumes=[
                *host_folder(tmp_path)["volumes"],
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        )
    )
    (tmp_path / "kept").touch()
    uid = pod["metadata"]["uid"]
    folder = node.agent.root / "pods" / uid
    assert list(mounts_below(folder))
    assert len(node.sandboxes(uid)) == 3
    assert _cgroups(node, uid)
    node.remove("traceless")
    node.wait_gone("traceless")
    assert list(mounts_below(folder)) == []
    assert not folder.exists()
    assert _cgroups(node, uid) == []
    assert uid not in str(containers_in(node.containerd))
    assert (tmp_path / "kept").exists()


def test_a_pod_that_goes_while_it_starts_goes_wholly(node: Node) -> None:
    names = [f"short-lived-{number}" for number in range(4)]
    init = {"name": "init", "image": BUSYBOX, "command": ["sleep", "1"]}
    for name in names:
        node.add(pod_manifest(name, until_term("c"), initContainers=[init]))
    node.wait(names[0], lambda pod: container_ids(pod).get("init"))
    for name in names:
        node.remove(name)
    for name in names:
        node.wait_gone(name)


def _cgroups(node: Node, uid: str) -> list[Path]:
    # No search through all: those of other agents come and go meanwhile.
    kubepods = f"{node.agent.cgroup_root.lstrip('/')}/kubepods"
    places = [f"{kubepods}/{qos}pod{uid}" for qos in ("", "burstable/", "besteffort/")]
    roots = (CGROUPS, *CGROUPS.iterdir())
    return [root / place for root in roots for place in places if (root / place).is_dir()]
