# ruff: noqa: ASYNC240 - the tests look at the disk themselves
"""Names of volumes, handles and paths with line breaks, spaces, dots and hundreds of letters.

The API server keeps such names from most objects, but not from those of static pods, of handles,
of subPaths, nor of the paths of the machine.
"""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from attrs import evolve

from lab.csi_driver import STAGES, LabDriver
from state_machines.backoff import BackoffPolicy
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import EPHEMERAL, UID, Scene, a_pod, an_agent, claiming, describe
from trio_kubelet.k8s import EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume, VolumeMount
from trio_kubelet.kernel.mountinfo import mount_points, mounts_at_or_below
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import back_offs
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.plugin import VolumeError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

ODD = {
    "line_breaks": "a\nb\r\nc\n36 35 98:0 / /etc rw - tmpfs tmpfs rw",
    "spaces": " a  b\t ",
    "dots": "..a/../..b",
    "escapes": "\\040\\012#%2e%2e",
    "not_ascii": "ä\u202e\u2028😀",
    "option": "-o ro --help",
}
LONG = "x" * 250


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery, privileged=True)
            (scene.root / "precious").mkdir()
            (scene.root / "precious/data").write_text("kept")
        yield scene
        nursery.cancel_scope.cancel()
    assert (scene.root / "precious/data").read_text() == "kept"
    for each in mounts_at_or_below(scene.root.resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    monkeypatch.setattr(back_offs, "RETRY", policy)


class NumberingDriver(LabDriver):
    """A driver that names no file after a volume."""

    def data(self, volume: str) -> Path:
        return super().data(hashlib.sha256(volume.encode()).hexdigest())


def left(scene: Scene) -> list[Path]:
    """The folders of pods and the mounts that are left."""
    mounts = mounts_at_or_below(scene.root.resolve(), mount_points())
    return [*(scene.root / "pods").glob("*"), *(each.path for each in mounts)]


def is_staged(scene: Scene) -> bool:
    """True if there is a record of a volume that is staged, or a folder goes at this moment."""
    try:
        return any(each.is_file() for each in (scene.root / "plugins").rglob("*"))
    except FileNotFoundError:
        return True


async def until_unused(scene: Scene) -> None:
    with trio.fail_after(60):
        while is_staged(scene):
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("handle", [*ODD.values(), "../" * 60 + "precious", "x" * 4000])
async def test_a_handle_of_a_driver_may_be_any_text(scene: Scene, handle: str) -> None:
    describe(scene, volume_handle=handle)
    staged = scene.root / "plugins/kubernetes.io/csi"
    async with scene.driver(NumberingDriver, capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
        (stage,) = driver.staged()
        assert Path(stage).is_relative_to(staged)
        assert ".." not in Path(stage).parts
        # The next agent finds by the records whose volume it is.
        volumes = await an_agent(scene)
        await volumes.remove_pod(UID)
        await until_unused(scene)
        assert driver.published() == driver.staged() == []
    assert left(scene) == []


@pytest.mark.parametrize("as_device", [False, True])
async def test_a_persistent_volume_may_have_the_longest_name(scene: Scene, as_device: bool) -> None:
    name, uid = "a." + 251 * "x", "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
    mode = "Block" if as_device else "Filesystem"
    describe(scene, volume={"volume_mode": mode}, volume_name=name)
    async with scene.driver(NumberingDriver, capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(claiming(uid, as_device=as_device))
        assert len(driver.published()) == 1
        volumes = await an_agent(scene)
        await volumes.remove_pod(uid)
        await until_unused(scene)
        assert driver.published() == driver.staged() == []
    assert left(scene) == []


@pytest.mark.parametrize("name", [*ODD, "long"])
async def test_a_path_of_the_machine_may_have_any_name(scene: Scene, name: str) -> None:
    """As a hostPath, and with a subPath of such a name in it."""
    odd = LONG if name == "long" else ODD[name].replace("/", "-")
    folder = scene.root / f"of {odd}"
    (folder / odd).mkdir(parents=True)
    (folder / odd / "data").write_text("found")
    pod = with_volume(Volume(name="h", host_path=HostPathVolumeSource(path=str(folder))))
    volumes = scene.agent()
    host = (await volumes.prepare(pod))["h"]
    bound = Path(await volumes.bind_sub_path(pod, host, "c", 0, odd))
    assert (bound / "data").read_text() == "found"
    made = Path(await volumes.bind_sub_path(pod, host, "c", 1, f"{odd}/made/{odd}"))
    (made / "new").touch()
    assert (folder / odd / "made" / odd / "new").exists()
    await volumes.remove_pod(UID)
    assert left(scene) == []
    assert (folder / odd / "data").read_text() == "found"


@pytest.mark.parametrize("name", [*ODD, "long"])
async def test_what_is_mounted_under_any_name_is_unmounted_with_its_pod(
    scene: Scene, name: str
) -> None:
    """The folder of the agent, the volume, and what a container has mounted in it."""
    odd = LONG if name == "long" else ODD[name].replace("/", "-")
    scene.root = scene.root / odd
    (scene.root / "precious").mkdir(parents=True)
    (scene.root / "precious/data").write_text("kept")
    memory = EmptyDirVolumeSource(medium="Memory")
    pod = with_volume(Volume(name="m", empty_dir=memory))
    volumes = scene.agent()
    volume = (await volumes.prepare(pod))["m"]
    await volumes.bind_sub_path(pod, volume, "c", 0, odd)
    assert len(mounts_at_or_below(scene.root.resolve(), mount_points())) == 2
    await volumes.remove_pod(UID)
    assert left(scene) == []


@pytest.mark.parametrize("path", ["x" * 256, "a/" * 3000, "\0", "..", "a/../..", "/etc"])
async def test_a_sub_path_that_no_file_can_have_is_told_of(scene: Scene, path: str) -> None:
    pod = with_volume(Volume(name="e", empty_dir=EmptyDirVolumeSource()))
    volumes = scene.agent()
    volume = (await volumes.prepare(pod))["e"]
    with pytest.raises(VolumeError, match="failed to prepare subPath: "):
        await volumes.bind_sub_path(pod, volume, "c", 0, path)
    await volumes.remove_pod(UID)
    assert left(scene) == []


async def test_a_volume_of_a_driver_whose_agent_has_an_odd_folder(scene: Scene) -> None:
    scene.root = scene.root / "a\n b\\040"
    (scene.root / "precious").mkdir(parents=True)
    (scene.root / "precious/data").write_text("kept")
    scene.describe(EPHEMERAL)
    async with scene.driver(mounts=True) as driver:
        await scene.agent().prepare(a_pod())
        assert Path(scene.target).is_mount()
        # It knows by the table of mounts that the volume is published.
        volumes = scene.agent()
        await volumes.prepare(a_pod())
        assert len(driver.published()) == 1
        await volumes.remove_pod(UID)
        assert driver.published() == []
    assert left(scene) == []


def with_volume(volume: Volume) -> Pod:
    pod = a_pod()
    (container,) = pod.spec.containers
    mounts = (VolumeMount(name=volume.name, mount_path="/v"),)
    containers = (evolve(container, volume_mounts=mounts),)
    return evolve(pod, spec=evolve(pod.spec, containers=containers, volumes=(volume,)))
