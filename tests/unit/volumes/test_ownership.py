# ruff: noqa: ASYNC240 - the tests look at the disk themselves
"""The files of a volume are given to the pod's group, and nothing beside them."""

import os
import stat
from pathlib import Path

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.trio_clock import TrioClock
from tests.turns import making_test_data
from trio_kubelet.k8s import ObjectMeta, Pod, PodSecurityContext, PodSpec
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.volumes import ownership
from trio_kubelet.volumes.ownership import GroupAccess, VolumeOwnership
from trio_kubelet.volumes.safe_open import remove_tree

GROUP = 4321

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")


def pod(policy: str = "", group: int | None = GROUP) -> Pod:
    context = PodSecurityContext(fs_group=group, fs_group_change_policy=policy)
    metadata = ObjectMeta(name="p", namespace="shop", uid="u1")
    return Pod(metadata=metadata, spec=PodSpec(security_context=context))


def owner(recorder: EventRecorder | None = None) -> VolumeOwnership:
    return VolumeOwnership(FairLimiter(2, 2), recorder)


def shown(path: Path) -> tuple[int, str]:
    status = path.lstat()
    return status.st_gid, oct(stat.S_IMODE(status.st_mode))


@define
class Look:
    """Counts the entries of a folder that belong to the group; `changed` are the counts so far."""

    folder: Path
    changed: list[int] = field(factory=list)

    def __call__(self) -> int:
        self.changed.append(sum(each.stat().st_gid == GROUP for each in self.folder.iterdir()))
        return self.changed[-1]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A folder with a folder, files in both, and a link to a file outside."""
    root = tmp_path / "volume"
    (root / "inner").mkdir(parents=True)
    root.chmod(0o755)
    (root / "inner").chmod(0o700)
    (tmp_path / "outside").touch(0o600)
    (root / "link").symlink_to(tmp_path / "outside")
    for name, mode in (("plain", 0o600), ("inner/tool", 0o4755)):
        (root / name).touch()
        (root / name).chmod(mode)
    return root


async def test_group_and_permissions_of_all_that_is_in_a_volume(volume: Path) -> None:
    await owner().give(pod(), volume, "v")
    assert shown(volume) == (GROUP, "0o2775")
    assert shown(volume / "inner") == (GROUP, "0o2770")
    assert shown(volume / "plain") == (GROUP, "0o660")
    assert shown(volume / "inner/tool") == (GROUP, "0o4775")
    assert (volume / "link").lstat().st_gid == GROUP
    assert shown(volume.parent / "outside") == (0, "0o600")


async def test_more_folders_than_are_kept_in_mind_are_all_changed(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "FOLDERS_AT_ONCE", 3)
    paths = [volume / f"f{number}" / f"g{inner}" for number in range(10) for inner in range(5)]
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
        (path / "file").touch()
    await owner().give(pod(), volume, "v")
    everything = [*paths, *volume.iterdir(), *(path / "file" for path in paths)]
    assert {each.lstat().st_gid for each in everything} == {GROUP}
    kept = ownership._FirstNames()
    for number in range(100):
        kept.add(f"{number:03}")
        assert len(kept.names) < 2 * 3
    assert kept.folders() == ownership._Folders(["002", "001", "000"], "002", has_more=True)


async def test_a_pod_without_a_group_leaves_a_volume_as_it_is(volume: Path) -> None:
    before = shown(volume)
    await owner().give(pod(group=None), volume, "v")
    assert shown(volume) == before


async def test_a_root_that_fits_spares_the_walk(volume: Path) -> None:
    access = GroupAccess(group=GROUP)
    os.chown(volume, -1, GROUP)
    volume.chmod(access.mode(volume.stat().st_mode))
    await owner().give(pod("OnRootMismatch"), volume, "v")
    assert (volume / "plain").stat().st_gid == 0
    await owner().give(pod("Always"), volume, "v")
    assert (volume / "plain").stat().st_gid == GROUP


async def test_a_root_that_does_not_fit_has_all_changed(volume: Path) -> None:
    await owner().give(pod("OnRootMismatch"), volume, "v")
    assert (volume / "inner/tool").stat().st_gid == GROUP


async def test_a_walk_that_was_cut_short_leaves_a_root_that_does_not_fit(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (volume / f"inner/{number}").touch()
    monkeypatch.setattr(ownership, "FILES_IN_A_PIECE", 10)
    with trio.CancelScope() as scope:
        scope.cancel()
        await owner().give(pod(), volume, "v")
    assert volume.stat().st_gid == 0
    await owner().give(pod("OnRootMismatch"), volume, "v")
    assert (volume / "inner/49").stat().st_gid == GROUP


async def test_others_have_their_turn_while_the_folders_of_a_large_one_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with making_test_data():
        for number in range(200):
            (tmp_path / f"{number}").mkdir()
    monkeypatch.setattr(ownership, "FILES_IN_A_PIECE", 10)
    limiter = FairLimiter(1, 1)
    async with trio.open_nursery() as nursery, limiter.share("shop", "first"):
        nursery.start_soon(VolumeOwnership(limiter).give, pod(), tmp_path, "v")
        await wait_all_tasks_blocked()
        nursery.start_soon(limiter.share("shop", "other").run_sync, look := Look(tmp_path))
        await wait_all_tasks_blocked()
    assert look.changed == [0]
    with making_test_data():
        assert Look(tmp_path)() == 200


async def test_a_tree_deeper_than_any_path_is_walked_with_one_descriptor(tmp_path: Path) -> None:
    with making_test_data():
        folder = os.open(tmp_path, os.O_RDONLY)
        for _ in range(3000):
            os.mkdir("d", dir_fd=folder)
            below = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = below
    await owner().give(pod(), tmp_path, "v")
    assert os.fstat(folder).st_gid == GROUP
    os.close(folder)
    with making_test_data():
        remove_tree(tmp_path / "d")  # pytest's own removal does not go so deep.


async def test_long_walks_are_told_of(
    volume: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    recorder = EventRecorder(Journal(TrioClock()), "node")
    recorder.on_event.add(lambda event: told.append((event.reason, event.message)))
    monkeypatch.setattr(ownership, "FILES_IN_A_PIECE", 1)
    async with trio.open_nursery() as nursery:
        limiter = FairLimiter(1, 1)
        async with limiter.share("shop", "another"):
            slow = VolumeOwnership(limiter, recorder)
            nursery.start_soon(slow.give, pod(), volume, "u1/volumes/v")
            await trio.sleep(100)
    reasons = {reason for reason, _ in told}
    assert reasons == {"VolumePermissionChangeInProgress"}
    first, second = (message for _, message in told)
    assert first.startswith("Setting volume ownership for u1/volumes/v is taking longer than")
    assert second == "Setting volume ownership for u1/volumes/v, processed 0 files."
    assert (volume / "plain").stat().st_gid == GROUP
