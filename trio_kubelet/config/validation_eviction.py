"""Rules for the eviction thresholds: which signals there are, and what may be asked of one."""

import re
from collections.abc import Iterator
from datetime import timedelta

from trio_kubelet.config.durations import parse_duration
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.k8s.quantity import Quantity

IGNORED_SIGNALS = ("containerfs.available", "containerfs.inodesFree")
"""Signals that are accepted and have no effect, in the Go kubelet neither: the thresholds of the
file system of containers are those of the node's or of the images'."""

SIGNALS = frozenset(
    {
        "memory.available",
        "allocatableMemory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "pid.available",
        *IGNORED_SIGNALS,
    }
)

_WHOLE_PERCENT = 100
_LARGEST_SINGLE = 3.4e38


def validate_eviction(configuration: KubeletConfiguration) -> Iterator[str]:
    """What is wrong with the fields `eviction*`, one line each."""
    hard = "evictionHard (--eviction-hard)"
    soft = "evictionSoft (--eviction-soft)"
    grace = "evictionSoftGracePeriod (--eviction-soft-grace-period)"
    reclaim = "evictionMinimumReclaim (--eviction-minimum-reclaim)"
    for name, values in (
        (hard, configuration.eviction_hard),
        (soft, configuration.eviction_soft),
        (grace, configuration.eviction_soft_grace_period),
        (reclaim, configuration.eviction_minimum_reclaim),
    ):
        for signal in sorted(values.keys() - SIGNALS):
            known = ", ".join(sorted(SIGNALS))
            yield f"{name}: unsupported eviction signal {signal}, must be one of: {known}"
    for name, thresholds in (
        (hard, configuration.eviction_hard),
        (soft, configuration.eviction_soft),
    ):
        for signal, threshold in thresholds.items():
            if not _is_threshold(threshold):
                yield (
                    f'{name} {signal} "{threshold}" must be a quantity greater than 0 '
                    "or a percentage of at most 100%"
                )
    for signal, amount in configuration.eviction_minimum_reclaim.items():
        if not _is_minimum_reclaim(amount):
            yield (
                f'{reclaim} {signal} "{amount}" must be a quantity that is not negative '
                "or a percentage greater than 0%"
            )
    for signal, period in configuration.eviction_soft_grace_period.items():
        if not _is_grace_period(period):
            yield f'{grace} {signal} "{period}" must be a duration that is not negative'
    for signal in configuration.eviction_soft:
        if signal in SIGNALS and signal not in configuration.eviction_soft_grace_period:
            yield f"grace period must be specified for the soft eviction threshold {signal}"


def parsed_quantity(text: str) -> Quantity | None:
    """The quantity that a text stands for, None if it is none."""
    try:
        return Quantity(text)
    except ValueError:
        return None


def _is_threshold(text: str) -> bool:
    """Whether a text is a threshold, or turns one off (`0%`, `100%`)."""
    if text.endswith("%"):
        percentage = _percentage(text)
        return percentage is not None and percentage <= _WHOLE_PERCENT
    amount = parsed_quantity(text)
    return amount is not None and amount > Quantity("0")


def _is_minimum_reclaim(text: str) -> bool:
    if text.endswith("%"):
        percentage = _percentage(text)
        return percentage is not None and percentage > 0
    amount = parsed_quantity(text)
    return amount is not None and amount >= Quantity("0")


def _percentage(text: str) -> float | None:
    """The number before a percent sign; None for what is none, or beyond a 32-bit float."""
    if re.fullmatch(r"\d+(\.\d*)?", text[:-1], re.ASCII) is None:
        return None
    number = float(text[:-1])
    return number if number <= _LARGEST_SINGLE else None


def _is_grace_period(text: str) -> bool:
    try:
        return parse_duration(text) >= timedelta()
    except ValueError:
        return False
