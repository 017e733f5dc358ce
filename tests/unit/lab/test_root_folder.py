"""What is done in a root folder of packages."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lab import root_folder

HOSTS = {
    "PIP_FIND_LINKS": "/opt/wheels",
    "PYTHONPYCACHEPREFIX": "/var/cache/bytecode",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def test_requirements_are_installed_with_their_bytecode_and_from_where_the_host_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (*HOSTS.items(), ("PIP_DEFAULT_TIMEOUT", "7")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(root_folder, "HOST_FILES", ())
    told: list[Mapping[str, str]] = []
    monkeypatch.setattr(
        root_folder, "run_inside", lambda _, environment, *words: told.append(environment)
    )
    (tmp_path / "opt").mkdir()
    root_folder.install_requirements(("trio>=0.31",), tmp_path)
    assert (tmp_path / "opt/requirements.txt").read_text() == "trio>=0.31"
    assert len(told) == 2, "the environment is made, and filled"
    for each in told:
        assert not each.keys() & HOSTS.keys()
        assert each["PIP_DEFAULT_TIMEOUT"] == "7"
