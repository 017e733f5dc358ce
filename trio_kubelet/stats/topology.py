"""The cores and sockets of the machine's CPUs."""

from pathlib import Path

from attrs import frozen


@frozen(kw_only=True)
class CpuTopology:
    """Counts of what there is; as many cores as CPUs, in one socket, where the kernel is silent."""

    cores: int
    sockets: int


def read_topology(cpus: int, folder: Path = Path("/sys/devices/system/cpu")) -> CpuTopology:
    """Read it. Blocks."""
    found: set[tuple[str, str]] = set()
    for cpu in folder.glob("cpu[0-9]*/topology"):
        try:
            socket = (cpu / "physical_package_id").read_text().strip()
            found.add((socket, (cpu / "core_id").read_text().strip()))
        except (OSError, ValueError):
            continue
    if not found:
        return CpuTopology(cores=cpus, sockets=1)
    return CpuTopology(cores=len(found), sockets=len({socket for socket, _ in found}))
