import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_kubelet.k8s import HostPathVolumeSource, Pod, Volume
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.volumes.host_path import HostPath
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError
from trio_kubelet.volumes.resolved import resolve_own

POD = Pod()


async def set_up(path: Path | str, kind: str | None) -> MountedVolume:
    volume = Volume(name="v", host_path=HostPathVolumeSource(path=str(path), type=kind))
    return await HostPath(FairLimiter(1, 1)).set_up(POD, resolve_own(volume))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A folder with one of each kind of file, with the umask of services."""
    umask = os.umask(0o022)
    (tmp_path / "Directory").mkdir()
    (tmp_path / "File").touch()
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(tmp_path)
        server.bind("Socket")
        os.chdir(here)
    (tmp_path / "CharDevice").symlink_to("/dev/null")
    yield tmp_path
    os.umask(umask)


KINDS = {
    "Directory": "directory",
    "File": "file",
    "Socket": "socket file",
    "CharDevice": "character device",
    "BlockDevice": "block device",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("present", ["Directory", "File", "Socket", "CharDevice", "absent"])
async def test_what_is_at_the_path_must_be_of_the_type(node: Path, kind: str, present: str) -> None:
    path = node / present
    if kind == present:
        assert await set_up(path, kind) == MountedVolume(name="v", host_path=str(path))
        return
    with pytest.raises(VolumeError) as caught:
        await set_up(path, kind)
    assert str(caught.value) == (
        'MountVolume.SetUp failed for volume "v" : '
        f"hostPath type check failed: {path} is not a {KINDS[kind]}"
    )


async def test_without_a_type_nothing_is_checked(node: Path) -> None:
    assert (await set_up(node / "absent", None)).host_path == str(node / "absent")
    assert (await set_up(node / "absent", "")).host_path == str(node / "absent")


async def test_a_missing_folder_is_made_with_those_above_it(node: Path) -> None:
    await set_up(node / "new" / "folder", "DirectoryOrCreate")
    assert stat.S_IMODE((node / "new" / "folder").stat().st_mode) == 0o755


async def test_a_missing_file_is_made_but_not_the_folder_it_is_in(node: Path) -> None:
    await set_up(node / "new", "FileOrCreate")
    assert stat.S_IMODE((node / "new").stat().st_mode) == 0o644
    with pytest.raises(VolumeError, match="No such file or directory"):
        await set_up(node / "absent" / "file", "FileOrCreate")


@pytest.mark.parametrize(
    ("kind", "there"), [("DirectoryOrCreate", "File"), ("FileOrCreate", "Directory")]
)
async def test_what_is_there_is_not_replaced(node: Path, kind: str, there: str) -> None:
    with pytest.raises(VolumeError, match="hostPath type check failed"):
        await set_up(node / there, kind)


async def test_a_path_that_no_kernel_takes_is_told_in_words() -> None:
    with pytest.raises(VolumeError, match=r"null (byte|character)"):
        await set_up("/etc\0", "Directory")


async def test_unknown_types_and_steps_back_are_refused(node: Path) -> None:
    with pytest.raises(VolumeError, match="Folder is an invalid volume type"):
        await set_up(node, "Folder")
    with pytest.raises(VolumeError, match="must not contain"):
        await set_up("/etc/../root", "Directory")
