"""Where a pod comes from, and what follows from that."""

import pytest

from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec
from trio_kubelet.pod_source import is_critical, is_static

API = {"kubernetes.io/config.source": "api"}
FILE = {"kubernetes.io/config.source": "file"}
HTTP = {"kubernetes.io/config.source": "http"}
MIRROR = {"kubernetes.io/config.mirror": "x"}


@pytest.mark.parametrize(
    ("annotations", "static"),
    [({}, False), (API, False), (MIRROR, False), (FILE, True), (HTTP, True)],
)
def test_static_is_what_does_not_come_from_the_api_server(
    annotations: dict[str, str], static: bool
) -> None:
    assert is_static(Pod(metadata=ObjectMeta(annotations=annotations))) is static


@pytest.mark.parametrize(
    ("annotations", "priority", "critical"),
    [
        ({}, None, False),
        ({}, 1_999_999_999, False),
        ({}, 2_000_000_000, True),
        (API, None, False),
        (FILE, None, True),
        (HTTP, None, True),
        (MIRROR, None, True),
    ],
)
def test_critical_are_static_pods_mirrors_and_high_priorities(
    annotations: dict[str, str], priority: int | None, critical: bool
) -> None:
    asked = Pod(metadata=ObjectMeta(annotations=annotations), spec=PodSpec(priority=priority))
    assert is_critical(asked) is critical
