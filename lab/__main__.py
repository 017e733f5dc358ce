"""`python3 -m lab`: a private runtime by hand."""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab import LabError, UnavailableError, control_plane_programs, images, instances
from lab.containerd import Containerd


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
    containerd.add_argument("--version", default="default", help="1.6, 1.7, 2.1 or default")
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
        help="also the Go kubelet and kubeadm, which some tests compare with and join by",
    )
    programs.add_argument(
        "--if-possible",
        action="store_true",
        help="where they are not and cannot be built, say so and succeed",
    )
    programs.set_defaults(act=_control_plane_programs)
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
    except UnavailableError as reason:
        if not options.if_possible:
            raise
        print(f"lab: {reason}", file=sys.stderr)
    else:
        print(f"Kubernetes {found.version}: {found.folder}")


def _cleanup(_: argparse.Namespace) -> None:
    for folder in instances.sweep():
        print(f"removed what was left of {folder}")


if __name__ == "__main__":
    sys.exit(main())
