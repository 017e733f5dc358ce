"""How much of the Node object the names of a namespace's volumes may fill."""

import pytest

from trio_kubelet.volumes.names_in_use import (
    MOST_BYTES,
    MOST_BYTES_OF_NAMESPACE,
    SURE_BYTES_OF_NAMESPACE,
    NamesInUse,
)
from trio_kubelet.volumes.plugin import VolumeError

KIB = "x" * 1024


def fill(names: NamesInUse, namespace: str) -> None:
    """Use volumes in a namespace until there is no room for another one."""
    for number in range(MOST_BYTES_OF_NAMESPACE // len(KIB)):
        names.require_room("v", KIB, namespace)
        names.count((namespace, number), KIB, namespace)
    assert not has_room(names, namespace)


def has_room(names: NamesInUse, namespace: str, name: str = "x") -> bool:
    try:
        names.require_room("v", name, namespace)
    except VolumeError:
        return False
    return True


def test_a_namespace_that_has_its_share_takes_nothing_from_others() -> None:
    names = NamesInUse()
    fill(names, "full")
    fill(names, "other")


def test_a_volume_that_has_gone_or_counts_for_others_makes_room() -> None:
    names = NamesInUse()
    fill(names, "full")
    names.forget(("full", 0))
    assert has_room(names, "full", KIB)
    names.count(("full", 0), KIB, "full")
    names.count(("full", 1), KIB, "other")
    assert has_room(names, "full", KIB)
    assert not has_room(names, "full", KIB + "x")


def test_each_namespace_has_a_little_when_there_is_no_room_for_all() -> None:
    names = NamesInUse()
    for number in range(MOST_BYTES // MOST_BYTES_OF_NAMESPACE):
        fill(names, f"full-{number}")
    assert has_room(names, "small", "x" * SURE_BYTES_OF_NAMESPACE)
    with pytest.raises(VolumeError, match="may not be more than 2048 bytes together"):
        names.require_room("v", "x" * (SURE_BYTES_OF_NAMESPACE + 1), "small")
