"""The agent is killed in every phase of a pod's life, and the pod ends as if it had not been."""

import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from lab.images import SLEEPER
from lab.processes import wait_until
from lab.registry import Registry
from tests.e2e.cluster import Namespace, container, is_ready, shell, until_term
from tests.e2e.local import AGENT, LocalCluster

WAIT = "until test -e /marks/go; do sleep 0.1; done"
GRACE_SECONDS = 90
SECRET = "login"
IN_SANDBOX = ("sandbox-1", "sandbox-2", "sandbox-3")


@pytest.fixture
def marks() -> Iterator[Path]:
    """A folder of the host in which containers leave marks, and wait for one: `go`."""
    folder = Path(f"/tmp/trio-kubelet-marks-{uuid.uuid4()}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def command(script: str) -> Json:
    return {"exec": {"command": ["sh", "-c", script]}}


def held(name: str) -> str:
    """Leave a mark, then wait to be let go."""
    return f"echo x >>/marks/{name}; {WAIT}"


def pods(folder: Path) -> Mapping[str, Json]:
    """Specs of pods that are each held in the phase that is their name."""
    startup = {**command("test -e /marks/go"), "periodSeconds": 1, "failureThreshold": 1000}
    term = f"trap '{held('grace')}; exit 5' TERM; while :; do sleep 0.1; done"
    containers: Mapping[str, list[Json]] = {
        "init": [until_term("c")],
        "post-start": [until_term("c", lifecycle={"postStart": command(held("post-start"))})],
        "startup": [{**until_term("c", "echo x >>/marks/startup"), "startupProbe": startup}],
        "pre-stop": [until_term("c", lifecycle={"preStop": command(held("pre-stop"))})],
        "grace": [shell("c", term)],
    }
    mounts = [{"name": "marks", "mountPath": "/marks"}]
    volume = {"name": "marks", "hostPath": {"path": str(folder)}}
    specs: dict[str, Json] = {
        name: {
            "containers": [{**each, "volumeMounts": mounts} for each in those],
            "volumes": [volume],
            "terminationGracePeriodSeconds": GRACE_SECONDS,
        }
        for name, those in containers.items()
    }
    specs["init"]["initContainers"] = [shell("i", held("init"), volumeMounts=mounts)]
    return specs


def test_pods_end_as_if_the_agent_had_not_been_killed_in_any_phase(
    local_cluster: LocalCluster,
    namespace: Namespace,
    closed_registry: Registry,
    marks: Path,
) -> None:
    specs = pods(marks)
    made = {name: namespace.create("Pod", name, {"spec": spec}) for name, spec in specs.items()}
    for name in ("pre-stop", "grace"):
        namespace.wait(name, is_ready)
        namespace.api.delete(namespace.path("Pod", name))
    namespace.create_pull_secret(SECRET)
    image = closed_registry.push(
        local_cluster.containerd.images[SLEEPER].marked("slow"), "lab/slow:1"
    )
    closed_registry.freeze()
    pulled = {"name": "c", "image": image, "imagePullPolicy": "Always"}
    made["pull"] = namespace.add("pull", pulled, imagePullSecrets=[{"name": SECRET}])
    namespace.wait_event("pull", "Pulling")
    wait_until(
        lambda: {each.name for each in marks.iterdir()} >= set(specs),
        deadline_seconds=60,
        else_say=lambda: f"only {list(marks.iterdir())} have begun",
    )
    for name in IN_SANDBOX:
        made[name] = namespace.add(name, until_term("c"))
    wait_until(
        lambda: any(local_cluster.sandboxes(made[name]["metadata"]["uid"]) for name in IN_SANDBOX),
        deadline_seconds=30,
        else_say=lambda: "no sandbox has been made",
    )
    local_cluster.kill_agent()
    local_cluster.start_agent()
    namespace.run("another", until_term("c"))
    closed_registry.thaw()
    (marks / "go").touch()

    for name in ("pre-stop", "grace"):
        namespace.wait_gone(name)
    for name in ("pull", "init", "post-start", "startup", *IN_SANDBOX):
        pod = namespace.wait(name, is_ready)
        assert container(pod)["restartCount"] == 0, name
        ready = [is_ready(each) for each in namespace.versions(made[name])]
        # The Go kubelet was seen to take what has not started up yet for ready for a moment.
        assert ready == sorted(ready) or AGENT is GoKubelet, name
    for name in ("init", "startup", "grace"):
        assert (marks / name).read_text() == "x\n", name
    for name, code in (("pre-stop", 0), ("grace", 5)):
        last = namespace.versions(made[name])[-1]
        assert container(last)["state"]["terminated"]["exitCode"] == code, name
