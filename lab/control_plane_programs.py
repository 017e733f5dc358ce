"""The programs of a control plane: etcd, kube-apiserver and the rest, found or built.

`$KUBEBUILDER_ASSETS` is used if it is set, or PATH, where all of them are there in the wanted
version. Otherwise the Go toolchain builds them from the modules that are pinned in
tests/e2e/controlplane: minutes for the first time, and then they stay in the cache, in a folder
for what they were built from. The Go kubelet, which the benchmarks compare with, and kubeadm are
built from the same modules when they are asked for; so is the sample device plugin.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from lab import UnavailableError
from lab.go_programs import GoModule, Programs
from lab.packages import default_cache
from lab.processes import run

NEWEST = "1.36"
# The module file of each minor version; all share the mains.
MODULES: Mapping[str, str] = {"1.36": "go.mod", "1.34": "kubernetes-1.34.mod"}
SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "controlplane"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
GO_KUBELET = "kubelet"
KUBEADM = "kubeadm"
SAMPLE_DEVICE_PLUGIN = "sample-device-plugin"
PACKAGES = {SAMPLE_DEVICE_PLUGIN: "k8s.io/kubernetes/test/images/sample-device-plugin"}


def find(minor: str = NEWEST, *, cache: Path | None = None) -> Programs:
    """Find the programs of a control plane of version `1.36` or `1.34`, or build them.

    Blocks for minutes when it builds, and says so on stderr. UnavailableError where they are not
    and cannot be built; LabError if the build fails.
    """
    installed = _installed(minor)
    if installed is not None:
        return installed
    try:
        return _module(minor, cache).folder_with(CONTROL_PLANE)
    except UnavailableError as reason:
        raise UnavailableError(f"neither KUBEBUILDER_ASSETS nor PATH has them; {reason}") from None


def go_kubelet(minor: str = NEWEST, *, cache: Path | None = None) -> Path:
    """Find the Go kubelet of version `1.36` or `1.34` in the cache, or build it, for minutes.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _module(minor, cache).folder_with((GO_KUBELET,))[GO_KUBELET]


def kubeadm(minor: str = NEWEST, *, cache: Path | None = None) -> Path:
    """Find kubeadm of version `1.36` or `1.34` in the cache, or build it, for a minute.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _module(minor, cache).folder_with((KUBEADM,))[KUBEADM]


def sample_device_plugin(minor: str = NEWEST, *, cache: Path | None = None) -> Path:
    """Find the device plugin of Kubernetes' own tests in the cache, or build it, for a minute.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _module(minor, cache).folder_with((SAMPLE_DEVICE_PLUGIN,))[SAMPLE_DEVICE_PLUGIN]


def is_at_hand(minor: str = NEWEST, *, cache: Path | None = None) -> bool:
    """Whether `find` would return at once."""
    return _installed(minor) is not None or not _module(minor, cache).missing(CONTROL_PLANE)


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


def _module(minor: str, cache: Path | None) -> GoModule:
    if minor not in MODULES:
        raise UnavailableError(f"no control plane {minor}: there are {', '.join(MODULES)}")
    return GoModule(SOURCE / MODULES[minor], (cache or default_cache()) / "controlplane", PACKAGES)
