"""A private Docker daemon: Debian's package, unpacked, in namespaces of its own.

The daemon changes the rules of its network (it drops what it does not know), so it gets one that
is not the host's; the host has an address there, and reaches what containers publish. Containers
reach the host and no further. Mounts and processes are in namespaces, too, so all of it is gone
with the process that keeps them, which ends with this one. Files are below one folder; they stay
if this process is killed, and so do its cgroups, up to the next `python3 -m lab cleanup`. Methods
block.
"""

import ipaddress
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lab import LabError, tools
from lab.host import remove_cgroups
from lab.kind import oci_runtime
from lab.network import free_subnet
from lab.orphans import cgroup_of_ours, marked
from lab.packages import Packages
from lab.processes import last_words, run, wait_until
from lab.started import Started

POOL = ipaddress.IPv4Network("10.215.0.0/16")
# The suite of docker.io 20.10, which is one package, and the containerd that goes with it.
SUITE, CONTAINERD = "bookworm", "1.6"
# What the networks of the daemon are made of; nobody outside of its namespace sees them.
DOCKER_POOL = "172.30.0.0/16"
START_DEADLINE_SECONDS = 60
STOP_DEADLINE_SECONDS = 60
RUNTIME = "lab"

NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# What the first process of the namespaces does: it waits for the end of its owner. Sockets of shims
# and the lock of iptables are in /run, whatever a daemon is told.
KEEP = "mount -t tmpfs -o mode=755 tmpfs /run; echo ready; read nothing"
# So are these, which the daemon's containerd makes.
BUILT_IN = tuple(map(Path, ("/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd")))
# The daemon's end of the link to the host.
UPLINK = "uplink"

_numbers = itertools.count(1)


