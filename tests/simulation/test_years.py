"""A node that gets old keeps nothing of what has gone: no file, no task, no descriptor, no object.

`TRIO_KUBELET_MONTHS=24` lives through two years (`nox -s years`), and prints the figures.
"""

import os
from pathlib import Path

import pytest

from tests.simulation.years import Census, grow_old

MONTHS = int(os.environ.get("TRIO_KUBELET_MONTHS", "0"))
GROWTH = 1.05
"""By how much the resident memory of the last year may differ."""
BOUNDED = (
    "trio_kubelet.debugging.",  # Long turns of the loop, which are the machine's.
    "trio_kubelet.telemetry.",  # The journal, and events that may come again: the newest ones.
    "trio_kubelet.k8s.",  # Their times, and what watches have just brought.
)


def grown(before: Census, after: Census) -> dict[str, tuple[int, int]]:
    """The classes with more objects than before, but those whose objects are bounded."""
    return {
        name: (before.objects.get(name, 0), count)
        for name, count in after.objects.items()
        if not name.startswith(BOUNDED) and count > before.objects.get(name, 0)
    }


def test_nothing_is_left_of_pods_that_have_gone(tmp_path: Path) -> None:
    _, before, after = grow_old(tmp_path, months=3, days_of_month=2)
    assert grown(before, after) == {}
    assert after.tasks == before.tasks
    assert after.descriptors == before.descriptors
    assert after.files == before.files


@pytest.mark.skipif(not MONTHS, reason="takes an hour; nox -s years lives through two years")
def test_the_last_year_leaves_the_node_as_it_was(tmp_path: Path) -> None:
    censuses = grow_old(tmp_path, months=MONTHS)
    for month, each in enumerate(censuses, 1):
        objects = sum(each.objects.values())
        print(
            f"month {month}: {each.resident_kib} KiB, {objects} objects, {each.tasks} tasks,"
            f" {each.descriptors} descriptors, {sum(each.files.values())} files"
        )
    last_year = censuses[MONTHS // 2 :]
    memory = [each.resident_kib for each in last_year]
    assert max(memory) <= GROWTH * min(memory)
    assert grown(last_year[0], last_year[-1]) == {}
    assert len({each.tasks for each in last_year}) == 1
    assert len({each.descriptors for each in last_year}) == 1
    assert all(each.files == last_year[0].files for each in last_year)
