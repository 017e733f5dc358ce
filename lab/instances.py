"""Which private runtimes there are on this host, and how to be rid of what one left behind.

Each instance writes a record under /run before it starts anything, and holds a lock on that
record for as long as its owner lives. A record that can be locked belongs to an owner that died:
everything it names is then removed, by whoever starts or cleans up next. Removal is the same
after a crash and at an orderly end, and may be repeated.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from lab import LabError
from lab.host import detach_mounts_below
from lab.network import Network, free_subnet, remove
from lab.processes import alive, command_lines, run, wait_until

RECORDS = Path("/run/trio-kubelet-lab")
# What containerd calls the namespace of the CRI's containers, and their cgroup's parent by default.
CRI_NAMESPACE = "k8s.io"


@dataclass(frozen=True, slots=True)
class Record:
    """All that must be known to remove an instance."""

    name: str
    folder: str
    subnet: str
    runc: str = ""
    iptables: str = ""

    @property
    def network(self) -> Network:
        return Network(
            name=f"trio-kubelet-{self.name}",
            bridge=f"tkl-{self.name}",
            subnet=self.subnet,
            addresses=Path(self.folder, "run", "addresses"),
        )

    @property
    def socket(self) -> Path:
        return Path(self.folder, "containerd.sock")

    @property
    def configuration(self) -> Path:
        return Path(self.folder, "config.toml")


class Claim:
    """A record that this process owns. Dropping it without `release` leaves an abandoned record."""

    def __init__(self, record: Record, file: IO[str]) -> None:
        self.record = record
        self._file = file

    def note(self, record: Record) -> None:
        """Write the record anew, with what has become known."""
        self.record = record
        self._file.seek(0)
        self._file.truncate()
        json.dump(asdict(record), self._file)
        self._file.flush()

    def release(self) -> None:
        """Forget the instance; nothing of it must be left."""
        Path(self._file.name).unlink(missing_ok=True)
        self._file.close()


def claim(folder: Path) -> Claim:
    """Become the owner of the instance in `folder`, after removing what an earlier owner left.

    LabError if its owner is alive.
    """
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    with _all_records():
        path = RECORDS / f"{name}.json"
        file = path.open("a+")
        if not _lock(file):
            file.close()
            raise LabError(f"another process runs a containerd in {folder}")
        left = _read(path)
        taken = [other.subnet for other in _others(name)]
        claimed = Claim(
            Record(name, str(folder), left.subnet if left else free_subnet(taken)), file
        )
        claimed.note(left or claimed.record)
    if left is not None:
        remove_remains(left)
    return claimed


def sweep() -> tuple[str, ...]:
    """Remove what instances left behind whose owner died; the folders they were in."""
    swept = []
    for path in sorted(RECORDS.glob("*.json")):
        with suppress(FileNotFoundError), path.open("r+") as file:
            left = _read(path)
            if left is None or not _lock(file):
                continue
            remove_remains(left)
            path.unlink(missing_ok=True)
            swept.append(left.folder)
    return tuple(swept)


def remove_remains(record: Record) -> None:
    """Remove an instance's processes, containers, mounts, network and files, for seconds."""
    folder = Path(record.folder)
    _kill([pid for pid, argv in command_lines() if str(record.configuration) in argv])
    _delete_containers(folder, record.runc)
    _kill([pid for pid, argv in command_lines() if _is_shim_of(argv, str(record.socket))])
    detach_mounts_below(folder)
    remove(record.network, Path(record.iptables) if record.iptables else None)
    for name in ("root", "run"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for socket in (record.socket, Path(f"{record.socket}.ttrpc")):
        socket.unlink(missing_ok=True)


def _is_shim_of(argv: tuple[str, ...], socket: str) -> bool:
    return "containerd-shim" in argv[0] and socket in argv


def _delete_containers(folder: Path, runc: str) -> None:
    """Let runc kill and delete each container: it takes the cgroups away, too."""
    if not runc:
        return
    states = folder / "run" / "runc"
    for state in states.glob("*/*"):
        with suppress(LabError):
            run([runc, "--root", state.parent, "delete", "--force", state.name])


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(map(alive, pids)),
        deadline_seconds=10,
        else_say=lambda: f"processes {pids} do not end",
    )


@contextmanager
def _all_records() -> Iterator[None]:
    RECORDS.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (RECORDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _others(name: str) -> Iterator[Record]:
    for path in RECORDS.glob("*.json"):
        record = _read(path)
        if record is not None and record.name != name:
            yield record


def _read(path: Path) -> Record | None:
    """None for a record that its owner has not written yet."""
    try:
        return Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _lock(file: IO[str]) -> bool:
    """Whether the lock is ours now and the file still the one that its name leads to."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(file.fileno()).st_ino == Path(file.name).stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
