"""Mounts in a pod's folders that have others on them: found in one pass, however many there are."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.kernel.mountinfo import MountPoint
from trio_kubelet.volumes import unmounting

MOST_MOUNTS = 4096
"""Of the containers of a pod."""

paths = st.lists(st.sampled_from("ab"), max_size=4).map(lambda parts: Path("/pod", *parts))


def mounted(path: Path, peer_group: int) -> MountPoint:
    return MountPoint(path=path, fs_type="ext4", peer_group=peer_group)


def one_by_one(inside: Sequence[MountPoint]) -> list[tuple[MountPoint, bool]]:
    """The same by comparing each mount with all newer ones."""
    found = []
    for position, each in enumerate(inside):
        newer = [other.path for other in inside[:position]]
        if each.is_shared and any(path.is_relative_to(each.path) for path in newer):
            found.append((each, each.path in newer))
    return found


@given(st.lists(st.builds(mounted, paths, st.integers(0, 2)), max_size=8))
def test_a_shared_mount_is_covered_by_a_newer_one_at_or_below_its_path(
    inside: list[MountPoint],
) -> None:
    assert list(unmounting._covered(inside)) == one_by_one(inside)


def test_none_of_a_pods_thousands_of_mounts_is_compared_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path("/pod/volume-subpaths/v/c")
    inside = [mounted(folder / str(number), peer_group=1) for number in range(MOST_MOUNTS)]

    def compare(*_: object) -> bool:
        raise AssertionError("mounts are compared with each other")

    monkeypatch.setattr(MountPoint, "__eq__", compare)
    monkeypatch.setattr(Path, "is_relative_to", compare)
    unmounting._leave_peers(inside, Path("/pod"), Path("/stages"))
