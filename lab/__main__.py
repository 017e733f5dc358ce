"""`python3 -m lab`: private runtimes, machines and clusters, and what they need, by hand."""

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab import (
    LabError,
    UnavailableError,
    control_plane_programs,
    csi_sidecars,
    images,
    instances,
    trace_collector,
)
from lab.containerd import Containerd
from lab.guest import images as guest_images
from lab.guest.guest import Guest
from lab.guest.recipe import Kernel
from lab.kind import node_images, programs
from lab.kind.cluster import KindCluster, is_installed, private

# A person who waits for a command ends it with Ctrl-C.
BY_HAND_SECONDS = 24 * 3600
IF_POSSIBLE = "where there is none and none can be built, say so and succeed"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 after one line that says what is wrong."""
    options = _parser().parse_args(argv)
    try:
        options.act(options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    containerd = commands.add_parser(
        "containerd", help="run a private containerd until Ctrl-C, and remove every trace of it"
    )
    containerd.add_argument(
        "--version", default="default", help="1.6, 1.7, 2.1, default; or 1.7+crun"
    )
    containerd.add_argument("--state", type=Path, required=True, help="its folder")
    containerd.set_defaults(act=_containerd)
    programs = commands.add_parser(
        "control-plane-programs",
        help="find the programs of a control plane, or build them, which takes minutes",
    )
    newest = control_plane_programs.NEWEST
    programs.add_argument("--version", default=newest, help=f"of Kubernetes: {newest} by default")
    programs.add_argument(
        "--all",
        action="store_true",
        help="also the Go kubelet and kubeadm, which some tests compare with and join by, the "
        "controllers of kubernetes-csi and a collector of traces",
    )
    programs.add_argument(
        "--if-possible",
        action="store_true",
        help=IF_POSSIBLE,
    )
    programs.set_defaults(act=_control_plane_programs)
    guest = commands.add_parser(
        "guest", help="boot a machine with systemd, run a command there, and remove it"
    )
    guest.add_argument("--kernel", choices=[*Kernel], default=Kernel.PACKAGED)
    guest.add_argument(
        "command", nargs=argparse.REMAINDER, help="without one: each line of stdin, by a shell"
    )
    guest.set_defaults(act=_guest)
    image = commands.add_parser(
        "guest-image", help="find the image of such machines, or build it, which takes minutes"
    )
    image.add_argument("--kernel", choices=[*Kernel], default=Kernel.PACKAGED)
    image.add_argument("--if-possible", action="store_true", help=IF_POSSIBLE)
    image.set_defaults(act=_guest_image)
    kind = commands.add_parser(
        "kind-cluster",
        help="run a cluster of kind until Ctrl-C, in a Docker of its own, with the agent as worker",
    )
    kind.add_argument("--version", default=newest, help=f"of Kubernetes: {newest} by default")
    kind.add_argument(
        "--guest", action="store_true", help="with Docker in a machine with systemd and cgroup v2"
    )
    kind.set_defaults(act=_kind_cluster)
    kind_image = commands.add_parser(
        "kind-image",
        help="find the image of kind's nodes, or build it, which takes minutes; unless this host "
        "has kind and Docker",
    )
    kind_image.add_argument("--version", default=newest, help=f"of Kubernetes: {newest} by default")
    kind_image.set_defaults(act=_kind_image)
    cleanup = commands.add_parser(
        "cleanup", help="remove what runtimes left behind whose owner was killed"
    )
    cleanup.set_defaults(act=_cleanup)
    return parser


def _containerd(options: argparse.Namespace) -> None:
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Containerd(options.version, options.state) as containerd:
        print(f"containerd {containerd.tools.version}, pid {containerd.pid}")
        print(f"endpoint   {containerd.endpoint}")
        print(f"ctr        {containerd.tools.ctr} --address {containerd.socket} -n k8s.io")
        print(f"log        {containerd.log}")
        print(f"pods       {containerd.network.subnet}")
        names = (images.PAUSE, images.BUSYBOX, images.BUSYBOX_AS_USER, images.SLEEPER, images.WEB)
        print("images     " + "\n           ".join(names), flush=True)
        signal.pause()


def _control_plane_programs(options: argparse.Namespace) -> None:
    try:
        found = control_plane_programs.find(options.version)
        if options.all:
            control_plane_programs.go_kubelet(options.version)
            control_plane_programs.kubeadm(options.version)
            csi_sidecars.find()
            trace_collector.find()
    except UnavailableError as reason:
        if not options.if_possible:
            raise
        print(f"lab: {reason}", file=sys.stderr)
    else:
        print(f"Kubernetes {found.version}: {found.folder}")


def _guest_image(options: argparse.Namespace) -> None:
    try:
        print(guest_images.find(Kernel(options.kernel)).folder)
    except UnavailableError as reason:
        if not options.if_possible:
            raise
        print(f"lab: {reason}", file=sys.stderr)


def _guest(options: argparse.Namespace) -> None:
    image = guest_images.find(Kernel(options.kernel))
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="guest-") as folder,
        Guest(Path(folder), image=image) as guest,
    ):
        if options.command:
            sys.exit(_run_in(guest, *options.command))
        print(f"{guest.name} runs; the checkout is /src, {guest.shared} is /shared", flush=True)
        for line in sys.stdin:
            if status := _run_in(guest, "sh", "-c", line):
                print(f"status {status}", file=sys.stderr)


def _kind_cluster(options: argparse.Namespace) -> None:
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="kind-") as folder,
        private(Path(folder), options.version, guest=options.guest) as docker,
        KindCluster(Path(folder), docker) as cluster,
    ):
        for name, value in docker.environment.items():
            if os.environ.get(name) != value:
                print(f"export {name}={shlex.quote(value)}")
        print(f"export KUBECONFIG={cluster.kubeconfig}")
        print(f"# {shlex.join(cluster.kubectl_command('get', 'nodes'))}", flush=True)
        signal.pause()


def _kind_image(options: argparse.Namespace) -> None:
    if is_installed():
        print("kind and Docker of this host")
        return
    programs.find()
    print(node_images.find(options.version).archive)


def _run_in(guest: Guest, *words: str) -> int:
    result = guest.call(*words, folder="/src", deadline_seconds=BY_HAND_SECONDS)
    sys.stdout.buffer.write(result.stdout)
    sys.stderr.buffer.write(result.stderr)
    sys.stdout.flush()
    return result.status


def _cleanup(_: argparse.Namespace) -> None:
    for folder in instances.sweep():
        print(f"removed what was left of {folder}")


if __name__ == "__main__":
    sys.exit(main())
