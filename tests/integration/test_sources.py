"""Static pods from real places: folders that are mounted over, a server on a socket."""

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.sources import ManifestContext, watch_manifest_files, watch_manifest_url
from trio_kubelet.sources.manifest_source import SendPods
from trio_kubelet.sources.manifests import adopt_running
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal
from trio_kubelet.volumes.mount import mount, unmount

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 60


def manifest(name: str) -> str:
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"
        "spec: {containers: [{name: c, image: busybox}]}\n"
    )


class Sets:
    """The sets of pods that a source sent."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[Pod, ...]](1000)

    @property
    def send(self) -> SendPods:
        return self._send.send

    async def until(self, *names: str) -> None:
        """Wait for the set of exactly these pods."""
        with trio.fail_after(DEADLINE_SECONDS):
            async for pods in self._receive:
                if [pod.metadata.name.removesuffix("-n") for pod in pods] == list(names):
                    return


@asynccontextmanager
async def folder_watched(
    folder: Path, kept: Path, threads: trio.CapacityLimiter | None = None
) -> AsyncIterator[Sets]:
    sets = Sets()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await watch_manifest_files(
                folder,
                sets.send,
                ManifestContext(
                    node_name="n",
                    kept_folder=kept,
                    adopt=lambda: adopt_running(()),
                    journal=Journal(SystemClock()),
                    limiter=threads or trio.CapacityLimiter(1),
                ),
            )

        nursery.start_soon(watch)
        yield sets
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_file_system_mounted_over_the_folder_is_noticed_when_it_goes(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "below.yaml").write_text(manifest("below"))
    mount("tmpfs", folder, "tmpfs")
    (folder / "above.yaml").write_text(manifest("above"))
    async with folder_watched(folder, tmp_path / "kept") as sets:
        await sets.until("above")
        unmount(folder)
        await sets.until("below")
        (folder / "more.yaml").write_text(manifest("more"))
        await sets.until("below", "more")


async def test_a_burst_of_changes_ends_in_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    async with folder_watched(folder, tmp_path / "kept") as sets:
        await sets.until()
        for number in range(200):
            (folder / f"{number:03}.yaml").write_text(manifest(f"p{number}"))
        await sets.until(*(f"p{number}" for number in range(200)))
        for number in range(1, 200):
            (folder / f"{number:03}.yaml").unlink()
        await sets.until("p0")


async def test_a_folder_of_links_swapped_as_kubernetes_does_it(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    for version in ("..1", "..2"):
        (folder / version).mkdir(parents=True)
        (folder / version / "pod.yaml").write_text(manifest(f"v{version[-1]}"))
    (folder / "..data").symlink_to("..1")
    (folder / "pod.yaml").symlink_to("..data/pod.yaml")
    async with folder_watched(folder, tmp_path / "kept") as sets:
        await sets.until("v1")
        (folder / "..next").symlink_to("..2")
        (folder / "..next").rename(folder / "..data")
        await sets.until("v2")


async def test_no_thread_outlives_the_watch(tmp_path: Path) -> None:
    threads = trio.CapacityLimiter(1)
    async with folder_watched(tmp_path / "manifests", tmp_path / "kept", threads) as sets:
        await sets.until()
    with trio.fail_after(DEADLINE_SECONDS):
        async with threads:
            pass


class _Answers(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        if self.path == "/old":
            self.send_response(302)
            self.send_header("Location", "/pods")
            self.end_headers()
            return
        if self.headers["X-Token"] != "secret":
            self.send_error(403)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http_server(port: int = 0) -> Iterator[tuple[int, type[_Answers]]]:
    class Answers(_Answers):
        pass

    with ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], Answers
        finally:
            server.shutdown()
            thread.join()


async def test_pods_come_from_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    sets = Sets()
    async with trio.open_nursery() as nursery:
        with http_server() as (port, answers):
            answers.body = manifest("web").encode()

            async def watch() -> None:
                await watch_manifest_url(
                    f"http://127.0.0.1:{port}/old",
                    sets.send,
                    ManifestContext(
                        node_name="n",
                        kept_folder=tmp_path / "kept",
                        adopt=lambda: adopt_running(()),
                        journal=Journal(SystemClock()),
                    ),
                    headers={"X-Token": ("secret",)},
                    check_seconds=0.02,
                )

            nursery.start_soon(watch)
            await sets.until("web")
            answers.body = manifest("other").encode()
            await sets.until("other")
        with http_server(port) as (_, answers):
            answers.body = manifest("back").encode()
            await sets.until("back")
        nursery.cancel_scope.cancel()
