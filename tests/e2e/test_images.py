"""Images that cannot be pulled, what users see of it, and registries that ask for a password."""

import pytest

from lab.images import BUSYBOX_AS_USER, SLEEPER
from lab.registry import Registry
from tests.e2e.cluster import Namespace, container, is_ready, shell, waiting
from tests.e2e.local import LocalCluster

ABSENT = "registry.invalid/nobody/nothing:1"


def test_an_image_that_cannot_be_pulled_is_tried_again(namespace: Namespace) -> None:
    namespace.add("absent", {"name": "c", "image": ABSENT})
    namespace.wait("absent", lambda pod: waiting(pod).get("reason") == "ErrImagePull")
    pod = namespace.wait("absent", lambda pod: waiting(pod).get("reason") == "ImagePullBackOff")
    assert waiting(pod)["message"].startswith(f'Back-off pulling image "{ABSENT}": ErrImagePull: ')
    namespace.wait_event("absent", "Pulling", f'Pulling image "{ABSENT}"')
    namespace.wait_event("absent", "Failed", f'Failed to pull image "{ABSENT}": ')
    namespace.wait_event("absent", "Failed", "Error: ErrImagePull")
    namespace.wait_event("absent", "BackOff", f'Back-off pulling image "{ABSENT}"')
    shown = namespace.kubectl("get", "pod", "absent", "--no-headers").split()
    assert shown[1:3] in (["0/1", "ImagePullBackOff"], ["0/1", "ErrImagePull"])


def test_an_image_without_a_proper_name_is_not_even_tried(namespace: Namespace) -> None:
    namespace.add("nonsense", {"name": "c", "image": "no/NAME:1"})
    pod = namespace.wait("nonsense", lambda pod: waiting(pod).get("reason") == "InvalidImageName")
    assert waiting(pod)["message"].startswith(
        'Failed to apply default image tag "no/NAME:1": couldn\'t parse image name "no/NAME:1": '
    )
    namespace.wait_event("nonsense", "InspectFailed", "Failed to apply default image tag")
    namespace.wait_event("nonsense", "Failed", "Error: InvalidImageName")


def test_an_image_that_may_not_be_pulled_is_not(namespace: Namespace) -> None:
    namespace.add("never", {"name": "c", "image": ABSENT, "imagePullPolicy": "Never"})
    pod = namespace.wait("never", lambda pod: waiting(pod).get("reason") == "ErrImageNeverPull")
    words = f'Container image "{ABSENT}" is not present with pull policy of Never'
    assert waiting(pod)["message"] == words
    namespace.wait_event("never", "ErrImageNeverPull", words)


def test_a_pod_starts_once_its_image_has_a_name_that_works(namespace: Namespace) -> None:
    namespace.add("mended", {"name": "c", "image": ABSENT})
    namespace.wait("mended", lambda pod: waiting(pod).get("reason") == "ImagePullBackOff")
    namespace.kubectl("set", "image", "pod/mended", f"c={SLEEPER}")
    namespace.wait("mended", is_ready)


@pytest.mark.parametrize("where", ["the pod", "its service account"])
def test_a_pull_secret_opens_a_registry(
    local_cluster: LocalCluster, closed_registry: Registry, namespace: Namespace, where: str
) -> None:
    tag = where.replace(" ", "-")
    image = local_cluster.containerd.images[SLEEPER].marked(tag)
    name = closed_registry.push(image, f"lab/closed:{tag}")
    namespace.add("locked-out", {"name": "c", "image": name})
    refused = namespace.wait("locked-out", lambda pod: "ErrImagePull" in str(waiting(pod)))
    assert "401" in waiting(refused)["message"] or "no basic auth" in waiting(refused)["message"]

    login = namespace.create_pull_secret("key")
    if where == "its service account":
        # The API server's cache may have the account as it was before a change, but asks for an
        # account that it does not know.
        namespace.create("ServiceAccount", "puller", {"imagePullSecrets": [{"name": "key"}]})
        spec: dict[str, object] = {"serviceAccountName": "puller"}
    else:
        spec = {"imagePullSecrets": [{"name": "key"}]}
    namespace.run("let-in", {"name": "c", "image": name}, **spec)
    pulled = namespace.wait_event("let-in", "Pulled", f'Successfully pulled image "{name}" in ')
    assert "including waiting). Image size: " in pulled["message"]
    assert login not in local_cluster.agent.log.read_text()


def test_an_image_that_is_there_is_not_for_pods_that_cannot_open_its_registry(
    local_cluster: LocalCluster, closed_registry: Registry, namespace: Namespace
) -> None:
    image = local_cluster.containerd.images[SLEEPER].marked("of one tenant")
    name = closed_registry.push(image, "lab/tenant:1")
    namespace.create_pull_secret("key")
    secrets = {"imagePullSecrets": [{"name": "key"}]}
    namespace.run("owner", {"name": "c", "image": name}, **secrets)
    namespace.add("stranger", {"name": "c", "image": name})
    namespace.add("asks-nobody", {"name": "c", "image": name, "imagePullPolicy": "Never"})
    namespace.run("friend", {"name": "c", "image": name, "imagePullPolicy": "Never"}, **secrets)
    words = f'Container image "{name}" already present on machine and can be accessed by the pod'
    namespace.wait_event("friend", "Pulled", words)
    namespace.wait("stranger", lambda pod: "ErrImagePull" in str(waiting(pod)))
    namespace.wait_event("stranger", "Pulling", f'Pulling image "{name}"')
    pod = namespace.wait("asks-nobody", lambda pod: bool(waiting(pod).get("message")))
    message = f'Container image "{name}" is not present with pull policy of Never'
    assert (waiting(pod)["reason"], waiting(pod)["message"]) == ("ErrImageNeverPull", message)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_container_whose_image_is_changed_is_shown_as_it_is_under_each_policy(
    namespace: Namespace, policy: str
) -> None:
    obeys = shell("c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")
    before = namespace.run("exchanged", obeys, restartPolicy=policy)
    namespace.kubectl("set", "image", "pod/exchanged", f"c={BUSYBOX_AS_USER}")
    after = namespace.wait(
        "exchanged",
        lambda seen: (
            is_ready(seen) and container(seen)["containerID"] != container(before)["containerID"]
        ),
    )
    assert container(after)["image"] == BUSYBOX_AS_USER
    assert container(after)["restartCount"] == 1
    assert {each["type"] for each in namespace.events("exchanged")} == {"Normal"}
