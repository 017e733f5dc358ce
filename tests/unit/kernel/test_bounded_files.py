"""Files of the configuration are read up to a limit, whatever a path leads to."""

import errno
import os
from pathlib import Path

import pytest

from trio_kubelet.kernel import bounded_files
from trio_kubelet.kernel.bounded_files import read_bounded


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes") as caught:
        read_bounded(path, 4)
    assert caught.value.errno == errno.EFBIG


def test_what_never_ends_is_too_long() -> None:
    with pytest.raises(OSError, match="it has more than 1000 bytes"):
        read_bounded(Path("/dev/zero"), 1000)


def test_a_pipe_is_waited_for_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_files, "WAIT_MILLISECONDS", 1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="nothing can be read from it") as caught:
        read_bounded(path, 5)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"12345")
    os.close(writing)
    assert read_bounded(Path(f"/dev/fd/{reading}"), 5) == b"12345"
    os.close(reading)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(("name", "error"), [("", IsADirectoryError), ("no", FileNotFoundError)])
def test_what_is_no_file_is_an_error(tmp_path: Path, name: str, error: type[OSError]) -> None:
    descriptors = open_files()
    with pytest.raises(error):
        read_bounded(tmp_path / name, 5)
    assert open_files() == descriptors
