"""Counts of OOM kills as cgroup v2 shows them, and what the agent keeps of a pod."""

from pathlib import Path

import pytest
import structlog.testing

from trio_kubelet.resources import CgroupDriver, oom_files
from trio_kubelet.resources.oom_files import (
    RECORD,
    first_counts,
    load_record,
    pod_folders,
    read_counts,
    save_record,
)
from trio_kubelet.resources.oom_ledger import Kills, OomLedger

LEDGER = OomLedger(cgroup="boot/1", settled=Kills(3, 2), verdicts={"a": True})


def cgroup(folder: Path, kills: int, groups: int | None = None) -> None:
    folder.mkdir(exist_ok=True)
    last = "" if groups is None else f"oom_group_kill {groups}\n"
    text = f"low 0\nhigh 0\nmax 17\noom 4\noom_kill {kills}\n{last}"
    (folder / "memory.events").write_text(text)


def test_a_pod_may_be_in_the_cgroup_of_each_qos_class() -> None:
    assert list(map(str, pod_folders(Path("/m"), "u-1", "/", tuple(CgroupDriver)))) == [
        "/m/kubepods/podu-1",
        "/m/kubepods/burstable/podu-1",
        "/m/kubepods/besteffort/podu-1",
        "/m/kubepods.slice/kubepods-podu_1.slice",
        "/m/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
        "/m/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice",
    ]


def test_the_counts_of_a_pod_are_those_of_its_cgroup_and_of_each_below(tmp_path: Path) -> None:
    cgroup(tmp_path, 5, 2)
    cgroup(tmp_path / "a", 2, 1)
    cgroup(tmp_path / "b", 0)
    (tmp_path / "going").mkdir()
    counts = read_counts(tmp_path)
    assert counts is not None
    assert counts.below == {"a": Kills(2, 1), "b": Kills()}
    assert (counts.total, counts.gone) == (Kills(5, 2), Kills(3, 1))
    assert counts.cgroup.endswith(f"/{tmp_path.stat().st_ino}")


def test_the_counts_are_those_of_the_first_cgroup_that_is_there(tmp_path: Path) -> None:
    for name, text in (("first", "oom_kill many\n"), ("second", "oom_kill 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.events").write_text(text)
    names = ("missing", "first", "second")
    counts = first_counts(tmp_path / name for name in names)
    assert counts is not None
    assert counts.total == Kills(2)
    assert first_counts([tmp_path / "missing"]) is None


def test_a_record_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "pod").write_text("no folder")
    with structlog.testing.capture_logs() as logs:
        save_record(tmp_path / "pod", LEDGER)
    assert [entry["event"] for entry in logs] == ["OOM kill record write failed"]


def test_counts_that_change_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([{}, {"a": Kills(1)}, {"a": Kills(1)}, {"a": Kills(1)}])
    cgroup(tmp_path, 1)
    monkeypatch.setattr(oom_files, "_read_below", lambda _: next(seen))
    counts = read_counts(tmp_path)
    assert counts is not None
    assert (counts.below, counts.gone) == ({"a": Kills(1)}, Kills())


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_record(tmp_path, LEDGER)
    assert load_record(tmp_path) == LEDGER
    assert [each.name for each in tmp_path.iterdir()] == [RECORD]


def test_a_pod_without_a_folder_has_no_record(tmp_path: Path) -> None:
    save_record(tmp_path / "gone", LEDGER)
    assert load_record(tmp_path / "gone") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff", b"[]", b"7", b"{}", b"[" * 100_000),
        b'{"kills": "x", "groups": 0, "containers": []}',
        b'{"kills": 1, "groups": 0, "containers": 5, "cgroup": ""}',
        b'{"kills": 1e308, "groups": 0, "containers": [], "cgroup": ""}',
        b'{"kills": 1e400, "groups": 0, "containers": [], "cgroup": "\\ud800"}',
    ],
)
def test_a_record_that_is_none_is_told_of_and_counts_for_nothing(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / RECORD).write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        assert load_record(tmp_path) is None
    assert [entry["event"] for entry in logs] == ["OOM kill record read failed"]
