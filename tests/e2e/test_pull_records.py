"""What is recorded of pulls, and which images count as allowed, by the names that pods use.

The files are shared with the Go kubelet: what is expected here was seen with it, and holds for
either (docs/e2e.md).
"""

import hashlib
import json
import shutil
from collections.abc import Iterator

import pytest

from lab.cluster_api import Json
from lab.images import SLEEPER
from lab.processes import wait_until
from lab.registry import Registry
from tests.e2e.cluster import DEADLINE_SECONDS, Namespace, is_ready
from tests.e2e.local import LocalCluster
from trio_kubelet.k8s.image_reference import parse_reference

HUB = "docker.io"


@pytest.fixture
def hub(local_cluster: LocalCluster) -> Iterator[Registry]:
    """A registry without a password where the node looks for names without a registry."""
    containerd = local_cluster.containerd
    with Registry(containerd.folder / "hub") as registry:
        registry.serve_to(containerd.registries, HUB)
        yield registry
        shutil.rmtree(containerd.registries / HUB)


def records(cluster: LocalCluster, kind: str) -> dict[str, Json]:
    """What is in the files of one kind (`pulling`, `pulled`), by their names, as far as written."""
    folder = cluster.agent.root / "image_manager" / kind
    written = (path for path in folder.iterdir() if path.suffix not in (".new", ".tmp"))
    return {path.name: json.loads(path.read_text()) for path in written}


def file_name(image: str) -> str:
    return f"sha256-{hashlib.sha256(image.encode()).hexdigest()}"


def kind_of(name: str) -> Json:
    return {"kind": name, "apiVersion": "kubelet.config.k8s.io/v1beta1"}


def test_pulls_are_recorded_by_the_names_that_containers_give(
    local_cluster: LocalCluster, hub: Registry, namespace: Namespace
) -> None:
    image = local_cluster.containerd.images[SLEEPER].marked("for everybody")
    hub.push(image, "library/lab-open:1")
    hub.push(image, "library/lab-open:latest")
    names = {
        "lab-open": "lab-open",
        "library/lab-open:1": "library/lab-open",
        f"docker.io/library/lab-open@{image.digest}": "docker.io/library/lab-open",
        f"docker.io/lab-open:1@{image.digest}": "docker.io/lab-open",
    }
    always = {"imagePullPolicy": "Always"}
    containers = ({"name": f"c{i}", "image": name, **always} for i, name in enumerate(names))
    namespace.run("open", *containers)
    found = records(local_cluster, "pulled")[file_name(image.config_digest)]
    assert found.pop("lastUpdatedTime")
    assert found == {
        **kind_of("ImagePulledRecord"),
        "imageRef": image.config_digest,
        "credentialMapping": {name: {"nodePodsAccessible": True} for name in names.values()},
    }
    preloaded = local_cluster.containerd.images[SLEEPER].config_digest
    namespace.run("preloaded", {"name": "c", "image": SLEEPER})
    assert file_name(preloaded) not in records(local_cluster, "pulled")


def test_a_pull_is_announced_before_and_recorded_with_the_secret_that_it_took(
    local_cluster: LocalCluster, closed_registry: Registry, namespace: Namespace
) -> None:
    image = local_cluster.containerd.images[SLEEPER].marked("with a secret")
    name = closed_registry.push(image, "lab/closed:1")
    namespace.create_pull_secret("key")
    closed_registry.freeze()
    namespace.add("owner", {"name": "c", "image": name}, imagePullSecrets=[{"name": "key"}])
    # A pod of the test before may be pulling still, so only this image's intent is looked at.
    wait_until(
        lambda: file_name(name) in records(local_cluster, "pulling"),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=local_cluster.last_words,
    )
    intent = records(local_cluster, "pulling")[file_name(name)]
    assert intent == {**kind_of("ImagePullIntent"), "image": name}
    closed_registry.thaw()
    namespace.wait("owner", is_ready)
    assert file_name(name) not in records(local_cluster, "pulling")
    found = records(local_cluster, "pulled")[file_name(image.config_digest)]
    (known,) = found["credentialMapping"][name.removesuffix(":1")]["kubernetesSecrets"]
    assert known.pop("credentialHash")
    uid = namespace.api.get(namespace.path("Secret", "key"))["metadata"]["uid"]
    assert known == {"uid": uid, "namespace": namespace.name, "name": "key"}


ALLOWED = ("registry.test/lab/*", "lab-one", "docker.io/library/lab-two", "localhost/lab/sleeper")
IMAGES = {
    SLEEPER: True,
    "registry.test/lab/a:1": True,
    "registry.test/lab/a/b:1": True,
    "registry.test/labs/a:1": False,
    "lab-one:1": True,
    "docker.io/library/lab-one:1": False,
    "library/lab-one:1": False,
    "docker.io/library/lab-two:1": True,
    "lab-two:1": False,
}
"""Whether a pod may use an image that is there, by its name and that list."""


def test_allowed_are_the_images_that_are_listed_by_the_name_that_the_pod_gives(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    preloaded = local_cluster.containerd.images[SLEEPER]
    names = {str(parse_reference(name)) for name in IMAGES}
    local_cluster.containerd.import_images(preloaded.named(name) for name in sorted(names))
    local_cluster.restart_agent(
        imagePullCredentialsVerificationPolicy="NeverVerifyAllowlistedImages",
        preloadedImagesVerificationAllowlist=list(ALLOWED),
    )
    try:
        containers = [
            {"name": f"c{number}", "image": image, "imagePullPolicy": "Never"}
            for number, image in enumerate(IMAGES)
        ]
        namespace.add("many", *containers)
        pod = namespace.wait("many", lambda pod: all_are_decided(pod, len(IMAGES)))
        seen = {each["image"]: each for each in pod["spec"]["containers"]}
        states = {each["name"]: each["state"] for each in pod["status"]["containerStatuses"]}
        allowed = {image: "running" in states[each["name"]] for image, each in seen.items()}
        assert allowed == IMAGES
    finally:
        local_cluster.restart_agent()


def all_are_decided(pod: Json, count: int) -> bool:
    """Whether each container runs, or waits for an image that it may not use."""
    statuses = pod["status"].get("containerStatuses", [])
    reasons = [each["state"].get("waiting", {}).get("reason") for each in statuses]
    return len(statuses) == count and all(
        "running" in each["state"] or reason == "ErrImageNeverPull"
        for each, reason in zip(statuses, reasons, strict=True)
    )
