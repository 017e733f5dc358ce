"""Images come from a real registry, and what happens when they do not.

Each test has a registry of its own behind the name `registry.test`, and repositories that no
other test knows: what was pulled stays in the runtime.
"""

import base64
import json
import time
from collections.abc import Iterator
from itertools import count

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import BUSYBOX, Image
from lab.processes import wait_until
from lab.registry import NAME, PASSWORD, USER, Registry
from tests.integration.pods import Node, phase, status_of, until_term, waiting_reason

FIRST_WAIT_SECONDS = 10
LATE_SECONDS = 9

_numbers = count()


@pytest.fixture
def private_registry(containerd: Containerd) -> Iterator[Registry]:
    """A registry that asks for a name and a password."""
    folder = containerd.folder / f"private-registry-{next(_numbers)}"
    with Registry(folder, login=True) as registry:
        registry.serve_to(containerd.registries)
        yield registry


def image(node: Node, mark: str) -> Image:
    """An image that no other test has."""
    return node.containerd.images[BUSYBOX].marked(mark)


def pod_of(name: str, image_name: str, policy: str = "IfNotPresent") -> Json:
    container = {**until_term("c"), "image": image_name, "imagePullPolicy": policy}
    return pod_manifest(name, container)


def pulls(registry: Registry, repository: str) -> int:
    """How often somebody asked what the tag stands for."""
    path = f"/v2/{repository}/manifests/"
    asked = [each for each in registry.requests() if each.startswith(("HEAD", "GET"))]
    return sum(path in each for each in asked)


def times_of(node: Node, name: str, event: str) -> list[float]:
    """When an event was recorded, in seconds since the epoch."""
    return [each["time_ns"] / 1e9 for each in node.journal(name) if each["event"] == event]


def test_an_image_that_is_not_there_is_pulled_once(node: Node, registry: Registry) -> None:
    name = registry.push(image(node, "once"), "lab/once:1")
    node.run(pod_of("pulls", name))
    reasons = [reason for reason, _ in node.events("pulls")]
    assert reasons == ["Pulling", "Pulled", "Created", "Started"]
    pulling, pulled = node.events("pulls")[:2]
    assert pulling == ("Pulling", f'Pulling image "{name}"')
    assert pulled[1].startswith(f'Successfully pulled image "{name}" in ')
    asked = pulls(registry, "lab/once")
    assert asked
    node.run(pod_of("pulls-no-more", name))
    assert node.events("pulls-no-more")[0] == (
        "Pulled",
        f'Container image "{name}" already present on machine and can be accessed by the pod',
    )
    assert pulls(registry, "lab/once") == asked
    node.remove("pulls", "pulls-no-more")


def test_a_tag_that_moved_is_followed_by_policy_always_alone(
    node: Node, registry: Registry
) -> None:
    old, new = image(node, "old"), image(node, "new")
    name = registry.push(old, "lab/moves:1")
    pod = node.run(pod_of("before", name))
    assert status_of(pod, "c")["imageID"] == f"{NAME}/lab/moves@{old.digest}"
    registry.push(new, "lab/moves:1")
    pod = node.run(pod_of("if-not-present", name))
    assert status_of(pod, "c")["imageID"] == f"{NAME}/lab/moves@{old.digest}"
    pod = node.run(pod_of("always", name, "Always"))
    assert status_of(pod, "c")["imageID"] == f"{NAME}/lab/moves@{new.digest}"
    node.remove("before", "if-not-present", "always")


def test_an_image_can_be_named_by_its_digest(node: Node, registry: Registry) -> None:
    wanted = image(node, "digest")
    registry.push(wanted, "lab/digest:1")
    pod = node.run(pod_of("digest", f"{NAME}/lab/digest@{wanted.digest}"))
    assert status_of(pod, "c")["imageID"] == f"{NAME}/lab/digest@{wanted.digest}"
    node.remove("digest")


def test_policy_never_waits_until_somebody_else_brings_the_image(
    node: Node, registry: Registry
) -> None:
    name = registry.push(image(node, "never"), "lab/never:1")
    node.add(pod_of("never", name, "Never"))
    pod = node.wait("never", lambda pod: waiting_reason(pod, "c") == "ErrImageNeverPull")
    message = f'Container image "{name}" is not present with pull policy of Never'
    assert status_of(pod, "c")["state"]["waiting"]["message"] == message
    assert phase(pod) == "Pending"
    assert pulls(registry, "lab/never") == 0
    node.run(pod_of("brings-it", name))
    node.wait("never", is_running)
    node.remove("never", "brings-it")


