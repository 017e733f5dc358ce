"""A device plugin that others wrote, as a process beside a node.

Such plugins look for a node's agent in /var/lib/kubelet/device-plugins, and have a mount namespace
of their own in which that is the agent's folder.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.orphans import marked

KNOWN_FOLDER = Path("/var/lib/kubelet/device-plugins")


class DevicePluginOfOthers:
    """The plugin with the agent's `folder`, not started yet."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        KNOWN_FOLDER.mkdir(parents=True, exist_ok=True)
        bind = shlex.join(["mount", "--bind", str(folder), str(KNOWN_FOLDER)])
        inside = f"{bind} && exec {shlex.join(command)}"
        self._command = ["unshare", "--mount", "sh", "-c", inside]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=marked(os.environ))

    def kill(self) -> None:
        """Kill it as the kernel would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
