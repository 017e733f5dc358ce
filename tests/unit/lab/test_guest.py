"""What makes a guest's image another one, what its kernel is told, and the line to its commands."""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import LabError, UnavailableError, host
from lab.guest import build, images, recipe
from lab.guest.commands import Commands
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.guest.keeper import take_processor
from lab.guest.kernels import configuration
from lab.guest.line import Line, Result
from lab.guest.recipe import Kernel, Recipe, cni_configuration
from lab.packages import Distribution, Packages

RECIPE = Recipe(Kernel.PACKAGED, ("trio>=0.31",))


def test_guests_are_spread_evenly_over_the_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7})
    taken = [take_processor(tmp_path) for _ in range(7)]
    counts = Counter(processor for processor, _ in taken)
    assert sorted(counts.values()) == [2, 2, 3]
    ended, lock = taken[1]
    lock.close()
    again, lock = take_processor(tmp_path)
    assert again == ended
    for each in (lock, *(lock for _, lock in taken)):
        each.close()


def test_of_a_guest_that_does_not_boot_nothing_is_left_but_its_console(tmp_path: Path) -> None:
    guest = Guest(tmp_path / "guest", image=GuestImage(tmp_path / "no-image"))
    with pytest.raises(LabError, match="does not boot"), guest:
        pass
    assert set(guest.folder.iterdir()) <= {guest.console}


@dataclass(slots=True)
class Other:
    """The guest's end of a line."""

    from_host: int
    to_host: int

    def say(self, text: bytes) -> None:
        os.write(self.to_host, text)

    def hear(self) -> bytes:
        return os.read(self.from_host, 4096)

    def end(self) -> None:
        os.close(self.to_host)


def connected() -> tuple[Line, Other]:
    """A line, and its other end."""
    from_host, to_guest = os.pipe()
    from_guest, to_host = os.pipe()
    return Line(to_guest, from_guest), Other(from_host, to_host)


@pytest.fixture
def line() -> Iterator[Line]:
    """A line to commands that run here, which ends with the test."""
    line, other = connected()
    commands = Commands(other.from_host, other.to_host)
    thread = threading.Thread(target=commands.serve)
    thread.start()
    assert line.wait_for_boot(30)
    yield line
    other.end()
    line.close()
    thread.join()


def run(line: Line, script: str, *, stdin: bytes = b"", deadline_seconds: float = 60) -> Result:
    return line.run(
        ("sh", "-c", script),
        environment={"PATH": "/usr/bin:/bin", "NAME": "value"},
        folder="/",
        stdin=stdin,
        deadline_seconds=deadline_seconds,
    )


def test_a_command_gets_what_it_is_given_and_its_output_and_status_come_back(line: Line) -> None:
    result = run(line, "cat; echo $NAME in $PWD >&2; exit 7", stdin=b"some\0bytes")
    assert result == Result(status=7, stdout=b"some\0bytes", stderr=b"value in /\n")


def test_long_output_comes_whole_while_others_run(line: Line) -> None:
    with ThreadPoolExecutor() as threads:
        results = threads.map(lambda n: run(line, f"seq {n}"), (20_000, 3, 30_000))
    assert [len(result.stdout.split()) for result in results] == [20_000, 3, 30_000]


def test_a_program_that_is_not_there_is_an_error(line: Line) -> None:
    with pytest.raises(LabError, match="No such file"):
        line.run(("nowhere",), environment={}, folder="/", stdin=b"", deadline_seconds=60)


def test_a_command_that_is_too_long_for_the_line_is_refused(line: Line) -> None:
    with pytest.raises(LabError, match="a guest takes 4000"):
        run(line, f"true {'x' * 4000}")
    assert run(line, "echo fine").stdout == b"fine\n"


def test_a_command_is_killed_at_its_deadline_and_the_error_tells_what_it_wrote(
    line: Line, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(LabError, match="no end after 2 s; begun"):
        run(line, f"echo begun; exec 3<>{tmp_path}/fifo; read nothing <&3", deadline_seconds=2)
    with pytest.raises(OSError, match="No such device"):
        os.open(tmp_path / "fifo", os.O_WRONLY | os.O_NONBLOCK)  # Nobody has its other end.


def test_commands_under_way_fail_when_the_guest_starts_anew_or_ends() -> None:
    line, other = connected()
    endings: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: other.say(b'{"boot": "second"}\n'), "started anew"),
        (other.end, "ended"),
    )
    with ThreadPoolExecutor() as threads:
        for end, reason in endings:
            waits = threads.submit(run, line, "true")
            other.hear()
            end()
            with pytest.raises(LabError, match=reason):
                waits.result()
    assert line.boot_id == "second"
    with pytest.raises(LabError, match="does not run"):
        run(line, "true")
    line.close()
    os.close(other.from_host)


def test_a_guest_that_does_not_answer_is_reminded_that_there_is_something_to_read() -> None:
    line, other = connected()
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(run, line, "true")
        asked = json.loads(other.hear())
        assert other.hear() == b"\n"
        other.say(json.dumps({"id": asked["run"], "status": 3}).encode() + b"\n")
        assert waits.result().status == 3
    other.end()
    line.close()
    os.close(other.from_host)


