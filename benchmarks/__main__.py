"""The command line: which benchmarks, on which containerd, and what becomes of the figures."""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import trio

from benchmarks import (
    burst,
    cluster,
    eviction_guests,
    evictions,
    idle,
    idle_devices,
    placement,
    pod_start,
    pod_stop,
    probes,
    relist,
    resizes,
    scrape,
    streams,
    volumes,
)
from benchmarks.figures import Figure, table
from benchmarks.real_node import RealNode, open_real_node, private_containerd
from lab import LabError, UnavailableError, host
from lab.containerd import Containerd

HOLLOW: Mapping[str, Callable[[Path, int], Awaitable[list[Figure]]]] = {
    idle_devices.NAME: idle_devices.measure,
    placement.NAME: placement.measure,
    relist.NAME: relist.measure,
}
REAL: Mapping[str, Callable[[RealNode], Awaitable[list[Figure]]]] = {
    module.NAME: module.measure for module in (pod_start, pod_stop, burst, idle, scrape)
}
CLUSTER: Mapping[str, Callable[[Path, int, str], list[Figure]]] = {
    cluster.NAME: cluster.measure,
    cluster.ENDS_NAME: cluster.measure_ends,
    cluster.SINGLE_NAME: cluster.measure_single,
    streams.NAME: streams.measure,
    probes.NAME: probes.measure,
    evictions.NAME: evictions.measure,
    eviction_guests.NAME: eviction_guests.measure,
    resizes.NAME: resizes.measure,
    volumes.NAME: volumes.measure,
}
NAMES = (*HOLLOW, *REAL, *CLUSTER)
NEEDS_ROOT = (*REAL, *CLUSTER)
BUSY_LOAD = 0.75
"""Load for each core from which on a machine counts as busy."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if all goals are met that were measured, 1 if not."""
    options = _parser().parse_args(argv)
    names = options.names or (*HOLLOW, *REAL)
    obstacles = host.obstacles()
    if obstacles and any(name in NEEDS_ROOT for name in names):
        left_out = ", ".join(name for name in names if name in NEEDS_ROOT)
        print(f"not measured: {left_out}: {'; '.join(obstacles)}", file=sys.stderr)
        names = [name for name in names if name in HOLLOW]
    machine = _machine()
    print(machine)
    with tempfile.TemporaryDirectory(prefix="trio-kubelet-bench-") as folder:
        try:
            figures = _measure(names, Path(folder), options)
        except LabError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
    print(table(figures))
    if options.json:
        report = {"machine": machine, "figures": [figure.as_json for figure in figures]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(any(figure.met is False for figure in figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the lines of --list
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        choices=(*NAMES, []),
        help=f"without one all but {', '.join(CLUSTER)}",
    )
    parser.add_argument("--list", action="version", version="\n".join(NAMES))
    parser.add_argument("--containerd", default="2.1", help="its version (2.1): 1.6, 1.7, default")
    parser.add_argument("--rounds", type=int, default=0, help="how often, instead of as usual")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    return parser


def _machine() -> str:
    """The machine in a line; figures of a busy one say less."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = " (busy: times are inflated)" if load > BUSY_LOAD * cores else ""
    return (
        f"{cores} cores, {platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f}{busy}"
    )


def _measure(names: Sequence[str], folder: Path, options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    for name in (name for name in names if name in HOLLOW):
        _say(name)
        figures += trio.run(HOLLOW[name], folder, options.rounds)
    real = [name for name in names if name in REAL]
    if real:
        with private_containerd(options.containerd, folder) as containerd:
            tools = containerd.tools
            print(f"containerd {tools.version}, {tools.oci_runtime}", flush=True)
            figures += trio.run(_measure_real, real, containerd, folder, options.rounds)
    for name in (name for name in names if name in CLUSTER):
        _say(name)
        try:
            figures += CLUSTER[name](folder / name, options.rounds, options.containerd)
        except UnavailableError as error:
            print(f"not measured: {name}: {error}", file=sys.stderr)
    return figures


async def _measure_real(
    names: Sequence[str], containerd: Containerd, folder: Path, rounds: int
) -> list[Figure]:
    figures: list[Figure] = []
    async with open_real_node(containerd, folder, rounds) as node:
        for name in names:
            _say(name)
            figures += await REAL[name](node)
    return figures


def _say(name: str) -> None:
    print(f"{name} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
