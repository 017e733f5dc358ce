"""What people install: the units and the example configuration."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from trio_kubelet.cli.commands import commands
from trio_kubelet.config.flags import parse_flags

PACKAGING = Path(__file__).parents[3] / "packaging"
SYSTEMD = PACKAGING / "systemd"
UNIT = SYSTEMD / "trio-kubelet.service"
DROP_INS = ("trio-kubelet.service.d/10-cluster.conf", "kubelet.service.d/20-trio-kubelet.conf")
KUBELET_UNIT = "[Service]\nExecStart=/usr/bin/kubelet\n"
# What stands in the variables that the units have in their command lines.
VARIABLES = {
    "$KUBELET_KUBECONFIG_ARGS": "--bootstrap-kubeconfig=/b.conf --kubeconfig=/k.conf",
    "$KUBELET_CONFIG_ARGS": "--config=/var/lib/kubelet/config.yaml",
    "$KUBELET_KUBEADM_ARGS": "--hostname-override=n --register-with-taints=a=b:NoSchedule",
    "$KUBELET_EXTRA_ARGS": "",
    "$TRIO_KUBELET_EXTRA_ARGS": "--node-labels=disk=ssd",
}


def test_the_example_configuration_is_accepted_without_a_warning() -> None:
    result = CliRunner().invoke(commands, ["check-config", str(PACKAGING / "config.yaml")])
    assert result.exit_code == 0, result.output
    assert not result.stderr


@pytest.mark.parametrize(
    ("name", "with_drop_in"),
    [(UNIT.name, False), (UNIT.name, True), ("kubelet.service", True)],
)
def test_systemd_accepts_the_unit(tmp_path: Path, name: str, with_drop_in: bool) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    installed = {UNIT.name: UNIT.read_text(), "kubelet.service": KUBELET_UNIT}
    if with_drop_in:
        installed |= {each: (SYSTEMD / each).read_text() for each in DROP_INS}
    for file, text in installed.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        # The program that a unit names must be there.
        path.write_text(re.sub(r"/usr/bin/(trio-)?kubelet", shutil.which("true") or "", text))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to" in done.stderr and name not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert not any(about in done.stderr for about in (name, *DROP_INS)), done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    ["Type=notify", "KillMode=process", "Restart=always", "WatchdogSec=60", "OOMScoreAdjust=-999"],
)
def test_the_unit_keeps_containers_and_is_watched(line: str) -> None:
    assert line in UNIT.read_text().splitlines()


def settings_of(path: Path) -> dict[str, str]:
    """What a unit, or a drop-in, says in its section [Service]."""
    lines = path.read_text().partition("[Service]\n")[2].partition("\n[")[0].splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_kubeadms_unit_runs_the_agent_as_ours_does() -> None:
    """But for the program's words, and for restarts, of which kubeadm's own unit says enough."""
    ours, drop_in = (settings_of(SYSTEMD / name) for name in (UNIT.name, DROP_INS[1]))
    for name in ("ExecStart", "Restart", "RestartSec"):
        del ours[name]
    del drop_in["ExecStart"]
    assert drop_in == ours


def test_the_unit_names_the_configuration_where_the_example_says_to_put_it() -> None:
    assert "--config=/etc/kubernetes/trio-kubelet.yaml" in UNIT.read_text()
    assert "/etc/kubernetes/trio-kubelet.yaml" in (PACKAGING / "config.yaml").read_text()


def test_the_agent_takes_the_flags_of_the_units() -> None:
    kubeconfigs = ("/etc/kubernetes/kubelet.conf", "/k.conf")
    for drop_in, kubeconfig in zip(DROP_INS, kubeconfigs, strict=True):
        written = settings_of(SYSTEMD / drop_in)["ExecStart"].split()
        words = [word for each in written for word in VARIABLES.get(each, each).split()]
        program, command, *flags = words
        assert (program, command) == ("/usr/bin/trio-kubelet", "run")
        asked = parse_flags(tuple(flags))
        assert not asked.problems
        assert asked.options.kubeconfig == kubeconfig
