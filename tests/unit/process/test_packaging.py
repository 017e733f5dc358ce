"""What people install: the unit and the example configuration."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from trio_kubelet.cli.commands import commands

PACKAGING = Path(__file__).parents[3] / "packaging"
UNIT = PACKAGING / "systemd" / "trio-kubelet.service"


def test_the_example_configuration_is_accepted_without_a_warning() -> None:
    result = CliRunner().invoke(commands, ["check-config", str(PACKAGING / "config.yaml")])
    assert result.exit_code == 0, result.output
    assert not result.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/trio-kubelet", shutil.which("true") or ""))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    if "Failed to" in done.stderr and UNIT.name not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert UNIT.name not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    ["Type=notify", "KillMode=process", "Restart=always", "WatchdogSec=60", "OOMScoreAdjust=-999"],
)
def test_the_unit_keeps_containers_and_is_watched(line: str) -> None:
    assert line in UNIT.read_text().splitlines()


def test_the_unit_names_the_configuration_where_the_example_says_to_put_it() -> None:
    assert "--config=/etc/kubernetes/trio-kubelet.yaml" in UNIT.read_text()
    assert "/etc/kubernetes/trio-kubelet.yaml" in (PACKAGING / "config.yaml").read_text()
