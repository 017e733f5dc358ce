"""Anything may come from any source: the agent lives, and the good pods are undisturbed.

`python -m tests.fuzz --inputs 100000 --seed N` is the long way of the same.
"""

import pytest

from tests.fuzz.run import fuzz

INPUTS = 400
SOURCES = {
    "manifest files",
    "URL",
    "API objects",
    "host files",
    "CRI answers",
    "API answers and frames",
}


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_comes_the_agent_lives_and_good_pods_are_undisturbed(seed: int) -> None:
    report = fuzz(seed, INPUTS)
    assert report.findings == (), f"python -m tests.fuzz --inputs {INPUTS} --seed {seed}"
    assert report.total >= INPUTS
    assert {source for source, count in report.inputs.items() if count} == SOURCES
