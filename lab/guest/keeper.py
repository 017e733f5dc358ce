"""Runs the kernel of one guest, as a process between the guest and whoever started it.

Kernel and guest's processes live in namespaces of processes and mounts; the host's files are seen
there as far as they are bound to the kernel's root folder. All of it ends with this process, and
this process ends, with the guest's disk, when its stdin is closed: so a guest ends also when its
owner is killed; its console stays to be read. The console goes through a pipe to a file, as
user-mode Linux cannot poll files.
"""

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from lab.instances import RECORDS

# Arguments: the kernel's root folder, its image's, the guest's, the checkout; then the kernel's.
BECOME = """
cd "$1"
mount --rbind /dev dev
mount -t proc proc proc
mount -t tmpfs -o size=100% tmp tmp
mount --bind "$2" image
mount --bind "$3" guest
mount --bind "$4" src
shift 4
exec chroot . /linux "$@"
"""
PIECE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run; `line` are descriptors of the serial line, to and from the guest."""

    kernel_root: str
    image: str
    guest: str
    source: str
    words: tuple[str, ...]
    line: tuple[int, int]
    network_pid: int = 0

    def text(self) -> str:
        """Return it as an argument of this program."""
        return json.dumps(asdict(self))


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    processor, _lock = take_processor()
    os.sched_setaffinity(0, {processor})
    kernel = _launch(plan)
    for descriptor in plan.line:
        os.close(descriptor)
    try:
        _keep(kernel, Path(plan.guest, "console.log"))
    finally:
        kernel.kill()
        kernel.wait()
    if not _is_owned():
        Path(plan.guest, "disk.cow").unlink(missing_ok=True)
        shutil.rmtree(Path(plan.guest, "shared"), ignore_errors=True)


def _launch(plan: Plan) -> subprocess.Popen[bytes]:
    network = ["nsenter", f"--target={plan.network_pid}", "--net"] if plan.network_pid else []
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
    folders = [plan.kernel_root, plan.image, plan.guest, plan.source]
    return subprocess.Popen(
        [
            *("setpriv", "--pdeathsig=KILL", *network, *namespaces),
            *("sh", "-e", "-c", BECOME, "sh", *folders, *plan.words),
        ],
        env={"PATH": os.environ["PATH"], "TMPDIR": "/tmp", "HOME": "/tmp"} | _mark(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=plan.line,
    )


def _mark() -> dict[str, str]:
    """The mark by which processes of a killed run are known."""
    return {name: value for name, value in os.environ.items() if name.startswith("TRIO_KUBELET")}


def _keep(kernel: subprocess.Popen[bytes], console: Path) -> None:
    """Write the console to its file until the kernel or the owner ends."""
    assert kernel.stdout is not None
    with console.open("ab", buffering=0) as file:
        while True:
            ready, _, _ = select.select([sys.stdin, kernel.stdout], [], [])
            if sys.stdin in ready:
                return
            piece = os.read(kernel.stdout.fileno(), PIECE_BYTES)
            if not piece:
                return
            file.write(piece)


def _is_owned() -> bool:
    """Whether the owner is there, which closes stdin last."""
    return not select.select([sys.stdin], [], [], 0)[0]


def take_processor(records: Path = RECORDS) -> tuple[int, IO[str]]:
    """A processor, so that guests are spread over all of them, and the lock that says so.

    Kernel and processes of a guest hand over to each other all the time, which is fast on one
    processor and slow across two.
    """
    records.mkdir(mode=0o700, parents=True, exist_ok=True)
    processors = sorted(os.sched_getaffinity(0))
    turns = os.getpid() % len(processors)
    turned = (*processors[turns:], *processors[:turns])
    places = ((number, processor) for number in itertools.count() for processor in turned)
    while True:
        number, processor = next(places)
        lock = (records / f"guest-{number}-on-processor-{processor}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return processor, lock


if __name__ == "__main__":
    main()
