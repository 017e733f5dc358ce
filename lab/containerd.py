"""A containerd of our own, from start to leaving no trace.

It is given a folder; configuration, log, socket, root and state are in there, network names and
subnet come from `instances`. Methods block until what they promise is true, or raise LabError at
their deadline; in a trio test run them in a thread: `await trio.to_thread.run_sync(c.restart)`.
Containers outlive `kill` and `restart`, as they do in production; `stop` ends everything.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from lab import LabError, containerd_config, host, images, instances
from lab.images import Image
from lab.instances import CRI_NAMESPACE, Claim
from lab.network import LabNetwork
from lab.packages import Packages
from lab.processes import last_words, run, wait_until
from lab.started import Started
from lab.tools import Tools, find

START_DEADLINE_SECONDS = 60
STOP_DEADLINE_SECONDS = 10
# A unix socket's address holds 108 bytes; containerd appends `.ttrpc` to the path.
LONGEST_SOCKET_PATH = 100
# The CRI plugin's last words before it answers calls.
CRI_IS_UP = "Start streaming server"


class Containerd(Started):
    """One private containerd; a context manager that starts and stops it.

    `version` is `1.6`, `1.7`, `2.1` or `default`, or such a version with another OCI runtime than
    runc: `1.7+crun`. `folder` holds everything and may exist. `limits_huge_pages`: containers have
    a limit of their own, which is not containerd's default.
    """

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        packages: Packages | None = None,
        limits_huge_pages: bool = False,
    ) -> None:
        self.wish = version
        self.folder = folder.absolute()
        self.socket = self.folder / "containerd.sock"
        self.log = self.folder / "containerd.log"
        self.registries = self.folder / "registries"
        self.cdi_specifications = self.folder / "cdi"
        self._packages = packages
        self._limits_huge_pages = limits_huge_pages
        self._tools: Tools | None = None
        self._images: tuple[Image, ...] = ()
        self._snapshotter = ""
        self._claim: Claim | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """As `containerRuntimeEndpoint` takes it."""
        return f"unix://{self.socket}"

    @property
    def tools(self) -> Tools:
        """The program files in use; known once started."""
        if self._tools is None:
            raise LabError("containerd was not started")
        return self._tools

    @property
    def network(self) -> LabNetwork:
        """The pods' network: its bridge, its subnet such as `10.213.0.0/24`."""
        if self._claim is None:
            raise LabError("containerd was not started")
        return self._claim.record.network

    @property
    def cgroup_root(self) -> str:
        """A cgroup for an agent that goes with this containerd; `stop` removes it."""
        if self._claim is None:
            raise LabError("containerd was not started")
        return self._claim.record.cgroup_root

    @property
    def images(self) -> Mapping[str, Image]:
        """The lab's images, which it has from the start, by name."""
        return {image.name: image for image in self._images}

    @property
    def pid(self) -> int | None:
        """The process id of containerd while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    def start(self) -> None:
        """Start from nothing, with the lab's images in place; takes seconds.

        What abandoned instances left on the host is removed first. LabError if containers cannot
        run here, the version cannot be had, or another process uses the folder.
        """
        obstacles = host.obstacles()
        if obstacles:
            raise LabError("; ".join(obstacles))
        if len(str(self.socket)) > LONGEST_SOCKET_PATH:
            raise LabError(f"{self.folder} is too long a path for a socket")
        instances.sweep()
        found = find(self.wish, self._packages or Packages())
        self._tools = found
        self._claim = instances.claim(
            self.folder, oci_runtime=found.oci_runtime, iptables=found.iptables
        )
        try:
            self._configure(found, self._claim.record)
            self._launch()
            self._images = images.all_images(found.busybox, found.catatonit)
            self.import_images(self._images)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End containerd and all its containers and remove what they held; safe to repeat.

        Log and configuration stay. cgroups that a node agent made for its pods are the agent's.
        """
        if self._claim is None:
            return
        self._end_process(signal.SIGTERM)
        instances.remove_remains(self._claim.record)
        self._claim.release()
        self._claim = None

    def kill(self) -> None:
        """SIGKILL for containerd alone: shims and containers live on."""
        self._end_process(signal.SIGKILL)

    def restart(self) -> None:
        """Bring containerd back over its containers, ended in an orderly way if it still runs."""
        self._end_process(signal.SIGTERM)
        self._launch()

    def ctr(self, *words: str, deadline_seconds: float = 60) -> str:
        """Run `ctr` in the namespace of the CRI and return what it says."""
        return run(
            [self.tools.ctr, "--address", self.socket, "--namespace", CRI_NAMESPACE, *words],
            env={**os.environ, "CONTAINERD_SNAPSHOTTER": self._snapshotter},
            deadline_seconds=deadline_seconds,
        )

    def import_images(self, wanted: Iterable[Image]) -> None:
        """Put images into the store, visible to the CRI when this returns."""
        for image in wanted:
            archive = image.write(self.folder / "image.tar")
            self.ctr("images", "import", str(archive))
            archive.unlink()
            self._wait_for_image(image)

    def _wait_for_image(self, image: Image) -> None:
        """Wait for the CRI plugin, which follows the image store: it names images by config too."""
        names = {image.name, image.config_digest}
        wait_until(
            lambda: names <= set(self.ctr("images", "list", "--quiet").split()),
            deadline_seconds=30,
            else_say=lambda: f"the CRI does not see the image {image.name}",
        )

    def _configure(self, found: Tools, record: instances.InstanceRecord) -> None:
        root, state, network = (self.folder / name for name in ("root", "run", "network"))
        for folder in (root, state, network, self.registries, self.cdi_specifications):
            folder.mkdir(parents=True, exist_ok=True)
        self._snapshotter = "overlayfs" if host.can_overlay(root) else "native"
        settings = containerd_config.ContainerdSettings(
            version=found.major_minor,
            root=root,
            state=state,
            socket=self.socket,
            oci_runtime=found.oci_runtime,
            cni_plugins=found.cni_plugins,
            cni_configurations=network,
            registries=self.registries,
            cdi_specifications=self.cdi_specifications,
            sandbox_image=images.PAUSE,
            snapshotter=self._snapshotter,
            platform=f"linux/{images.architecture()}",
            restrict_oom_score_adj=not host.can_lower_oom_score_adj(),
            limits_huge_pages=self._limits_huge_pages,
        )
        record.configuration.write_text(containerd_config.render(settings))
        conflist = record.network.cni_configuration(masquerade=found.iptables is not None)
        (network / "10-lab.conflist").write_text(conflist)

    def _launch(self) -> None:
        """Start the process and wait until the CRI answers; LabError with the log's last words."""
        already_logged = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.tools.containerd, "--config", self.folder / "config.toml"],
                env=dict(self.tools.environment()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def answers() -> bool:
            if self.pid is None:
                raise LabError(f"containerd ended at once: {self._log_since(already_logged)}")
            return CRI_IS_UP in self._log_since(already_logged, whole=True) and self._responds()

        wait_until(
            answers,
            deadline_seconds=START_DEADLINE_SECONDS,
            else_say=lambda: f"containerd is not ready: {self._log_since(already_logged)}",
        )

    def _responds(self) -> bool:
        try:
            self.ctr("version", deadline_seconds=5)
        except LabError:
            return False
        return True

    def _log_since(self, offset: int, *, whole: bool = False) -> str:
        with self.log.open("rb") as log:
            log.seek(offset)
            text = log.read().decode(errors="replace")
        return text if whole else last_words(re.sub(r'time="[^"]*" ', "", text))

    def _end_process(self, how: signal.Signals) -> None:
        """End containerd, the hard way at the deadline."""
        if self._process is None:
            return
        try:
            os.kill(self._process.pid, how) if self._process.poll() is None else None
            self._process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_DEADLINE_SECONDS)
        self._process = None
