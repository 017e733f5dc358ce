"""The names of cgroups: one name, written for cgroupfs or for systemd.

Every pod lives in `kubepods`, below it in the cgroup of its QoS class (guaranteed pods have
none), in a cgroup of its own. systemd's slices carry their whole ancestry in their name, joined
by dashes, so a dash within a component (those of the UID) becomes an underscore.
"""

from enum import StrEnum

from attrs import frozen

from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.resources.pod_resources import qos_class

KUBEPODS = "kubepods"
POD_PREFIX = "pod"
_SLICE = ".slice"

QOS_COMPONENTS = {
    PodQOSClass.GUARANTEED: (),
    PodQOSClass.BURSTABLE: ("burstable",),
    PodQOSClass.BEST_EFFORT: ("besteffort",),
}


class CgroupDriver(StrEnum):
    """`cgroupDriver`: who writes the tree; the runtime must use the same."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"

    @property
    def other(self) -> "CgroupDriver":
        """The one that this is not."""
        return CgroupDriver.CGROUPFS if self is CgroupDriver.SYSTEMD else CgroupDriver.SYSTEMD


@frozen
class CgroupName:
    """A cgroup's place in the tree, driver aside: `("kubepods", "burstable", "pod<uid>")`."""

    components: tuple[str, ...] = ()

    @classmethod
    def parse(cls, cgroupfs_path: str) -> "CgroupName":
        """Return the name that a cgroupfs path such as `/kubepods/burstable` stands for."""
        return cls(tuple(part for part in cgroupfs_path.split("/") if part))

    @classmethod
    def configured(cls, text: str, driver: CgroupDriver) -> "CgroupName":
        """Return the name that an administrator means: a path, or with systemd the name of a slice.

        Of a path only the last part counts there: it has the whole ancestry.
        """
        if driver is CgroupDriver.CGROUPFS:
            return cls.parse(text)
        slice_name = text.rstrip("/").rpartition("/")[2].removesuffix(_SLICE)
        return cls(tuple(part.replace("_", "-") for part in slice_name.split("-") if part))

    def child(self, *components: str) -> "CgroupName":
        """Return the name of a cgroup below this one."""
        return CgroupName((*self.components, *components))

    @property
    def cgroupfs_path(self) -> str:
        """`/kubepods/burstable/pod<uid>`; the root is `/`."""
        return "/" + "/".join(self.components)

    @property
    def systemd_slice(self) -> str:
        """`kubepods-burstable-pod<uid_>.slice`; the root is systemd's `-.slice`."""
        if not self.components:
            return "-" + _SLICE
        return "-".join(part.replace("-", "_") for part in self.components) + _SLICE

    @property
    def systemd_path(self) -> str:
        """The path that systemd gives the slice: `/kubepods.slice/kubepods-burstable.slice/…`."""
        ancestry = range(1, len(self.components) + 1)
        return "/" + "/".join(CgroupName(self.components[:n]).systemd_slice for n in ancestry)

    def path(self, driver: CgroupDriver) -> str:
        """Return the path below a hierarchy's mount point under that driver."""
        return self.systemd_path if driver is CgroupDriver.SYSTEMD else self.cgroupfs_path


def kubepods_name(cgroup_root: str = "/", cgroups_per_qos: bool = True) -> CgroupName:
    """Return the cgroup of all pods; without `cgroupsPerQOS` that is `cgroupRoot` itself."""
    root = CgroupName.parse(cgroup_root)
    return root.child(KUBEPODS) if cgroups_per_qos else root


def qos_cgroup_name(qos: PodQOSClass, cgroup_root: str = "/") -> CgroupName:
    """Return the cgroup of a QoS class; guaranteed pods live directly in that of all pods."""
    return kubepods_name(cgroup_root).child(*QOS_COMPONENTS[qos])


def pod_cgroup_name(pod: Pod, cgroup_root: str = "/") -> CgroupName:
    uid = pod.metadata.uid
    return qos_cgroup_name(qos_class(pod), cgroup_root).child(f"{POD_PREFIX}{uid}")


def pod_uid_of(directory: str, driver: CgroupDriver) -> str:
    """Return the UID in the name of a pod's cgroup directory, or "" if it is not a pod's."""
    if driver is CgroupDriver.CGROUPFS:
        return directory.removeprefix(POD_PREFIX) if directory.startswith(POD_PREFIX) else ""
    if not directory.endswith(_SLICE):
        return ""
    last = directory.removesuffix(_SLICE).rpartition("-")[2]
    if not last.startswith(POD_PREFIX):
        return ""
    return last.removeprefix(POD_PREFIX).replace("_", "-")


def cgroup_parent(
    pod: Pod,
    driver: CgroupDriver = CgroupDriver.CGROUPFS,
    cgroup_root: str = "/",
    cgroups_per_qos: bool = True,
) -> str:
    """`linux.cgroup_parent` of the pod's sandbox.

    A path for cgroupfs, the slice alone for systemd. Without `cgroupsPerQOS` pods have no
    cgroup of their own: `cgroupRoot` as it is configured, or "" for the runtime's choice.
    """
    if not cgroups_per_qos:
        return "" if cgroup_root in ("", "/") else cgroup_root
    name = pod_cgroup_name(pod, cgroup_root)
    return name.systemd_slice if driver is CgroupDriver.SYSTEMD else name.cgroupfs_path
