"""The trees as folders: those of cgroup v2 are played by files in a scratch folder."""

from pathlib import Path

import pytest

from tests.unit.resources.fake_cgroups import FakeV2
from trio_kubelet.kernel.mountinfo import MountPoint
from trio_kubelet.resources import CgroupConfig, CgroupError, CgroupTree


def v1(path: str, *controllers: str) -> MountPoint:
    return MountPoint(
        path=Path(path), fs_type="cgroup", super_options=("rw", "xattr", *controllers)
    )


def test_v1_is_found_with_its_controllers_also_beside_v2() -> None:
    tree = CgroupTree.find(
        (
            v1("/sys/fs/cgroup/cpu,cpuacct", "cpu", "cpuacct"),
            v1("/sys/fs/cgroup/memory", "memory"),
            v1("/sys/fs/cgroup/systemd", "name=systemd"),
            v1("/var/lib/other/memory/mounted/again", "memory"),
            MountPoint(path=Path("/sys/fs/cgroup/unified"), fs_type="cgroup2"),
        )
    )
    assert tree.version == 1
    assert tree.hierarchies == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Path("/sys/fs/cgroup/memory"),
        "name=systemd": Path("/sys/fs/cgroup/systemd"),
    }
    assert [str(folder) for folder in tree.folders("/kubepods")] == [
        "/sys/fs/cgroup/cpu,cpuacct/kubepods",
        "/sys/fs/cgroup/memory/kubepods",
        "/sys/fs/cgroup/systemd/kubepods",
    ]


def test_v2_is_found_with_its_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    tree = CgroupTree.find((MountPoint(path=tmp_path, fs_type="cgroup2"),))
    assert tree.version == 2
    assert set(tree.hierarchies) == {"cpuset", "cpu", "io", "memory", "pids"}
    assert tree.folders("/kubepods") == (tmp_path / "kubepods",)


def test_a_machine_without_controllers_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match="cpu and memory"):
        CgroupTree.find(())
    with pytest.raises(CgroupError, match="with memory is mounted"):
        CgroupTree.find((v1("/sys/fs/cgroup/cpu", "cpu"),))
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(CgroupError, match="with memory is mounted"):
        CgroupTree.find((MountPoint(path=tmp_path, fs_type="cgroup2"),))


def test_controllers_are_handed_down_to_the_pod_but_not_by_it(tmp_path: Path) -> None:
    fake = FakeV2(tmp_path, "memory")
    fake.tree.create("/kubepods/burstable/podu", CgroupConfig(memory_limit_bytes=4096))
    for path in ("", "kubepods", "kubepods/burstable"):
        assert (tmp_path / path / "cgroup.subtree_control").read_text() == "+memory", path
    assert (tmp_path / "kubepods/burstable/podu/cgroup.subtree_control").read_text() == ""
    assert (tmp_path / "kubepods/burstable/podu/memory.max").read_text() == "4096"


def test_a_controller_the_machine_lacks_is_left_out(tmp_path: Path) -> None:
    fake = FakeV2(tmp_path, "memory")
    fake.tree.create("/kubepods", CgroupConfig(pids_limit=5))
    assert not (tmp_path / "kubepods" / "pids.max").exists()


@pytest.mark.parametrize(("version", "name"), [(1, "limit_in_bytes"), (2, "max")])
def test_reserved_huge_pages_are_limited_by_kernels_that_can(
    version: int, name: str, tmp_path: Path
) -> None:
    reserved = tmp_path / f"hugetlb.2MB.rsvd.{name}"
    tree = CgroupTree(version=version, hierarchies={"hugetlb": tmp_path})
    tree.write("/", CgroupConfig(hugepage_limits={2 << 20: 4096}))
    assert (tmp_path / f"hugetlb.2MB.{name}").read_text() == "4096"
    assert not reserved.exists()
    reserved.touch()
    tree.write("/", CgroupConfig(hugepage_limits={2 << 20: 8192}))
    assert reserved.read_text() == "8192"


@pytest.mark.parametrize(
    ("version", "files", "limited"),
    [
        (1, ("memory.memsw.limit_in_bytes",), True),
        (1, ("memory.limit_in_bytes",), False),
        (2, ("system.slice/memory.swap.max",), True),
        (2, ("kubepods/memory.swap.max",), True),
        (2, ("memory.swap.max",), True),
        (2, ("kubepods/memory.max",), False),
        (2, (), False),
    ],
    ids=[
        "v1 with accounting of swap",
        "v1 without",
        "v2 with systemd",
        "v2 without systemd, with the cgroup of pods alone",
        "v2 in a cgroup namespace",
        "v2 with a kernel without swap",
        "v2 without any cgroup",
    ],
)
def test_whether_swap_can_be_limited_is_read_off_any_cgroup(
    version: int, files: tuple[str, ...], limited: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    tree = CgroupTree(version=version, hierarchies={"memory": tmp_path})
    assert tree.can_limit_swap() is limited
