"""A container swaps folders for symlinks while subPaths of its volume are bound.

No bind mount may ever be of something outside the volume, and nothing may be made there. The
volume is a file system of its own here, so that a bound file tells where it is from.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from lab.agent import Json, pod_manifest
from tests.integration import swapper
from tests.integration.pods import Node, is_over, shell
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.volumes.mount import mount, unmount
from trio_kubelet.volumes.sub_paths import bind_sub_path

TRIES = 1000
MOST_TRIES = 500 * TRIES
SUB_PATHS = ("one/inner", "one/file", "one/made/{}", "two/inner", "hop", "hop/made/{}")
VICTIMS = 6

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@contextmanager
def swapped(one: Path, other: Path) -> Iterator[None]:
    """Two paths change places in a tight loop, in a process of its own."""
    command = [sys.executable, swapper.__file__, str(one), str(other)]
    with subprocess.Popen(command) as process:
        try:
            yield
            assert process.poll() is None, "the swapper has ended"
        finally:
            process.kill()


def folder_with_content(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "file").touch()
    return folder


def content(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def bind(volume: Path, sub_path: str, target: Path) -> None:
    """Bind a path of a volume, as the agent does. Raises OSError."""
    trio.run(bind_sub_path, FairLimiter(1, 1).share(""), volume, sub_path, target)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A volume with two folders, and symlinks out of it that are to take their places."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount("tmpfs", volume, "tmpfs")
    for name in ("one", "two"):
        folder_with_content(volume / name)
    (volume / "hop").symlink_to("two/../two/inner")
    (volume / "absolute").symlink_to(tmp_path / "outside")
    (volume / "relative").symlink_to("../outside")
    yield volume
    unmount(volume)


@needs_root
def test_no_sub_path_leads_out_of_a_volume_whose_folders_are_swapped_for_symlinks(
    volume: Path, tmp_path: Path
) -> None:
    outside = folder_with_content(tmp_path / "outside")
    before, device = content(outside), volume.stat().st_dev
    target = tmp_path / "target" / "0"
    came_to: Counter[tuple[str, bool]] = Counter()

    def attempt(sub_path: str) -> bool:
        """Bind a path; False if it was refused."""
        try:
            bind(volume, sub_path, target)
        except OSError:
            return False
        assert target.stat().st_dev == device, sub_path
        unmount(target)
        return True

    with (
        swapped(volume / "one", volume / "absolute"),
        swapped(volume / "two", volume / "relative"),
    ):
        # The swappers have their turns when the machine likes: until each path came to both.
        while came_to.total() < TRIES or len(came_to) < 2 * len(SUB_PATHS):
            assert came_to.total() < MOST_TRIES, came_to
            for sub_path in SUB_PATHS:
                came_to[sub_path, attempt(sub_path.format(came_to.total()))] += 1
    assert content(outside) == before


@needs_root
def test_a_sub_path_is_bound_while_others_rename_what_they_like(
    volume: Path, tmp_path: Path
) -> None:
    others = [folder_with_content(tmp_path / "others" / str(number)) for number in range(4)]
    target = tmp_path / "target" / "0"
    with ExitStack() as stack:
        for one, other in zip(others[::2], others[1::2], strict=True):
            stack.enter_context(swapped(one, other))
        for _ in range(TRIES):
            bind(volume, "hop", target)
            unmount(target)


def test_no_container_starts_with_a_sub_path_outside_beside_one_that_swaps_it(
    node: Node, tmp_path: Path
) -> None:
    outside = folder_with_content(tmp_path / "outside")
    (outside / "inner" / "secret").touch()
    before = content(outside)
    swap = f"""
mkdir -p /all/one/inner
while :; do
  mv /all/one /all/aside; ln -s {outside} /all/one
  rm /all/one; mv /all/aside /all/one
done
"""

    def victim(number: int) -> Json:
        look = "if [ -e /part/secret ]; then echo outside; else echo inside; fi"
        path = ("one/inner", f"one/made-{number}")[number % 2]
        mounts = [{"name": "v", "mountPath": "/part", "subPath": path}]
        return shell(f"victim-{number}", look, volumeMounts=mounts)

    all_of_it = {"volumeMounts": [{"name": "v", "mountPath": "/all"}]}
    pod = pod_manifest(
        "races",
        *map(victim, range(VICTIMS)),
        initContainers=[shell("swaps", swap, restartPolicy="Always", **all_of_it)],
        volumes=[{"name": "v", "emptyDir": {}}],
        restartPolicy="OnFailure",
    )
    node.add(pod)
    ended = node.wait("races", is_over)
    for number in range(VICTIMS):
        assert node.output(ended, f"victim-{number}") == ["inside"]
    assert content(outside) == before
    node.remove("races")
    node.wait_gone("races")
