"""Units as the stand-in for systemctl reads them, and services as it starts them."""

import sys
from pathlib import Path

import pytest

from lab import LabError
from lab.processes import run
from lab.systemctl import ServiceUnit, read_service

READY = "import os, socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'READY=1', \
os.environ['NOTIFY_SOCKET'])"


# The program, with folders of a test in place of the machine's.
PROGRAM = """
import pathlib, sys
from lab import systemctl
folder = pathlib.Path(sys.argv[1])
systemctl.UNITS, systemctl.STATE = (folder,), folder / "state"
systemctl.main(sys.argv[2:])
"""


def call(folder: Path, *words: str) -> str:
    """Call the stand-in with these arguments; LabError if it fails."""
    return run([sys.executable, "-c", PROGRAM, folder, *words])


def write_unit(folder: Path, command: str, *more: str) -> None:
    lines = ("[Unit]", "Description=a", "[Service]", f"ExecStart={command}", *more)
    (folder / "a.service").write_text("\n".join(lines))


def test_drop_ins_are_read_in_the_order_of_their_names_and_replace_the_command(
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "etc", tmp_path / "usr"
    for folder in (ours, theirs):
        (folder / "a.service.d").mkdir(parents=True)
    write_unit(theirs, "/usr/bin/a")
    (theirs / "a.service.d/10-first.conf").write_text(
        '[Service]\nEnvironment="FLAGS=--a=1 --b"\nExecStart=\nExecStart=/usr/bin/b $FLAGS\n'
    )
    (ours / "a.service.d/20-second.conf").write_text(
        "[Service]\nType=notify\nExecStart=\nExecStart=/usr/bin/c $FLAGS $NONE ${FLAGS}\n"
    )
    service = read_service("a", (ours, theirs))
    assert service.type == "notify"
    words = service.words(service.variables())
    assert words == ["/usr/bin/c", "--a=1", "--b", "--a=1 --b"]


def test_a_drop_in_of_the_administrator_hides_one_of_the_same_name(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "etc", tmp_path / "usr"
    for folder, command in ((theirs, "/usr/bin/theirs"), (ours, "/usr/bin/ours")):
        (folder / "a.service.d").mkdir(parents=True)
        (folder / "a.service.d/10-a.conf").write_text(f"[Service]\nExecStart={command}\n")
    write_unit(theirs, "/usr/bin/a")
    assert read_service("a", (ours, theirs)).command == "/usr/bin/ours"


def test_an_environment_file_may_be_missing_only_if_the_unit_says_so(tmp_path: Path) -> None:
    given = tmp_path / "flags.env"
    given.write_text('# ours\nFLAGS="--x=1 --y"\n')
    service = ServiceUnit(environment_files=[str(given), f"-{tmp_path}/none"])
    assert service.variables() == {"FLAGS": "--x=1 --y"}
    with pytest.raises(LabError, match="none is missing"):
        ServiceUnit(environment_files=[f"{tmp_path}/none"]).variables()


def test_a_service_that_notifies_is_ready_when_start_returns(tmp_path: Path) -> None:
    script = tmp_path / "ready.py"
    script.write_text(f"{READY}\nimport time; time.sleep(600)")
    write_unit(tmp_path, f"{sys.executable} {script}", "Type=notify")
    call(tmp_path, "enable", "--now", "a")
    assert call(tmp_path, "is-active", "a") == "active\n"
    call(tmp_path, "stop", "a")
    assert "Active: inactive" in call(tmp_path, "status", "a")


def test_a_service_that_ends_without_a_word_is_a_failure(tmp_path: Path) -> None:
    write_unit(tmp_path, f"{sys.executable} -c 1", "Type=notify")
    with pytest.raises(LabError, match="did not become ready"):
        call(tmp_path, "start", "a")


def test_a_changed_unit_counts_after_a_reload(tmp_path: Path) -> None:
    write_unit(tmp_path, f"{sys.executable} -c 1", "Type=notify")
    call(tmp_path, "is-enabled", "a")
    write_unit(tmp_path, "/bin/sleep 600")
    with pytest.raises(LabError, match="did not become ready"):
        call(tmp_path, "start", "a")
    call(tmp_path, "daemon-reload")
    call(tmp_path, "start", "a")
    assert call(tmp_path, "is-active", "a") == "active\n"
    call(tmp_path, "stop", "a")
