"""The files that tell of the OOM killer: counts of cgroup v2, and what the agent keeps of them.

The record of a pod (`pods/UID/oom-kills.json`) is there once one of its containers was killed: a
restarted agent says of it what the one before said. Everything here blocks, for microseconds.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from trio_kubelet.k8s import PodQOSClass, json_text
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.resources.cgroup_names import CgroupDriver, qos_cgroup_name
from trio_kubelet.resources.oom_ledger import KillCounts, Kills, OomLedger

log = structlog.get_logger("cgroups")

RECORD = "oom-kills.json"
_EVENTS = "memory.events"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TRIES = 5


def pod_folders(
    memory: Path, uid: str, cgroup_root: str, drivers: tuple[CgroupDriver, ...]
) -> Iterator[Path]:
    """Yield where a pod's cgroup may be: its QoS class is not known here."""
    for driver in drivers:
        for qos in PodQOSClass:
            name = qos_cgroup_name(qos, cgroup_root).child(f"pod{uid}")
            yield memory / name.path(driver).lstrip("/")


def read_counts(folder: Path) -> KillCounts | None:
    """Read the counts of a pod's cgroup and of those below it at one moment.

    None if they cannot be had, as kills go on. Raises OSError: there is no such cgroup.
    """
    boot = _BOOT_ID.read_text().strip()
    for _ in range(_TRIES):
        before = _read_below(folder)
        total = _read_kills(folder)
        if _read_below(folder) == before:
            cgroup = f"{boot}/{folder.stat().st_ino}"
            return KillCounts(cgroup=cgroup, total=total, below=before)
    return None


def _read_below(folder: Path) -> dict[str, Kills]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    below = {}
    for name in names:
        try:
            below[name] = _read_kills(folder / name)
        except OSError:
            continue  # It has just gone.
    return below


def _read_kills(folder: Path) -> Kills:
    words = (folder / _EVENTS).read_text().split()
    values = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return Kills(values.get("oom_kill", 0), values.get("oom_group_kill", 0))


def load_record(folder: Path) -> OomLedger | None:
    """Read the record in a pod's folder; None if there is none or it is none."""
    file = folder / RECORD
    try:
        content = json_text.loads(file.read_bytes())
        kills = Kills(int(content["kills"]), int(content["groups"]))
        killed = {str(each): True for each in content["containers"]}
        return OomLedger(cgroup=str(content["cgroup"]), settled=kills, verdicts=killed)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError) as error:
        log.warning("OOM kill record read failed", path=str(file), error=str(error))
        return None


def save_record(folder: Path, ledger: OomLedger) -> None:
    """Write the record whole, if the pod has a folder. Raises OSError."""
    content = {
        "cgroup": ledger.cgroup,
        "kills": ledger.settled.processes,
        "groups": ledger.settled.groups,
        "containers": [each for each, killed in ledger.verdicts.items() if killed],
    }
    with suppress(FileNotFoundError):
        write_whole(folder / RECORD, json_text.dumps(content))
