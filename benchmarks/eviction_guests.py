"""The evictions of `evictions.py` on machines with systemd and cgroup v2, a kubelet on each.

Each machine has a processor of the host's, containerd of Debian and the usual slices; kubelet and
watcher run there, the control plane here. The agent runs from the checkout, which machines have.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.eviction_watch import DEADLINE_SECONDS, settings
from benchmarks.evictions import EvictingNode, evict_in_turn, figures
from benchmarks.figures import Figure
from lab import control_plane_programs
from lab.control_plane import ControlPlane
from lab.guest import images
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.guest.network import GuestNetwork
from lab.kind.in_guest import CPU_INFO, WRITE_CPU_INFO
from trio_kubelet.stats.kernel_text import meminfo

NAME = "evictions-guest"
AGENT, GO_KUBELET = "trio", "go"
PYTHON = "/opt/trio-kubelet/bin/python"
SOURCE = "/src"
PROGRAM = "/usr/local/bin/kubelet"
CONFIGURATION, KUBECONFIG = "/etc/kubernetes/kubelet.json", "/etc/kubernetes/kubelet.conf"
WATCHES = "watches"


def measure(folder: Path, rounds: int, _: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without image or programs."""
    image = images.find()
    with ExitStack() as stack:
        network = stack.enter_context(GuestNetwork())
        plane = stack.enter_context(
            ControlPlane(folder / "control-plane", address=network.host_address)
        )
        theirs, ours = (
            stack.enter_context(_node(plane, name, folder, image, network))
            for name in (GO_KUBELET, AGENT)
        )
        evict_in_turn(ours, theirs, rounds)
    return [*figures(NAME, ours, theirs, "cgroup v2, systemd")]


@contextmanager
def _node(
    plane: ControlPlane, kind: str, folder: Path, image: GuestImage, network: GuestNetwork
) -> Iterator[EvictingNode]:
    name = f"guest-{kind}"
    with Guest(folder / name, image=image, name=name, network=network) as guest:
        guest.write(KUBECONFIG, plane.node_kubeconfig(name).read_bytes(), mode=0o600)
        guest.write(CONFIGURATION, json.dumps(_configuration(guest)))
        command = [PYTHON, "-m", "trio_kubelet", "run"]
        if kind == GO_KUBELET:
            program = control_plane_programs.go_kubelet(plane.wish)
            guest.write(PROGRAM, program.read_bytes(), mode=0o755)
            guest.run(f"{WRITE_CPU_INFO}; mount --bind {CPU_INFO} /proc/cpuinfo")
            command = [PROGRAM]
        unit = ("systemd-run", "--unit=kubelet", f"--working-directory={SOURCE}")
        flags = ("--config", CONFIGURATION, "--kubeconfig", KUBECONFIG, "--hostname-override", name)
        guest.run(*unit, *command, *flags)
        watcher = (PYTHON, "-m", "benchmarks.eviction_watch", f"/shared/{WATCHES}")
        watch = partial(guest.run, *watcher, folder=SOURCE, deadline_seconds=3 * DEADLINE_SECONDS)
        yield EvictingNode(name, plane.api, lambda: float(watch()), guest.shared / WATCHES)


def _configuration(guest: Guest) -> dict[str, object]:
    """The configuration file of either kubelet."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "systemd",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "clusterDNS": ["10.96.0.10"],
        **settings(meminfo(guest.read("/proc/meminfo"))["MemTotal"]),
    }