class DockerDaemon(Started):
    """One daemon; a context manager. `folder` may exist."""

    def __init__(self, folder: Path, packages: Packages | None = None) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "dockerd.log"
        self._packages = packages or Packages()
        self._link = f"docker{next(_numbers)}-{os.getpid()}"
        self._cgroup = cgroup_of_ours(f"docker-{self._link}")
        self._subnet: ipaddress.IPv4Network | None = None
        self._made: tuple[Path, ...] = ()
        self._keeper: subprocess.Popen[str] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where the host reaches the ports that containers publish."""
        assert self._subnet is not None, "not started"
        return str(self._subnet[2])

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs that call `docker`, which they find with it."""
        programs = self._packages.unpacked("docker.io", SUITE) / "usr/bin"
        return {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{self._socket}",
            "DOCKER_CONFIG": str(self.folder / "client"),
        }

    @property
    def _socket(self) -> Path:
        return self.folder / "docker.sock"

    def docker(self, *words: str | Path, stdin: str = "", deadline_seconds: float = 60) -> str:
        """Run `docker` and return what it says; LabError if it fails."""
        return run(
            ["docker", *words],
            env=self.environment,
            stdin=stdin,
            called=f"docker {words[0]}",
            deadline_seconds=deadline_seconds,
        )

    def start(self) -> None:
        """Start the daemon, and return when it answers."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        # What a daemon whose owner was killed has left.
        self._remove_files()
        (self.folder / "run").mkdir(parents=True)
        self._made = tuple(each for each in BUILT_IN if not each.exists())
        enter = self._make_namespaces()
        programs = self._packages.unpacked("docker.io", SUITE)
        found = tools.find(CONTAINERD, self._packages)
        if found.iptables is None:
            raise LabError("Docker needs iptables, and none works with this kernel")
        folders = (programs / "usr/sbin", programs / "usr/bin", found.iptables.parent)
        environment = found.environment()
        path = ":".join([*map(str, folders), environment["PATH"]])
        with self.log.open("wb") as log:
            self._daemon = subprocess.Popen(
                [*enter, "dockerd", *self._flags(found.oci_runtime)],
                env=marked({**environment, "PATH": path}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(
            self._answers,
            deadline_seconds=START_DEADLINE_SECONDS,
            else_say=lambda: f"dockerd does not answer: {self.last_words()}",
        )

    def stop(self) -> None:
        """Kill the daemon with its containers, and remove all of it. Safe to repeat."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.kill()
            keeper.communicate(timeout=STOP_DEADLINE_SECONDS)
        if self._daemon is not None:
            self._daemon.wait(STOP_DEADLINE_SECONDS)
            self._daemon = None
        wait_until(
            self._removed_cgroups,
            deadline_seconds=STOP_DEADLINE_SECONDS,
            else_say=lambda: f"the cgroup {self._cgroup} is in use",
        )
        self._remove_files()

    def last_words(self) -> str:
        """The end of the daemon's log."""
        return last_words(self.log.read_text(errors="replace"), 10) if self.log.exists() else ""

    def _make_namespaces(self) -> tuple[str, ...]:
        """Make them with a link to the host, and return the words that enter them."""
        self._keeper = subprocess.Popen(
            ["unshare", *NAMESPACES, "--propagation=private", "sh", "-e", "-c", KEEP],
            env=marked(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for its owner, who needs the daemon to delete what is there.
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline().strip() != "ready":
            raise LabError(f"no namespaces for Docker: {last_words(self._keeper.stderr.read())}")
        pid = self._keeper.pid
        self._connect(("nsenter", f"--target={pid}", "--net", "--"))
        processes = f"--pid=/proc/{pid}/ns/pid_for_children"
        return ("nsenter", f"--target={pid}", "--net", "--mount", processes, "--")

    def _connect(self, enter: tuple[str, ...]) -> None:
        """Make the link, and give both ends addresses; the host is the gateway."""
        ip = (tools.busybox(self._packages), "ip")
        for words in (
            "link set lo up",
            "link add type veth",
            f"link set veth0 name {UPLINK}",
            f"link set veth1 name {self._link}",
            f"link set {self._link} netns {os.getpid()}",
        ):
            run([*enter, *ip, *words.split()])
        with self._packages.locked():  # Or two networks would choose the same addresses.
            subnet = self._subnet = ipaddress.IPv4Network(free_subnet((), POOL))
            host_address = f"{subnet[1]}/{subnet.prefixlen}"
            run([*ip, "address", "add", host_address, "dev", self._link])
            run([*ip, "link", "set", self._link, "up"])
        for words in (
            f"address add {self.address}/{subnet.prefixlen} dev {UPLINK}",
            f"link set {UPLINK} up",
            f"route add default via {subnet[1]}",
        ):
            run([*enter, *ip, *words.split()])

    def _flags(self, runc: Path) -> tuple[str, ...]:
        wrapper = self.folder / "oci-runtime"
        words = shlex.join([sys.executable, str(oci_runtime.__file__), str(runc)])
        wrapper.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        wrapper.chmod(0o755)
        configuration = self.folder / "daemon.json"
        configuration.write_text(
            json.dumps(
                {
                    "data-root": str(self.folder / "data"),
                    "exec-root": str(self.folder / "run"),
                    "pidfile": str(self.folder / "run" / "dockerd.pid"),
                    "deprecated-key-path": str(self.folder / "run" / "key.json"),
                    "hosts": [f"unix://{self._socket}"],
                    "storage-driver": "overlay2",
                    "cgroup-parent": f"/{self._cgroup}",
                    "exec-opts": ["native.cgroupdriver=cgroupfs"],
                    "default-address-pools": [{"base": DOCKER_POOL, "size": 24}],
                    "runtimes": {RUNTIME: {"path": str(wrapper)}},
                    "default-runtime": RUNTIME,
                    "oom-score-adjust": 0,
                }
            )
        )
        return ("--config-file", str(configuration))

    def _answers(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            raise LabError(f"dockerd ended: {self.last_words()}")
        try:
            self.docker("info")
        except LabError:
            return False
        return True

    def _remove_files(self) -> None:
        for name in ("data", "run"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for built_in in self._made:
            with suppress(OSError):
                built_in.rmdir()

    def _removed_cgroups(self) -> bool:
        try:
            remove_cgroups(self._cgroup)
        except OSError:
            return False
        return True
