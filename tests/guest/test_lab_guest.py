"""The machines themselves: what other tests rely on."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from lab import LabError, orphans
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.guest.network import GuestNetwork
from lab.processes import alive, wait_until
from tests.tested import GUEST

PORT = 5555

# Arguments: a folder, and that of an image. Says that it has a guest, and waits to be killed.
OWNER = """
import signal, sys
from pathlib import Path
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.guest.network import GuestNetwork
network = GuestNetwork()
network.start()
guest = Guest(Path(sys.argv[1]), image=GuestImage(Path(sys.argv[2])), network=network)
guest.boot(wait=False)
print(network.host_interface, flush=True)
signal.pause()
"""


def owned_by(owner: int) -> list[int]:
    """The processes that bear the mark of that one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if re.search(rb"%s=\d+:%d:" % (orphans.MARK.encode(), owner), path.read_bytes()):
                found.append(int(path.parent.name))
    return found


class Pair(NamedTuple):
    """Two machines, and the network that they are in."""

    a: Guest
    b: Guest
    network: GuestNetwork

    def last_words(self) -> str:
        """The ends of both consoles."""
        return f"{self.a.last_words()}\n\n{self.b.last_words()}"


@pytest.fixture(scope="module")
def pair(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two machines in one network."""
    folder = tmp_path_factory.mktemp("pair")
    with GuestNetwork() as network:
        guests = [
            Guest(folder / name, image=image, name=name, network=network) for name in ("a", "b")
        ]
        with ThreadPoolExecutor() as threads:
            list(threads.map(Guest.start, guests))
        try:
            yield Pair(guests[0], guests[1], network)
        finally:
            for guest in guests:
                guest.stop()


def test_it_is_a_node_as_users_have_them(guest: Guest) -> None:
    assert guest.run("cat", "/proc/1/comm") == "systemd\n"
    assert guest.run("systemctl", "is-system-running") == "running\n"
    controllers = guest.run("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    assert {"cpu", "io", "memory", "pids"} <= set(controllers)
    assert "localhost/lab/pause:1" in guest.run("ctr", "-n", "k8s.io", "images", "ls", "-q")


def test_it_is_the_machine_that_is_said_to_be_tested(guest: Guest) -> None:
    systemd = guest.run("systemctl --version").split()[1]
    assert GUEST.first_process == f"systemd {systemd}"
    containerd = guest.run("containerd --version").split()[2]
    oci = [guest.run(f"{name} --version").split()[2] for name in ("runc", "crun")]
    runtime = [".".join(version.split(".")[:2]) for version in (containerd, *oci)]
    assert GUEST.runtime == "containerd {}, runc {} and crun {}".format(*runtime)
    kernel, least = (
        [int(number) for number in re.findall(r"\d+", text)[:2]]
        for text in (guest.run("uname -r"), GUEST.kernel)
    )
    assert kernel >= least
    assert guest.run("stat -fc %T /sys/fs/cgroup") == "cgroup2fs\n"


def test_no_guest_has_to_compile_the_programs_of_its_image(guest: Guest) -> None:
    # pip has hundreds of modules, most of which no run of it reads.
    pip = "/opt/trio-kubelet/lib/python3*/site-packages/pip"
    sources, compiled = (
        int(guest.run(f"find {pip} -name '*.{suffix}' | wc -l")) for suffix in ("py", "pyc")
    )
    assert compiled == sources > 0


def test_a_command_has_its_output_and_its_status(guest: Guest) -> None:
    result = guest.call("echo out; echo err >&2; cat; exit 3", stdin="in")
    assert (result.status, result.stdout, result.stderr) == (3, b"out\nin", b"err\n")
    assert guest.call("kill -9 $$").status == -signal.SIGKILL
    with pytest.raises(LabError, match=r"status 3\nsaid"):
        guest.run("echo said >&2; exit 3")
    with pytest.raises(LabError, match="No such file"):
        guest.run("no-such-program")


def test_a_command_that_takes_too_long_is_killed(guest: Guest) -> None:
    with pytest.raises(LabError, match="no end after"):
        guest.run("sleep 98765 & wait", deadline_seconds=0.5)
    wait_until(
        lambda: guest.call("pgrep", "-f", "sleep 98765").status == 1,
        deadline_seconds=10,
        else_say=lambda: "it runs on",
    )


def test_commands_run_side_by_side(guest: Guest) -> None:
    with ThreadPoolExecutor() as threads:
        reader = threads.submit(guest.run, "mkfifo /tmp/fifo; cat /tmp/fifo")
        guest.run("until test -p /tmp/fifo; do sleep 0.01; done; echo met >/tmp/fifo")
        assert reader.result() == "met\n"
    guest.run("rm", "/tmp/fifo")


def test_files_go_in_and_out(guest: Guest) -> None:
    content = os.urandom(3_000_000)
    guest.write("/tmp/new folder/file", content, mode=0o600)
    assert guest.run("stat -c %a '/tmp/new folder/file'") == "600\n"
    assert guest.read("/tmp/new folder/file") == content
    guest.run("rm -r '/tmp/new folder'")
    assert list(guest.shared.iterdir()) == []


def test_the_checkout_is_there_and_cannot_be_changed_from_there(guest: Guest) -> None:
    here = Path(__file__)
    seen = f"/src/{here.relative_to(here.parents[2])}"
    assert guest.read(seen) == here.read_bytes()
    guest.run(f"echo changed >{seen}; rm {seen}")
    assert here.exists()


def test_guests_reach_each_other_and_the_host(pair: Pair) -> None:
    a, b, network = pair
    address = network.link(a.name).address.partition("/")[0]
    unit = ("systemd-run", "--unit=answer", "--collect")
    a.run(*unit, "busybox", "nc", "-ll", "-p", str(PORT), "-e", "hostname")
    asked = f"until nc -d {address} {PORT}; do sleep 0.1; done"
    assert b.run(asked) == "a\n"
    with socket.create_connection((address, PORT), timeout=10) as connection:
        assert connection.recv(10) == b"a\n"
    with socket.create_server((network.host_address, 0)) as server:
        port = server.getsockname()[1]
        with ThreadPoolExecutor() as threads:
            said = threads.submit(b.run, "nc", "-d", network.host_address, str(port))
            server.accept()[0].close()
            assert said.result() == ""


def test_a_command_fails_when_its_guest_ends_and_what_was_written_is_gone_with_the_next_start(
    pair: Pair,
) -> None:
    """The last test of the pair. What a boot finds of the last one, `test_boot` tells."""
    guest, first = pair.a, pair.a.boot_id
    guest.run("echo kept >/root/note; sync")
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(guest.run, "echo >/shared/begun; sleep 1000")
        wait_until(
            lambda: (guest.shared / "begun").exists(),
            deadline_seconds=30,
            else_say=lambda: "the command did not begin",
        )
        guest.cut_power()
        with pytest.raises(LabError, match="the guest ended"):
            waits.result()
    with pytest.raises(LabError, match="was not started"):
        guest.run("true")
    guest.start()
    assert guest.boot_id != first
    assert guest.call("test", "-e", "/root/note").status == 1
    guest.stop()
    assert list(guest.folder.iterdir()) == [guest.console]


def test_nothing_is_left_of_a_network_that_could_not_be_made(
    image: GuestImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise LabError("all addresses are taken")

    monkeypatch.setattr("lab.guest.network.free_subnet", fail)
    network = GuestNetwork()
    with pytest.raises(LabError, match="all addresses are taken"):
        network.start()
    interface = Path("/sys/class/net", network.host_interface)
    wait_until(
        lambda: not interface.exists(),
        deadline_seconds=30,
        else_say=lambda: f"{interface} is there",
    )


def test_nothing_is_left_of_guests_whose_owner_is_killed(image: GuestImage, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path, image.folder], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    interface = Path("/sys/class/net", owner.stdout.readline().strip())
    assert interface.name
    assert interface.exists()
    wait_until(
        lambda: (tmp_path / "disk.cow").exists(),
        deadline_seconds=60,
        else_say=lambda: "its kernel did not start",
    )
    owned = owned_by(owner.pid)
    assert len(owned) >= 3, "two keepers and a kernel"
    owner.kill()
    owner.communicate()
    wait_until(
        lambda: not any(map(alive, owned)) and not interface.exists(),
        deadline_seconds=30,
        else_say=lambda: f"of {owned} some run, or {interface} is there",
    )
    wait_until(
        lambda: [path.name for path in tmp_path.iterdir()] == ["console.log"],
        deadline_seconds=10,
        else_say=lambda: f"left: {list(tmp_path.iterdir())}",
    )
