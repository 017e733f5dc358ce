"""Files as the kernel has them: a machine with cgroup v2 and one pod."""

from pathlib import Path

UID = "9c1eecaa-0000-4000-8000-000000000001"
CONTAINER = "c" * 64
SANDBOX = "5" * 64
POD_CGROUP = (
    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
    f"{UID.replace('-', '_')}.slice"
)
MI = 1 << 20

PROC = {
    "meminfo": "MemTotal: 8000000 kB\nMemFree: 4000000 kB\nInactive(file): 100 kB\n"
    "MemAvailable: 6000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "stat": "cpu  100 0 50 1000 0 0 0 0 0 0\nbtime 1700000000\n",
    "loadavg": "0.1 0.1 0.1 1/300 99\n",
    "vmstat": "pgfault 5\npgmajfault 1\n",
}


def machine(root: Path) -> Path:
    """Make a machine's files below a folder; returns where its cgroups are."""
    proc = root / "host/proc"
    proc.mkdir(parents=True)
    for name, text in PROC.items():
        (proc / name).write_text(text)
    cgroups = root / "cgroup"
    write_cgroup(cgroups, "/kubepods.slice", cpu_seconds=5, memory=40 * MI)
    write_cgroup(
        cgroups, "/kubepods.slice/kubepods-besteffort.slice", cpu_seconds=5, memory=40 * MI
    )
    write_cgroup(cgroups, POD_CGROUP, cpu_seconds=3, memory=31 * MI)
    for container_id, seconds in ((CONTAINER, 2), (SANDBOX, 1)):
        write_cgroup(
            cgroups,
            f"{POD_CGROUP}/cri-containerd-{container_id}.scope",
            cpu_seconds=seconds,
            memory=30 * MI,
        )
    return cgroups


def write_cgroup(cgroups: Path, path: str, *, cpu_seconds: int, memory: int) -> None:
    """Write the files of one cgroup; 1 MiB of its memory is inactive page cache."""
    folder = cgroups / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    micros = cpu_seconds * 1_000_000
    (folder / "cpu.stat").write_text(f"usage_usec {micros}\nuser_usec {micros}\nsystem_usec 0\n")
    (folder / "memory.current").write_text(f"{memory}\n")
    (folder / "memory.stat").write_text(f"anon {MI}\nfile {MI}\ninactive_file {MI}\npgfault 1\n")
    (folder / "memory.max").write_text("max\n")
    (folder / "pids.current").write_text("1\n")
