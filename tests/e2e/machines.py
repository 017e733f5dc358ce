"""Machines as the reader of docs/joining.md has them: guests of the lab with kubeadm's packages.

Each has systemd, cgroup v2 and containerd, and the programs and units that the packages of
kubeadm's project install. kubeadm's checks are on; but a kernel without cpusets is not one that it
lets join, so there that check is left out.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.guest.guest import Guest
from lab.guest.recipe import Kernel
from lab.processes import run, wait_until
from tests.e2e.guide import Block, RootOnNode
from tests.e2e.kubeadm import UNIT_FILES

# Which kernel they have: `packaged`, or `own`, which is built first.
KERNEL = Kernel(os.environ.get("TRIO_KUBELET_GUEST_KERNEL") or Kernel.PACKAGED)
# What `kubelet.service` runs: the agent, or the Go kubelet, or the agent under its name.
AGENT, KUBELET = "/usr/bin/trio-kubelet run ", "/usr/bin/kubelet --bootstrap-kubeconfig"
KUBEADM, GO_KUBELET = "/opt/packages/kubeadm", "/opt/packages/kubelet"
# kubeadm requires cpusets: "unexpected kernel config: CONFIG_CPUSETS", "missing required cgroups:
# cpuset".
LEFT_OUT: Mapping[Kernel, str] = {Kernel.PACKAGED: "SystemVerification"}
WRAPPER = """\
#!/bin/sh
[ "$1" != join ] || set -- "$@" --ignore-preflight-errors={}
exec {} "$@"
"""
CHECKS_BEGIN = "[preflight] Running pre-flight checks"
FAILED_CHECK = re.compile(r"\[ERROR (.*)$", re.MULTILINE)
# The kernel of guests tells no clock speed, and the Go kubelet does not start without.
WITH_CLOCK_SPEED = """
sed 's/^bogomips/cpu MHz\\t\\t: 2000.000\\n&/' /proc/cpuinfo >/etc/cpuinfo
echo '/etc/cpuinfo /proc/cpuinfo none bind 0 0' >>/etc/fstab
mount /proc/cpuinfo
"""
DEADLINE_SECONDS = 600.0


def gather_build_requirements(folder: Path) -> None:
    """Fill a folder with what pip builds the agent with: machines reach no package index."""
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder)
    run([*pip, "hatchling"], deadline_seconds=DEADLINE_SECONDS)


class Machine:
    """One of them; `root` is who types there."""

    def __init__(self, guest: Guest, kernel: Kernel) -> None:
        self.guest = guest
        self.kernel = kernel
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/shared/wheels"}
        self.root = RootOnNode(environment=offline, guest=guest)
        self.failed_checks: tuple[str, ...] = ()
        """What failed of kubeadm's checks before the join, none of them left out."""

    @property
    def name(self) -> str:
        return self.guest.name

    def prepare(self, kubeadm: Path, go_kubelet: Path, build_requirements: Path) -> None:
        """Put the packages there, and what pip builds with."""
        for path, text in UNIT_FILES.items():
            self.guest.write(path, text)
        self.guest.write(KUBEADM, kubeadm.read_bytes(), mode=0o755)
        self.guest.write(GO_KUBELET, go_kubelet.read_bytes(), mode=0o755)
        self.guest.run(f"ln -s {GO_KUBELET} /usr/bin/kubelet")
        if self.kernel in LEFT_OUT:
            wrapper = WRAPPER.format(LEFT_OUT[self.kernel], KUBEADM)
            self.guest.write("/usr/bin/kubeadm", wrapper, mode=0o755)
        else:
            self.guest.run(f"ln -s {KUBEADM} /usr/bin/kubeadm")
        self.guest.run(WITH_CLOCK_SPEED)
        shutil.copytree(build_requirements, self.guest.shared / "wheels")

    def follow(self, *steps: Block) -> None:
        """Type blocks of the guide."""
        for step in steps:
            self.root.run(step.commands)

    def check(self, join: str) -> None:
        """Ask kubeadm for its checks before `kubeadm join ...`, and keep what failed."""
        phase = join.replace("kubeadm join", f"{KUBEADM} join phase preflight")
        asked = self.guest.call("sh", "-c", phase)
        said = (asked.stdout + asked.stderr).decode()
        assert CHECKS_BEGIN in said, said
        self.failed_checks = tuple(FAILED_CHECK.findall(said))

    def file(self, path: str) -> str:
        """A file there; empty if there is none."""
        return self.guest.run(f"cat {shlex.quote(path)} 2>/dev/null || true")

    def kubelet(self) -> str:
        """The command line of what `kubelet.service` runs; empty while it runs nothing."""
        words = self.guest.call("cat", f"/proc/{self.kubelet_pid()}/cmdline").stdout
        return words.decode().replace("\0", " ")

    def kubelet_pid(self) -> int:
        """The process of `kubelet.service`; 0 while there is none."""
        show = ("systemctl", "show", "--value", "--property=MainPID", "kubelet")
        return int(self.guest.run(*show))

    def wait_kubelet_is(self, command: str) -> None:
        """Wait until what `kubelet.service` runs has this in its command line."""
        wait_until(
            lambda: command in self.kubelet(),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"kubelet.service is not {command}: {self.guest.last_words()}",
        )
