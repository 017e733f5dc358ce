"""The files that tell of the OOM killer, and the one that keeps what was found.

On cgroup v2 the counts of a pod's cgroup tell afterwards (`memory.events`), on v1 notices that were
asked for before a container was started. The record of a pod (`pods/UID/oom-kills.json`) is there
once one of its containers was killed: a restarted agent says of it what the one before said.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog
import trio
from attrs import define

from trio_kubelet.k8s import PodQOSClass, json_text
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.resources.cgroup_names import CgroupDriver, qos_cgroup_name
from trio_kubelet.resources.oom_ledger import KillCounts, Kills, OomLedger
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("cgroups")

RECORD = "oom-kills.json"
_EVENTS = "memory.events"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TRIES = 5
_FOLDER_MODE = 0o755
_NEVER = "-1"
_GONE_SECONDS = 2.0
_FLAGS = os.EFD_NONBLOCK | os.EFD_CLOEXEC


def pod_folders(
    memory: Path, uid: str, cgroup_root: str, drivers: tuple[CgroupDriver, ...]
) -> Iterator[Path]:
    """Yield where a pod's cgroup may be: its QoS class is not known here."""
    for driver in drivers:
        for qos in PodQOSClass:
            name = qos_cgroup_name(qos, cgroup_root).child(f"pod{uid}")
            yield memory / name.path(driver).lstrip("/")


def first_counts(folders: Iterable[Path]) -> KillCounts | None:
    """Read the counts of the first of these that is a cgroup; None if none is. Blocks."""
    for folder in folders:
        try:
            return read_counts(folder)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            log.debug("OOM kill counts read failed", folder=str(folder), error=str(error))
    return None


def read_counts(folder: Path) -> KillCounts | None:
    """Read the counts of a pod's cgroup and of those below it at one moment. Blocks.

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


@define
class OomNotice:
    """The notices of one container on cgroup v1. `made_at` is trio's clock.

    Nothing of a container's cgroup outlives it there but the notices that were asked for. So the
    memory cgroup is made, as the runtime would make it, before the container is started, with an
    eventfd on its `memory.oom_control`. The kernel also gives a notice when the cgroup goes, to
    each eventfd: a second one, on a threshold of memory that nobody reaches, is told of nothing
    else and tells the two apart.
    """

    folder: Path
    made_at: float
    _kills: int
    _removal: int
    _noticed: int = 0
    _closed: bool = False

    @classmethod
    def ask(cls, folder: Path, made_at: float) -> "OomNotice":
        """Make the container's memory cgroup and ask for notices. Blocks. Raises OSError."""
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        with ExitStack() as undo:
            kills, removal = os.eventfd(0, _FLAGS), os.eventfd(0, _FLAGS)
            undo.callback(os.close, kills)
            undo.callback(os.close, removal)
            # The kernel tells of the removal in the opposite order: `removal` last.
            _register(folder, "memory.usage_in_bytes", removal, _NEVER)
            _register(folder, "memory.oom_control", kills)
            undo.pop_all()
        return cls(folder, made_at, kills, removal)

    async def was_killed(self) -> bool:
        """True if the OOM killer struck there. Where it is not known yet this waits, for 2 s.

        To be asked once, after the container has ended. Cancelled, it may be asked again.
        """
        self._noticed += _notices(self._kills)
        if self._noticed == 1 and not await run_in_thread(self.folder.exists):
            with trio.move_on_after(_GONE_SECONDS):
                await trio.lowlevel.wait_readable(self._removal)
            self._noticed += _notices(self._kills)
            return self._noticed > 1
        return self._noticed > 0

    def close(self) -> None:
        """Ask for no more, and remove a cgroup that was not used. May be repeated. Blocks."""
        if self._closed:
            return
        self._closed = True
        os.close(self._kills)
        os.close(self._removal)
        with suppress(OSError):
            self.folder.rmdir()


def first_notice(folders: Iterable[Path], made_at: float) -> OomNotice | None:
    """Ask for notices of a container that may be in one of these cgroups. Blocks.

    None if there is none of those above: systemd makes the container's.
    """
    for folder in folders:
        try:
            return OomNotice.ask(folder, made_at)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.debug("OOM kill notification setup failed", folder=str(folder), error=str(error))
    return None


def _register(folder: Path, name: str, eventfd: int, *words: str) -> None:
    with (folder / name).open("rb") as file:
        request = " ".join((str(eventfd), str(file.fileno()), *words))
        (folder / "cgroup.event_control").write_text(request)


def _notices(eventfd: int) -> int:
    try:
        return os.eventfd_read(eventfd)
    except BlockingIOError:
        return 0


def load_record(folder: Path) -> OomLedger | None:
    """Read the record in a pod's folder; None if there is none or it is none. Blocks."""
    file = folder / RECORD
    try:
        content = json_text.loads(file.read_bytes())
        kills = Kills(_count(content["kills"]), _count(content["groups"]))
        killed = {str(each): True for each in content["containers"]}
        return OomLedger(cgroup=str(content["cgroup"]), settled=kills, verdicts=killed)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError) as error:
        log.warning("OOM kill record read failed", path=str(file), error=str(error))
        return None


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def save_record(folder: Path, ledger: OomLedger) -> None:
    """Write the record whole, if the pod has a folder; a failure is logged. Blocks."""
    content = {
        "cgroup": ledger.cgroup,
        "kills": ledger.settled.processes,
        "groups": ledger.settled.groups,
        "containers": [each for each, killed in ledger.verdicts.items() if killed],
    }
    try:
        write_whole(folder / RECORD, json_text.dumps(content))
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("OOM kill record write failed", folder=str(folder), error=str(error))
