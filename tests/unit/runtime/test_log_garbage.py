"""Which logs go, which links to them go, and which are made, by table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tests.node_facts import node_facts
from tests.unit.runtime.observed_pods import pod, series
from trio_kubelet.runtime.garbage.logs import (
    LogFile,
    LogLink,
    links_to_make,
    links_to_remove,
    logs_to_remove,
)
from trio_kubelet.runtime.observed import ObservedPod, ObservedState

NODE = node_facts()


@pytest.mark.parametrize(
    ("restart_count", "goes"),
    [(0, True), (1, False), (2, True), (3, False), (4, False)],
    ids=["gone", "kept dead one", "gone too", "runs", "not seen yet"],
)
def test_a_log_goes_with_its_container_but_never_the_newest(restart_count: int, goes: bool) -> None:
    containers = series("a", "XXXR")
    observed = ObservedPod(
        uid="uid",
        name="web",
        namespace="default",
        observed_at=0.0,
        containers=(containers[3], containers[1]),
    )
    file = LogFile(path=Path("x"), container="a", restart_count=restart_count)
    assert bool(logs_to_remove(observed, [file])) is goes


def test_logs_of_a_container_of_which_nothing_is_known_stay() -> None:
    file = LogFile(path=Path("x"), container="b", restart_count=0)
    assert not logs_to_remove(pod(a="R"), [file])


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({}, True),
        ({"leads_somewhere": True}, False),
        ({"age_seconds": 5.0}, False),
        ({"target": "/somewhere/else/0.log"}, False),
        ({"path": Path("/var/log/containers/web_default_a-a1.log")}, False),
        ({"path": Path("/var/log/containers/web_default_a-a0.log")}, True),
    ],
    ids=["dangling", "whole", "young", "not ours", "of one that runs", "of a dead one"],
)
def test_a_link_that_leads_nowhere_goes(changes: Mapping[str, object], goes: bool) -> None:
    fields: dict[str, object] = {
        "path": Path("/var/log/containers/x_default_a-1.log"),
        "target": "/var/log/pods/default_x_uid/a/0.log",
        "age_seconds": 3600.0,
        "leads_somewhere": False,
        **changes,
    }
    link = LogLink(**fields)  # type: ignore[arg-type]
    assert bool(links_to_remove([link], [pod(a="XR")], NODE)) is goes


ITS_LINK = "/var/log/containers/web_default_a-a0.log"


@pytest.mark.parametrize(
    ("changes", "links", "made"),
    [
        ({}, [], True),
        ({"state": ObservedState.EXITED}, [], True),
        ({"state": ObservedState.CREATED}, [], False),
        ({"log_path": ""}, [], False),
        ({"log_path": "/elsewhere/0.log"}, [], False),
        ({}, ["/var/log/containers/web_default_a-a1.log"], True),
        ({}, [ITS_LINK], False),
    ],
    ids=["runs", "ended", "never started", "no log", "not ours", "other's link", "has its link"],
)
def test_a_link_that_a_container_lacks_is_made(
    changes: Mapping[str, Any], links: Sequence[str], made: bool
) -> None:
    log = "/var/log/pods/default_web_uid/a/0.log"
    container = evolve(series("a", "R")[0], **{"log_path": log, **changes})
    present = [
        LogLink(path=Path(link), target=log, age_seconds=0, leads_somewhere=True) for link in links
    ]
    observed = evolve(pod(), containers=(container,))
    expected = {Path(ITS_LINK): log} if made else {}
    assert links_to_make(present, [observed], NODE) == expected


def test_of_containers_whose_links_have_one_name_the_newest_gets_it() -> None:
    name = "n" * 250
    containers = tuple(
        evolve(each, name=name, log_path=f"/var/log/pods/{each.restart_count}.log")
        for each in reversed(series("a", "XR"))
    )
    (log,) = links_to_make([], [evolve(pod(), containers=containers)], NODE).values()
    assert log == "/var/log/pods/1.log"
