"""The cgroups of pods as their tasks want them, where the kernel refuses something once."""

from pathlib import Path

import pytest

from tests.unit.resources.fake_cgroups import FakeV2
from tests.unit.resources.pods import container, pod
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.errors import PreparationError
from trio_kubelet.resources import CgroupDriver, Cgroups, CgroupTree
from trio_kubelet.resources.cgroup_tree import FOLDERS_IN_A_PIECE
from trio_kubelet.resources.pod_cgroups import MemoryLimitDecrease, PodCgroups

POD = pod(container("cpu=100m"), uid="u")


async def test_a_class_whose_weight_could_not_be_written_gets_it_with_the_pods_next_try(
    tmp_path: Path,
) -> None:
    fake = FakeV2(tmp_path, "cpu memory")
    cgroups = PodCgroups(
        Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS), lambda: [POD]
    )
    weight = tmp_path / "kubepods/burstable/cpu.weight"
    weight.mkdir()
    with pytest.raises(PreparationError, match="unable to ensure pod container exists"):
        await cgroups.ensure(POD)
    weight.rmdir()
    await cgroups.ensure(POD)
    assert weight.read_text() == "17"


async def test_an_agent_that_is_started_leaves_the_weight_of_pods_that_it_does_not_know_yet(
    tmp_path: Path,
) -> None:
    classes = {"burstable": "59", "besteffort": "100"}
    fake = FakeV2(tmp_path, "cpu memory", ("kubepods", *(f"kubepods/{name}" for name in classes)))
    weights = {name: tmp_path / "kubepods" / name / "cpu.weight" for name in classes}
    for name, weight in weights.items():
        weight.write_text(classes[name])
    cgroups = Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS)
    await cgroups.start()
    assert {name: file.read_text() for name, file in weights.items()} == {
        "burstable": "59",
        "besteffort": "1",
    }
    await PodCgroups(cgroups, lambda: [POD]).ensure(POD)
    assert weights["burstable"].read_text() == "17"


async def test_what_is_done_with_cgroups_is_told_whatever_becomes_of_it(tmp_path: Path) -> None:
    fake = FakeV2(tmp_path, "cpu memory", ("kubepods", "kubepods/burstable"))
    told: list[str] = []
    cgroups = Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS)
    cgroups.on_operation.add(lambda operation, seconds: told.append(operation))
    pods = PodCgroups(cgroups, lambda: [POD])
    weight = tmp_path / "kubepods/burstable/cpu.weight"
    weight.mkdir()
    with pytest.raises(PreparationError):
        await pods.ensure(POD)
    weight.rmdir()
    await pods.ensure(POD)
    assert told == ["create", "update", "update", "update"]
    told.clear()
    for file in (tmp_path / "kubepods/burstable/podu").iterdir():
        file.unlink()
    await pods.remove("u")
    assert told == ["destroy"]


async def test_others_have_turns_while_many_cgroups_that_a_container_made_are_removed(
    tmp_path: Path,
) -> None:
    fake = FakeV2(tmp_path, "cpu memory")
    cgroups = Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS)
    folder = tmp_path / "kubepods/burstable/podu"
    for file in folder.iterdir():
        file.unlink()

    def make_many() -> None:
        for number in range(3 * FOLDERS_IN_A_PIECE):
            (folder / f"c/made-{number}").mkdir(parents=True)
        (folder / "cgroup.kill").mkdir()  # A file would stay, as a kernel's do not.

    make_many()
    pieces = list(fake.tree.removal("/kubepods/burstable/podu"))
    assert pieces == [None, None, None, True]
    make_many()
    await cgroups.remove("u")
    assert not folder.exists()


class Kernel:
    """A pod's cgroup of v2 in files, and the order in which they are written."""

    def __init__(self, root: Path, memory: str, cpu: str) -> None:
        self.fake = FakeV2(root, "cpu memory")
        self.folder = root / "kubepods/burstable/podu"
        for name, text in (("memory.max", memory), ("cpu.max", cpu), ("memory.current", "4096")):
            (self.folder / name).write_text(text)
        configuration, driver = KubeletConfiguration(), CgroupDriver.CGROUPFS
        self.cgroups = PodCgroups(Cgroups(self.fake.tree, configuration, driver=driver), list)

    @property
    def limits(self) -> tuple[str, str]:
        memory, cpu = (self.folder / name for name in ("memory.max", "cpu.max"))
        return memory.read_text(), cpu.read_text()


LIMITED = pod(container("cpu=100m", "cpu=500m memory=64Mi"), uid="u")


