"""The pod that is measured: one container whose process obeys SIGTERM at once."""

from lab.agent import Json, pod_manifest
from lab.images import SLEEPER

CONTAINER = "sleeper"
GRACE_SECONDS = 30


def manifest(name: str, uid: str = "", *, probe: Json | None = None) -> Json:
    """A manifest; without `uid` the agent gives the pod one. `probe` is asked for readiness."""
    container: Json = {"name": CONTAINER, "image": SLEEPER}
    if probe is not None:
        container["readinessProbe"] = probe
    document = pod_manifest(name, container, terminationGracePeriodSeconds=GRACE_SECONDS)
    if uid:
        document["metadata"]["uid"] = uid
    return document
