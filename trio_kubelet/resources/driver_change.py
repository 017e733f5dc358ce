"""Whether the cgroup driver was changed while pods run.

The driver is part of the path of every pod's cgroup. An agent with another driver than the one
that its pods were started with would neither limit nor remove them, so it does not start.
Cgroups in which nothing runs are what a drained node keeps; they count for nothing.
"""

from collections.abc import Iterable

from trio_kubelet.resources.cgroup_names import CgroupDriver

_MOST_NAMED = 3


def other_driver(driver: CgroupDriver) -> CgroupDriver:
    return CgroupDriver.CGROUPFS if driver is CgroupDriver.SYSTEMD else CgroupDriver.SYSTEMD


def driver_change_problem(driver: CgroupDriver, running_elsewhere: Iterable[str]) -> str:
    """Return why an agent with this driver must not start, and what to do; "" if it may.

    `running_elsewhere` are the UIDs of pods that run in cgroups of the other driver.
    """
    uids = sorted(running_elsewhere)
    if not uids:
        return ""
    other = other_driver(driver)
    named = ", ".join(uids[:_MOST_NAMED])
    more = f" and {len(uids) - _MOST_NAMED} more" if len(uids) > _MOST_NAMED else ""
    return (
        f"the cgroup driver is {driver}, but pods run in cgroups of the driver {other} ({named}"
        f"{more}); set cgroupDriver (--cgroup-driver) and the container runtime's driver back to "
        f"{other}, or drain the node and remove its static pods before the driver is changed"
    )
