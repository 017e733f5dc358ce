"""Init containers run one after another, sidecars beside them, and their failure is the pod's.

Each container writes its name into a file of the host when it begins and when it ends: the order
of the lines is the order of what happened.
"""

from pathlib import Path

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.processes import wait_until
from tests.integration.pods import (
    Node,
    conditions,
    host_folder,
    mount,
    one_shot,
    phase,
    shell,
    status_of,
    waiting_reason,
)


def noting(name: str, script: str = "", **fields: object) -> Json:
    """A container that notes its begin and its end around a script."""
    note = (
        f"echo {name} begins >> /shared/notes; {script or ':'}; echo {name} ends >> /shared/notes"
    )
    return shell(name, note, volumeMounts=[mount("/shared")], **fields)


def staying(name: str, **fields: object) -> Json:
    """A container that notes its begin, stays, and notes its end when it is told to go."""
    script = (
        f"trap 'echo {name} ends >> /shared/notes; exit 0' TERM; "
        f"echo {name} begins >> /shared/notes; sleep 1000000 & wait"
    )
    return shell(name, script, volumeMounts=[mount("/shared")], **fields)


def notes(folder: Path) -> list[str]:
    file = folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


def test_init_containers_run_in_their_order_before_all_others(node: Node, tmp_path: Path) -> None:
    pod = node.finish(
        one_shot(
            "init-order",
            noting("regular"),
            initContainers=[noting("first", "sleep 0.3"), noting("second", "sleep 0.3")],
            **host_folder(tmp_path),
        )
    )
    assert phase(pod) == "Succeeded"
    assert notes(tmp_path) == [
        f"{name} {what}" for name in ("first", "second", "regular") for what in ("begins", "ends")
    ]
    for name in ("first", "second", "regular"):
        assert status_of(pod, name)["state"]["terminated"]["reason"] == "Completed"
    node.remove("init-order")


def test_a_pod_is_pending_while_it_is_initialized(node: Node, tmp_path: Path) -> None:
    node.add(
        pod_manifest(
            "initializing",
            staying("regular"),
            initContainers=[noting("init", "until [ -e /shared/go ]; do sleep 0.05; done")],
            **host_folder(tmp_path),
        )
    )
    pod = node.wait("initializing", lambda pod: "running" in status_of(pod, "init")["state"])
    assert phase(pod) == "Pending"
    assert conditions(pod)["Initialized"] == "False"
    assert waiting_reason(pod, "regular") == "PodInitializing"
    (tmp_path / "go").touch()
    pod = node.wait("initializing", is_running)
    assert conditions(pod)["Initialized"] == "True"
    node.remove("initializing")


def test_a_sidecar_starts_before_the_next_and_stops_after_the_regular_ones(
    node: Node, tmp_path: Path
) -> None:
    node.add(
        pod_manifest(
            "sidecars",
            staying("regular"),
            initContainers=[
                staying("one", restartPolicy="Always"),
                # Between its begin and its end the sidecar before it must have begun.
                noting("init", "until grep -q one /shared/notes; do sleep 0.05; done"),
                staying("two", restartPolicy="Always"),
            ],
            terminationGracePeriodSeconds=20,
            **host_folder(tmp_path),
        )
    )
    pod = node.wait("sidecars", is_running)
    wait_until(
        lambda: {"one begins", "two begins", "regular begins"} <= set(notes(tmp_path)),
        deadline_seconds=60,
        else_say=lambda: str(notes(tmp_path)),
    )
    assert status_of(pod, "one")["started"] is True
    seen = notes(tmp_path)
    assert seen.index("init ends") > seen.index("one begins")
    assert (
        status_of(pod, "two")["state"]["running"]["startedAt"]
        >= (status_of(pod, "init")["state"]["terminated"]["finishedAt"])
    )
    node.remove("sidecars")
    node.wait_gone("sidecars")
    assert notes(tmp_path)[-3:] == ["regular ends", "two ends", "one ends"]


