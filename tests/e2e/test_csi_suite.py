"""Whether the lab's CSI driver keeps to CSI, says the suite of csi-test: `nox -s storage`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import UnavailableError, host
from lab.csi_suite import csi_suite
from lab.orphans import marked
from lab.processes import run, wait_until
from tests.missing import do_without

ASKED = "TRIO_KUBELET_STORAGE"
SOCKET_SECONDS, SUITE_SECONDS = 120, 600

pytestmark = [
    pytest.mark.skipif(not os.environ.get(ASKED), reason=f"{ASKED} is not set"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


def test_the_driver_of_the_lab_passes_the_suite_for_drivers(tmp_path: Path) -> None:
    try:
        suite = csi_suite()
    except UnavailableError as reason:
        do_without(str(reason))
    socket = tmp_path / "csi.sock"
    command = [sys.executable, "-m", "lab.csi_controller", "--folder", str(tmp_path)]
    command += ["--mounts", "--stages"]
    with subprocess.Popen(command, env=marked(os.environ)) as process:
        try:
            wait_until(socket.exists, deadline_seconds=SOCKET_SECONDS, else_say=lambda: "no socket")
            folders = ("--csi.mountdir", tmp_path / "m", "--csi.stagingdir", tmp_path / "s")
            endpoint = ("--csi.endpoint", f"unix://{socket}")
            said = run([suite, *endpoint, *folders], deadline_seconds=SUITE_SECONDS)
        finally:
            process.kill()
            host.detach_mounts_below(tmp_path)
    assert "SUCCESS" in said, said