def test_what_is_no_message_is_passed_over() -> None:
    line, other = connected()
    other.say(b'half a mess\n0\n"boot"\n{"half": 1}\n{"id": 99, "status": 0}\n{"boot": "first"}\n')
    assert line.wait_for_boot(30)
    other.end()
    assert line.wait_for_end(30)
    line.close()
    os.close(other.from_host)


def test_options_of_a_kernel_become_its_configuration() -> None:
    text = "# why\nPSI NR_CPUS=2\nMODULES=n\n"
    assert configuration(text) == "CONFIG_PSI=y\nCONFIG_NR_CPUS=2\nCONFIG_MODULES=n\n"
    with pytest.raises(LabError, match="not a kernel option: psi"):
        configuration("PSI psi")


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Recipe(Kernel.PACKAGED, ("trio>=0.31",)), True),
        (Recipe(Kernel.OWN, ("trio>=0.31",)), False),
        (Recipe(Kernel.PACKAGED, ("trio>=0.32",)), False),
        (Recipe(Kernel.PACKAGED, ("trio>=0.31", "attrs")), False),
    ],
)
def test_an_image_is_named_by_what_it_is_made_from(other: Recipe, same: bool) -> None:
    assert (RECIPE.digest == other.digest) is same


@pytest.mark.parametrize(
    "name", ["build.py", "commands.py", "root/etc/fstab", "../debian_root.py", "../root_folder.py"]
)
def test_an_image_is_another_one_when_what_makes_it_changes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, changed = RECIPE.digest, (recipe.HERE / name).resolve()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == changed))
    assert RECIPE.digest != before


@pytest.mark.parametrize(
    ("kernel", "plugins"),
    [
        (Kernel.PACKAGED, ["bridge", "loopback"]),
        (Kernel.OWN, ["bridge", "portmap", "loopback"]),
    ],
)
def test_pods_have_host_ports_where_the_kernel_translates_addresses(
    kernel: Kernel, plugins: list[str]
) -> None:
    found = cni_configuration(kernel)["plugins"]
    assert isinstance(found, list)
    assert [each["type"] for each in found] == plugins


class Builds:
    """Stands in for minutes of building: fills the folder, and fails if it is told to."""

    def __init__(self) -> None:
        self.fails = False
        self.count = 0

    def build(self, recipe: Recipe, folder: Path, packages: Packages) -> None:
        self.count += 1
        (folder / "root.ext4").write_text(recipe.kernel)
        if self.fails:
            raise LabError("no network")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    builds = Builds()
    monkeypatch.setattr(build, "build", builds.build)
    monkeypatch.setattr(images, "_boot_once", lambda image: None)
    monkeypatch.setattr(host, "obstacles", lambda: ())
    return builds


def test_an_image_is_built_once(builds: Builds, tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    first = images.find(Kernel.PACKAGED, packages)
    assert images.find(Kernel.PACKAGED, packages) == first
    other = images.find(Kernel.OWN, packages)
    assert builds.count == 2
    assert (first.disk.read_text(), other.disk.read_text()) == ("packaged", "own")


def test_what_a_failed_or_killed_build_leaves_is_never_an_image(
    builds: Builds, tmp_path: Path
) -> None:
    packages = Packages(tmp_path)
    builds.fails = True
    with pytest.raises(LabError):
        images.find(Kernel.PACKAGED, packages)
    assert [path.name for path in (tmp_path / "guest").iterdir()] == ["lock-packaged"]
    killed, under_way = (
        tmp_path / "guest" / f"{kernel}-0123456789ab.partial" for kernel in ("packaged", "own")
    )
    killed.mkdir()
    under_way.mkdir()
    builds.fails = False
    images.find(Kernel.PACKAGED, packages)
    assert not killed.exists()
    assert under_way.exists(), "images with other kernels have a lock of their own"


def test_images_that_nobody_uses_go_when_another_is_built(builds: Builds, tmp_path: Path) -> None:
    old = GuestImage(tmp_path / "guest" / "packaged-0123456789ab")
    young = GuestImage(tmp_path / "guest" / "packaged-ba9876543210")
    for image in (old, young):
        image.folder.mkdir(parents=True)
    os.utime(old.folder, (0, 0))
    images.find(Kernel.PACKAGED, Packages(tmp_path))
    assert not old.folder.exists()
    assert young.folder.exists()


@pytest.mark.parametrize(
    ("where", "answer", "reason"),
    [
        ("lab.host.obstacles", ("a real container runtime needs root",), "needs root"),
        ("platform.machine", "aarch64", "x86-64"),
        ("lab.packages.Distribution.of_this_system", Distribution("fedora", ""), "not on fedora"),
    ],
)
def test_where_no_guest_can_run_it_is_said(
    where: str, answer: object, reason: str, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, lambda: answer)
    with pytest.raises(UnavailableError, match=reason):
        images.find()
    assert not builds.count
