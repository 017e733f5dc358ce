"""Which of the kernel's security modules enforce anything on this machine."""

from pathlib import Path

_SYSFS = Path("/sys")


def apparmor_enabled(sysfs: Path = _SYSFS) -> bool:
    """Whether AppArmor is on and its filesystem is there. Read once at the start; blocking."""
    if not (sysfs / "kernel/security/apparmor").exists():
        return False
    try:
        return (sysfs / "module/apparmor/parameters/enabled").read_text().startswith("Y")
    except OSError:
        return False
