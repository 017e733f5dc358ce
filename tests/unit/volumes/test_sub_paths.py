"""Sub-paths of a volume whose server does not answer, with a file system that truly hangs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define

from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.tasks.fair_limiter import ALL_PODS, FairLimiter
from trio_kubelet.volumes.mount import mount, unmount
from trio_kubelet.volumes.sub_paths import bind_sub_path

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and FUSE"
)


@define
class SilentServer:
    """A FUSE file system whose server answers nothing, until it is gone."""

    path: Path
    connection: int

    def end(self) -> None:
        """End the server: whoever waits for it is told so."""
        if self.connection >= 0:
            os.close(self.connection)
            self.connection = -1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SilentServer]:
    path = tmp_path / "volume"
    path.mkdir()
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mount("silent", path, "fuse", options=f"fd={connection},rootmode=40000,user_id=0,group_id=0")
    server = SilentServer(path, connection)
    yield server
    server.end()
    unmount(path)


async def test_a_look_that_hangs_holds_up_no_end_and_binds_nothing_afterwards(
    server: SilentServer, tmp_path: Path
) -> None:
    limiter, target = FairLimiter(1, 1), tmp_path / "target"
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            share = limiter.share(ALL_PODS)
            nursery.start_soon(bind_sub_path, share, server.path, "folder", target)
            await trio.testing.wait_all_tasks_blocked(0.1)
            nursery.cancel_scope.cancel()
        assert limiter.held == 1, "the thread still waits for the server"
        server.end()
        while limiter.held:
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert not target.exists()
    assert not is_mounted(target)


async def test_what_is_found_too_late_is_closed(tmp_path: Path) -> None:
    (tmp_path / "volume/folder").mkdir(parents=True)
    share, target = FairLimiter(1, 1).share(ALL_PODS), tmp_path / "target"
    before = descriptors()
    for _ in range(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bind_sub_path, share, tmp_path / "volume", "folder", target)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    await share.run_sync(lambda: None)
    await bind_sub_path(share, tmp_path / "volume", "folder", target)
    unmount(target)
    assert descriptors() <= before + 1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
