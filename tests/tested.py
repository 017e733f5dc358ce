"""On which machines the tests run, for the page that tells users: docs/tested.md.

The versions are those that the sessions run with when nobody asks for others, as in continuous
integration. Tests in guests compare theirs with what the machine says; what the host of continuous
integration is, was measured there (`--measure`, before a release). After a change:

    python -m tests.tested [--measure]
"""

import json
import os
import re
import sys
from pathlib import Path

from attrs import asdict, astuple, fields, frozen

from lab import tools
from lab.control_plane_programs import NEWEST
from lab.host import cgroup_version
from lab.packages import Packages
from lab.processes import run
from tests.containerds import USUAL
from tests.e2e.local import USUAL_CONTAINERD

PAGE = Path(__file__).parents[1] / "docs" / "tested.md"
RECORD = Path(__file__).with_name("tested_host.json")
TABLE = re.compile(r"(?<=<!-- tested:begin -->\n).*?(?=<!-- tested:end -->)", re.DOTALL)


@frozen
class TestedEnvironment:
    """What the tests of one session run on."""

    tests: str
    kernel: str
    cgroups: str
    first_process: str
    cgroup_driver: str
    runtime: str
    control_plane: str


@frozen
class UsualHost:
    """The machine that sessions without guests run on."""

    kernel: str
    cgroups: str
    first_process: str
    oci_runtime: str


GUEST = TestedEnvironment(
    tests="`nox -s guest`",
    kernel="user-mode Linux 7.2 or newer",
    cgroups="v2",
    first_process="systemd 257",
    cgroup_driver="systemd and cgroupfs",
    runtime="containerd 1.7, runc 1.1 and crun 1.21",
    control_plane="none",
)


def environments(host: UsualHost) -> tuple[TestedEnvironment, ...]:
    """The rows of the table."""
    return (
        TestedEnvironment(
            "`nox -s integration`",
            *(host.kernel, host.cgroups, host.first_process, "cgroupfs"),
            f"containerd {' and '.join(USUAL.split(','))}, {host.oci_runtime}",
            "none",
        ),
        GUEST,
        TestedEnvironment(
            "`nox -s e2e`",
            *(host.kernel, host.cgroups, host.first_process, "cgroupfs"),
            f"containerd {USUAL_CONTAINERD}, {host.oci_runtime}",
            f"Kubernetes {NEWEST}",
        ),
    )


def table() -> str:
    """The table in Markdown."""
    recorded = UsualHost(**json.loads(RECORD.read_text()))
    names = [field.name.replace("_", " ") for field in fields(TestedEnvironment)]
    rows = [names, ["---"] * len(names), *(astuple(machine) for machine in environments(recorded))]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def measured() -> UsualHost:
    """This machine. LabError if there is no container runtime to be had."""
    is_systemd = Path("/proc/1/comm").read_text() == "systemd\n"
    return UsualHost(
        kernel=f"Linux {major_minor(os.uname().release)}",
        cgroups=f"v{cgroup_version()}",
        first_process="systemd" if is_systemd else "no systemd",
        oci_runtime=_oci_runtime(),
    )


def major_minor(version: str) -> str:
    """`6.18` of `6.18.44-1`."""
    return ".".join(version.split(".")[:2])


def _oci_runtime() -> str:
    program = tools.find(USUAL_CONTAINERD, Packages()).oci_runtime
    name, _, version = run([program, "--version"]).split()[:3]
    return f"{name} {major_minor(version)}"


def main() -> None:
    if "--measure" in sys.argv:
        RECORD.write_text(json.dumps(asdict(measured()), indent=2) + "\n")
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
