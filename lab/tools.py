"""Which programs a private runtime runs with.

Installed ones are used where they fit; the others are unpacked from packages. containerd of a
newer suite needs only glibc 2.34 and is taken as it is, one that no suite has is built; the OCI
runtime is always the system's own, since newer ones want newer libraries. iptables and its
libraries come along where the system has none: the CNI plugins for host ports and masquerading call
it.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import LabError, UnavailableError, containerd_module
from lab.packages import Packages
from lab.processes import run

DEFAULT = "default"
# The first is what is taken where none is asked for.
OCI_RUNTIMES = ("runc", "crun")

# Suites in which a version of containerd is looked for, besides the system's own.
CONTAINERD_SUITES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "debian": {"1.6": ("bookworm",), "1.7": ("trixie",), "2.1": ("forky", "sid")},
    "ubuntu": {"1.7": ("noble",), "2.1": ("questing",)},
}
CNI_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
IPTABLES_PACKAGES = (
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libxtables12",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
)
IPTABLES_KINDS = ("nft", "legacy")
IPTABLES_PROGRAMS = ("iptables", "iptables-save", "ip6tables", "ip6tables-save")


@dataclass(frozen=True, slots=True)
class Tools:
    """Program files of one runtime; `version` is containerd's, such as `1.6.20`."""

    version: str
    containerd: Path
    ctr: Path
    oci_runtime: Path
    cni_plugins: Path
    busybox: Path
    catatonit: Path
    iptables: Path | None

    @property
    def major_minor(self) -> tuple[int, int]:
        major, minor, *_ = map(int, self.version.split("."))
        return major, minor

    def environment(self) -> Mapping[str, str]:
        """For containerd, so that it and its plugins find the programs that belong to it."""
        folders = [self.containerd.parent, self.oci_runtime.parent]
        if self.iptables is not None:
            folders.append(self.iptables.parent)
        path = ":".join([*map(str, folders), os.environ.get("PATH", ""), "/usr/sbin:/sbin"])
        return {**os.environ, "PATH": path}


def find(wish: str, packages: Packages) -> Tools:
    """Find the programs for containerd `wish`: `1.6`, ... or `default` (installed or packaged).

    `1.7+crun` is one with another OCI runtime than runc. Blocks on the network for what neither the
    system nor the cache has. LabError says what cannot be had.
    """
    wanted, _, oci_runtime = wish.partition("+")
    containerd = _containerd(wanted, packages)
    version = version_of(containerd)
    return Tools(
        version=version,
        containerd=containerd,
        ctr=containerd.with_name("ctr"),
        oci_runtime=_oci_runtime(oci_runtime or OCI_RUNTIMES[0], packages),
        cni_plugins=_cni_plugins(packages),
        busybox=busybox(packages),
        catatonit=in_package(packages, "catatonit", "usr/bin/catatonit", "bin/catatonit"),
        iptables=iptables(packages),
    )


def busybox(packages: Packages) -> Path:
    """Find a statically linked busybox, the only user land of the lab's images."""
    return in_package(packages, "busybox-static", "bin/busybox", "usr/bin/busybox")


def version_of(containerd: Path) -> str:
    """`1.6.20` out of `containerd github.com/containerd/containerd 1.6.20~ds1 ...`."""
    shown = run([containerd, "--version"])
    found = re.search(r"\sv?(\d+\.\d+\.\d+)", shown)
    if found is None:
        raise LabError(f"{containerd} does not tell its version: {shown.strip()}")
    return found[1]


def fits(version: str, wish: str) -> bool:
    """Whether `1.6.20` is a `1.6`; anything is a `default`."""
    return wish == DEFAULT or f"{version}.".startswith(f"{wish}.")


def _containerd(wish: str, packages: Packages) -> Path:
    installed = shutil.which("containerd", path=_search_path())
    has_ctr = installed and Path(installed).with_name("ctr").exists()
    if installed and has_ctr and fits(version_of(Path(installed)), wish):
        return Path(installed)
    reasons = []
    for suite in _suites(wish, packages):
        try:
            version = packages.version("containerd", suite)
        except LabError as reason:
            reasons.append(f"{suite}: {reason}")
            continue
        if fits(re.sub(r"^\d+:", "", version), wish):
            return packages.unpacked("containerd", suite) / "usr/bin/containerd"
        reasons.append(f"{suite} has {version or 'none'}")
    if fits(containerd_module.version(), wish):
        return containerd_module.program()
    raise UnavailableError(f"containerd {wish} cannot be had here ({'; '.join(reasons)})")


def _suites(wish: str, packages: Packages) -> tuple[str, ...]:
    distribution = packages.distribution
    own = distribution.codename
    others = CONTAINERD_SUITES[distribution.id].get(wish, ())
    return (own, *(suite for suite in others if suite != own))


def _oci_runtime(name: str, packages: Packages) -> Path:
    if name not in OCI_RUNTIMES:
        raise LabError(f"{name} is none of the OCI runtimes {', '.join(OCI_RUNTIMES)}")
    installed = shutil.which(name, path=_search_path())
    if installed:
        return Path(installed)
    return in_package(packages, name, f"usr/sbin/{name}", f"usr/bin/{name}")


def _cni_plugins(packages: Packages) -> Path:
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return packages.unpacked("containernetworking-plugins") / "usr/lib/cni"


def iptables(packages: Packages) -> Path | None:
    """Find an iptables that works with this kernel; None if neither kind does."""
    installed = shutil.which("iptables", path=_search_path())
    if installed:
        return Path(installed) if _works(Path(installed)) else None
    folder = packages.cache / "iptables"
    wrapper = folder / "iptables"
    if _works(wrapper):
        return wrapper
    roots = [packages.unpacked(name) for name in IPTABLES_PACKAGES]
    with packages.locked():
        if _works(wrapper):  # Another process was quicker.
            return wrapper
        for kind in IPTABLES_KINDS:
            _write_iptables(folder, roots, kind)
            if _works(wrapper):
                return wrapper
    return None


def _write_iptables(folder: Path, roots: Iterable[Path], kind: str) -> None:
    """Shell wrappers under the usual names that find the libraries of the unpacked packages."""
    roots = tuple(roots)
    libraries = [found.parent for root in roots for found in sorted(root.glob("**/*.so*"))]
    extensions = next(path for path in libraries if path.name == "xtables")
    binary = next(roots[0].glob(f"**/xtables-{kind}-multi"))
    search = ":".join(dict.fromkeys(map(str, libraries)))
    folder.mkdir(parents=True, exist_ok=True)
    for name in IPTABLES_PROGRAMS:
        wrapper = folder / f".{name}"
        wrapper.write_text(
            "#!/bin/sh\n"
            f'export LD_LIBRARY_PATH="{search}" XTABLES_LIBDIR="{extensions}"\n'
            f'exec "{binary}" {name} "$@"\n'
        )
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        wrapper.replace(folder / name)


def _works(iptables: Path) -> bool:
    """Whether the kernel translates addresses; some list the rules of a table that they lack."""
    try:
        run(["unshare", "--net", iptables, "-t", "nat", "-N", "LAB"], deadline_seconds=10)
    except (LabError, PermissionError, subprocess.SubprocessError):
        return False
    return True


def in_package(packages: Packages, name: str, *paths: str) -> Path:
    """Find the first of some files of a package that is there, installed or unpacked."""
    root = Path("/") if packages.is_installed(name) else packages.unpacked(name)
    for path in paths:
        if (root / path).exists():
            return root / path
    raise LabError(f"the package {name} has no {paths[0]}")


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"
