"""Limits are those of a process for good, so each is tried in a process of its own."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from trio_kubelet.kernel.limits import raise_open_files_limit, set_oom_score

RAISE = """
import resource, sys
from trio_kubelet.kernel.limits import raise_open_files_limit
raise_open_files_limit(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""

BLOCKS = """
from pathlib import Path
from trio_kubelet.kernel.limits import give_back_large_blocks
print(give_back_large_blocks() if {is_set} else True)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

del (first := [b"x" * (1 << 20)])[0]
before = resident()
blocks = [b"x" * (1 << 20) for _ in range(64)]
last = [b"x" * 10_000 for _ in range(100)]
del blocks
print(resident() - before)
"""


def limit_after(wanted: int, soft: int, hard: int) -> tuple[tuple[int, int], str]:
    """The limits of a process that began with `soft` and `hard`, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", RAISE, str(wanted)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    *words, low, high = done.stdout.split()
    return (int(low), int(high)), " ".join(words)


def test_the_limit_is_raised_to_what_is_wanted() -> None:
    assert limit_after(512, 256, 1024) == ((512, 1024), "")


def test_the_limit_is_never_lowered() -> None:
    assert limit_after(100, 256, 1024) == ((256, 1024), "")


def test_what_the_host_does_not_allow_is_said_and_as_much_as_possible_taken() -> None:
    limits, words = limit_after(2**40, 256, 1024)
    assert limits == (1024, 1024)
    assert "open files limit increase failed" in words


def test_a_hard_limit_above_the_kernel_s_own_is_lived_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 2**31))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with structlog.testing.capture_logs() as logs:
        raise_open_files_limit(1024)
    (told,) = logs
    assert (told["wanted"], told["set"]) == (1024, 256)


def test_the_oom_score_is_written(tmp_path: Path) -> None:
    set_oom_score(-999, tmp_path / "oom_score_adj")
    assert (tmp_path / "oom_score_adj").read_text() == "-999"


def test_a_host_that_denies_the_oom_score_is_lived_with(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        set_oom_score(-999, tmp_path / "no" / "oom_score_adj")
    assert [entry["event"] for entry in logs] == ["OOM score adjustment failed"]


def left_of_blocks(*, is_set: bool) -> int:
    """The bytes that a process keeps of 64 MiB in blocks that it has freed."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS.format(is_set=is_set)],
        capture_output=True,
        text=True,
        check=True,
    )
    has_setting, left = done.stdout.split()
    if has_setting == "False":
        pytest.skip("the C library has no such setting")
    return int(left)


def test_large_blocks_are_given_back_when_they_are_freed() -> None:
    assert left_of_blocks(is_set=True) < 16 << 20
