"""The lab's own promises: what the other integration tests stand on."""

import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio

from lab import LabError, instances
from lab.containerd import Containerd
from lab.host import mounts_below
from lab.images import SLEEPER, WEB
from lab.ports import free_port
from lab.processes import alive, command_lines, rooted_below, wait_until
from lab.registry import PASSWORD, USER, Registry
from trio_kubelet.rpc import Channel, RpcError, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient

DEADLINE_SECONDS = 120


@pytest.fixture
async def runtime(containerd: Containerd) -> AsyncIterator[RuntimeClient]:
    async with open_rpc_loop():
        with client(containerd) as runtime:
            yield runtime


@pytest.fixture
def own(containerd: Containerd, tmp_path: Path) -> Containerd:
    """Another instance of the same version, not started yet."""
    return Containerd(containerd.wish, tmp_path / "own")


@contextmanager
def client(containerd: Containerd) -> Iterator[RuntimeClient]:
    with closing(Channel(containerd.endpoint)) as channel:
        yield RuntimeClient(channel)


async def run_pod(runtime: RuntimeClient, name: str, image: str, host_port: int = 0) -> str:
    """Returns the sandbox's id; its one container runs."""
    ports = [cri.PortMapping(container_port=80, host_port=host_port)] if host_port else []
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, namespace="lab", uid=name),
        port_mappings=ports,
        linux=cri.LinuxPodSandboxConfig(),
    )
    sandbox = await runtime.run_pod_sandbox(config)
    container = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"), image=cri.ImageSpec(image=image)
    )
    await runtime.start_container(await runtime.create_container(sandbox, container, config))
    return sandbox


async def remove_pod(runtime: RuntimeClient, sandbox: str) -> None:
    await runtime.stop_pod_sandbox(sandbox)
    await runtime.remove_pod_sandbox(sandbox)


async def ip_of(runtime: RuntimeClient, sandbox: str) -> str:
    network = (await runtime.pod_sandbox_status(sandbox)).status.network
    assert network is not None
    return network.ip


async def fetch(address: str) -> str:
    """The page at the address, as soon as its server listens."""
    pages: list[str] = []

    def answered() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=DEADLINE_SECONDS) as answer:
                pages.append(answer.read().decode())
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
        return bool(pages)

    def wait() -> None:
        wait_until(
            answered, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: f"{address} refuses"
        )

    await trio.to_thread.run_sync(wait)
    return pages[0]


def interfaces() -> set[str]:
    return {entry.name for entry in Path("/sys/class/net").iterdir()}


async def test_a_pod_serves_its_page_on_its_address_and_on_a_host_port(
    runtime: RuntimeClient,
) -> None:
    port = free_port()
    sandbox = await run_pod(runtime, "web", WEB, host_port=port)
    assert "Hello from a pod" in await fetch(await ip_of(runtime, sandbox))
    assert "Hello from a pod" in await fetch(f"127.0.0.1:{port}")
    await remove_pod(runtime, sandbox)


async def test_containers_run_on_while_containerd_is_killed_and_comes_back(
    containerd: Containerd, runtime: RuntimeClient
) -> None:
    sandbox = await run_pod(runtime, "survivor", WEB)
    address = await ip_of(runtime, sandbox)
    before = [container.id for container in await runtime.list_containers()]
    await trio.to_thread.run_sync(containerd.kill)
    assert containerd.pid is None
    assert "Hello from a pod" in await fetch(address)
    await trio.to_thread.run_sync(containerd.restart)
    listed = await runtime.list_containers()
    assert [container.id for container in listed] == before
    assert all(container.state == cri.ContainerState.CONTAINER_RUNNING for container in listed)
    await remove_pod(runtime, sandbox)


