"""Images as volumes: pulled as images of containers are, mounted by the runtime, read only."""

from lab.cluster_api import Json
from lab.images import BUSYBOX
from tests.e2e.cluster import Namespace, container, is_over, shell, waiting

ABSENT = "registry.invalid/nobody/nothing:1"


def mounting(image: str, policy: str = "IfNotPresent") -> Json:
    """The field `volumes` with an image."""
    return {"volumes": [{"name": "tools", "image": {"reference": image, "pullPolicy": policy}}]}


def told(namespace: Namespace, name: str, script: str, **mount: str) -> str:
    """Run a script in a pod that mounts an image; returns what it wrote for its end."""
    mounts = {"volumeMounts": [{"name": "tools", "mountPath": "/image", **mount}]}
    teller = shell("c", f"{{ {script}; }} >/dev/termination-log 2>&1", **mounts)
    namespace.add(name, teller, restartPolicy="Never", **mounting(BUSYBOX))
    ended: Json = container(namespace.wait(name, is_over), "c")["state"]["terminated"]
    return str(ended.get("message", ""))


def test_the_content_of_an_image_is_there_and_nobody_writes_to_it(namespace: Namespace) -> None:
    said = told(namespace, "reads", "ls /image/bin/busybox; touch /image/x || true")
    assert "/image/bin/busybox" in said
    assert "Read-only file system" in said


def test_a_part_of_an_image(namespace: Namespace) -> None:
    assert "/image/busybox" in told(namespace, "part", "ls /image/busybox", subPath="bin")


def test_a_container_waits_for_an_image_that_it_mounts(namespace: Namespace) -> None:
    mounts = {"volumeMounts": [{"name": "tools", "mountPath": "/image"}]}
    namespace.add("absent", shell("c", "true", **mounts), **mounting(ABSENT))
    namespace.wait("absent", lambda pod: waiting(pod).get("reason") == "ErrImagePull")
    pod = namespace.wait("absent", lambda pod: waiting(pod).get("reason") == "ImagePullBackOff")
    assert waiting(pod)["message"].startswith(f'Back-off pulling image "{ABSENT}": ErrImagePull: ')
    namespace.wait_event("absent", "Failed", f'Failed to pull image "{ABSENT}": ')


def test_an_image_that_may_not_be_pulled_is_not_mounted(namespace: Namespace) -> None:
    mounts = {"volumeMounts": [{"name": "tools", "mountPath": "/image"}]}
    namespace.add("never", shell("c", "true", **mounts), **mounting(ABSENT, "Never"))
    pod = namespace.wait("never", lambda pod: waiting(pod).get("reason") == "ErrImageNeverPull")
    words = f'Container image "{ABSENT}" is not present with pull policy of Never'
    assert waiting(pod)["message"] == words
