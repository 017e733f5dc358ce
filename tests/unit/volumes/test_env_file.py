"""Env files: what counts as one, and that a container cannot lead the reader astray."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trio_kubelet.volumes.env_file import MAX_BYTES, parse_env_file, read_env_file
from trio_kubelet.volumes.plugin import MountedVolume


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("\n  \n# comment\n   # another\n", {}),
        ("A='1'", {"A": "1"}),
        ("  A='1'\n\tB=''\n", {"A": "1", "B": ""}),
        ("A='$B \"x\" \\ #'\n", {"A": '$B "x" \\ #'}),
        ("A='one\n\n# two\n'\nB='3'", {"A": "one\n\n# two\n", "B": "3"}),
        ("A='1'   # why\n", {"A": "1"}),
        ("A='1'\nA='2'\n", {"A": "1"}),
        ("odd.name-1='x=y'", {"odd.name-1": "x=y"}),
    ],
)
def test_what_a_file_declares(text: str, variables: Mapping[str, str]) -> None:
    assert parse_env_file(text) == variables


@pytest.mark.parametrize(
    "line", ["A", "A=1", 'A="1"', "A = '1'", "A='1", "='1'", "A='1'B='2'", "A='1' x", "'A'='1'"]
)
def test_anything_else_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"at line 3$"):
        parse_env_file(f"# comment\nFINE='x'\n{line}\n")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    volume.mkdir()
    return volume


@pytest.fixture
def read(volume: Path) -> Callable[[str], Mapping[str, str] | None]:
    volumes = {"v": MountedVolume(name="v", host_path=str(volume))}
    return lambda path: read_env_file(volumes, "v", path)


def test_a_file_is_read_and_one_that_is_missing_is_nothing(
    volume: Path, read: Callable[[str], Mapping[str, str] | None]
) -> None:
    (volume / "deep").mkdir()
    (volume / "deep" / "app.env").write_text("A='1'\n")
    assert read("deep/app.env") == {"A": "1"}
    assert read("gone/app.env") is None
    assert read_env_file({}, "v", "app.env") is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret"])
def test_a_path_that_leads_out_is_refused(
    read: Callable[[str], Mapping[str, str] | None], path: str
) -> None:
    with pytest.raises(ValueError, match="must stay inside"):
        read(path)


def test_no_symlink_is_followed_and_no_pipe_waited_for(
    tmp_path: Path, volume: Path, read: Callable[[str], Mapping[str, str] | None]
) -> None:
    (tmp_path / "secret").write_text("A='1'\n")
    (volume / "link").symlink_to("../secret")
    (volume / "folder").symlink_to("..")
    os.mkfifo(volume / "pipe")
    for path in ("link", "folder/secret", "pipe"):
        with pytest.raises(OSError, match=path):
            read(path)


def test_a_file_without_end_is_not_read(
    volume: Path, read: Callable[[str], Mapping[str, str] | None]
) -> None:
    with (volume / "huge").open("wb") as huge:
        huge.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="has more than"):
        read("huge")
