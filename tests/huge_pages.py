"""Huge pages for tests: set aside for a while, and a hugetlb hierarchy that nobody else sees.

The machine has them for all, so one test at a time has any, whichever process it is in.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import host, instances
from lab.locks import locked
from lab.processes import wait_until
from tests.missing import do_without

PAGE_BYTES = 2 << 20
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
LOCK = Path("/run/trio-kubelet-lab/huge-pages.lock")
HIERARCHY = Path("/sys/fs/cgroup/hugetlb")
CONTROLLERS = Path("/proc/cgroups")

# A program that maps so many pages, as none of its files, and then uses them.
USE_PAGES = """
import mmap, sys
size = int(sys.argv[1]) << 21
map_hugetlb = 0x40000
pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_hugetlb)
for place in range(0, size, 1 << 21):
    pages[place] = 1
print("used", sys.argv[1])
"""

_CLONE_NEWNS = 0x00020000
_PRIVATE_RECURSIVELY = 0x44000

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def set_aside(count: int) -> Iterator[None]:
    """The machine with so many pages of 2 MiB; afterwards with as many as before.

    Skips where the kernel has none, or no memory in one piece.
    """
    if not POOL.is_dir():
        do_without("the kernel has no huge pages of 2 MiB")
    pages = POOL / "nr_hugepages"
    with locked(LOCK):
        before = pages.read_text()
        try:
            pages.write_text(str(count))
            if int(pages.read_text()) != count:
                do_without(f"the machine has no memory for {count} huge pages")
            yield
        finally:
            pages.write_text(before)


def free_pages() -> int:
    """How many pages nobody uses."""
    return int((POOL / "free_hugepages").read_text())


@contextmanager
def controller_of_v1() -> Iterator[None]:
    """Where cgroups are of version 1: this thread and its children see a hugetlb hierarchy.

    It is mounted for them alone, as programs of others would take it for the machine's own.
    """
    if host.cgroup_version() == 2 or HIERARCHY.is_mount():
        yield
        return
    # What it finds it removes, which in namespaces of our own were copies of the mounts.
    instances.sweep()
    folder = Path.cwd()
    with open("/proc/thread-self/ns/mnt") as mounts:
        _check(_libc.unshare(_CLONE_NEWNS))
        try:
            _check(_libc.mount(b"none", b"/", None, _PRIVATE_RECURSIVELY, None))
            HIERARCHY.mkdir(exist_ok=True)
            _mount()
            yield
            _check(_libc.umount(os.fsencode(HIERARCHY)))
            wait_until(
                _is_dissolved,
                deadline_seconds=60,
                else_say=lambda: f"the hierarchy of hugetlb stays: {CONTROLLERS.read_text()}",
            )
        finally:
            # A thread that was started meanwhile and shares this one's folders keeps it here,
            # where by now it sees the same as before.
            with suppress(OSError):
                _check(_libc.setns(mounts.fileno(), _CLONE_NEWNS))
            os.chdir(folder)
            with suppress(OSError):
                HIERARCHY.rmdir()


def _mount() -> None:
    _check(_libc.mount(b"cgroup", os.fsencode(HIERARCHY), b"cgroup", 0, b"hugetlb"))


def _is_dissolved() -> bool:
    """True if cgroup v2 has the controller back.

    The kernel keeps a hierarchy that had cgroups when it was unmounted, be it removed ones: it is
    mounted and unmounted once more.
    """
    lines = CONTROLLERS.read_text().splitlines()
    if "0" in (line.split()[1] for line in lines if line.startswith("hugetlb\t")):
        return True
    _mount()
    _check(_libc.umount(os.fsencode(HIERARCHY)))
    return False


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