async def test_a_resize_raises_what_grows_first_and_sets_the_rest_at_its_end(
    tmp_path: Path,
) -> None:
    kernel = Kernel(tmp_path, memory=f"{32 << 20}", cpu="80000 100000")
    for resource in ("cpu", "memory"):
        await kernel.cgroups.grow(LIMITED, resource)
    assert kernel.limits == (f"{64 << 20}", "80000 100000")
    await kernel.cgroups.finish_resize(LIMITED, "cpu")
    assert kernel.limits == (f"{64 << 20}", "50000 100000")
    assert (kernel.folder / "cpu.weight").read_text() == "17"


async def test_a_memory_limit_that_is_lowered_is_told_with_what_is_used(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, memory=f"{128 << 20}", cpu="max 100000")
    decrease = await kernel.cgroups.memory_limit_decrease(LIMITED)
    assert decrease == MemoryLimitDecrease(limit_bytes=64 << 20, usage_bytes=4096)
    await kernel.cgroups.finish_resize(LIMITED, "cpu")
    assert await kernel.cgroups.memory_limit_decrease(LIMITED) == decrease
    await kernel.cgroups.finish_resize(LIMITED, "memory")
    assert await kernel.cgroups.memory_limit_decrease(LIMITED) is None
    assert kernel.limits == (f"{64 << 20}", "50000 100000")


async def test_a_cgroup_that_cannot_be_read_is_an_error_of_the_resize(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, memory="what", cpu="max 100000")
    with pytest.raises(PreparationError, match=r"failed to resize the cgroup of the pod: .*what"):
        await kernel.cgroups.grow(LIMITED, "cpu")
    (kernel.folder / "memory.max").unlink()
    with pytest.raises(PreparationError, match="No such file"):
        await kernel.cgroups.grow(LIMITED, "memory")


async def test_a_pod_with_cpus_of_its_own_has_no_quota(tmp_path: Path) -> None:
    fake = FakeV2(tmp_path, "cpu memory", ("kubepods",))
    limits = "cpu=1 memory=1Gi"
    for uid, quota in (("alone", "max 100000"), ("shared", "100000 100000")):
        owner = pod(container(limits, limits), uid=uid)
        cgroups = Cgroups(
            fake.tree,
            KubeletConfiguration(),
            driver=CgroupDriver.CGROUPFS,
            is_without_quota=lambda pod: pod.metadata.uid == "alone",
        )
        await PodCgroups(cgroups, tuple).ensure(owner)
        assert (tmp_path / f"kubepods/pod{uid}/cpu.max").read_text() == quota


V1_VALUES = {
    "memory/memory.limit_in_bytes": f"{64 << 20}",
    "cpu/cpu.shares": "102",
    "cpu/cpu.cfs_quota_us": "50000",
    "pids/pids.max": "77",
}
V2_VALUES = {
    "memory.max": f"{64 << 20}",
    "cpu.weight": "17",
    "cpu.max": "50000 100000",
    "pids.max": "77",
}


def tree_with_pod(root: Path, version: int) -> CgroupTree:
    """A tree in which the cgroup of a pod was made, and none of its values written."""
    path = "kubepods/burstable/podu"
    if version == 2:
        return FakeV2(root, "cpu memory pids").tree
    for each in ("cpu", "memory", "pids"):
        (root / each / path).mkdir(parents=True)
    return CgroupTree(
        version=1, hierarchies={each: root / each for each in ("cpu", "memory", "pids")}
    )


def pod_values(root: Path, version: int) -> dict[str, str]:
    """The values of that cgroup that were written, by hierarchy and file."""
    path = "kubepods/burstable/podu"
    if version == 2:
        folder = root / path
        return {name: (folder / name).read_text() for name in V2_VALUES if (folder / name).exists()}
    files = {
        name: root.joinpath(name.split("/")[0], path, name.split("/")[1]) for name in V1_VALUES
    }
    return {name: file.read_text() for name, file in files.items() if file.exists()}


@pytest.mark.parametrize(("version", "values"), [(1, V1_VALUES), (2, V2_VALUES)])
async def test_a_cgroup_that_a_killed_agent_had_only_made_gets_its_values(
    tmp_path: Path, version: int, values: dict[str, str]
) -> None:
    tree = tree_with_pod(tmp_path, version)
    configuration = KubeletConfiguration(pod_pids_limit=77)
    cgroups = Cgroups(tree, configuration, driver=CgroupDriver.CGROUPFS)
    await PodCgroups(cgroups, list).ensure(LIMITED)
    assert pod_values(tmp_path, version) == values


@pytest.mark.parametrize("version", [1, 2])
async def test_a_cgroup_with_a_sandbox_keeps_the_values_that_it_was_resized_to(
    tmp_path: Path, version: int
) -> None:
    tree = tree_with_pod(tmp_path, version)
    for folder in tree.folders("/kubepods/burstable/podu"):
        (folder / "sandbox").mkdir()
    cgroups = Cgroups(tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS)
    await PodCgroups(cgroups, list).ensure(LIMITED)
    assert pod_values(tmp_path, version) == {}
