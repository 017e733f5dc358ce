"""The CSI driver that upstream's specs of volumes are run on: the lab's, as a process of the host.

Provisioner, attacher and resizer of kubernetes-csi are beside it. The specs are told of it in a
file, as of any driver that is there before they are.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import csi_sidecars
from lab.csi_driver import NAME, LabDriver, detach_loop_devices
from tests.e2e.local import LocalCluster
from tests.e2e.test_csi import described, driver

CLASS = "lab"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CAPABILITIES = (
    *("persistence", "block", "exec", "fsGroup", "multipods", "singleNodeVolume"),
    *("controllerExpansion", "nodeExpansion", "onlineExpansion", "offlineExpansion"),
)
DEFINITION = {
    "ShortName": "lab",
    "StorageClass": {"FromExistingClassName": CLASS},
    "DriverInfo": {
        "Name": NAME,
        "SupportedFsType": {"": {}},
        "SupportedSizeRange": {"Min": "1Mi"},
        "Capabilities": dict.fromkeys(CAPABILITIES, True),
    },
}


@contextmanager
def csi_driver(cluster: LocalCluster, folder: Path) -> Iterator[tuple[str, ...]]:
    """Run the driver on the node, with its files in `folder`; yields what e2e.test is told of it.

    UnavailableError without a Go toolchain.
    """
    programs = csi_sidecars.find()
    folder.mkdir()
    definition = folder / "definition.json"
    definition.write_text(json.dumps(DEFINITION))
    cluster.api.create(
        CLASSES,
        {
            "metadata": {"name": CLASS},
            "provisioner": NAME,
            "allowVolumeExpansion": True,
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    files, kubeconfig = LabDriver(folder), cluster.control_plane.folder / "admin.conf"
    try:
        with (
            described(cluster, attachRequired=True, fsGroupPolicy="File"),
            driver(cluster, folder, cluster.node, "--stages", kind="lab.csi_controller"),
            csi_sidecars.csi_sidecars(programs, files.socket, kubeconfig),
        ):
            yield (f"--storage.testdriver={definition}",)
    finally:
        for image in files.images():
            detach_loop_devices(image)
