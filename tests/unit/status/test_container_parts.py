"""What a running container may really use, from what the runtime tells and what is recorded."""

import pytest

from trio_kubelet.k8s import Quantity, ResourceRequirements
from trio_kubelet.resources import milli_cpu_to_quota, milli_cpu_to_shares
from trio_kubelet.runtime.observed import ObservedResources
from trio_kubelet.status.container_parts import actual_resources

MI = 1 << 20


def amounts(text: str) -> dict[str, Quantity]:
    pairs = (pair.split("=") for pair in text.split())
    return {name: Quantity(amount) for name, amount in pairs}


def resources(requests: str = "", limits: str = "") -> ResourceRequirements:
    return ResourceRequirements(requests=amounts(requests), limits=amounts(limits))


def told(
    *, request: int | None = None, limit: int | None = None, memory: int = 0
) -> ObservedResources:
    """What a runtime tells of a container that was made for these millicores and bytes."""
    return ObservedResources(
        cpu_shares=0 if request is None else milli_cpu_to_shares(request),
        cpu_quota=-1 if limit is None else milli_cpu_to_quota(limit, 100_000),
        cpu_period=100_000,
        memory_limit_bytes=memory,
    )


@pytest.mark.parametrize(
    ("allocated", "shown", "actual"),
    [
        (
            resources("cpu=100m memory=32Mi", "cpu=500m memory=64Mi"),
            told(request=100, limit=500, memory=64 * MI),
            resources("cpu=100m memory=32Mi", "cpu=500m memory=64Mi"),
        ),
        (
            resources("cpu=1 memory=32Mi", "cpu=2 memory=64Mi"),
            told(request=500, limit=1000, memory=48 * MI),
            resources("cpu=500m memory=32Mi", "cpu=1 memory=48Mi"),
        ),
        # The kernel has no smaller weight and no smaller quota.
        (resources("cpu=1m", "cpu=1m"), told(request=1, limit=1), resources("cpu=1m", "cpu=1m")),
        (resources("cpu=0"), told(request=0), resources("cpu=0")),
        (resources("cpu=1m", "cpu=1m"), told(request=9, limit=20), resources("cpu=9m", "cpu=20m")),
        # What is not limited says nothing of limits, though the pod as a whole may have some.
        (resources("cpu=1"), told(request=1000, limit=300), resources("cpu=1")),
        (resources("", "cpu=1"), told(request=500, limit=1000), resources("", "cpu=1")),
        (
            resources("", "memory=64Mi"),
            told(limit=300, memory=64 * MI),
            resources("", "memory=64Mi cpu=300m"),
        ),
        # What cannot be resized is as it was allocated.
        (
            resources("cpu=1 example.com/gpu=1", "example.com/gpu=1"),
            told(request=1000),
            resources("cpu=1 example.com/gpu=1", "example.com/gpu=1"),
        ),
        # Runtimes that tell nothing, or not all.
        (resources("cpu=1", "memory=1Gi"), None, resources("cpu=1", "memory=1Gi")),
        (resources("cpu=1", "memory=1Gi"), told(), resources("cpu=1", "memory=1Gi")),
        (resources(), told(request=0), resources()),
    ],
)
def test_the_runtime_tells_of_weight_quota_and_limit(
    allocated: ResourceRequirements,
    shown: ObservedResources | None,
    actual: ResourceRequirements,
) -> None:
    assert actual_resources(allocated, None, shown) == actual


def test_of_what_the_runtime_does_not_tell_the_record_does() -> None:
    allocated = resources("cpu=2 memory=2Gi", "cpu=2 memory=2Gi")
    made_with = resources("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")
    assert actual_resources(allocated, made_with, None) == made_with
    shown = told(request=1500, limit=1500, memory=512 * MI)
    assert actual_resources(allocated, made_with, shown) == resources(
        "cpu=1500m memory=1Gi", "cpu=1500m memory=512Mi"
    )


def test_an_amount_that_is_as_allocated_keeps_its_notation() -> None:
    allocated = resources("cpu=0.1", "memory=65536k")
    actual = actual_resources(allocated, None, told(request=100, memory=65_536_000))
    assert str(actual.requests["cpu"]) == "0.1"
    assert str(actual.limits["memory"]) == "65536k"


@pytest.mark.parametrize("milli", [3, 10, 99, 100, 250, 333, 1000, 1999, 64000])
def test_every_request_is_read_back_as_it_was_made(milli: int) -> None:
    allocated = resources(f"cpu={milli}m")
    assert actual_resources(allocated, None, told(request=milli)) == allocated
