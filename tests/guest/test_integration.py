"""The integration tests of cgroups, mounts, ends and kills, on a machine with cgroup v2.

pytest runs in the guest, in the environment of its image, on private containerds of the guest's
program; here each module says what came of it. What runs is in parts, which several processes may
have, each in its guest. Only those tests run whose outcome this kernel or cgroup v2 may change;
TRIO_KUBELET_GUEST_INTEGRATION=all runs all tests of all modules with each OCI runtime (`nox -s
guest_integration`). Classes and volumes in memory, OOM kills, and what crun does otherwise than
runc, are tried on the node itself (`test_cgroups`, `test_oom_kills`, `test_crun`).
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from attrs import field, frozen

from lab import LabError
from lab.guest.guest import Guest

FOLDER = Path("tests/integration")
ALL: tuple[str, ...] = ()


@frozen
class Part:
    """What one run of pytest in a guest has: on which containerd, which tests of which modules."""

    containerd: str
    modules: Mapping[str, tuple[str, ...]]


CHOSEN = {
    "limits": Part(
        "1.7",
        {
            "test_cgroups": ALL,
            "test_pods_cgroups": (
                "test_the_limit_of_a_pod_is_that_of_all_its_containers",
                "test_the_oom_killer_takes_the_least_important_first",
            ),
        },
    ),
    "lives": Part(
        "1.7",
        {
            "test_volumes": ALL,
            "test_pods_stop": (
                "test_a_process_that_does_not_obey_is_killed_when_its_time_is_over",
                "test_of_a_pod_that_is_removed_nothing_is_left",
            ),
            "test_stats": ALL,
        },
    ),
    "disks": Part("1.7", {"test_iscsi": ALL}),
}
# What metrics say of cgroups is what the statistics say.
MODULES = (*CHOSEN["limits"].modules, *CHOSEN["lives"].modules, "test_metrics")
EVERYTHING = {
    "runc": Part("1.7", dict.fromkeys(MODULES, ALL)),
    "crun": Part("1.7+crun", dict.fromkeys(MODULES, ALL)),
}
IS_ALL = os.environ.get("TRIO_KUBELET_GUEST_INTEGRATION") == "all"
PARTS = EVERYTHING if IS_ALL else CHOSEN
DEADLINE_SECONDS = 540.0
A_TEST_MAY_TAKE_SECONDS = 300
# What runs commands in the guest is safe from the OOM killer; what the tests start must not be.
PYTEST = (
    "choom -n 0 -- /opt/trio-kubelet/bin/python -m pytest -m integration -v -n0"
    f" --override-ini=faulthandler_timeout={A_TEST_MAY_TAKE_SECONDS}"
    " --override-ini=faulthandler_exit_on_timeout=true"
)
LAST_CHARACTERS = 5000


@frozen
class Outcome:
    """By module: how many tests passed, and what those said that did not."""

    passed: Mapping[str, int] = field(factory=Counter)
    failures: Mapping[str, list[str]] = field(factory=lambda: defaultdict(list))


def read(report: str) -> Outcome:
    """Read pytest's report in JUnit's form."""
    passed: Counter[str] = Counter()
    failures: dict[str, list[str]] = defaultdict(list)
    for case in ElementTree.fromstring(report).iter("testcase"):
        # A module that could not be read has its own name.
        module = (case.get("classname") or case.get("name") or "").split(".")[2]
        # The machine has what they need, so none has a reason to be skipped.
        failures[module] += [f"{case.get('name')}: {each.tag}:\n{each.text}" for each in case]
        passed[module] += len(case) == 0
    return Outcome(passed, failures)


@pytest.fixture(scope="module")
def outcome_of(guest: Guest) -> Callable[[str], Outcome]:
    """Gives what came of the tests of one part; they run once."""
    return cache(partial(run_tests, guest))


def run_tests(guest: Guest, part: str) -> Outcome:
    """Run the tests of one part in the guest; if they come to no end, all its modules failed."""
    try:
        return read(report_of(guest, part))
    except LabError as error:
        return Outcome(failures={module: [str(error)] for module in PARTS[part].modules})


def report_of(guest: Guest, part: str) -> str:
    """Run the tests of one part in the guest; what pytest reports. LabError if it does not."""
    report, said = guest.shared / "report.xml", guest.shared / "pytest.log"
    tests = [
        f"{FOLDER}/{module}.py{test and '::'}{test}"
        for module, chosen in PARTS[part].modules.items()
        for test in chosen or ("",)
    ]
    words = f"{PYTEST} --junit-xml=/shared/{report.name} {' '.join(tests)}"
    guest.call(
        f"exec {words} >/shared/{said.name} 2>&1",
        folder="/src",
        environment={"TRIO_KUBELET_CONTAINERD": PARTS[part].containerd},
        deadline_seconds=DEADLINE_SECONDS,
    )
    if not report.exists():
        raise LabError(f"the tests came to no end: {said.read_text()[-LAST_CHARACTERS:]}")
    text = report.read_text()
    report.unlink()
    said.unlink()
    return text


@pytest.mark.parametrize(
    ("part", "module"), [(name, module) for name, part in PARTS.items() for module in part.modules]
)
def test_what_holds_on_the_host_holds_here(
    outcome_of: Callable[[str], Outcome], part: str, module: str
) -> None:
    outcome = outcome_of(part)
    assert not outcome.failures[module], "\n\n".join(outcome.failures[module])
    assert outcome.passed[module]
