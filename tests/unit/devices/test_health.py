"""The health of devices in the status of a pod: how much of it is shown."""

from itertools import chain

from trio_kubelet.devices.health import (
    MAX_SHOWN_DEVICES_OF_POD,
    MAX_SHOWN_WORDS_OF_POD,
    within_limits,
)
from trio_kubelet.k8s import ResourceHealth, ResourceStatus


def devices(count: int, message: str = "") -> ResourceStatus:
    health = (
        ResourceHealth(resource_id=str(number), health="Healthy", message=message)
        for number in range(count)
    )
    return ResourceStatus(name="claim:a", resources=tuple(health))


def test_what_is_not_much_is_shown_as_it_is() -> None:
    statuses = {"b": (devices(2, "hot"),), "a": (devices(1), devices(0))}
    assert within_limits(statuses) == statuses


def test_a_pod_shows_so_many_devices_whatever_number_of_containers_has_them() -> None:
    half = devices(MAX_SHOWN_DEVICES_OF_POD // 2)
    shown = within_limits({"a": (half,), "b": (devices(1),), "c": (half, half), "d": (half,)})
    assert shown.keys() == {"a", "b", "c"}
    every = list(chain.from_iterable(shown.values()))
    assert sum(len(status.resources) for status in every) == MAX_SHOWN_DEVICES_OF_POD
    assert len(shown["c"][0].resources) == MAX_SHOWN_DEVICES_OF_POD // 2 - 1
    assert len(shown["c"]) == 1


def test_words_beyond_their_number_are_left_out_and_the_health_stays() -> None:
    most = devices(64, "x" * (MAX_SHOWN_WORDS_OF_POD // 64))
    shown = within_limits({"a": (most,), "b": (most, devices(1, "y"))})
    assert shown["a"] == (most,)
    assert [len(status.resources) for status in shown["b"]] == [64, 1]
    assert {each.message for status in shown["b"] for each in status.resources} == {""}
    assert {each.health for status in shown["b"] for each in status.resources} == {"Healthy"}
