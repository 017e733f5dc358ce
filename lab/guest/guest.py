"""A guest: a machine of its own, with systemd as its first process and cgroup v2 alone.

It runs from an image, with a fresh disk at each `start` that takes what is written, and keeps it
over reboots. Folders of the host in it: `shared`, as /shared, and the checkout, as /src; what the
guest writes there is on its own disk. Its kernel is a program of the host, so it needs neither KVM
nor a hypervisor; the host's root is all that it takes. All methods block, and may be called from
several threads.
"""

import itertools
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lab import LabError
from lab.guest.image import GuestImage
from lab.guest.keeper import Plan
from lab.guest.line import Line, Result
from lab.guest.network import GuestNetwork, Link
from lab.guest.recipe import REPOSITORY
from lab.orphans import marked
from lab.started import Started

BOOT_DEADLINE_SECONDS = 300
END_DEADLINE_SECONDS = 120
COMMAND_DEADLINE_SECONDS = 300
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
# The node's address where it is alone.
ALONE = ("10.98.0.2/24", "10.98.0.1")
CONSOLE_LINES = 60
MEMORY_MIB = 2048


class Guest(Started):
    """One machine; a context manager that boots it and ends it. `folder` may exist.

    Without a `network` it has an address and nobody to talk to. `on_image` is for who makes an
    image: what is written stays in there. More than one of the `processors` need a kernel of our
    own; they take turns on one of the host's.
    """

    def __init__(
        self,
        folder: Path,
        *,
        image: GuestImage,
        name: str = "guest",
        network: GuestNetwork | None = None,
        on_image: bool = False,
        processors: int = 1,
    ) -> None:
        self.folder = folder.absolute()
        self.shared = self.folder / "shared"
        self.console = self.folder / "console.log"
        self.name = name
        self._image = image
        self._network = network
        self._disk = "/image/root.ext4" if on_image else "/guest/disk.cow,/image/root.ext4"
        self._processors = processors
        self._machine_id = uuid.uuid4().hex
        self._files = itertools.count()
        self._line: Line | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot from a fresh disk, and return when systemd has started all there is to start.

        LabError if it does not; then of its files only the console is left.
        """
        self.stop()
        self.shared.mkdir(parents=True, exist_ok=True)
        self.console.unlink(missing_ok=True)
        try:
            self.boot()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it at once, as if the power failed, and remove its disk. Safe to repeat."""
        self.cut_power()
        (self.folder / "disk.cow").unlink(missing_ok=True)
        shutil.rmtree(self.shared, ignore_errors=True)

    def boot(self, *, wait: bool = True) -> None:
        """Start it again with the disk that it has; unless it is to `wait`, only its kernel."""
        if self._keeper is not None:
            raise LabError(f"{self.name} runs already")
        try:
            self._launch()
            if wait:
                self.wait_for_boot()
        except BaseException:
            self.cut_power()
            raise

    def wait_for_boot(self) -> None:
        """Wait until systemd has started all there is to start, whether it worked or not."""
        if not self._running_line.wait_for_boot(BOOT_DEADLINE_SECONDS):
            raise LabError(f"{self.name} does not boot: {self.last_words()}")
        state = self.call("systemctl", "is-system-running", "--wait").stdout.decode().strip()
        if state not in ("running", "degraded"):
            raise LabError(f"{self.name} is {state or 'gone'}: {self.last_words()}")

    def reboot(self) -> None:
        """Let systemd stop everything in order, and boot again."""
        self.power_off()
        self.boot()

    def power_off(self) -> None:
        """Let systemd stop everything in order. The disk stays."""
        line = self._running_line
        with suppress(LabError):  # It may end before it can say that it does.
            self.call("systemctl", "--no-block", "poweroff")
        if not line.wait_for_end(END_DEADLINE_SECONDS):
            raise LabError(f"{self.name} does not end: {self.last_words()}")
        self.cut_power()

    def cut_power(self) -> None:
        """End it at once. What it had written to its disk stays. Safe to repeat."""
        keeper, self._keeper = self._keeper, None
        line, self._line = self._line, None
        if keeper is not None and line is not None:
            keeper.kill()  # Its kernel goes with it, and nobody removes the disk.
            keeper.communicate(timeout=END_DEADLINE_SECONDS)
            line.close()

    def run(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        stdin: str = "",
        deadline_seconds: float = COMMAND_DEADLINE_SECONDS,
    ) -> str:
        """Run a command as root there, and return what it wrote to stdout.

        A single argument with blanks is a script for `sh -e`. LabError, with what it said, if it
        fails or takes too long; in the latter case it is killed.
        """
        result = self.call(
            *words,
            environment=environment,
            folder=folder,
            stdin=stdin,
            deadline_seconds=deadline_seconds,
        )
        if result.status != 0:
            said = result.stdout.decode(errors="replace") + result.stderr.decode(errors="replace")
            raise LabError(f"{shlex.join(words)}: status {result.status}\n{said}")
        return result.stdout.decode(errors="replace")

    def call(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        stdin: str = "",
        deadline_seconds: float = COMMAND_DEADLINE_SECONDS,
    ) -> Result:
        """Run a command as `run` does, and return its status and output, whatever they are.

        LabError if it cannot be started, takes too long, or the guest ends meanwhile.
        """
        is_script = len(words) == 1 and any(blank in words[0] for blank in " \n")
        try:
            return self._running_line.run(
                ("sh", "-e", "-c", words[0]) if is_script else words,
                environment={**ENVIRONMENT, **(environment or {})},
                folder=folder,
                stdin=stdin.encode(),
                deadline_seconds=deadline_seconds,
            )
        except LabError as error:
            raise LabError(f"{self.name}: {shlex.join(words)}: {error}") from None

    def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        """Write a file there at once and whole, with the folders above it."""
        passed = self.shared / f"to-{next(self._files)}"
        passed.write_bytes(content.encode() if isinstance(content, str) else content)
        partial = shlex.quote(f"{Path(path).parent}/.{Path(path).name}.partial")
        self.run(
            f"install -D -m {mode:o} /shared/{passed.name} {partial}; "
            f"mv -T {partial} {shlex.quote(path)}"
        )
        passed.unlink()

    def read(self, path: str) -> bytes:
        """Return the content of a file there."""
        passed = self.shared / f"from-{next(self._files)}"
        self.run(f"cat {shlex.quote(path)} >/shared/{passed.name}")
        content = passed.read_bytes()
        passed.unlink()
        return content

    def journal(self, *options: str) -> str:
        """Return the journal, of this boot by default."""
        return self.run("journalctl", "--no-pager", "-o", "short-precise", *(options or ("-b",)))

    def last_words(self, lines: int = CONSOLE_LINES) -> str:
        """The end of what kernel and journal said, which needs no guest that runs."""
        try:
            text = self.console.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    @property
    def boot_id(self) -> str:
        """What tells one boot from another."""
        return self._running_line.boot_id

    @property
    def _running_line(self) -> Line:
        if self._line is None:
            raise LabError(f"{self.name} was not started")
        return self._line

    def _launch(self) -> None:
        link = self._network.link(self.name) if self._network else None
        inner_in, to_guest = os.pipe()
        from_guest, inner_out = os.pipe()
        plan = Plan(
            kernel_root=str(self._image.kernel_root),
            image=str(self._image.folder),
            guest=str(self.folder),
            source=str(REPOSITORY),
            words=(*self._kernel_words(link), f"ssl0=fd:{inner_in},fd:{inner_out}"),
            line=(inner_in, inner_out),
            network_pid=self._network.pid if self._network else 0,
        )
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "lab.guest.keeper", plan.text()],
            cwd=REPOSITORY,
            env=marked(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=plan.line,
            start_new_session=True,
        )
        for descriptor in plan.line:
            os.close(descriptor)
        self._line = Line(to_guest, from_guest)

    def _kernel_words(self, link: Link | None) -> tuple[str, ...]:
        address, gateway = (link.address, link.gateway) if link else ALONE
        words = (
            f"transport=raw,ifname={link.interface},depth=128,gro=1,mac={link.mac}" if link else ""
        )
        return (
            *(f"mem={MEMORY_MIB}M", "seccomp=on", "uml_dir=/tmp/", f"ubd0={self._disk}"),
            *("root=/dev/ubda", "rw", "quiet", "panic=-1"),
            *((f"vec0:{words}",) if link else ()),
            *((f"ncpus={self._processors}",) if self._processors > 1 else ()),
            *("con0=null,fd:1", "con=null", "ssl=null"),
            *("security=apparmor", "apparmor=1"),
            *(f"systemd.hostname={self.name}", f"systemd.machine_id={self._machine_id}"),
            *(f"guest.address={address}", f"guest.gateway={gateway}"),
        )
