"""The pod that is measured: one container whose process obeys SIGTERM at once."""

from lab.agent import Json, pod_manifest
from lab.images import SLEEPER

CONTAINER = "sleeper"
GRACE_SECONDS = 30


def manifest(name: str, uid: str = "") -> Json:
    """A manifest; without `uid` the agent gives the pod one."""
    container = {"name": CONTAINER, "image": SLEEPER}
    document = pod_manifest(name, container, terminationGracePeriodSeconds=GRACE_SECONDS)
    if uid:
        document["metadata"]["uid"] = uid
    return document
