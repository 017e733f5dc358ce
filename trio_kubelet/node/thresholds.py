"""Eviction thresholds: what evictionHard and evictionSoft ask for, parsed once. Pure.

A threshold is a signal, and what must be available of it. Conditions, admission and allocatable
follow from it now; evictions build on the same values.
"""

from collections.abc import Iterator, Mapping

from attrs import evolve, frozen

from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.config.model import KubeletConfiguration

_PODS = "pods"
_OFF = ("0%", "100%")
"""Thresholds that are turned off."""


@frozen(kw_only=True)
class Threshold:
    """What must be available of a signal."""

    signal: Signal
    value: ThresholdValue
    minimum_reclaim: ThresholdValue | None = None
    """What must be available on top (evictionMinimumReclaim) before a threshold that was crossed
    counts as kept."""


def configured_thresholds(configuration: KubeletConfiguration) -> tuple[Threshold, ...]:
    """The thresholds of a configuration that validation has passed, hard ones first.

    Where all pods together are held to a limit (enforceNodeAllocatable), the hard threshold for
    the node's memory holds for theirs as well. `0%` and `100%` turn a threshold off. Signals
    that nothing measures have none: `containerfs` is one of the other file systems here.
    """
    hard = hard_thresholds(configuration)
    soft = _thresholds(configuration.eviction_soft, configuration)
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


def _thresholds(
    values: Mapping[str, str], configuration: KubeletConfiguration
) -> Iterator[Threshold]:
    for name, text in sorted(values.items()):
        if name not in list(Signal) or text in _OFF:
            continue
        reclaim = configuration.eviction_minimum_reclaim.get(name)
        yield Threshold(
            signal=Signal(name),
            value=ThresholdValue.parse(text),
            minimum_reclaim=ThresholdValue.parse(reclaim) if reclaim else None,
        )
