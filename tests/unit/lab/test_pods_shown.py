from datetime import UTC, datetime
from typing import Any

import pytest

from lab.pods_shown import ShownPod, events, is_at_work, row, rows, state_in_words

NOW = datetime(2026, 1, 1, 12, 1, 5, tzinfo=UTC)
RUNNING = {"running": {"startedAt": "2026-01-01T12:00:00Z"}}


def container(state: dict[str, Any], *, ready: bool = False, restarts: int = 0) -> dict[str, Any]:
    return {"name": "c", "state": state, "ready": ready, "restartCount": restarts}


def pod(*containers: dict[str, Any], name: str = "web", **status: object) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": list(containers), **status},
    }


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(code: int, reason: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (pod(container(RUNNING, ready=True)), "Running"),
        (pod(container(waiting("CrashLoopBackOff"))), "CrashLoopBackOff"),
        (pod(container(ended(3, "Error"))), "Error"),
        (pod(container(ended(3))), "ExitCode:3"),
        (pod(phase="Pending"), "Pending"),
        (pod(phase="Failed", reason="Evicted"), "Evicted"),
        (pod(initContainerStatuses=[container(RUNNING)]), "Init:0/1"),
        (pod(initContainerStatuses=[container(waiting("PodInitializing"))]), "Init:0/1"),
        (pod(initContainerStatuses=[container(waiting("ErrImagePull"))]), "Init:ErrImagePull"),
        (
            pod(initContainerStatuses=[container(ended(0)), container(RUNNING)]),
            "Init:1/2",
        ),
        (
            pod(container(RUNNING), initContainerStatuses=[container(ended(0, "Completed"))]),
            "Running",
        ),
    ],
)
def test_the_state_is_told_in_the_words_of_kubectl(shown: dict[str, Any], expected: str) -> None:
    assert state_in_words(shown) == expected


def test_a_pod_that_is_being_deleted_is_terminating_whatever_its_containers_do() -> None:
    shown = pod(container(RUNNING))
    shown["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    assert state_in_words(shown) == "Terminating"


def test_a_row_counts_ready_containers_and_restarts() -> None:
    shown = pod(
        container(RUNNING, ready=True, restarts=2),
        podIP="10.0.0.2",
        startTime="2026-01-01T12:00:00Z",
    )
    assert row(shown, NOW) == ShownPod("web", "1/1", "Running", 2, "10.0.0.2", "1m5s")


def test_rows_are_sorted_by_name() -> None:
    assert [each.name for each in rows([pod(name="b"), pod(name="a")], NOW)] == ["a", "b"]


def test_a_pod_is_at_work_when_all_containers_are_ready_or_one_was_restarted() -> None:
    assert is_at_work(pod(container(RUNNING, ready=True)))
    assert is_at_work(pod(container(waiting("CrashLoopBackOff"), restarts=1)))
    assert not is_at_work(pod(container(RUNNING)))
    assert not is_at_work(pod())


def test_only_the_events_of_pods_are_told() -> None:
    journal = [
        {"kind": "event", "key": "node", "event": "Starting", "cause": "Starting kubelet."},
        {"kind": "pod", "key": "default/web", "event": "Changed", "cause": ""},
        {"kind": "event", "key": "default/web/c", "event": "Started", "cause": "It started"},
    ]
    assert list(events(journal)) == ["web: Started: It started"]
