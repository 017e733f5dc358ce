"""The Go kubelet as a process of its own, on a runtime of ours: what the agent is compared with.

It takes the place of a `LabAgent` and is used in the same way: same folders, same configuration
file. What only it needs is set here: a cgroup that exists beforehand, ports of its own, and
nothing that it would change on the host as a whole.
"""

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lab import host
from lab.agent import Json, LabAgent
from lab.control_plane_programs import NEWEST, go_kubelet
from lab.orphans import marked
from lab.ports import free_ports

# Wherever `podLogsDir` is, it links from here.
LOG_LINKS = Path("/var/log/containers")


class GoKubelet(LabAgent):
    """One Go kubelet; arguments as for a `LabAgent`, and its minor version."""

    def __init__(
        self,
        folder: Path,
        *,
        endpoint: str,
        settings: Mapping[str, object] | None = None,
        flags: tuple[str, ...] = (),
        cgroup_root: str = "",
        version: str = NEWEST,
    ) -> None:
        self._read_only_port, port = free_ports(2)
        alone: Mapping[str, object] = {
            "enableServer": True,
            "port": port,
            "readOnlyPort": self._read_only_port,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": [],
            "volumePluginDir": str(folder.absolute() / "plugins"),
        }
        super().__init__(
            folder,
            endpoint=endpoint,
            settings={**alone, **(settings or {})},
            flags=("--cert-dir", str(folder.absolute() / "certificates"), *flags),
            cgroup_root=cgroup_root,
        )
        self._version = version

    def launch(self) -> None:
        """Start it and do not wait; builds it first if it must, for minutes."""
        program = go_kubelet(self._version)
        self.manifests.mkdir(parents=True, exist_ok=True)
        make_cgroups(self.cgroup_root)
        config = self.folder / "config.json"
        config.write_text(json.dumps(self.configuration))
        command = [
            str(program),
            "--config",
            str(config),
            "--root-dir",
            str(self.root),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._flags],
                env=marked(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, path: str) -> Json:
        """Ask its read-only port. Raises OSError when nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._read_only_port}{path}", timeout=5) as answer:
            found: Json = json.loads(answer.read())
        # Go writes an empty list of pods as null.
        return {**found, "items": found.get("items") or []}


def remove_log_links(folder: Path) -> None:
    """Remove the links to logs below `folder` that it has made on the host, with pods or not."""
    inside = f"{folder.absolute()}/"
    for link in LOG_LINKS.glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(inside):
            link.unlink(missing_ok=True)


def make_cgroups(path: str) -> None:
    """Make the cgroup `/name` in every hierarchy; `host.remove_cgroups` removes it."""
    name = path.strip("/")
    mounted = Path("/sys/fs/cgroup")
    if host.cgroup_version() == 2:
        (mounted / name).mkdir(parents=True, exist_ok=True)
        return
    for hierarchy in mounted.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            (hierarchy / name).mkdir(parents=True, exist_ok=True)
            _inherit_cpuset(hierarchy, hierarchy / name)


def _inherit_cpuset(parent: Path, child: Path) -> None:
    """A cpuset of version 1 is made without processors and memory, and takes no process so."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (child / file).exists():
            (child / file).write_text((parent / file).read_text())