def test_a_registry_that_goes_away_and_comes_back(node: Node, registry: Registry) -> None:
    name = registry.push(image(node, "away"), "lab/away:1")
    registry.stop()
    node.add(pod_of("away", name))
    pod = node.wait("away", lambda pod: waiting_reason(pod, "c") == "ErrImagePull")
    assert phase(pod) == "Pending"
    pod = node.wait("away", lambda pod: waiting_reason(pod, "c") == "ImagePullBackOff")
    message = status_of(pod, "c")["state"]["waiting"]["message"]
    assert message.startswith(f'Back-off pulling image "{name}": ErrImagePull: ')
    registry.start()
    node.wait("away", is_running)
    first, second, *_ = times_of(node, "away", "Pulling")
    assert FIRST_WAIT_SECONDS <= second - first <= FIRST_WAIT_SECONDS + LATE_SECONDS
    events = node.events("away")
    assert ("Failed", "Error: ErrImagePull") in events
    assert ("Failed", "Error: ImagePullBackOff") in events
    assert ("BackOff", f'Back-off pulling image "{name}"') in events
    node.remove("away")


def test_an_image_that_the_registry_does_not_have_is_told(node: Node, registry: Registry) -> None:
    name = f"{NAME}/lab/nothing:1"
    node.add(pod_of("nothing", name))
    pod = node.wait("nothing", lambda pod: waiting_reason(pod, "c") == "ErrImagePull")
    assert "not found" in status_of(pod, "c")["state"]["waiting"]["message"]
    node.remove("nothing")


def test_a_name_that_is_none_is_told_and_nobody_is_asked(node: Node, registry: Registry) -> None:
    name = f"{NAME}/UPPER/case:1"
    node.add(pod_of("wrong-name", name))
    pod = node.wait("wrong-name", lambda pod: waiting_reason(pod, "c") == "InvalidImageName")
    message = status_of(pod, "c")["state"]["waiting"]["message"]
    start = f'Failed to apply default image tag "{name}": couldn\'t parse image name "{name}": '
    assert message.startswith(start)
    assert not [each for each in registry.requests() if "UPPER" in each]
    node.remove("wrong-name")


def test_credentials_of_the_node_open_a_private_registry(
    node: Node, private_registry: Registry
) -> None:
    name = private_registry.push(image(node, "private"), "lab/private:1")
    node.add(pod_of("refused", name))
    node.wait("refused", lambda pod: waiting_reason(pod, "c") == "ErrImagePull")
    token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    credentials = node.agent.root / "config.json"
    credentials.write_text(json.dumps({"auths": {NAME: {"auth": token}}}))
    node.run(pod_of("let-in", name))
    node.wait("refused", is_running)
    credentials.unlink()
    assert PASSWORD not in node.agent.log.read_text()
    node.remove("refused", "let-in")


def test_the_next_pull_begins_when_the_last_one_is_through(node: Node, registry: Registry) -> None:
    names = [registry.push(image(node, f"{n}"), f"lab/in-turn-{n}:1") for n in range(2)]
    registry.freeze()
    try:
        for pod, name in zip(("in-turn-0", "in-turn-1"), names, strict=True):
            node.add(pod_of(pod, name))
        wait_until(
            lambda: sum(bool(times_of(node, f"in-turn-{n}", "Pulling")) for n in range(2)) == 1,
            deadline_seconds=60,
            else_say=lambda: "nobody pulls",
        )
        thawed_at = time.time()
    finally:
        registry.thaw()
    node.wait("in-turn-0", is_running)
    node.wait("in-turn-1", is_running)
    first, second = sorted(times_of(node, f"in-turn-{n}", "Pulling")[0] for n in range(2))
    assert first < thawed_at < second
    node.remove("in-turn-0", "in-turn-1")


def test_one_container_without_its_image_leaves_the_others_running(
    node: Node, registry: Registry
) -> None:
    bad = {**until_term("bad"), "image": f"{NAME}/lab/nothing-either:1"}
    node.add(pod_manifest("half-there", until_term("good"), bad))
    pod = node.wait(
        "half-there",
        lambda pod: (
            waiting_reason(pod, "bad").startswith(("ErrImage", "ImagePull"))
            and "running" in status_of(pod, "good")["state"]
        ),
    )
    assert phase(pod) == "Pending"
    node.remove("half-there")
