"""The counts of what a manager of images does."""

from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve
from prometheus_client import Counter
from trio.testing import MockClock

from state_machines.image import ImageState
from tests.unit.metrics.counting import counter
from tests.unit.runtime.image_nodes import PRIVATE, Node, closed, node, pull_records, secret
from trio_kubelet.hollow import HollowRegistry
from trio_kubelet.hollow.images import RemoteImage
from trio_kubelet.k8s import Pod
from trio_kubelet.metrics.counted import EventCounter
from trio_kubelet.runtime.images.credentials import Keyring, joined, secret_keyring
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.images.pod_images import PodImages


def told(node: Node) -> EventCounter:
    """A counter of what the node does from now on."""
    count = counter()
    node.images.on_lookup.add(count.image_looked_up)
    return count


def counted(counts: Counter, *names: str) -> dict[tuple[str, ...], float]:
    """The values of a counter by those of its labels."""
    return {
        tuple(sample.labels[name] for name in names): sample.value
        for family in counts.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def requests(count: EventCounter) -> dict[tuple[str, ...], float]:
    labels = ("present_locally", "pull_policy", "pull_required")
    return counted(count.counts.image_requests, *labels)


@pytest.mark.parametrize(
    ("image", "policy", "labels"),
    [
        ("here:1", "IfNotPresent", ("true", "ifnotpresent", "false")),
        ("here:1", "Always", ("true", "always", "true")),
        ("here:1", "Never", ("true", "never", "false")),
        ("away:1", "IfNotPresent", ("false", "ifnotpresent", "true")),
        ("away:1", "Never", ("false", "never", "false")),
        ("away:1", "", ("false", "ifnotpresent", "true")),
        ("away", "", ("false", "always", "true")),
        ("Bad/Name:1", "IfNotPresent", ("unknown", "ifnotpresent", "unknown")),
    ],
)
async def test_a_request_for_an_image_is_counted_by_what_it_needs(
    mock_clock: MockClock, image: str, policy: str, labels: tuple[str, str, str]
) -> None:
    async with node(present=("here:1",)) as at:
        count = told(at)
        with suppress(ImageError):
            await at.ensure(image, policy)
    assert requests(count) == {labels: 1}
    assert counted(count.counts.image_access_checks, "result") == {}


async def test_a_runtime_that_does_not_answer_leaves_open_what_is_needed(
    mock_clock: MockClock,
) -> None:
    async with node() as at:
        count = told(at)
        at.runtime.go_down()
        with suppress(ImageError):
            await at.ensure("away:1", "IfNotPresent")
    assert requests(count) == {("unknown", "ifnotpresent", "unknown"): 1}


async def test_a_pull_that_waits_for_its_back_off_is_needed_all_the_same(
    mock_clock: MockClock,
) -> None:
    async with node(registry=closed()) as at:
        count = told(at)
        for _ in range(2):
            with suppress(ImageError):
                await at.ensure(PRIVATE, "IfNotPresent")
        assert at.known.state("c") is ImageState.BACK_OFF
    assert requests(count) == {("false", "ifnotpresent", "true"): 2}


async def test_checks_of_access_are_counted_by_what_they_find(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async def of_owner(_pod: Pod) -> Keyring:
        return joined(map(secret_keyring, [secret("good")]))

    access = await pull_records(tmp_path)
    async with node(registry=closed(), present=("here:1",), access=access) as at:
        count = told(at)
        owner = evolve(at, images=evolve(at.images, pod_keyring=of_owner))
        for each, image, policy in (
            (owner, PRIVATE, "IfNotPresent"),
            (owner, PRIVATE, "IfNotPresent"),
            (owner, PRIVATE, "Always"),
            (at, PRIVATE, "Never"),
            (at, "here:1", "Never"),
        ):
            with suppress(ImageError):
                await evolve(each, known=PodImages()).ensure(image, policy)
    assert counted(count.counts.image_access_checks, "result") == {
        ("credentialRecordFound",): 1,
        ("mustAuthenticate",): 1,
        ("credentialPolicyAllowed",): 1,
    }


async def test_pulls_are_told_of_with_their_pod_and_their_time(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    images = {
        "registry.test/slow:1": RemoteImage(pull_seconds=3),
        PRIVATE: RemoteImage(credentials=("me", "x")),
    }
    async with node(present=("here:1",), registry=HollowRegistry(images=images)) as at:
        pulls: list[tuple[str, int]] = []
        at.images.on_pull.add(lambda uid, seconds: pulls.append((uid, round(seconds))))
        for image in ("here:1", "registry.test/slow:1", PRIVATE):
            with suppress(ImageError):
                await at.ensure(image, "IfNotPresent")
    assert pulls == [("u", 3), ("u", 0)]