def test_sidecars_end_with_a_pod_that_has_done_its_work(node: Node, tmp_path: Path) -> None:
    pod = node.finish(
        one_shot(
            "job-with-sidecar",
            noting("work", "until grep -q sidecar /shared/notes; do sleep 0.05; done"),
            initContainers=[staying("sidecar", restartPolicy="Always")],
            **host_folder(tmp_path),
        )
    )
    assert phase(pod) == "Succeeded"
    assert notes(tmp_path)[-1] == "sidecar ends"
    assert status_of(pod, "sidecar")["state"]["terminated"]["exitCode"] == 0
    node.remove("job-with-sidecar")


def test_a_sidecar_that_ends_is_started_again(node: Node, tmp_path: Path) -> None:
    node.add(
        one_shot(
            "sidecar-restarts",
            staying("regular"),
            initContainers=[
                shell(
                    "sidecar",
                    "[ -e /shared/once ] && exec sleep 1000000; touch /shared/once; exit 1",
                    restartPolicy="Always",
                    volumeMounts=[mount("/shared")],
                )
            ],
            terminationGracePeriodSeconds=1,
            **host_folder(tmp_path),
        )
    )
    # Its first instance runs for a moment, too.
    pod = node.wait(
        "sidecar-restarts",
        lambda pod: (
            is_running(pod)
            and "running" in status_of(pod, "sidecar")["state"]
            and status_of(pod, "sidecar")["restartCount"] > 0
        ),
    )
    assert status_of(pod, "sidecar")["restartCount"] == 1
    assert status_of(pod, "sidecar")["lastState"]["terminated"]["exitCode"] == 1
    assert status_of(pod, "regular")["restartCount"] == 0
    node.remove("sidecar-restarts")


def test_with_policy_never_a_failed_init_container_fails_the_pod(
    node: Node, tmp_path: Path
) -> None:
    pod = node.finish(
        one_shot(
            "init-never",
            noting("regular"),
            initContainers=[noting("bad", "exit 7"), noting("after")],
            **host_folder(tmp_path),
        )
    )
    assert phase(pod) == "Failed"
    assert notes(tmp_path) == ["bad begins"]
    assert status_of(pod, "bad")["state"]["terminated"]["exitCode"] == 7
    assert status_of(pod, "bad")["restartCount"] == 0
    assert waiting_reason(pod, "regular") == "PodInitializing"
    assert conditions(pod)["Initialized"] == "False"
    node.remove("init-never")


@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_with_other_policies_a_failed_init_container_is_repeated(
    node: Node, tmp_path: Path, policy: str
) -> None:
    name = f"init-{policy.lower()}"
    script = "[ -e /shared/once ] || { touch /shared/once; exit 7; }"
    node.add(
        pod_manifest(
            name,
            staying("regular"),
            initContainers=[noting("flaky", script), noting("after")],
            restartPolicy=policy,
            **host_folder(tmp_path),
        )
    )
    pod = node.wait(name, is_running)
    flaky = status_of(pod, "flaky")
    assert flaky["restartCount"] == 1
    assert flaky["state"]["terminated"]["reason"] == "Completed"
    assert status_of(pod, "after")["restartCount"] == 0
    wait_until(
        lambda: "regular begins" in notes(tmp_path),
        deadline_seconds=60,
        else_say=lambda: str(notes(tmp_path)),
    )
    assert notes(tmp_path) == [
        "flaky begins",
        "flaky begins",
        "flaky ends",
        "after begins",
        "after ends",
        "regular begins",
    ]
    node.remove(name)


def test_an_init_container_that_goes_on_failing_keeps_the_pod_pending(
    node: Node, tmp_path: Path
) -> None:
    node.add(
        pod_manifest(
            "init-crashing",
            noting("regular"),
            initContainers=[noting("bad", "exit 1")],
            **host_folder(tmp_path),
        )
    )
    pod = node.wait("init-crashing", lambda pod: waiting_reason(pod, "bad") == "CrashLoopBackOff")
    assert phase(pod) == "Pending"
    assert status_of(pod, "bad")["restartCount"] == 1
    assert set(notes(tmp_path)) == {"bad begins"}
    node.remove("init-crashing")
