"""The kernel's cgroup trees on disk: found, made, written, emptied and removed.

On v1 a cgroup is a folder in the hierarchy of each controller, on v2 one folder in the only one;
on a hybrid machine v1 has the controllers and decides. Everything here blocks: most of it for
microseconds, but a lower memory limit first reclaims memory, and a removal waits for the kernel.
"""

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import structlog
from attrs import frozen

from trio_kubelet.kernel.mountinfo import MountPoint
from trio_kubelet.resources.cgroup_config import CgroupConfig
from trio_kubelet.resources.cgroup_files import CgroupFile, files_v1, files_v2

log = structlog.get_logger("cgroups")

_CONTROLLERS_V1 = frozenset(
    (
        *("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb"),
        *("net_cls", "net_prio", "perf_event", "rdma", "misc", "name=systemd"),
    )
)
_CONTROLLERS_V2 = ("cpu", "cpuset", "memory", "pids", "hugetlb", "io", "misc", "rdma")
_NEEDED = ("cpu", "memory")
_FOLDER_MODE = 0o755
FOLDERS_IN_A_PIECE = 200
"""Of a cgroup that is removed: some 20 ms."""
_SWAP_LIMIT_V2 = "memory.swap.max"
_INHERITED_V1 = ("cpuset.cpus", "cpuset.mems")


class CgroupError(Exception):
    """The machine's cgroups cannot be used as they are; the message says why."""


@frozen(kw_only=True)
class CgroupTree:
    """The mounts of the hierarchies.

    `hierarchies` maps a controller to its mount point; on v2 all have the same. `unified` is the
    mount point of v2 on a hybrid machine, where it has no controllers: runtimes make cgroups in
    it all the same, so they are removed there too. Paths of cgroups are relative to mount points
    and begin with a slash: `/kubepods/burstable`.
    """

    version: int
    hierarchies: Mapping[str, Path]
    unified: Path | None = None

    @classmethod
    def find(cls, mounts: Iterable[MountPoint]) -> "CgroupTree":
        """Return the trees of this machine; raises CgroupError without cpu or memory."""
        mounts = tuple(mounts)
        tree = _find_v1(mounts) or _find_v2(mounts)
        missing = [each for each in _NEEDED if tree is None or each not in tree.hierarchies]
        if tree is None or missing:
            raise CgroupError(f"no cgroup hierarchy with {' and '.join(missing)} is mounted")
        return tree

    def folders(self, path: str) -> tuple[Path, ...]:
        """Return the folders of a cgroup, one in each hierarchy, whether they exist or not."""
        relative = path.lstrip("/")
        return tuple(dict.fromkeys(root / relative for root in self.hierarchies.values()))

    def can_limit_swap(self) -> bool:
        """True if the kernel limits the swap of each cgroup.

        On v2 the root cgroup itself has no limit: those below it have, and so has the root that
        a machine in a cgroup namespace sees. Ask when there is a cgroup, that of all pods say.
        """
        memory = self.hierarchies["memory"]
        if self.version == 1:
            return (memory / "memory.memsw.limit_in_bytes").exists()
        own = memory / _SWAP_LIMIT_V2
        return own.exists() or any(memory.glob(f"*/{_SWAP_LIMIT_V2}"))

    def exists(self, path: str) -> bool:
        """True if the cgroup is there in every hierarchy."""
        return all(folder.is_dir() for folder in self.folders(path))

    def missing_for(self, path: str, config: CgroupConfig) -> tuple[Path, ...]:
        """Return the folders of a cgroup that are not there and that values would be written to."""
        relative = path.lstrip("/")
        controllers = (file.controller for file in self._files(config))
        roots = dict.fromkeys(filter(None, map(self.hierarchies.get, controllers)))
        return tuple(root / relative for root in roots if not (root / relative).is_dir())

    def create(self, path: str, config: CgroupConfig) -> None:
        """Make a cgroup and those above it that are missing, and write its values.

        Raises OSError; what was made stays, and the next call goes on from there.
        """
        relative = Path(path.lstrip("/"))
        for root in dict.fromkeys(self.hierarchies.values()):
            if self.version == 1:
                _make_v1(root / relative, has_cpuset=root == self.hierarchies.get("cpuset"))
            else:
                _make_v2(root, relative)
        self.write(path, config)

    def write(self, path: str, config: CgroupConfig) -> None:
        """Write the values of a cgroup; raises OSError. What is set to None is left alone."""
        for file in self._files(config):
            self._write(path, file)

    def memory_usage_bytes(self, path: str) -> int:
        """Return the memory that a cgroup uses, page cache and all. Raises OSError, ValueError."""
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int(self.read(path, "memory", name))

    def read(self, path: str, controller: str, name: str) -> str:
        """Read a file of a cgroup. Raises OSError, also where there is no such controller."""
        root = self.hierarchies.get(controller)
        if root is None:
            raise FileNotFoundError(errno.ENOENT, "no such cgroup controller", controller)
        return (root / path.lstrip("/") / name).read_text()

    def exists_anywhere(self, path: str) -> bool:
        """True if the cgroup is there in any hierarchy."""
        return any(folder.is_dir() for folder in self._folders_everywhere(path))

    def is_populated(self, path: str) -> bool:
        """True if a process is in the cgroup or below it, in any hierarchy."""
        return any(_is_populated(folder) for folder in self._folders_everywhere(path))

    def kill(self, path: str) -> None:
        """Kill what is left in a cgroup and below it."""
        for folder in self._folders_everywhere(path):
            _kill_all(folder)

    def removal(self, path: str) -> Iterator[bool | None]:
        """Kill what is left in a cgroup and remove it with all below it, piece by piece.

        The last item is whether it is gone, those before are None: a container may have made any
        number of cgroups in its own. False means that the kernel has not let go of it yet: try
        again a little later. Mostly nothing is left in it, and there is nothing to look for.
        """
        gone = True
        for folder in self._folders_everywhere(path):
            if _remove_empty(folder):
                continue
            _kill_all(folder)
            for count, is_gone in enumerate(_removals(folder), 1):
                gone &= is_gone
                if count % FOLDERS_IN_A_PIECE == 0:
                    yield None
        yield gone

    def remove_empty(self, path: str) -> bool:
        """Remove a cgroup with all below it, unless a process is in them; whether it is gone."""
        if self.is_populated(path):
            return False
        gone = True
        for folder in self._folders_everywhere(path):
            gone &= all(_removals(folder))
        return gone

    def children(self, path: str) -> frozenset[str]:
        """Return the names of the cgroups directly below one, in any hierarchy."""
        names: set[str] = set()
        for folder in self._folders_everywhere(path):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                names.update(entry.name for entry in entries if entry.is_dir())
        return frozenset(names)

    def _folders_everywhere(self, path: str) -> tuple[Path, ...]:
        """The folders of a cgroup, with the one that only runtimes make."""
        if self.unified is None:
            return self.folders(path)
        return (*self.folders(path), self.unified / path.lstrip("/"))

    def _files(self, config: CgroupConfig) -> Iterator[CgroupFile]:
        return files_v1(config) if self.version == 1 else files_v2(config)

    def _write(self, path: str, file: CgroupFile) -> None:
        root = self.hierarchies.get(file.controller)
        if root is None:
            log.debug("cgroup controller not available", controller=file.controller, file=file.name)
            return
        target = root / path.lstrip("/") / file.name
        if not file.may_be_missing or target.exists():
            target.write_text(file.text)


