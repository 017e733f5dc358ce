"""On which machines the tests run, for the page that tells users: docs/tested.md.

The versions are those that the sessions run with when nobody asks for others, as in continuous
integration; tests in guests compare theirs with what the machine says. After a change:

    python -m tests.tested
"""

import re
from pathlib import Path

from attrs import astuple, fields, frozen

from lab.control_plane_programs import MODULES
from tests.containerds import USUAL
from tests.e2e.local import USUAL_CONTAINERD

PAGE = Path(__file__).parents[1] / "docs" / "tested.md"
TABLE = re.compile(r"(?<=<!-- tested:begin -->\n).*?(?=<!-- tested:end -->)", re.DOTALL)
THE_HOST_S = "the host's"


@frozen
class Machine:
    """What the tests of one session run on."""

    tests: str
    kernel: str
    cgroups: str
    first_process: str
    cgroup_driver: str
    runtime: str
    control_plane: str


GUEST = Machine(
    tests="`nox -s guest`",
    kernel="user-mode Linux 6.16 or newer",
    cgroups="v2",
    first_process="systemd 257",
    cgroup_driver="systemd",
    runtime="containerd 1.7, runc 1.1",
    control_plane="none",
)


def machines() -> tuple[Machine, ...]:
    """The rows of the table."""
    return (
        Machine(
            "`nox -s integration`",
            *(THE_HOST_S, THE_HOST_S, "any", "cgroupfs"),
            f"containerd {' and '.join(USUAL.split(','))}, the host's runc",
            "none",
        ),
        GUEST,
        Machine(
            "`nox -s e2e`",
            *(THE_HOST_S, THE_HOST_S, "any", "cgroupfs"),
            f"containerd {USUAL_CONTAINERD}, the host's runc",
            f"Kubernetes {' and '.join(MODULES)}",
        ),
    )


def table() -> str:
    """The table in Markdown."""
    names = [field.name.replace("_", " ") for field in fields(Machine)]
    rows = [names, ["---"] * len(names), *(astuple(machine) for machine in machines())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
