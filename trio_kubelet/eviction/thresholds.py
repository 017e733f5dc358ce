"""Eviction thresholds: what evictionHard and evictionSoft ask for, parsed once. Pure.

A threshold is a signal, what must be available of it, and for how long it may be missing. What
allocatable leaves to pods, the node's conditions, admission and evictions follow from the same
values.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from attrs import evolve, frozen

from trio_kubelet.config.codec import parse_duration
from trio_kubelet.config.eviction import (
    IGNORED_SIGNALS,
    SIGNALS,
    Disk,
    Signal,
    ThresholdValue,
    disk_signal,
)
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


_DISK_OF_CONTAINERS: Mapping[DiskLayout, Disk] = {
    DiskLayout.SHARED: Disk.NODE,
    DiskLayout.IMAGES_APART: Disk.IMAGES,
    DiskLayout.SPLIT: Disk.NODE,
}
"""The disk whose thresholds hold for that of containers as well."""


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

    @property
    def key(self) -> tuple[str, str, str]:
        """Signal, kind and value: what makes it the same threshold over a change of the others."""
        return str(self.signal), "hard" if self.is_hard else "soft", self.value.text


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
    disk = _DISK_OF_CONTAINERS[layout]
    return (
        *known,
        *(
            evolve(each, signal=disk_signal(Disk.CONTAINERS, row.resource))
            for each in known
            if (row := SIGNALS[each.signal]).disk is disk
        ),
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
        if text in _OFF or signal in IGNORED_SIGNALS:
            continue
        reclaim = configuration.eviction_minimum_reclaim.get(name)
        yield Threshold(
            signal=signal,
            value=ThresholdValue.parse(text),
            minimum_reclaim=ThresholdValue.parse(reclaim) if reclaim else None,
        )