def _find_v1(mounts: tuple[MountPoint, ...]) -> CgroupTree | None:
    found: dict[str, Path] = {}
    for each in mounts:
        if each.fs_type != "cgroup":
            continue
        for controller in _CONTROLLERS_V1.intersection(each.super_options):
            known = found.get(controller)
            # The same hierarchy may be mounted twice: the shorter path is the machine's own.
            if known is None or len(str(each.path)) < len(str(known)):
                found[controller] = each.path
    if not any(controller in found for controller in _NEEDED):
        return None
    unified = next((each.path for each in mounts if each.fs_type == "cgroup2"), None)
    return CgroupTree(version=1, hierarchies=dict(sorted(found.items())), unified=unified)


def _find_v2(mounts: tuple[MountPoint, ...]) -> CgroupTree | None:
    root = next((each.path for each in mounts if each.fs_type == "cgroup2"), None)
    if root is None:
        return None
    available = (root / "cgroup.controllers").read_text().split()
    known = [controller for controller in _CONTROLLERS_V2 if controller in available]
    return CgroupTree(version=2, hierarchies=dict.fromkeys(known, root))


def _make_v1(folder: Path, *, has_cpuset: bool) -> None:
    """Make a folder, those above it first where one is missing: mostly all of them are there."""
    try:
        folder.mkdir(_FOLDER_MODE)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_v1(folder.parent, has_cpuset=has_cpuset)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
    if has_cpuset:
        _inherit_cpuset(folder)


def _make_v2(root: Path, relative: Path) -> None:
    """Make a folder and those above it, each of which hands down what controllers it has."""
    for part in reversed(relative.parents):
        (root / part).mkdir(_FOLDER_MODE, exist_ok=True)
        _hand_down_controllers(root / part)
    (root / relative).mkdir(_FOLDER_MODE, exist_ok=True)


def _hand_down_controllers(folder: Path) -> None:
    """Let the cgroups below have every controller that this one has."""
    enabled = (folder / "cgroup.subtree_control").read_text().split()
    for controller in (folder / "cgroup.controllers").read_text().split():
        if controller in _CONTROLLERS_V2 and controller not in enabled:
            try:
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as error:
                if controller in _NEEDED:
                    raise
                log.debug(
                    "cgroup controller not enabled for child cgroups",
                    controller=controller,
                    problem=str(error),
                )


def _inherit_cpuset(folder: Path) -> None:
    """Give a new cgroup of v1 the CPUs of its parent: without any it could hold no process."""
    for name in _INHERITED_V1:
        file = folder / name
        if file.exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text())


def _remove_empty(folder: Path) -> bool:
    """Remove a cgroup in which nothing is left; whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return False
    return True


def _kill_all(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
        return
    for pid in set(_processes(folder)) - {0, 1, os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            log.warning("leftover process in cgroup killed", pid=pid, cgroup=str(folder))


def _is_populated(folder: Path) -> bool:
    try:
        return "populated 1" in (folder / "cgroup.events").read_text().splitlines()
    except OSError:  # cgroup v1 does not tell, and what is not there has no process.
        return any(True for _ in _processes(folder))


def _processes(folder: Path) -> Iterator[int]:
    for below, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            yield from map(int, (Path(below) / "cgroup.procs").read_text().split())


def _removals(folder: Path) -> Iterator[bool]:
    """Remove a cgroup with all below it; for each whether it is gone, up to one that is not."""
    for below, _, _ in os.walk(folder, topdown=False):
        is_gone = _remove_empty(Path(below))
        yield is_gone
        if not is_gone:
            return
