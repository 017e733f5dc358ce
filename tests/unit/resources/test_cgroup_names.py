import pytest

from tests.unit.resources.pods import container, pod
from trio_kubelet.k8s import Pod
from trio_kubelet.resources import CgroupDriver, cgroup_parent
from trio_kubelet.resources.cgroup_names import (
    CgroupName,
    kubepods_name,
    pod_cgroup_name,
    pod_uid_of,
)

BEST_EFFORT = pod(container())
BURSTABLE = pod(container("cpu=1"))
GUARANTEED = pod(container("cpu=1 memory=1Mi", "cpu=1 memory=1Mi"))


@pytest.mark.parametrize(
    ("given_pod", "cgroupfs", "systemd"),
    [
        (BEST_EFFORT, "/kubepods/besteffort/pod12-34", "kubepods-besteffort-pod12_34.slice"),
        (BURSTABLE, "/kubepods/burstable/pod12-34", "kubepods-burstable-pod12_34.slice"),
        (GUARANTEED, "/kubepods/pod12-34", "kubepods-pod12_34.slice"),
    ],
)
def test_cgroup_parent(given_pod: Pod, cgroupfs: str, systemd: str) -> None:
    assert cgroup_parent(given_pod, CgroupDriver.CGROUPFS) == cgroupfs
    assert cgroup_parent(given_pod, CgroupDriver.SYSTEMD) == systemd


def test_a_configured_root_comes_before_kubepods() -> None:
    assert cgroup_parent(GUARANTEED, cgroup_root="/a/b") == "/a/b/kubepods/pod12-34"
    assert cgroup_parent(GUARANTEED, CgroupDriver.SYSTEMD, "/a-b") == "a_b-kubepods-pod12_34.slice"


def test_without_qos_cgroups_the_runtime_chooses_below_the_configured_root() -> None:
    assert cgroup_parent(BURSTABLE, cgroups_per_qos=False) == ""
    assert cgroup_parent(BURSTABLE, cgroup_root="/mine", cgroups_per_qos=False) == "/mine"


def test_systemd_nests_a_slice_in_the_slices_of_its_name() -> None:
    name = pod_cgroup_name(BURSTABLE)
    assert name.path(CgroupDriver.SYSTEMD) == (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice"
    )
    assert CgroupName().systemd_slice == "-.slice"
    assert CgroupName().path(CgroupDriver.SYSTEMD) == "/"
    assert CgroupName().path(CgroupDriver.CGROUPFS) == "/"


def test_names_are_read_back_from_paths() -> None:
    assert CgroupName.parse("/kubepods/burstable") == kubepods_name().child("burstable")


@pytest.mark.parametrize(
    ("directory", "driver", "uid"),
    [
        ("pod12-34", CgroupDriver.CGROUPFS, "12-34"),
        ("burstable", CgroupDriver.CGROUPFS, ""),
        ("kubepods-burstable-pod12_34.slice", CgroupDriver.SYSTEMD, "12-34"),
        ("kubepods-burstable.slice", CgroupDriver.SYSTEMD, ""),
        ("cri-containerd-abc.scope", CgroupDriver.SYSTEMD, ""),
    ],
)
def test_uids_are_read_back_from_directories(
    directory: str, driver: CgroupDriver, uid: str
) -> None:
    assert pod_uid_of(directory, driver) == uid


@pytest.mark.parametrize(
    ("text", "driver", "path"),
    [
        ("/system.slice", CgroupDriver.CGROUPFS, "/system.slice"),
        ("kube/agents/", CgroupDriver.CGROUPFS, "/kube/agents"),
        ("/system.slice", CgroupDriver.SYSTEMD, "/system.slice"),
        ("system", CgroupDriver.SYSTEMD, "/system.slice"),
        ("/kube.slice/kube-my_node.slice", CgroupDriver.SYSTEMD, "/kube.slice/kube-my_node.slice"),
    ],
)
def test_a_configured_cgroup_is_a_path_or_with_systemd_a_slice(
    text: str, driver: CgroupDriver, path: str
) -> None:
    assert CgroupName.configured(text, driver).path(driver) == path
