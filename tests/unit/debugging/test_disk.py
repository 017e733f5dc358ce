"""What uses the disk: pods, dead containers, and files that are deleted and still open."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_kubelet.cli.disk import size, tables
from trio_kubelet.debugging import deleted_files
from trio_kubelet.debugging.deleted_files import DeletedFile, find_deleted_files
from trio_kubelet.debugging.disk import dead_containers, pods_on_disk
from trio_kubelet.foreign_text import printable
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.stats import Filesystem, PodStats, Usage
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.stats.values import VolumeStats

ID = "ab" * 32


def used(amount: int) -> Filesystem:
    return Filesystem(time_ns=0, used=amount)


def observed(uid: str, *containers: ObservedContainer) -> ObservedPod:
    return ObservedPod(
        uid=uid, name=uid, namespace="ns", observed_at=0.0, containers=tuple(containers)
    )


def container(id_: str, state: ObservedState, finished_at: int = 0) -> ObservedContainer:
    return ObservedContainer(id=id_, name="c", sandbox_id="s", state=state, finished_at=finished_at)


def test_pods_are_told_by_what_they_use_and_what_is_unknown_is_said_to_be() -> None:
    small = PodStats(
        uid="small",
        namespace="ns",
        name="small",
        started_at_ns=0,
        usage=Usage(time_ns=0),
        containers=(),
        layers=used(7),
    )
    disks = {
        "large": PodDisk(
            logs={"c": used(10), "d": used(20)},
            volumes=(
                VolumeStats(name="cache", filesystem=used(100), ephemeral=True),
                VolumeStats(name="memory", filesystem=used(1000), ephemeral=False),
                VolumeStats(name="settings", filesystem=used(1000), ephemeral=True),
            ),
        )
    }
    empty_dirs = {"large": frozenset({"cache", "memory"})}
    rows = pods_on_disk([observed("small"), observed("large")], [small], disks, empty_dirs)
    kinds = ("uid", "logBytes", "writableLayerBytes", "emptyDirBytes")
    assert [[row[kind] for kind in kinds] for row in rows] == [
        ["large", 30, None, 100],
        ["small", None, 7, None],
    ]


def test_dead_containers_are_told_in_the_order_of_their_ends() -> None:
    pods = [
        observed("a", container("late", ObservedState.EXITED, 9_000_000_000)),
        observed("b", container("runs", ObservedState.RUNNING)),
        observed("c", container("early", ObservedState.EXITED, 2_000_000_000)),
    ]
    found = dead_containers(pods)
    assert [(row["id"], row["finished"]) for row in found] == [
        ("early", "1970-01-01T00:00:02Z"),
        ("late", "1970-01-01T00:00:09Z"),
    ]


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder on a disk: the one for all other scratch files may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def processes(tmp_path: Path, on_disk: Path) -> Iterator[Path]:
    """A folder like /proc, where this process is one of a container, with a deleted file."""
    folder = tmp_path / "proc"
    own = folder / str(os.getpid())
    own.mkdir(parents=True)
    (own / "cgroup").write_text(f"0::/kubepods/pod1/cri-containerd-{ID}.scope\n")
    (own / "comm").write_text("shop\n")
    (own / "fd").symlink_to("/proc/self/fd")
    (folder / "99999").mkdir()
    (folder / "uptime").touch()
    with tempfile.TemporaryFile(dir=on_disk) as deleted, (on_disk / "kept").open("wb") as kept:
        for file in (deleted, kept):
            file.write(b"x" * 20_000)
            file.flush()
        yield folder


def test_files_that_are_deleted_and_open_are_found_by_container(
    processes: Path, on_disk: Path
) -> None:
    found = find_deleted_files({ID}, processes)
    assert found.complete
    ours = [each for each in found.files if each.path.startswith(str(on_disk))]
    assert len(ours) == 1
    assert (ours[0].container_id, ours[0].pid, ours[0].command) == (ID, os.getpid(), "shop")
    assert ours[0].used_bytes >= 20_000
    of_the_node = find_deleted_files({"cd" * 32}, processes).files
    assert ("", ours[0].path) in {(each.container_id, each.path) for each in of_the_node}


def test_deleted_files_that_are_in_memory_take_up_no_disk_whatever_their_names(
    processes: Path, on_disk: Path
) -> None:
    memory = os.memfd_create("memory")
    os.write(memory, b"x" * 20_000)
    named_so = on_disk / "dev/shm"
    named_so.mkdir(parents=True)
    with (
        os.fdopen(memory),
        tempfile.TemporaryFile(dir="/dev/shm") as shared,
        tempfile.TemporaryFile(dir=named_so),
    ):
        shared.write(b"x" * 20_000)
        shared.flush()
        paths = {each.path for each in find_deleted_files({ID}, processes).files}
    assert any(path.startswith(str(named_so)) for path in paths)
    assert not any(path.startswith(("/memfd:", "/dev/shm/")) for path in paths)


@pytest.mark.parametrize("limit", ["MAX_DESCRIPTORS", "MAX_SECONDS", "MAX_PROCESSES"])
def test_a_search_that_would_take_too_long_ends_and_says_so(
    processes: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_files, limit, -1)
    assert not find_deleted_files({ID}, processes).complete


def test_the_largest_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_files, "MAX_FILES", 2)
    files = [
        DeletedFile(container_id=ID, pid=1, command="c", path=f"/{used}", used_bytes=used)
        for used in (1, 3, 2)
    ]
    told = deleted_files._largest(files, complete=True).files
    assert [each.used_bytes for each in told] == [3, 2]


REPORT = {
    "pods": [
        {
            "namespace": "ns",
            "name": "p",
            "uid": "u",
            "logBytes": 2048,
            "writableLayerBytes": None,
            "emptyDirBytes": 0,
        }
    ],
    "images": [
        {
            "name": "[red]web:1",
            "id": "i",
            "bytes": 3 << 20,
            "lastUsed": None,
            "inUse": True,
            "pinned": True,
        }
    ],
    "deadContainers": [],
    "deletedFiles": [
        {
            "namespace": "",
            "pod": "",
            "container": "",
            "pid": 7,
            "command": "journald",
            "path": "/a\x1b[2J",
            "bytes": 9,
        }
    ],
    "problems": {},
}


def test_a_report_is_shown_in_tables_of_what_there_is() -> None:
    made = tables(REPORT)
    assert [str(table.title).partition(",")[0] for table in made] == [
        "Pods",
        "Images",
        "Deleted files that are open",
    ]
    cells = [[str(cell) for column in table.columns for cell in column.cells] for table in made]
    assert cells[0] == ["ns/p", "2.0Ki", "?", "0B"]
    assert cells[1] == ["\\[red]web:1", "3.0Mi", "never", "in use, pinned"]
    assert cells[2][:3] == ["the node", "", "7 journald"]
    assert cells[2][-1] == "/a\ufffd[2J"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "?"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0Ki"),
        (99 << 20, "99Mi"),
        (1 << 70, "1048576Pi"),
    ],
)
def test_sizes_have_units(amount: int | None, text: str) -> None:
    assert size(amount) == text


def test_nothing_that_a_container_has_named_moves_the_cursor() -> None:
    assert printable("a\x1b\n\u202eb") == "a\ufffd\ufffd\ufffdb"
