"""What an API server makes of patches that the agent does not send; of others, test_contract.py."""

from typing import Any

import pytest

from tests.apiserver.patches import json_merge, strategic_merge

Data = dict[str, Any]


def conditions(*types: str) -> Data:
    return {"status": {"conditions": [{"type": one} for one in types]}}


CASES: dict[str, tuple[Data, Data, Data]] = {
    "an object is replaced when asked to": (
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"$patch": "replace", "name": "n"}},
        {"metadata": {"name": "n"}},
    ),
    "only wished keys are retained": (
        {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
        {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {}}]}},
        {"spec": {"volumes": [{"name": "v", "hostPath": {}}]}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_strategic_merge_patch_knows_the_types(case: str) -> None:
    data, patch, expected = CASES[case]
    assert strategic_merge("Pod", data, patch) == expected


def test_a_merge_patch_replaces_lists() -> None:
    assert json_merge(conditions("A", "B"), conditions("C")) == conditions("C")
