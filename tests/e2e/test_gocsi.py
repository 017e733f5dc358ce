"""A CSI driver that nobody here wrote, on a real API server: `nox -s storage`.

It is gocsi's, for tests of containers' orchestrators: of CSI 1.1, with volumes in memory that have
to be attached, and without mounts. Registering is no driver's affair but a sidecar's, whose place a
process of the lab takes; so does the test for the sidecar that has volumes attached.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from attrs import frozen

from lab import UnavailableError
from lab.gocsi_mock import NAME, gocsi_mock
from lab.orphans import marked
from lab.processes import wait_until
from tests.e2e.cluster import DEADLINE_SECONDS, Namespace, container_ids, is_ready, until_term
from tests.e2e.local import LocalCluster
from tests.e2e.test_csi import MOUNTS, attach, claim, claiming, described, uses
from tests.missing import do_without

ASKED = "TRIO_KUBELET_STORAGE"
HANDLE = "1"
"""Of a volume that the driver has from its start."""
ATTACHED: Mapping[str, str] = {"device": "/dev/mock"}
"""The one thing without which the driver publishes nothing."""

pytestmark = pytest.mark.skipif(not os.environ.get(ASKED), reason=f"{ASKED} is not set")


@frozen
class GocsiDriver:
    """The driver as a process; its log has the calls."""

    log: Path

    def calls(self, method: str) -> int:
        """How often it was asked."""
        return self.log.read_text().count(f"/csi.v1.Node/{method}: REQ")

    def wait_called(self, method: str, times: int) -> None:
        """Wait until it was asked so often."""
        wait_until(
            lambda: self.calls(method) >= times,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: self.log.read_text()[-2000:],
        )


@pytest.fixture
def driver(local_cluster: LocalCluster, tmp_path: Path) -> Iterator[GocsiDriver]:
    """The driver, registered; in the end both have gone."""
    try:
        program = gocsi_mock()
    except UnavailableError as reason:
        do_without(str(reason))
    socket, log = tmp_path / "csi.sock", tmp_path / "log"
    settings = {"CSI_ENDPOINT": f"unix://{socket}", "X_CSI_LOG_LEVEL": "debug"}
    # It takes paths of 128 bytes, as they are below /var/lib/kubelet; the lab's are longer.
    settings |= {"X_CSI_REQ_LOGGING": "true", "X_CSI_SPEC_DISABLE_LEN_CHECK": "true"}
    registered = local_cluster.agent.root / "plugins_registry" / "gocsi.sock"
    registrar = [sys.executable, "-m", "lab.csi_driver", "--folder", str(tmp_path / "registrar")]
    registrar += ["--registry-socket", str(registered), "--name", NAME, "--endpoint", str(socket)]
    with log.open("wb") as file:
        of_driver = subprocess.Popen([program], stderr=file, stdout=file, env=marked(settings))
    of_registrar = subprocess.Popen(registrar, env=marked(os.environ))
    try:
        yield GocsiDriver(log)
    finally:
        for process in (of_registrar, of_driver):
            process.kill()
            process.wait()
        registered.unlink(missing_ok=True)


def test_a_volume_of_a_driver_of_others_comes_and_goes_over_a_kill_of_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, driver: GocsiDriver
) -> None:
    api, node = local_cluster.api, f"/api/v1/nodes/{local_cluster.node}"
    csi_node = f"/apis/storage.k8s.io/v1/csinodes/{local_cluster.node}"
    with described(local_cluster, NAME, attachRequired=True):
        api.wait_for(csi_node, lambda found: NAME in str(found["spec"].get("drivers")))
        name = claim(namespace, "data", driver=NAME, volumeHandle=HANDLE)
        namespace.add("p", until_term("c", ":", **MOUNTS), volumes=claiming("data"))
        api.wait_for(node, uses(HANDLE, NAME, attached=False))
        assert driver.calls("NodePublishVolume") == 0
        attachment = attach(local_cluster, name, ATTACHED)
        pod = namespace.wait("p", is_ready)
        driver.wait_called("NodePublishVolume", 1)
        local_cluster.kill_agent()
        local_cluster.start_agent()
        assert container_ids([namespace.wait("p", is_ready)]) == container_ids([pod])
        assert driver.calls("NodeUnpublishVolume") == 0
        api.delete(namespace.path("Pod", "p"))
        namespace.wait_gone("p")
        driver.wait_called("NodeUnpublishVolume", 1)
        api.wait_gone(attachment)
