"""The limits that pods set themselves, one line a case."""

from typing import Any

import pytest

from tests.unit.eviction.candidates import disk, pod, stats
from trio_kubelet.eviction.limits import exceeded_limit, has_own_limits
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.stats.values import PodStats

SHARED, APART = DiskLayout.SHARED, DiskLayout.IMAGES_APART


def volume(limit: str | None) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": limit} if limit else {}}]}


def limited(limit: str) -> dict[str, Any]:
    return {"limits": {"ephemeral-storage": limit}}


@pytest.mark.parametrize(
    ("spec", "used", "layout", "expected"),
    [
        (
            volume("1Mi"),
            stats("p", volumes={"v": 2}),
            SHARED,
            ("emptydirfs.limit", 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '),
        ),
        (volume("2Mi"), stats("p", volumes={"v": 2}), SHARED, None),
        (volume(None), stats("p", volumes={"v": 2}), SHARED, None),
        (volume("0"), stats("p", volumes={"v": 2}), SHARED, None),
        (volume("1Mi"), stats("p"), SHARED, None),
        (
            limited("3Mi"),
            stats("p", whole=disk(4)),
            SHARED,
            (
                "ephemeralpodfs.limit",
                "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
            ),
        ),
        (limited("4Mi"), stats("p", whole=disk(4)), SHARED, None),
        (limited("4Mi"), stats("p"), SHARED, None),
        (
            limited("3Mi"),
            stats("p", whole=disk(3), layer=disk(2), logs=disk(2)),
            SHARED,
            (
                "ephemeralcontainerfs.limit",
                'Container c exceeded its local ephemeral storage limit "3Mi". ',
            ),
        ),
        (limited("3Mi"), stats("p", layer=disk(2), logs=disk(2)), APART, None),
        (
            limited("3Mi"),
            stats("p", layer=disk(0), logs=disk(4)),
            APART,
            (
                "ephemeralcontainerfs.limit",
                'Container c exceeded its local ephemeral storage limit "3Mi". ',
            ),
        ),
        (
            {**volume("1Mi"), **limited("1Mi")},
            stats("p", volumes={"v": 2}, whole=disk(9)),
            SHARED,
            ("emptydirfs.limit", 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '),
        ),
        (limited("1Mi"), None, SHARED, None),
    ],
)
def test_limit(
    spec: dict[str, Any],
    used: PodStats | None,
    layout: DiskLayout,
    expected: tuple[str, str] | None,
) -> None:
    found = exceeded_limit(Candidate(pod=pod("p", **spec), stats=used), layout)
    assert (found and (found.cause, found.message)) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({}, False), (volume("1Mi"), True), (volume(None), False), (limited("1Mi"), True)],
)
def test_pods_without_limits_need_no_measurement(spec: dict[str, Any], expected: bool) -> None:
    assert has_own_limits(pod("p", **spec)) is expected
