"""The programs of a control plane: etcd, kube-apiserver and the rest, found or built.

`$KUBEBUILDER_ASSETS` is used if it is set, or PATH, where all of them are there in the wanted
version. Otherwise the Go toolchain builds them from the modules that are pinned in
tests/e2e/controlplane: minutes for the first time, and then they stay in the cache, in a folder
for what they were built from. The Go kubelet, which the benchmarks compare with, and kubeadm are
built from the same modules when they are asked for.
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import LabError, UnavailableError
from lab.packages import default_cache
from lab.processes import run

NEWEST = "1.36"
# The module file of each minor version; all share the mains.
MODULES: Mapping[str, str] = {"1.36": "go.mod", "1.34": "kubernetes-1.34.mod"}
SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "controlplane"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
GO_KUBELET = "kubelet"
KUBEADM = "kubeadm"

# From nothing on one slow core.
BUILD_DEADLINE_SECONDS = 3600
STAMPED = "k8s.io/component-base/version"
STAMPED_IN_CLIENTS = "k8s.io/client-go/pkg/version"


@dataclass(frozen=True, slots=True)
class Programs:
    """Program files of one control plane; `version` is that of Kubernetes, such as `v1.36.3`."""

    version: str
    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


def find(minor: str = NEWEST, *, cache: Path | None = None) -> Programs:
    """Find the programs of a control plane of version `1.36` or `1.34`, or build them.

    Blocks for minutes when it builds, and says so on stderr. UnavailableError where they are not
    and cannot be built; LabError if the build fails.
    """
    return _installed(minor) or _Build(minor, cache).folder_with(CONTROL_PLANE)


def go_kubelet(minor: str = NEWEST, *, cache: Path | None = None) -> Path:
    """Find the Go kubelet of version `1.36` or `1.34` in the cache, or build it, for minutes.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _Build(minor, cache).folder_with((GO_KUBELET,))[GO_KUBELET]


def kubeadm(minor: str = NEWEST, *, cache: Path | None = None) -> Path:
    """Find kubeadm of version `1.36` or `1.34` in the cache, or build it, for a minute.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _Build(minor, cache).folder_with((KUBEADM,))[KUBEADM]


def is_at_hand(minor: str = NEWEST, *, cache: Path | None = None) -> bool:
    """Whether `find` would return at once."""
    return _installed(minor) is not None or not _Build(minor, cache).missing(CONTROL_PLANE)


def _installed(minor: str) -> Programs | None:
    """Return the folder that has all programs, with an API server of this version, if any."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in [assets] if assets else os.environ.get("PATH", "").split(os.pathsep):
        if not all(os.access(Path(folder, name), os.X_OK) for name in CONTROL_PLANE):
            continue
        version = run([Path(folder, "kube-apiserver"), "--version"]).split()[-1]
        if version.startswith(f"v{minor}."):
            return Programs(version, Path(folder).absolute())
        if assets:
            raise UnavailableError(f"KUBEBUILDER_ASSETS has Kubernetes {version}, not {minor}")
    if assets:
        raise UnavailableError(f"KUBEBUILDER_ASSETS={assets} lacks some of {CONTROL_PLANE}")
    return None


class _Build:
    """What is built for one minor version, and where it is kept."""

    def __init__(self, minor: str, cache: Path | None) -> None:
        if minor not in MODULES:
            raise UnavailableError(f"no control plane {minor}: there are {', '.join(MODULES)}")
        self._module = SOURCE / MODULES[minor]
        self._version = _pinned_version(self._module.read_text())
        self._cache = (cache or default_cache()) / "controlplane"
        self._folder = self._cache / f"{self._version}-{self._digest()}"

    def missing(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """List those that are not in the cache."""
        return tuple(name for name in names if not (self._folder / name).exists())

    def folder_with(self, names: tuple[str, ...]) -> Programs:
        """Build what is missing, each program there whole or not at all."""
        if self.missing(names):
            with self._locked():
                missing = self.missing(names)
                if missing:
                    self._build(missing)
        return Programs(self._version, self._folder)

    def _build(self, names: tuple[str, ...]) -> None:
        go = shutil.which("go")
        if go is None:
            raise UnavailableError(
                f"neither KUBEBUILDER_ASSETS nor PATH has a control plane {self._version}, and "
                "there is no Go toolchain (`go`) to build one"
            )
        print(f"lab: building {', '.join(names)} {self._version}: minutes", file=sys.stderr)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            run(
                ["nice", go, "build", *self._flags(), "-o", f"{scratch}/", *self._mains(names)],
                cwd=SOURCE,
                env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
                deadline_seconds=BUILD_DEADLINE_SECONDS,
            )
            for name in names:
                Path(scratch, name).rename(self._folder / name)

    def _flags(self) -> tuple[str, ...]:
        major, number = self._version.removeprefix("v").split(".")[:2]
        stamps = {
            f"{STAMPED}.gitVersion": self._version,
            f"{STAMPED}.gitMajor": major,
            f"{STAMPED}.gitMinor": number,
            f"{STAMPED}.gitTreeState": "clean",
            f"{STAMPED_IN_CLIENTS}.gitVersion": self._version,
        }
        linker = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])
        return (f"-modfile={self._module}", "-trimpath", "-buildvcs=false", f"-ldflags={linker}")

    def _mains(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"./{name}" for name in names)

    def _digest(self) -> str:
        """Name what goes into a build, so that a changed pin or main is built anew."""
        digest = hashlib.sha256()
        for path in (
            self._module,
            self._module.with_suffix(".sum"),
            *sorted(SOURCE.glob("*/main.go")),
        ):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:12]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process build; the others wait for it."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            lock = (self._cache / "lock").open("w")
        except OSError as error:
            raise LabError(f"no cache for built programs: {error}") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _pinned_version(module: str) -> str:
    """`v1.36.3` out of a module file."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", module, re.MULTILINE)
    if found is None:
        raise LabError("the module file does not pin k8s.io/kubernetes")
    return found[1]
