"""What the table says of a pod, case by case as kubectl would."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from trio_kubelet.cli.pod_table import (
    age,
    pod_row,
    pod_rows,
    pod_summary,
    pod_table,
)

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)

RUNNING = {"running": {"startedAt": "2026-01-02T11:59:00Z"}}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(exit_code: int = 0, reason: str = "", signal: int = 0) -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "signal": signal}}


def status(name: str, state: dict[str, Any], **fields: Any) -> dict[str, Any]:
    ready = "running" in state
    return {"name": name, "state": state, "ready": ready, "started": ready, **fields}


def pod(
    *states: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    sidecars: int = 0,
    deleted: bool = False,
    conditions: tuple[tuple[str, str], ...] = (),
    **fields: Any,
) -> dict[str, Any]:
    """A pod whose containers c0, c1, ... and init containers i0, ... are in these states.

    The first `sidecars` init containers restart always.
    """
    init_containers: list[dict[str, Any]] = [{"name": f"i{n}"} for n in range(len(init))]
    for container in init_containers[:sidecars]:
        container["restartPolicy"] = "Always"
    return {
        "metadata": {"name": "web", "namespace": "default"}
        | ({"deletionTimestamp": "2026-01-02T12:00:00Z"} if deleted else {}),
        "spec": {
            "containers": [{"name": f"c{n}", "image": "x"} for n in range(len(states) or 1)],
            "initContainers": init_containers,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": value} for kind, value in conditions],
            "containerStatuses": [status(f"c{n}", s) for n, s in enumerate(states)],
            "initContainerStatuses": [status(f"i{n}", s) for n, s in enumerate(init)],
            **fields,
        },
    }


CASES = [
    ("runs", pod(RUNNING), "Running", "1/1"),
    ("not seen yet", pod(phase="Pending"), "Pending", "0/1"),
    ("no status", {"metadata": {}, "spec": {"containers": [{}]}}, "Unknown", "0/1"),
    ("being made", pod(waiting("ContainerCreating")), "ContainerCreating", "0/1"),
    ("crashes", pod(RUNNING, waiting("CrashLoopBackOff")), "CrashLoopBackOff", "1/2"),
    ("the first that says", pod(waiting("A"), waiting("B")), "A", "0/2"),
    ("completed", pod(ended(0, "Completed"), phase="Succeeded"), "Completed", "0/1"),
    ("failed", pod(ended(1, "Error"), phase="Failed"), "Error", "0/1"),
    ("without a reason", pod(ended(3)), "ExitCode:3", "0/1"),
    ("by a signal", pod(ended(137, signal=9)), "Signal:9", "0/1"),
    (
        "one is done, one runs",
        pod(ended(0, "Completed"), RUNNING, conditions=(("Ready", "True"),)),
        "Running",
        "1/2",
    ),
    ("one is done, not ready", pod(ended(0, "Completed"), RUNNING), "NotReady", "1/2"),
    ("evicted", pod(phase="Failed", reason="Evicted"), "Evicted", "0/1"),
    (
        "init runs",
        pod(waiting("PodInitializing"), init=(RUNNING, waiting("PodInitializing"))),
        "Init:0/2",
        "0/1",
    ),
    (
        "init goes on",
        pod(waiting("PodInitializing"), init=(ended(0), RUNNING)),
        "Init:1/2",
        "0/1",
    ),
    ("init failed", pod(init=(ended(2, "Error"),)), "Init:Error", "0/1"),
    ("init without a reason", pod(init=(ended(2),)), "Init:ExitCode:2", "0/1"),
    ("init by a signal", pod(init=(ended(2, signal=15),)), "Init:Signal:15", "0/1"),
    (
        "init crashes",
        pod(init=(waiting("CrashLoopBackOff"),)),
        "Init:CrashLoopBackOff",
        "0/1",
    ),
    ("init is done", pod(RUNNING, init=(ended(0),)), "Running", "1/1"),
    ("with a sidecar", pod(RUNNING, init=(RUNNING,), sidecars=1), "Running", "2/2"),
    (
        "sidecar before init",
        pod(waiting("PodInitializing"), init=(RUNNING, RUNNING), sidecars=1),
        "Init:1/2",
        "1/2",
    ),
    ("deleted", pod(RUNNING, deleted=True), "Terminating", "1/1"),
    (
        "deleted and done",
        pod(ended(0, "Completed"), deleted=True, phase="Succeeded"),
        "Completed",
        "0/1",
    ),
    ("on a lost node", pod(RUNNING, deleted=True, reason="NodeLost"), "Unknown", "1/1"),
]


@pytest.mark.parametrize(
    ("object_", "word", "ready"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_status_is_one_word(object_: dict[str, Any], word: str, ready: str) -> None:
    summary = pod_summary(object_)
    assert (summary.status, f"{summary.ready}/{summary.containers}") == (word, ready)


def test_gated_pods_say_so() -> None:
    gated = pod(phase="Pending")
    gated["status"]["conditions"] = [{"type": "PodScheduled", "reason": "SchedulingGated"}]
    assert pod_summary(gated).status == "SchedulingGated"


def test_restarts_are_those_of_containers_that_still_matter() -> None:
    busy = pod(RUNNING, RUNNING, init=(ended(0), RUNNING), sidecars=0)
    busy["spec"]["initContainers"][1]["restartPolicy"] = "Always"
    counts = iter((7, 1))
    for each in busy["status"]["initContainerStatuses"]:
        each["restartCount"] = next(counts)
    first, second = busy["status"]["containerStatuses"]
    first |= {
        "restartCount": 2,
        "lastState": {"terminated": {"finishedAt": "2026-01-02T11:58:30Z"}},
    }
    second |= {"restartCount": 3}
    assert pod_row(busy, NOW).restarts == "6 (90s ago)"


def test_while_it_initializes_restarts_are_those_of_init_containers() -> None:
    starting = pod(waiting("PodInitializing"), init=(waiting("CrashLoopBackOff"),))
    starting["status"]["initContainerStatuses"][0]["restartCount"] = 4
    assert pod_row(starting, NOW).restarts == "4"


@pytest.mark.parametrize(
    ("metadata", "start_time", "shown"),
    [
        ({"creationTimestamp": "2026-01-02T11:00:00Z"}, "2026-01-02T11:59:00Z", "60m"),
        ({}, "2026-01-02T11:59:00Z", "60s"),
        (
            {"annotations": {"kubernetes.io/config.seen": "2026-01-02T11:59:50.123456789Z"}},
            None,
            "9s",
        ),
        ({}, None, "<unknown>"),
    ],
)
def test_the_age_counts_from_the_first_time_that_is_known(
    metadata: dict[str, Any], start_time: str | None, shown: str
) -> None:
    young = pod(RUNNING)
    young["metadata"] |= metadata
    if start_time:
        young["status"]["startTime"] = start_time
    assert pod_row(young, NOW).age == shown


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(0), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=120), "2m"),
        (timedelta(seconds=330), "5m30s"),
        (timedelta(minutes=10, seconds=5), "10m"),
        (timedelta(minutes=179), "179m"),
        (timedelta(hours=3), "3h"),
        (timedelta(hours=3, minutes=5), "3h5m"),
        (timedelta(hours=8, minutes=5), "8h"),
        (timedelta(hours=47), "47h"),
        (timedelta(hours=50), "2d2h"),
        (timedelta(days=7), "7d"),
        (timedelta(days=8, hours=2), "8d"),
        (timedelta(days=729), "729d"),
        (timedelta(days=740), "2y10d"),
        (timedelta(days=3000), "8y"),
    ],
)
def test_ages_are_told_in_the_units_that_matter(span: timedelta, shown: str) -> None:
    assert age(NOW - span, NOW) == shown


def shown(*pods: dict[str, Any], wide: bool = False) -> list[list[str]]:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(pod_table(pod_rows(pods, NOW), wide=wide))
    return [line.split() for line in capture.get().splitlines()]


def test_the_table_is_sorted_and_has_the_columns_of_kubectl() -> None:
    last = pod(RUNNING)
    last["metadata"] |= {"namespace": "z", "name": "a"}
    head, first, second = shown(last, pod(waiting("ErrImagePull")))
    assert head == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"]
    assert first == ["default", "web", "0/1", "ErrImagePull", "0", "<unknown>", "<none>"]
    assert second[:2] == ["z", "a"]


def test_the_wide_table_tells_node_class_and_images() -> None:
    wide = pod(RUNNING, RUNNING, qosClass="BestEffort", podIP="10.0.0.2")
    wide["spec"]["nodeName"] = "n1"
    head, row = shown(wide, wide=True)
    assert head[-3:] == ["NODE", "QOS", "IMAGES"]
    assert row[-4:] == ["10.0.0.2", "n1", "BestEffort", "x,x"]


def test_names_in_brackets_are_no_markup() -> None:
    odd = pod(waiting("[bold]"))
    assert shown(odd)[1][3] == "[bold]"
