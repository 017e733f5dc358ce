"""The pod that eats its node's memory, and the watcher that measures how soon it is stopped.

The pods of a node have 400 MiB together. The pod writes to memory until the hard threshold is just
crossed, and waits. The watcher reads the cgroup of all pods meanwhile, and has the process of the
pod tell of its end, which comes with SIGTERM. It runs where the node is, so on a machine of the lab
it is a program.
"""

import os
import select
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupDriver, CgroupTree
from trio_kubelet.resources.cgroup_names import kubepods_name
from trio_kubelet.stats.cgroup_reader import CgroupReader, Stopwatch

MI = 1 << 20
LEFT_TO_PODS_MIB, THRESHOLD_MIB = 400, 100
# Almost to the threshold at 50 MiB a second; then beyond it at once, and SIGTERM is obeyed at once.
EAT = (
    "trap 'exit 143' TERM; for n in $(seq 28); do dd if=/dev/zero of=/m/$n bs=1M count=10; "
    "sleep .2; done; dd if=/dev/zero of=/m/last bs=1M count=40; sleep 1000000 & wait"
)
LOOK_SECONDS = 0.002
DEADLINE_SECONDS = 300.0


class NothingSeenError(Exception):
    """The pod did not start, eat or end in time."""


def settings(memory_total_bytes: int) -> Mapping[str, object]:
    """What leaves the pods of a machine little memory, and a threshold in it."""
    return {
        "systemReserved": {"memory": str(memory_total_bytes - LEFT_TO_PODS_MIB * MI)},
        "evictionHard": {"memory.available": f"{THRESHOLD_MIB}Mi"},
        "enforceNodeAllocatable": ["pods"],
        "evictionPressureTransitionPeriod": "1s",
        "imageMinimumGCAge": "24h",
    }


def seconds_to_stop(reader: CgroupReader, watches: Path) -> float:
    """Wait until the pod has crossed the threshold and ended; returns the seconds in between.

    Makes the file `watches` first. Blocks. Raises NothingSeenError at a deadline.
    """
    watches.touch()
    process = _wait_process(reader)
    crossed_at = _wait_crossed(reader)
    return _wait_ended(process) - crossed_at


def _wait_process(reader: CgroupReader) -> int:
    """Wait for the pod's main process, in the cgroups of pods."""
    assert reader.tree is not None
    memory = reader.tree.hierarchies["memory"]
    name = kubepods_name(reader.cgroup_root)
    folders = [Path(f"{memory}{name.path(driver)}") for driver in CgroupDriver]
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        for file in (file for folder in folders for file in folder.rglob("cgroup.procs")):
            with suppress(OSError):
                for pid in file.read_text().split():
                    if EAT in Path(f"/proc/{pid}/cmdline").read_text():
                        return int(pid)
        time.sleep(LOOK_SECONDS)
    raise NothingSeenError("the pod does not start")


def _wait_crossed(reader: CgroupReader) -> float:
    """Wait until pods have left less than the threshold; `time.monotonic` then."""
    limit = (LEFT_TO_PODS_MIB - THRESHOLD_MIB) * MI
    end = time.monotonic() + DEADLINE_SECONDS
    while (now := time.monotonic()) < end:
        pods = reader.read_node(Stopwatch(time.time_ns())).pods
        if pods is not None and pods.memory is not None and pods.memory.working_set > limit:
            return now
        time.sleep(LOOK_SECONDS)
    raise NothingSeenError("nobody eats the memory")


def _wait_ended(pid: int) -> float:
    """Wait until a process has ended; `time.monotonic` then."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(DEADLINE_SECONDS * 1000):
            raise NothingSeenError("the pod was not stopped")
        return time.monotonic()
    finally:
        os.close(descriptor)


def main() -> None:
    """Watch this machine; the argument is the file to make. Prints the seconds."""
    reader = CgroupReader(tree=CgroupTree.find(mount_points()))
    print(seconds_to_stop(reader, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