async def test_two_instances_do_not_meet_and_one_that_stops_leaves_nothing(
    containerd: Containerd, runtime: RuntimeClient, own: Containerd
) -> None:
    port = free_port()
    neighbour = await run_pod(runtime, "neighbour", WEB, host_port=port)
    await trio.to_thread.run_sync(own.start)
    network = own.network
    assert network.subnet != containerd.network.subnet
    assert network.bridge != containerd.network.bridge
    with client(own) as leaves:
        await run_pod(leaves, "first", SLEEPER)
        second = await run_pod(leaves, "second", WEB, host_port=free_port())
        assert "Hello from a pod" in await fetch(await ip_of(leaves, second))
    assert network.bridge in interfaces()
    await trio.to_thread.run_sync(own.stop)

    assert not [argv for _, argv in command_lines() if str(own.socket) in argv]
    assert mounts_below(own.folder) == ()
    assert network.bridge not in interfaces()
    assert not (own.folder / "run").exists()
    assert not (own.folder / "root").exists()
    assert not own.socket.exists()
    assert "Hello from a pod" in await fetch(await ip_of(runtime, neighbour))
    assert "Hello from a pod" in await fetch(f"127.0.0.1:{port}")
    await remove_pod(runtime, neighbour)


async def test_a_folder_has_one_owner(containerd: Containerd) -> None:
    with pytest.raises(LabError, match="another process runs a containerd"):
        await trio.to_thread.run_sync(Containerd(containerd.wish, containerd.folder).start)


async def test_what_a_killed_owner_left_behind_is_swept(
    runtime: RuntimeClient, own: Containerd
) -> None:
    command = ["-m", "lab", "containerd", "--version", own.wish, "--state", str(own.folder)]
    owner = await trio.lowlevel.open_process(
        [sys.executable, *command], stdout=subprocess.PIPE, start_new_session=True
    )
    assert owner.stdout is not None
    said = b""
    with trio.fail_after(DEADLINE_SECONDS):
        while b"images" not in said:
            said += await owner.stdout.receive_some()
    with client(own) as orphaned:
        await run_pod(orphaned, "orphan", SLEEPER)
    left = [pid for pid, argv in command_lines() if str(own.socket) in argv]
    contained = rooted_below(own.folder / "root")
    # As if containerd had been killed before it knew of them.
    await trio.to_thread.run_sync(shutil.rmtree, own.folder / "run" / "runc")
    owner.send_signal(signal.SIGKILL)
    await owner.wait()

    await trio.to_thread.run_sync(instances.sweep)

    assert left
    assert contained
    assert not any(map(alive, (*left, *contained)))
    assert mounts_below(own.folder) == ()


async def test_the_registry_serves_moves_tags_goes_away_and_comes_back(
    containerd: Containerd, runtime: RuntimeClient, registry: Registry
) -> None:
    web = containerd.images[WEB]
    image = cri.ImageSpec(image=registry.push(web.marked("first"), "lab/page:1"))
    first = await runtime.pull_image(image)
    registry.push(web.marked("second"), "lab/page:1")
    second = await runtime.pull_image(image)
    assert first != second

    registry.stop()
    with pytest.raises(RpcError, match="refused"):
        await runtime.pull_image(image)
    await trio.to_thread.run_sync(registry.start)
    assert await runtime.pull_image(image) == second


async def test_a_registry_with_a_login_asks_for_it(
    containerd: Containerd, runtime: RuntimeClient, tmp_path: Path
) -> None:
    with Registry(tmp_path / "registry", login=True) as registry:
        registry.serve_to(containerd.registries)
        image = cri.ImageSpec(image=registry.push(containerd.images[WEB], "lab/secret:1"))
        with pytest.raises(RpcError, match=r"(?i)authoriz"):
            await runtime.pull_image(image)
        await runtime.pull_image(image, cri.AuthConfig(username=USER, password=PASSWORD))


async def test_a_frozen_registry_keeps_a_pull_waiting(
    containerd: Containerd, runtime: RuntimeClient, registry: Registry
) -> None:
    image = cri.ImageSpec(image=registry.push(containerd.images[WEB].marked("slow"), "lab/slow:1"))
    registry.freeze()
    with trio.move_on_after(0.5) as waiting:
        await runtime.pull_image(image)
    assert waiting.cancelled_caught
    registry.thaw()
    with trio.fail_after(DEADLINE_SECONDS):
        await runtime.pull_image(image)
