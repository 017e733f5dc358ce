"""What many containers that end do to others on a real runtime: nothing that they notice.

They keep a machine of two cores busy for minutes: `nox -s hostile_containers`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from tests.hostile.victims import Victims
from tests.integration.pods import is_over, mount, one_shot, shell, until_term

CONTAINERS = int(os.environ.get("TRIO_KUBELET_HOSTILE_CONTAINERS") or 0)
RESTARTS = 2
MESSAGE_BYTES = 4096
DEADLINE_SECONDS = 600


pytestmark = pytest.mark.skipif(
    not CONTAINERS, reason="a quarter of an hour; nox -s hostile_containers"
)


@pytest.fixture(scope="module")
def victims(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """Ten good pods."""
    with LabAgent(tmp_path_factory.mktemp("hostile"), endpoint=containerd.endpoint) as agent:
        yield Victims.of(agent, until_term("c"))


def restarts(pod: Json) -> int:
    """How often each container of a pod was restarted at least."""
    statuses = pod["status"].get("containerStatuses", ())
    return min((each["restartCount"] for each in statuses), default=0)


def test_containers_of_a_pod_that_crash_again_and_again(victims: Victims) -> None:
    containers = (shell(f"c{n}", "exit 1") for n in range(CONTAINERS))
    with victims.beside(pod_manifest("hostile", *containers)):
        victims.wait_pod("hostile", lambda pod: restarts(pod) >= RESTARTS, DEADLINE_SECONDS)


def test_containers_that_end_at_the_same_moment(victims: Victims, tmp_path: Path) -> None:
    """Each with a message as long as one may be. They end when a pipe that all read does."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = f"read x </v/pipe; head -c {MESSAGE_BYTES} /dev/zero | tr '\\0' x >/dev/termination-log"
    manifest = one_shot(
        "hostile",
        *(shell(f"c{n}", end, volumeMounts=[mount("/v")]) for n in range(CONTAINERS)),
        volumes=[{"name": "shared", "hostPath": {"path": str(tmp_path)}}],
    )
    with victims.beside(manifest):
        victims.wait_pod("hostile", is_running, DEADLINE_SECONDS)
        with pipe.open("wb"):
            pass
        victims.wait_pod("hostile", is_over, DEADLINE_SECONDS)
