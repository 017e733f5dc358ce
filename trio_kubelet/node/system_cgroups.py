"""Cgroups of the node's own processes, so that what they use can be measured and limited.

`kubeletCgroups` is the agent's, `systemCgroups` that of all that nobody has put anywhere. Where
systemd runs, each service has its cgroup and both settings are empty. Elsewhere processes are moved
once a minute, as the Go kubelet does: new ones may have been started meanwhile. Threads of the
kernel and process 1 stay where they are: to slow them down would slow down everybody.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import structlog
import trio
from attrs import define, field

from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.errors import StartError
from trio_kubelet.resources import CgroupConfig, CgroupTree
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("cgroups")

MOVE_SECONDS = 60.0
_PASSES = 10
"""A process that is started while others are moved is found by the next pass."""
_PROCESSES = "cgroup.procs"
_THIS_PROCESS = "0"
_INIT = 1


def system_cgroup_paths(
    configuration: KubeletConfiguration, options: NodeOptions
) -> Mapping[str, str]:
    """Return the cgroups that settings name, by the names that statistics have for them."""
    named = {
        "kubelet": configuration.kubelet_cgroups,
        "runtime": options.runtime_cgroups,
        "misc": configuration.system_cgroups,
    }
    return {name: f"/{path.strip('/')}" for name, path in named.items() if path}


@define(eq=False)
class SystemCgroups:
    """Makes these cgroups and moves processes into them. `processes` is /proc."""

    _tree: CgroupTree
    _agent: str
    _others: str
    _processes: Path = field(default=Path("/proc"), kw_only=True)
    _limiter: trio.CapacityLimiter = field(init=False, factory=lambda: trio.CapacityLimiter(1))

    @classmethod
    def of(cls, tree: CgroupTree, configuration: KubeletConfiguration) -> "SystemCgroups | None":
        """Return those that a configuration asks for; None for none. Raises StartError."""
        agent, others = configuration.kubelet_cgroups, configuration.system_cgroups
        if others and not others.strip("/"):
            raise StartError(
                'systemCgroups (--system-cgroups): system container cannot be root "/"'
            )
        return cls(tree, agent, others) if agent or others else None

    async def start(self) -> None:
        """Make the cgroups, the agent's with the agent in it. Raises StartError."""
        try:
            await run_in_thread(self._make, limiter=self._limiter)
        except OSError as error:
            raise StartError(
                f"cannot make the cgroups of kubeletCgroups and systemCgroups: {error}"
            ) from error

    async def run(self) -> None:
        """Move once a minute what does not belong where it is, until cancelled."""
        while True:
            try:
                await self.move()
            except OSError as error:
                log.warning("processes not moved into their cgroups", error=str(error))
            await trio.sleep(MOVE_SECONDS)

    async def move(self) -> None:
        """Move what does not belong where it is. Raises OSError for the last that stays there."""
        await run_in_thread(self._move, limiter=self._limiter)

    def _make(self) -> None:
        for path in filter(None, (self._agent, self._others)):
            if not self._tree.exists(path):
                self._tree.create(path, CgroupConfig())
        self._move_agent()

    def _move(self) -> None:
        self._move_agent()
        if self._others:
            for folder in self._tree.folders(self._others):
                self._move_strays(folder)

    def _move_agent(self) -> None:
        for folder in self._tree.folders(self._agent) if self._agent else ():
            (folder / _PROCESSES).write_text(_THIS_PROCESS)

    def _move_strays(self, folder: Path) -> None:
        """Move what is in the root of a hierarchy into one of its cgroups."""
        root = next(each for each in self._tree.folders("/") if folder.is_relative_to(each))
        problem: OSError | None = None
        for _ in range(_PASSES):
            strays = list(self._strays(root))
            if not strays:
                return
            for pid in strays:
                try:
                    (folder / _PROCESSES).write_text(str(pid))
                except ProcessLookupError:
                    continue
                except OSError as error:
                    problem = error
        if problem is not None:
            raise problem

    def _strays(self, root: Path) -> Iterator[int]:
        for word in (root / _PROCESSES).read_text().split():
            pid = int(word)
            if pid not in (0, _INIT) and self._has_program(pid):
                yield pid

    def _has_program(self, pid: int) -> bool:
        """True for a process, False for a thread of the kernel and for what has ended."""
        with suppress(FileNotFoundError, ProcessLookupError):
            (self._processes / str(pid) / "exe").readlink()
            return True
        return False
