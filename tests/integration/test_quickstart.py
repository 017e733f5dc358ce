"""The quickstart as its user calls it, to the end and killed in the middle."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from lab import instances
from lab.host import cgroups_named
from lab.processes import command_lines

DEADLINE_SECONDS = 180


async def run_quickstart(temporary: Path, *flags: str) -> str:
    """What it says; asserts that it went well."""
    command = [sys.executable, "-m", "lab.quickstart", "--once", *flags]
    with trio.fail_after(DEADLINE_SECONDS):
        done = await trio.run_process(
            command,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.decode()


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where temporary folders are made; a short path, since there will be sockets below."""
    return tmp_path_factory.mktemp("q")


def programs_started_below(folder: Path) -> list[tuple[str, ...]]:
    return [argv for _, argv in command_lines() if str(folder) in " ".join(argv)]


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_it_shows_pods_fetches_their_pages_and_leaves_nothing(
    real_containers: None, temporary: Path
) -> None:
    said = await run_quickstart(temporary)
    assert "web-quickstart  1/1  Running" in said
    assert "Hello from a pod" in said
    assert "Hello from greeting-quickstart at 10.213." in said
    assert entries(temporary) == []
    assert programs_started_below(temporary) == []


async def test_without_a_kernel_it_shows_the_same_pods_and_says_what_is_missing(
    temporary: Path,
) -> None:
    said = await run_quickstart(temporary, "--hollow")
    assert "web-quickstart  1/1  Running" in said
    assert "no page is fetched" in said
    assert entries(temporary) == []


async def test_what_it_left_when_it_was_killed_goes_with_the_next_sweep(
    real_containers: None, temporary: Path
) -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "lab.quickstart"],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    said = b""
    with trio.fail_after(DEADLINE_SECONDS):
        while b"Ctrl-C ends it" not in said:
            said += await process.stdout.receive_some()
    process.kill()
    await process.wait()
    (folder,) = entries(temporary)
    assert programs_started_below(folder) != []
    cgroup = f"trio-kubelet-{instances.name_of(folder)}"
    assert cgroups_named(cgroup)

    await trio.to_thread.run_sync(instances.sweep)

    assert programs_started_below(temporary) == []
    assert not cgroups_named(cgroup)
    assert folder / "agent" / "root" not in entries(folder / "agent")
