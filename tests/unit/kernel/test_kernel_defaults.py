"""The settings of the kernel that a node needs: given to it, or demanded of it."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from trio_kubelet.errors import StartError
from trio_kubelet.kernel.limits import (
    KERNEL_DEFAULTS,
    other_kernel_defaults,
    set_kernel_defaults,
)
from trio_kubelet.node.host import check_kernel_defaults


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    """A kernel that has all of them, and two otherwise than a node needs."""
    values = {**KERNEL_DEFAULTS, "vm.overcommit_memory": 0, "kernel.panic": 0}
    for name, value in values.items():
        file = tmp_path / name.replace(".", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    return tmp_path


def test_what_is_otherwise_is_set_and_the_rest_left_alone(sysctls: Path) -> None:
    untouched = (sysctls / "kernel/panic_on_oops").stat().st_mtime_ns
    with capture_logs() as logs:
        set_kernel_defaults(sysctls)
        set_kernel_defaults(sysctls)
    assert [(each["name"], each["before"]) for each in logs] == [
        ("vm.overcommit_memory", "0"),
        ("kernel.panic", "0"),
    ]
    assert other_kernel_defaults(sysctls) == {}
    assert (sysctls / "kernel/panic_on_oops").stat().st_mtime_ns == untouched


def test_protected_defaults_are_demanded_and_not_set(sysctls: Path) -> None:
    words = "vm.overcommit_memory is 0 and must be 1, kernel.panic is 0 and must be 10"
    with pytest.raises(StartError, match=words):
        check_kernel_defaults(sysctls)
    assert (sysctls / "kernel/panic").read_text() == "0\n"
    set_kernel_defaults(sysctls)
    check_kernel_defaults(sysctls)


def test_a_setting_that_this_kernel_does_not_have_counts_for_nothing(sysctls: Path) -> None:
    for file in (sysctls / "kernel/keys").iterdir():
        file.unlink()
    set_kernel_defaults(sysctls)
    check_kernel_defaults(sysctls)
    assert list((sysctls / "kernel/keys").iterdir()) == []


def test_a_host_that_denies_one_says_so_and_has_the_others_set(sysctls: Path) -> None:
    denied = sysctls / "vm/overcommit_memory"
    denied.unlink()
    denied.mkdir()
    with capture_logs() as logs:
        set_kernel_defaults(sysctls)
    assert [(each["event"], each["name"]) for each in logs] == [
        ("kernel setting cannot be changed", "vm.overcommit_memory"),
        ("kernel setting changed", "kernel.panic"),
    ]
    with pytest.raises(StartError, match=r"protectKernelDefaults: .*overcommit_memory: Is a dir"):
        check_kernel_defaults(sysctls)
