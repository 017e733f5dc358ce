"""Containers start, restart and stop in the order and as often as on a Go kubelet.

All pods of the table run side by side, on a folder of the host for the notes of each.
"""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Cluster, Namespace, container, is_ready, phase, shell
from tests.e2e.conftest import KUBERNETES
from tests.e2e.lifecycle_cases import LIFECYCLES, ON_42, Lifecycle
from tests.e2e.local import LocalCluster

DEADLINE_SECONDS = 90


@frozen
class Lived:
    """Pods that have lived and gone: the last version of each, and what was noted."""

    folder: Path
    last: dict[str, Json]


@pytest.fixture(scope="module")
def lived(local_cluster: LocalCluster) -> Iterator[Lived]:
    """A pod for each case, which was deleted when it had come to what it comes to."""
    folder = Path(f"/tmp/trio-kubelet-notes-{uuid.uuid4()}")
    namespace = local_cluster.make_namespace("lived")
    made = {name: add(namespace, name, case, folder) for name, case in LIFECYCLES.items()}
    last: dict[str, Json] = {}
    for name, case in LIFECYCLES.items():
        wait_for(namespace, name, case, folder)
        namespace.api.delete(namespace.path("Pod", name))
    for name in LIFECYCLES:
        namespace.wait_gone(name, deadline_seconds=DEADLINE_SECONDS)
        last[name] = namespace.versions(made[name])[-1]
    yield Lived(folder, last)
    shutil.rmtree(folder)
    namespace.delete()


def add(namespace: Namespace, name: str, case: Lifecycle, folder: Path) -> Json:
    """Create the pod of a case."""
    (folder / name).mkdir(parents=True)
    volumes = [
        {"name": "notes", "hostPath": {"path": str(folder / name)}},
        {"name": "kept", "emptyDir": {}},
    ]
    return namespace.create("Pod", name, {"spec": {**case.spec, "volumes": volumes}})


def wait_for(namespace: Namespace, name: str, case: Lifecycle, folder: Path) -> None:
    """Wait until a pod is as far as it gets by itself."""

    def is_there() -> bool:
        pod = namespace.pod(name)
        started = [each for each in case.notes.split() if not each.startswith(("-", "stops"))]
        noted = notes(folder / name)
        counts = {each: container(pod, each)["restartCount"] for each in case.restarts}
        has_all = all(noted.count(each) >= started.count(each) for each in started)
        return phase(pod) == case.phase and counts == case.restarts and has_all

    wait_until(
        is_there,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{name}: {notes(folder / name)}, {namespace.pod(name)['status']}",
    )


def notes(folder: Path) -> list[str]:
    """What the containers of a pod have noted."""
    file = folder / "all"
    return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize("name", LIFECYCLES)
def test_containers_start_restart_and_stop_as_on_the_go_kubelet(lived: Lived, name: str) -> None:
    case, last = LIFECYCLES[name], lived.last[name]
    assert " ".join(notes(lived.folder / name)) == case.notes
    statuses = (
        *last["status"].get("initContainerStatuses", ()),
        *last["status"]["containerStatuses"],
    )
    assert {s["name"]: s["restartCount"] for s in statuses if s["restartCount"]} == case.restarts
    for which, code in case.exit_codes.items():
        assert container(last, which)["state"]["terminated"]["exitCode"] == code


@pytest.mark.skipif(KUBERNETES == "1.34", reason="its API has no RestartAllContainers")
def test_a_pod_whose_exits_restart_all_is_scheduled_to_the_node_that_declares_that_it_can(
    cluster: Cluster, namespace: Namespace
) -> None:
    """The scheduler and the API server keep such pods from nodes that do not."""
    feature = "RestartAllContainersOnContainerExits"
    assert feature in cluster.wait_node_ready()["status"]["declaredFeatures"]
    mount = [{"name": "kept", "mountPath": "/kept"}]
    script = "test -e /kept/once || { touch /kept/once; exit 42; }; exec sleep 1000000"
    rule = {"action": "RestartAllContainers", "exitCodes": ON_42["exitCodes"]}
    cause = shell("cause", script, restartPolicy="Never", restartPolicyRules=[rule])
    namespace.add(
        "all",
        {**cause, "volumeMounts": mount},
        shell("other", "exec sleep 1000000"),
        restartPolicy="Never",
        volumes=[{"name": "kept", "emptyDir": {}}],
    )
    pod = namespace.wait(
        "all", lambda pod: is_ready(pod) and container(pod, "other")["restartCount"]
    )
    for name in ("cause", "other"):
        assert container(pod, name)["restartCount"] == 1
