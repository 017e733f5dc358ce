"""What the kernel says of its security modules."""

from pathlib import Path

import pytest

from trio_kubelet.node.machine import apparmor_enabled


@pytest.mark.parametrize(
    ("mounted", "parameter", "enabled"),
    [
        (True, "Y\n", True),
        (True, "N\n", False),
        (True, None, False),
        (False, "Y\n", False),
    ],
)
def test_apparmor_is_enabled_where_its_parameter_and_its_filesystem_are(
    tmp_path: Path, mounted: bool, parameter: str | None, enabled: bool
) -> None:
    parameters = tmp_path / "module" / "apparmor" / "parameters"
    parameters.mkdir(parents=True)
    if parameter is not None:
        (parameters / "enabled").write_text(parameter)
    if mounted:
        (tmp_path / "kernel" / "security" / "apparmor").mkdir(parents=True)
    assert apparmor_enabled(tmp_path) == enabled
