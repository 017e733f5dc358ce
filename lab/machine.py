"""A machine of its own, as far as its files and its name go: what a guide's commands may change.

A mount namespace in which the folders that installing a node changes are overlays on the host's,
in memory, and `/var/lib/kubelet` is a folder of the lab. Kernel, network and processes are the
host's. Nobody outside sees what is written there, and it is gone with the last process in it.
Methods block until what they promise is true, or raise LabError.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lab import LabError
from lab.orphans import marked
from lab.processes import alive, last_words, wait_until
from lab.started import Started

COMMAND_DEADLINE_SECONDS = 300
STOP_DEADLINE_SECONDS = 10
# Folders that are the machine's own, with the host's content to begin with.
OVERLAYS = ("etc", "opt", "run", "usr/bin", "var/lib")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REPOSITORY = Path(__file__).parents[1]

# Becomes the machine: arguments are a folder for the layers, one for /var/lib/kubelet, the name.
# What the host has mounted on single files of /etc is not below an overlay, so it is copied; the
# lock of iptables must be the host's, whose rules these are.
BECOME = f"""
set -e
layers=$1 kubelet=$2
echo "$3" >/proc/sys/kernel/hostname
mount -t tmpfs lab "$layers"
mkdir -p "$layers/etc/upper"
cp /etc/resolv.conf /etc/hosts "$layers/etc/upper/"
touch /run/xtables.lock "$layers/lock"
mount --bind /run/xtables.lock "$layers/lock"
for folder in {" ".join(OVERLAYS)}; do
    mkdir -p "$layers/$folder/upper" "$layers/$folder/work"
    mount -t overlay lab -o \
        "lowerdir=/$folder,upperdir=$layers/$folder/upper,workdir=$layers/$folder/work" "/$folder"
done
mount --bind "$layers/lock" /run/xtables.lock
mkdir -p /var/lib/kubelet
mount --bind "$kubelet" /var/lib/kubelet
echo ready
read nothing
"""


class NamespacedMachine(Started):
    """One machine; a context manager that starts and stops it. `folder` may exist."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder.absolute()
        self.name = name
        self._keeper: subprocess.Popen[str] | None = None

    @property
    def enter(self) -> tuple[str, ...]:
        """The words to put before a command that is to run on the machine."""
        if self._keeper is None:
            raise LabError("the machine was not started")
        return ("nsenter", f"--target={self._keeper.pid}", "--mount", "--uts", "--")

    def start(self) -> None:
        """Make the machine, with stand-ins for what needs systemd as the first process."""
        layers, kubelet = self.folder / "layers", self.folder / "kubelet"
        for folder in (layers, kubelet):
            folder.mkdir(parents=True, exist_ok=True)
        namespaces = ("unshare", "--mount", "--uts", "--propagation=private")
        self._keeper = subprocess.Popen(
            [*namespaces, "sh", "-c", BECOME, "sh", str(layers), str(kubelet), self.name],
            env=marked(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline().strip() != "ready":
            raise LabError(f"no machine: {last_words(self._keeper.stderr.read())}")
        module = f"cd {shlex.quote(str(REPOSITORY))} && exec {shlex.quote(sys.executable)} -m"
        self.write("/usr/bin/systemctl", f'#!/bin/sh\n{module} lab.systemctl "$@"\n', mode=0o755)

    def stop(self) -> None:
        """Kill whatever runs on the machine; its files are gone then. Safe to repeat."""
        if self._keeper is None:
            return
        here = _mount_namespace(self._keeper.pid)
        pids = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and here and _mount_namespace(int(entry.name)) == here
        ]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._keeper.communicate(timeout=STOP_DEADLINE_SECONDS)
        self._keeper = None
        wait_until(
            lambda: not any(map(alive, pids)),
            deadline_seconds=STOP_DEADLINE_SECONDS,
            else_say=lambda: f"processes {pids} do not end",
        )

    def run(self, script: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a script as root there, and return what it says; LabError if a command fails."""
        try:
            done = subprocess.run(
                [*self.enter, "sh", "-e", "-c", script],
                env=marked({**os.environ, "PATH": PATH, **(environment or {})}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_DEADLINE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"no end of: {script}") from None
        if done.returncode != 0:
            raise LabError(f"{script}\n{done.stdout}{last_words(done.stderr, 10)}")
        return done.stdout

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file there, with the folders above it."""
        quoted, folder = shlex.quote(path), shlex.quote(str(Path(path).parent))
        put = f"mkdir -p {folder}; rm -f {quoted}; cat >{quoted}; chmod {mode:o} {quoted}"
        subprocess.run([*self.enter, "sh", "-e", "-c", put], input=text, text=True, check=True)


def _mount_namespace(pid: int) -> str:
    """What tells a process's mount namespace from others; empty if the process has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""
