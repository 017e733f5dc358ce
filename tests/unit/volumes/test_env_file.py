"""Env files: what counts as one, and that a container cannot lead the reader astray."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trio_kubelet.volumes.env_file import MAX_BYTES, find_variable, read_env_file
from trio_kubelet.volumes.plugin import MountedVolume


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
    return lambda path: read_env_file(volumes, "v", path, "A")


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
        read_env_file({}, "v", "app.env", "A")


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
