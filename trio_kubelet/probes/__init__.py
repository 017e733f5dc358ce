"""Probes: what is said of them while nobody runs them.

A container with probes counts as started and ready as soon as it runs, as if it had none. Its
users are told: by an event at each start, and by the pod's conditions for as long as it is ready.
"""

from collections.abc import Iterable, Iterator

from trio_kubelet.k8s import Container

PROBE_WARNING = "ProbeWarning"
PROBES_NOT_RUN = "ProbesNotRun"
"""The reason of conditions that hold although nobody asked the containers."""

_NOT_RUN = "this kubelet does not run probes yet"


def probe_warnings(container: Container) -> Iterator[str]:
    """The messages of the events at a container's start, one for each probe that it has."""
    if container.startup_probe is not None:
        yield f"Startup probe warning: {_NOT_RUN}; the container counts as started once it runs"
    if container.readiness_probe is not None:
        yield f"Readiness probe warning: {_NOT_RUN}; the container counts as ready while it runs"
    if container.liveness_probe is not None:
        yield f"Liveness probe warning: {_NOT_RUN}; nothing restarts the container while it runs"


def unprobed_message(containers: Iterable[Container]) -> str:
    """What readiness rests on where probes should decide; empty where none should."""
    names = [
        container.name
        for container in containers
        if container.readiness_probe is not None or container.startup_probe is not None
    ]
    if not names:
        return ""
    return f"{_NOT_RUN}: containers counted as ready while they run: [{' '.join(names)}]"
