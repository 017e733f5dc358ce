"""Eviction thresholds: what evictionHard and evictionSoft ask for, parsed once. Pure.

A threshold is a signal, what must be available of it, and for how long it may be missing. What
allocatable leaves to pods, the node's conditions, admission and evictions follow from the same
values.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from attrs import evolve, frozen

from trio_kubelet.config.codec import parse_duration
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.config.model import KubeletConfiguration

_PODS = "pods"
_OFF = ("0%", "100%")
"""Thresholds that are turned off."""


class DiskLayout(StrEnum):
    """The disks of a node: where images and the writable layers of containers are."""

    SHARED = "Shared"
    """On the disk of the node's own files."""
    IMAGES_APART = "ImagesApart"
    """Images and layers have a disk of their own."""
    SPLIT = "Split"
    """Images have a disk of their own, layers are elsewhere (KEP-4191)."""


_CONTAINERS_LIKE: Mapping[DiskLayout, Mapping[Signal, Signal]] = {
    DiskLayout.SHARED: {
        Signal.NODE_DISK: Signal.CONTAINER_DISK,
        Signal.NODE_INODES: Signal.CONTAINER_INODES,
    },
    DiskLayout.IMAGES_APART: {
        Signal.IMAGE_DISK: Signal.CONTAINER_DISK,
        Signal.IMAGE_INODES: Signal.CONTAINER_INODES,
    },
    DiskLayout.SPLIT: {
        Signal.NODE_DISK: Signal.CONTAINER_DISK,
        Signal.NODE_INODES: Signal.CONTAINER_INODES,
    },
}
"""Signals whose thresholds hold for the disk of containers as well."""


@frozen(kw_only=True)
class Threshold:
    """The amount of a signal that must be available."""

    signal: Signal
    value: ThresholdValue
    minimum_reclaim: ThresholdValue | None = None
    """The amount that must be available on top (evictionMinimumReclaim) before a threshold that was
    acted on counts as kept."""
    is_hard: bool = True
    grace_seconds: float = 0.0
    """For how long a soft threshold may be crossed before pods are evicted."""


def configured_thresholds(configuration: KubeletConfiguration) -> tuple[Threshold, ...]:
    """The thresholds of a configuration that validation has passed, hard ones first.

    Where all pods together are held to a limit (enforceNodeAllocatable), the hard threshold for
    the node's memory holds for theirs as well. `0%` and `100%` turn a threshold off. Those for
    the disk of containers cannot be set: `with_container_disk` adds them.
    """
    hard = hard_thresholds(configuration)
    soft = tuple(_soft_thresholds(configuration))
    if _PODS not in configuration.enforce_node_allocatable:
        return (*hard, *soft)
    of_pods = (
        evolve(each, signal=Signal.ALLOCATABLE_MEMORY)
        for each in hard
        if each.signal is Signal.MEMORY
    )
    return (*hard, *soft, *of_pods)


def hard_thresholds(configuration: KubeletConfiguration) -> tuple[Threshold, ...]:
    """The thresholds of evictionHard alone."""
    return tuple(_thresholds(configuration.eviction_hard, configuration))


def with_container_disk(
    thresholds: Iterable[Threshold], layout: DiskLayout
) -> tuple[Threshold, ...]:
    """The thresholds with those for the disk of containers, which are those of the disk it is."""
    known = tuple(thresholds)
    signals = _CONTAINERS_LIKE[layout]
    return (
        *known,
        *(evolve(each, signal=signals[each.signal]) for each in known if each.signal in signals),
    )


def _soft_thresholds(configuration: KubeletConfiguration) -> Iterator[Threshold]:
    for each in _thresholds(configuration.eviction_soft, configuration):
        grace = parse_duration(configuration.eviction_soft_grace_period[each.signal])
        yield evolve(each, is_hard=False, grace_seconds=grace.total_seconds())


def _thresholds(
    values: Mapping[str, str], configuration: KubeletConfiguration
) -> Iterator[Threshold]:
    for name, text in sorted(values.items()):
        signal = Signal(name)
        if text in _OFF or signal in (Signal.CONTAINER_DISK, Signal.CONTAINER_INODES):
            continue
        reclaim = configuration.eviction_minimum_reclaim.get(name)
        yield Threshold(
            signal=signal,
            value=ThresholdValue.parse(text),
            minimum_reclaim=ThresholdValue.parse(reclaim) if reclaim else None,
        )
