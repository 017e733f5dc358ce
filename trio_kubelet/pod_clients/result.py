"""The result of a probe's run, in words that users know."""

from enum import StrEnum

from attrs import frozen

from trio_kubelet import KUBERNETES_VERSION


def user_agent(name: str) -> str:
    """Return how a client of that name calls itself: `kube-probe/1.36`."""
    return f"{name}/{'.'.join(KUBERNETES_VERSION.removeprefix('v').split('.')[:2])}"


USER_AGENT = user_agent("kube-probe")
OUTPUT_LIMIT_BYTES = 10 * 1024
"""The most that is read of a container's answer."""


class ProbeOutcome(StrEnum):
    """Outcomes of one run; `WARNING` is a success that users are told something about."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@frozen(kw_only=True)
class ProbeResult:
    """The result of a run."""

    outcome: ProbeOutcome
    output: str = ""
    """The words for the event."""
    by_container: bool = False
    """The container itself has answered. Another failure may only mean that it ended meanwhile."""
    cut_off: bool = False
    """A command was killed, or a connection broke, which the end of a container does to both."""
    timed_out: bool = False
    """A command did not end in its time."""


@frozen
class ProbeError(Exception):
    """A probe could not be run to its end, which says nothing about the container.

    `outcome` is what the event calls the state that this resulted in.
    """

    message: str
    outcome: ProbeOutcome = ProbeOutcome.UNKNOWN

    def __str__(self) -> str:
        return self.message


@frozen(kw_only=True, eq=False)
class FinishedRun:
    """A run of a probe that came to something after some seconds."""

    came: ProbeResult | ProbeError
    seconds: float

    @property
    def outcome(self) -> ProbeOutcome:
        """The outcome; unknown if it could not be run, whatever its event calls that."""
        return self.came.outcome if isinstance(self.came, ProbeResult) else ProbeOutcome.UNKNOWN

    @property
    def succeeded(self) -> bool:
        """True if it says that all is well."""
        return self.outcome in (ProbeOutcome.SUCCESS, ProbeOutcome.WARNING)

    @property
    def may_be_cut_off(self) -> bool:
        """True if it looks as if its container had ended, of which nobody may know yet."""
        return isinstance(self.came, ProbeError) or self.came.cut_off

    @property
    def is_certain(self) -> bool:
        """True if its container itself has answered."""
        return self.succeeded or (isinstance(self.came, ProbeResult) and self.came.by_container)


def failure(output: str, *, by_container: bool = False, cut_off: bool = False) -> ProbeResult:
    """Return a failure."""
    return ProbeResult(
        outcome=ProbeOutcome.FAILURE, output=output, by_container=by_container, cut_off=cut_off
    )
