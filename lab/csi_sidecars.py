"""The controllers of kubernetes-csi: provisioner, attacher and resizer, for a driver of the lab.

They are published by Kubernetes' own people, and nothing here knows how they work: in a cluster
they run beside a CSI driver, which they ask over its socket for what objects of the API want. Here
they are processes of this host. The Go toolchain builds all three from the modules that are pinned
in tests/e2e/csidriver, for minutes the first time; then they stay in the cache.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.go_programs import GoModule, Programs
from lab.orphans import marked
from lab.packages import default_cache

SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "csidriver" / "sidecars.mod"
PROVISIONER = "github.com/kubernetes-csi/external-provisioner/v6"
PACKAGES = {
    "csi-provisioner": f"{PROVISIONER}/cmd/csi-provisioner",
    "csi-attacher": "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
    "csi-resizer": "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
}
VERBOSITY = 3


def find(*, cache: Path | None = None) -> Programs:
    """Find the programs in the cache, or build them, for minutes.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    folder = (cache or default_cache()) / "csi-sidecars"
    return GoModule(SOURCE, folder, PACKAGES, PROVISIONER).folder_with(tuple(PACKAGES))


@contextmanager
def csi_sidecars(programs: Programs, socket: Path, kubeconfig: Path) -> Iterator[None]:
    """Run them for the driver at a socket, until the end of the block.

    They wait for the driver, and end when it has gone. Their logs are beside its socket.
    """
    options = (f"--csi-address={socket}", f"--kubeconfig={kubeconfig}", f"--v={VERBOSITY}")
    with ExitStack() as stack:
        for name in PACKAGES:
            log = stack.enter_context((socket.parent / f"{name}.log").open("ab"))
            process = subprocess.Popen(
                [programs[name], *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=marked(os.environ),
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
