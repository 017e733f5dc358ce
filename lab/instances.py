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
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from lab import LabError, footprint, orphans
from lab.host import detach_mounts_below, remove_cgroups
from lab.locks import locked
from lab.network import LabNetwork, free_subnet, remove
from lab.processes import alive, command_lines, rooted_below, run, wait_until

RECORDS = Path("/run/trio-kubelet-lab")
# The host as it was before the first of the instances that are there now.
BEFORE = RECORDS / "host-before"
# What runs in an instance's folder: containerd, and beside it a registry and a node agent.
PROGRAMS = ("containerd", "docker-registry", "trio_kubelet")
SHIMS = ("containerd-shim-runc-v2",)
# What containerd calls the namespace of the CRI's containers, and their cgroup's parent by default.
CRI_NAMESPACE = "k8s.io"


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """All that must be known to remove an instance; `runc` may be any program of its interface."""

    name: str
    folder: str
    subnet: str
    runc: str = ""
    iptables: str = ""

    @property
    def network(self) -> LabNetwork:
        return LabNetwork(
            name=f"trio-kubelet-{self.name}",
            bridge=f"tkl-{self.name}",
            subnet=self.subnet,
            addresses=Path(self.folder, "run", "addresses"),
        )

    @property
    def cgroup_root(self) -> str:
        """Where an agent that goes with the instance may have its pods' cgroups."""
        return f"/trio-kubelet-{self.name}"

    @property
    def socket(self) -> Path:
        return Path(self.folder, "containerd.sock")

    @property
    def configuration(self) -> Path:
        return Path(self.folder, "config.toml")


class Claim:
    """A record that this process owns. Dropping it without `release` leaves an abandoned record."""

    def __init__(self, record: InstanceRecord, file: IO[str]) -> None:
        self.record = record
        self._file = file

    def release(self) -> None:
        """Forget the instance; nothing of it must be left."""
        with _all_records():
            _forget(self.record)
        self._file.close()


def name_of(folder: Path) -> str:
    """Return the name of the instance in a folder: short, and always the same."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def claim(folder: Path, *, oci_runtime: Path, iptables: Path | None) -> Claim:
    """Become the owner of the instance in `folder`, after removing what an earlier owner left.

    LabError if its owner is alive.
    """
    name = name_of(folder)
    with _all_records():
        file = (RECORDS / f"{name}.json").open("a+")
        if not _lock(file):
            file.close()
            raise LabError(f"another process runs a containerd in {folder}")
        left = _read(Path(file.name))
        if left is not None:
            remove_remains(left)
        others = tuple(_records())
        if not others:
            BEFORE.write_text(footprint.take(iptables).text())
        taken = (other.subnet for other in others if other.name != name)
        record = InstanceRecord(
            name=name,
            folder=str(folder),
            subnet=free_subnet(taken),
            runc=str(oci_runtime),
            iptables=str(iptables or ""),
        )
        file.seek(0)
        file.truncate()
        json.dump(asdict(record), file)
        file.flush()
        return Claim(record, file)


def sweep() -> tuple[str, ...]:
    """Remove what instances left behind whose owner died; returns the folders they were in.

    Agents and cgroups of tests that were killed go as well.
    """
    swept = []
    with _all_records():
        for record in tuple(_records()):
            with (RECORDS / f"{record.name}.json").open("r+") as file:
                if _lock(file):
                    remove_remains(record)
                    _forget(record)
                    swept.append(record.folder)
        orphans.sweep()
    return tuple(swept)


def remove_remains(record: InstanceRecord) -> None:
    """Remove an instance's processes, containers, mounts, network and files, for seconds."""
    folder = Path(record.folder)
    _kill_programs_of(folder, PROGRAMS)
    _delete_containers(folder, record.runc)
    _kill_programs_of(folder, SHIMS)
    # A containerd that was killed while it made a container may have lost sight of that one.
    _kill(rooted_below(folder / "root"))
    detach_mounts_below(folder)
    remove(record.network, Path(record.iptables) if record.iptables else None)
    with suppress(OSError):
        remove_cgroups(record.cgroup_root)
    for name in ("root", "run", "agent/root"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for socket in (record.socket, Path(f"{record.socket}.ttrpc")):
        socket.unlink(missing_ok=True)


def _kill_programs_of(folder: Path, programs: tuple[str, ...]) -> None:
    """Kill the programs that were started with a file of the folder among their arguments."""
    inside = f"{folder}/"
    pids = [
        pid
        for pid, argv in command_lines()
        if any(Path(word).name in programs for word in argv[:3])
        and any(word.startswith(inside) for word in argv[1:])
    ]
    _kill(pids)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(map(alive, pids)),
        deadline_seconds=10,
        else_say=lambda: f"processes {pids} do not end",
    )


def _delete_containers(folder: Path, runc: str) -> None:
    """Let runc kill and delete each container with its cgroups, and remove what CNI noted of it."""
    for bundle in folder.glob("run/io.containerd.runtime.v2.task/*/*"):
        namespace, container = bundle.parts[-2:]
        with suppress(LabError):
            root = folder / "run" / "runc" / namespace
            run([runc, "--root", root, "delete", "--force", container])
        for result in footprint.CNI_RESULTS.glob(f"*-{container}-*"):
            result.unlink(missing_ok=True)
        for note in ("address", "bootstrap.json"):
            _remove_socket_of_shim(bundle / note)


def _remove_socket_of_shim(note: Path) -> None:
    with suppress(OSError):
        found = re.search(rf"{footprint.SHIM_SOCKETS}/[0-9a-f]+", note.read_text())
        if found is not None:
            Path(found[0]).unlink(missing_ok=True)


def _forget(record: InstanceRecord) -> None:
    """Remove the record; after the last one, give the host back as it was found."""
    (RECORDS / f"{record.name}.json").unlink(missing_ok=True)
    if any(_records()):
        return
    with suppress(OSError, ValueError, TypeError):
        before = footprint.parse(BEFORE.read_text())
        footprint.put_back(before, Path(record.iptables) if record.iptables else None)
        BEFORE.unlink()


def _all_records() -> AbstractContextManager[None]:
    """Keep other processes from claiming, sweeping and releasing."""
    RECORDS.mkdir(mode=0o700, parents=True, exist_ok=True)
    return locked(RECORDS / "lock")


def _records() -> Iterator[InstanceRecord]:
    for path in sorted(RECORDS.glob("*.json")):
        record = _read(path)
        if record is not None:
            yield record


def _read(path: Path) -> InstanceRecord | None:
    """Return None for a record that its owner died writing."""
    try:
        return InstanceRecord(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
