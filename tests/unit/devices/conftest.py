"""The folder in which device plugins have their sockets."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    return folder
