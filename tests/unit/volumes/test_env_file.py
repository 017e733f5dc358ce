"""Env files: what counts as one, and that a container cannot lead the reader astray."""

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.turns import is_too_long
from trio_kubelet.volumes import env_file
from trio_kubelet.volumes.env_file import (
    MAX_BYTES,
    MAX_BYTES_OF_CONTAINER,
    EnvFiles,
    parse_env_file,
)
from trio_kubelet.volumes.plugin import MountedVolume
from trio_kubelet.volumes.safe_open import open_file_beneath


def find_variable(text: str, name: str) -> str | None:
    """The value of a variable in a file with this text; raises ValueError."""
    file = parse_env_file(text)
    value = file.variables.get(name)
    if value is None and file.problem:
        raise ValueError(file.problem)
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("A='1'", None),
        ("\n  \n# comment\n   # another\nK='1'\n", "1"),
        ("  K='1'\n", "1"),
        ("K='1'   \n", "1"),
        ("K='1'\r\n", "1"),
        ("K='1' # why", "1"),
        ("K='1'# why", "1"),
        ("K=''\n", ""),
        ("K='$B \"x\" \\ #'\n", '$B "x" \\ #'),
        ("A='1'\nK='one\n\n# two\n'\nB='3'", "one\n\n# two\n"),
        ("K='1 \\\n2'", "1 \\\n2"),
        ("K='1'\nK='2'\n", "1"),
        ("K='1'\nnonsense\n", "1"),
        ("export K='1'\n", None),
    ],
)
def test_what_a_file_declares(text: str, value: str | None) -> None:
    assert find_variable(text, "K") == value


def test_names_may_be_odd() -> None:
    assert find_variable("odd.name-1='x=y'", "odd.name-1") == "x=y"


@pytest.mark.parametrize(
    "line",
    ["A", "A=1", 'A="1"', "A = '1'", "K= '1'", "A='1", "='1'", "K='1'B='2'", "K='1' x", "K='1''2'"],
)
def test_anything_else_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"at line 3$"):
        find_variable(f"# comment\nFINE='x'\n{line}\n", "K")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    volume.mkdir()
    return volume


@pytest.fixture
def read(volume: Path) -> Callable[[str], str]:
    volumes = {"v": MountedVolume(name="v", host_path=str(volume))}
    return lambda path: EnvFiles(volumes).variable("v", path, "A")


def test_a_file_is_read_and_what_is_missing_is_told(
    volume: Path, read: Callable[[str], str]
) -> None:
    (volume / "deep").mkdir()
    file = volume / "deep" / "app.env"
    file.write_text("A='1'\n")
    assert read("deep/app.env") == "1"
    file.write_text("B='1'\n")
    with pytest.raises(LookupError) as caught:
        read("deep/app.env")
    assert caught.value.args == (f'environment variable key "A" not found in file "{file}"',)
    with pytest.raises(FileNotFoundError):
        read("gone/app.env")
    with pytest.raises(LookupError, match='cannot find the volume "v"'):
        EnvFiles({}).variable("v", "app.env", "A")


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret"])
def test_a_path_that_leads_out_is_refused(read: Callable[[str], str], path: str) -> None:
    with pytest.raises(ValueError, match="must stay inside"):
        read(path)


def test_no_symlink_is_followed_and_no_pipe_waited_for(
    tmp_path: Path, volume: Path, read: Callable[[str], str]
) -> None:
    (tmp_path / "secret").write_text("A='1'\n")
    (volume / "link").symlink_to("../secret")
    (volume / "folder").symlink_to("..")
    os.mkfifo(volume / "pipe")
    for path in ("link", "folder/secret", "pipe"):
        with pytest.raises(OSError, match=path):
            read(path)


def test_a_file_without_end_is_not_read(volume: Path, read: Callable[[str], str]) -> None:
    with (volume / "huge").open("wb") as huge:
        huge.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="has more than"):
        read("huge")


def test_a_file_is_read_once_for_a_container(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_beneath(folder: int, path: str) -> int:
        opened.append(path)
        return open_file_beneath(folder, path)

    monkeypatch.setattr(env_file, "open_file_beneath", open_beneath)
    (volume / "app.env").write_text("".join(f"V{n}='{n}'\n" for n in range(20)))
    files = EnvFiles({"v": MountedVolume(name="v", host_path=str(volume))})
    values = [files.variable("v", "app.env", f"V{n}") for n in range(20)]
    assert values == [str(n) for n in range(20)]
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            files.variable("v", "gone.env", "A")
    assert opened == ["app.env", "gone.env"]


def test_all_files_of_a_container_together_are_bounded(volume: Path) -> None:
    files = EnvFiles({"v": MountedVolume(name="v", host_path=str(volume))})
    count = MAX_BYTES_OF_CONTAINER // MAX_BYTES
    text = "A='1'\n" + "\n" * (MAX_BYTES - 6)
    for number in range(count + 1):
        (volume / f"{number}.env").write_text(text)
    assert [files.variable("v", f"{number}.env", "A") for number in range(count)] == ["1"] * count
    with pytest.raises(ValueError, match=f"more than {MAX_BYTES_OF_CONTAINER} bytes"):
        files.variable("v", f"{count}.env", "A")
    others = EnvFiles({"v": MountedVolume(name="v", host_path=str(volume))})
    assert others.variable("v", f"{count}.env", "A") == "1"


def test_lines_that_say_nothing_are_skipped_at_once() -> None:
    began = time.thread_time()
    assert find_variable("# comment\n\n" * 90_000 + "K='1'", "K") == "1"
    assert not is_too_long(time.thread_time() - began)


@pytest.mark.parametrize("text", ["\n", "#\n", " \n", "A=''\n", "A=''\n\n"])
def test_a_file_takes_little_more_memory_than_its_text(text: str) -> None:
    whole = text * (100_000 // len(text))
    tracemalloc.start()
    try:
        parse_env_file(whole)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(whole)
