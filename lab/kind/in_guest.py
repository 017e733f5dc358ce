"""A Docker daemon in a guest: systemd starts it, and its containers have cgroup v2.

Docker is the package of the guest's own Debian. Clients of this host reach it at the guest's
address, with certificates of an authority that nobody else has: who may use it is root there.
Methods block.
"""

import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from lab.guest import images
from lab.guest.guest import Guest
from lab.guest.network import GuestNetwork
from lab.guest.recipe import SUITE, Kernel
from lab.kind import docker
from lab.packages import Packages
from lab.pki import Authority
from lab.started import Started

NAME = "docker"
PORT = 2376
KEYS = "/etc/docker"
# The kernel of guests tells no clock speed, and the Go kubelet does not start without.
CPU_INFO = "/etc/cpuinfo"
WRITE_CPU_INFO = rf"sed 's/^bogomips/cpu MHz\t\t: 2000.000\n&/' /proc/cpuinfo >{CPU_INFO}"
# What nodes of kind are given there, as fields of kind's configuration.
NODE = {"extraMounts": [{"hostPath": CPU_INFO, "containerPath": "/proc/cpuinfo", "readOnly": True}]}
# The package's files, and the group that its scripts make.
INSTALL = f"""
cp -a /shared/docker.io/usr /
groupadd --system docker
systemctl daemon-reload
systemctl start docker
{WRITE_CPU_INFO}
"""


class DockerInGuest(Started):
    """One daemon, and the guest that it has for itself; a context manager. `folder` may exist."""

    def __init__(self, folder: Path, packages: Packages | None = None) -> None:
        self.folder = folder.absolute()
        self._packages = packages or Packages()
        self._network = GuestNetwork(self._packages)
        self._running = ExitStack()

    @property
    def address(self) -> str:
        """Where the host reaches the daemon, and the ports that containers publish."""
        return self._network.link(NAME).address.partition("/")[0]

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs that call `docker`, which they find with it."""
        programs = self._packages.unpacked("docker.io", docker.SUITE) / "usr/bin"
        return {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "DOCKER_HOST": f"tcp://{self.address}:{PORT}",
            "DOCKER_TLS_VERIFY": "1",
            "DOCKER_CERT_PATH": str(self._client),
            "DOCKER_CONFIG": str(self._client),
        }

    @property
    def _client(self) -> Path:
        return self.folder / "client"

    def start(self) -> None:
        """Boot the guest and start the daemon, and return when it answers.

        UnavailableError where no guest can run.
        """
        image = images.find(Kernel.OWN, self._packages)  # The packaged kernel has no NAT.
        with ExitStack() as running:
            running.enter_context(self._network)
            guest = Guest(self.folder / "guest", image=image, name=NAME, network=self._network)
            running.enter_context(guest)
            package = self._packages.unpacked("docker.io", SUITE)
            shutil.copytree(package, guest.shared / "docker.io", symlinks=True)
            self._issue_keys(guest)
            guest.run(INSTALL)
            self._running = running.pop_all()

    def stop(self) -> None:
        """End the guest, with all that is in it. Safe to repeat."""
        self._running.close()

    def _issue_keys(self, guest: Guest) -> None:
        """Write what clients and the daemon show each other, and tell the daemon's unit."""
        authority = Authority(NAME)
        client = authority.issue("client")
        self._client.mkdir(parents=True, exist_ok=True)
        client_files = {
            "ca.pem": authority.certificate,
            "cert.pem": client.certificate,
            "key.pem": client.key,
        }
        for name, content in client_files.items():
            file = self._client / name
            file.touch(mode=0o600)
            file.write_bytes(content)
        server = authority.issue(NAME, hosts=[self.address])
        guest.write(f"{KEYS}/ca.pem", authority.certificate)
        guest.write(f"{KEYS}/cert.pem", server.certificate)
        guest.write(f"{KEYS}/key.pem", server.key, mode=0o600)
        options = (
            *("--host", f"tcp://{self.address}:{PORT}", "--tlsverify"),
            *("--tlscacert", f"{KEYS}/ca.pem"),
            *("--tlscert", f"{KEYS}/cert.pem", "--tlskey", f"{KEYS}/key.pem"),
        )
        guest.write("/etc/default/docker", f'DOCKER_OPTS="{shlex.join(options)}"\n')
