"""What the author of a pod and of large objects can do to others: nothing that they notice."""

import base64
import json
from collections.abc import Iterator, Mapping

import pytest

from lab.cluster_api import Json
from tests.e2e.cluster import Namespace, until_term, waiting
from tests.e2e.local import LocalCluster
from tests.hostile.victims import Victims

ABSENT = "registry.invalid/nobody/nothing:1"
CONTAINERS = 8
MOST_BYTES = 955 << 10
"""Of what one object may have; the API server takes a little more."""


@pytest.fixture(scope="module")
def victims(local_cluster: LocalCluster) -> Iterator[Victims]:
    """Ten good pods beside the tests' own."""
    found = Victims.of(local_cluster.agent, until_term("c"))
    yield found
    found.leave()


def logins(count: int) -> Mapping[str, object]:
    """The content of a pull secret that is as long as may be, with so many logins."""
    login = base64.b64encode(b"u:" + b"p" * (MOST_BYTES * 3 // 4 // count - 50)).decode()
    content = {"auths": {f"r{number}.invalid": {"auth": login} for number in range(count)}}
    return {
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps(content)},
    }


@pytest.mark.parametrize("count", [900, 9000])
def test_a_long_pull_secret_that_is_named_again_and_again(
    victims: Victims, namespace: Namespace, count: int
) -> None:
    namespace.create("Secret", "long", logins(count))
    containers = ({"name": f"c{number}", "image": ABSENT} for number in range(CONTAINERS))
    with victims.undisturbed():
        namespace.add("hostile", *containers, imagePullSecrets=[{"name": "long"}] * 20)
        last = f"c{CONTAINERS - 1}"
        namespace.wait("hostile", lambda pod: "ImagePull" in waiting(pod, last).get("reason", ""))


def test_variables_of_a_config_map_under_many_prefixes(
    victims: Victims, namespace: Namespace
) -> None:
    namespace.create("ConfigMap", "many", {"data": {f"k{n}": "" for n in range(80_000)}})
    again = [{"prefix": f"p{n}_", "configMapRef": {"name": "many"}} for n in range(60)]
    with victims.undisturbed():
        namespace.add("hostile", until_term("c", envFrom=again))
        pod = namespace.wait("hostile", waits_for_config)
        assert 'environment of container "c" is too large' in waiting(pod)["message"]


def test_a_config_map_of_many_keys_in_many_volumes(victims: Victims, namespace: Namespace) -> None:
    namespace.create("ConfigMap", "many", {"data": {f"k{n}": "" for n in range(80_000)}})
    again = {"projected": {"sources": [{"configMap": {"name": "many"}}] * 20}}
    volumes = [{"name": f"v{n}", **again} for n in range(20)]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    with victims.undisturbed():
        namespace.add("hostile", until_term("c", volumeMounts=mounts), volumes=volumes)
        namespace.wait_event("hostile", "FailedMount", "the volume has more than 10000 files")


def test_a_large_pod_that_is_changed_again_and_again(
    victims: Victims, namespace: Namespace
) -> None:
    namespace.run("hostile", until_term("c"), imagePullSecrets=[{}] * 300_000)
    with victims.undisturbed():
        for number in range(10):
            change = {"metadata": {"annotations": {"a": str(number)}}}
            namespace.api.patch(namespace.path("Pod", "hostile"), change)


def test_more_objects_than_are_kept_at_hand(
    local_cluster: LocalCluster, victims: Victims, namespace: Namespace
) -> None:
    """Meanwhile a pod of another namespace gets what it refers to as if there were nobody else."""
    every = [{"configMapRef": {"name": f"m{n:04}", "optional": True}} for n in range(3000)]
    others = local_cluster.make_namespace("beside")
    others.create("ConfigMap", "one", {"data": {"k": "v"}})
    with victims.undisturbed():
        namespace.add("hostile", until_term("c", envFrom=every))
        namespace.wait_event("hostile", "Scheduled")
        others.run("good", until_term("c", envFrom=[{"configMapRef": {"name": "one"}}]))
        pod = namespace.wait("hostile", is_refused_an_object)
    assert "m0499" in waiting(pod)["message"]
    assert [each for each in others.events("good") if each["type"] == "Warning"] == []
    others.delete()


def test_more_ephemeral_containers_than_a_pod_may_have(
    victims: Victims, namespace: Namespace
) -> None:
    namespace.run("hostile", until_term("c"))
    added = [{"name": f"e{number}", "image": ABSENT} for number in range(1500)]
    path = f"{namespace.path('Pod', 'hostile')}/ephemeralcontainers"
    with victims.undisturbed():
        namespace.api.patch(path, {"spec": {"ephemeralContainers": added}})
        namespace.wait_event("hostile", "TooManyContainers", "ignoring the last 1001")
        namespace.wait("hostile", lambda pod: len(ephemeral(pod)) == 499)


def ephemeral(pod: Json) -> list[Json]:
    found: list[Json] = pod["status"].get("ephemeralContainerStatuses", [])
    return found


def is_refused_an_object(pod: Json) -> bool:
    return "not registered" in waiting(pod).get("message", "")


def waits_for_config(pod: Json) -> bool:
    return waiting(pod).get("reason") == "CreateContainerConfigError"
