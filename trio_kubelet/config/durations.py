"""Durations of the configuration: the API's text (`1m30s`) as `timedelta`.

The text is read and written by `k8s.time.Duration`, in nanoseconds. A `timedelta` counts
microseconds: what is shorter than one becomes one, so that a duration that was given never reads
as "not set".
"""

from datetime import timedelta

from trio_kubelet.k8s.time import Duration


def parse_duration(text: str) -> timedelta:
    """The duration that `text` spells. Raises ValueError with the reason for a malformed one."""
    return from_nanoseconds(Duration.parse(text).ns)


def from_nanoseconds(nanoseconds: int) -> timedelta:
    """The same as a timedelta; a fraction of a microsecond is rounded away from zero."""
    microseconds = -(-abs(nanoseconds) // 1_000)
    return timedelta(microseconds=microseconds if nanoseconds >= 0 else -microseconds)


def format_duration(duration: timedelta) -> str:
    """The canonical spelling: `0s`, `100ms`, `1m0s`, `4h0m0s`."""
    return str(Duration(duration // timedelta(microseconds=1) * 1_000))
