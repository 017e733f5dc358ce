"""What an API server makes of patches."""

from typing import Any

import pytest

from tests.apiserver.patches import json_merge, strategic_merge

Data = dict[str, Any]


def conditions(*types: str) -> Data:
    return {"status": {"conditions": [{"type": one} for one in types]}}


def order(*types: str) -> list[Data]:
    return [{"type": one} for one in types]


CASES: dict[str, tuple[Data, Data, Data]] = {
    "a value is replaced": ({"a": 1}, {"a": 2}, {"a": 2}),
    "null removes a field": ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    "others' conditions stay": (
        conditions("Ready", "Mine"),
        conditions("Ready"),
        conditions("Ready", "Mine"),
    ),
    "new conditions come first": (
        conditions("Ready"),
        conditions("New", "Ready"),
        conditions("New", "Ready"),
    ),
    "a wished order of what is sent is kept": (
        conditions("A", "B"),
        {
            "status": {
                "conditions": order("B", "A"),
                "$setElementOrder/conditions": order("B", "A"),
            }
        },
        conditions("B", "A"),
    ),
    "one item is deleted by its key": (
        conditions("A", "B"),
        {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}},
        conditions("B"),
    ),
    "a list is replaced when asked to": (
        conditions("A", "B"),
        {"status": {"conditions": [{"$patch": "replace"}, {"type": "C"}]}},
        conditions("C"),
    ),
    "container statuses are replaced as a whole": (
        {"status": {"containerStatuses": [{"name": "a"}, {"name": "b"}]}},
        {"status": {"containerStatuses": [{"name": "a", "ready": True}]}},
        {"status": {"containerStatuses": [{"name": "a", "ready": True}]}},
    ),
    "addresses of a pod are merged by address": (
        {"status": {"podIPs": [{"ip": "10.0.0.1"}]}},
        {"status": {"podIPs": [{"ip": "10.0.0.2"}]}},
        {"status": {"podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}]}},
    ),
    "finalizers are added": (
        {"metadata": {"finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b"]}},
        {"metadata": {"finalizers": ["b", "a"]}},
    ),
    "a finalizer is taken away": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "maps are merged": (
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"a": None, "c": "3"}}},
        {"metadata": {"labels": {"b": "2", "c": "3"}}},
    ),
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
