"""The decision of a round: which of the node's things are reclaimed, or which pod is evicted. Pure.

In goes what was observed and what is remembered of earlier rounds; out comes one step. After each
step the node is measured again before there is another one: things that nobody needs go first,
then one pod, and the next one only when what the last one had was seen to be given back.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from attrs import evolve, field, frozen

from trio_kubelet.config.eviction import SIGNALS, Disk, Signal
from trio_kubelet.eviction.limits import exceeded_limit
from trio_kubelet.eviction.messages import Starvation, eviction_annotations, eviction_message
from trio_kubelet.eviction.observations import amount_text
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.eviction.ranking import Candidate, Figures, figures_for, ranked
from trio_kubelet.eviction.thresholds import DiskLayout, Threshold
from trio_kubelet.k8s import NodeConditionType, Pod, Quantity
from trio_kubelet.pod_source import is_critical

IMMEDIATE_GRACE_SECONDS = 1
"""The grace of a pod that is evicted for a hard threshold, or for a limit of its own."""

_MOST_URGENT_FIRST = (
    NodeConditionType.MEMORY_PRESSURE,
    NodeConditionType.PID_PRESSURE,
    NodeConditionType.DISK_PRESSURE,
)
"""Memory runs out fastest, and the kernel kills where the agent does not; without process ids
nothing can be started that clears a disk."""


class Reclaim(StrEnum):
    """Things of the node that can go before a pod has to."""

    DEAD_CONTAINERS = "dead containers"
    UNUSED_IMAGES = "unused images"


_BOTH = (Reclaim.DEAD_CONTAINERS, Reclaim.UNUSED_IMAGES)
RECLAIMS: Mapping[DiskLayout, Mapping[Disk, tuple[Reclaim, ...]]] = {
    DiskLayout.SHARED: dict.fromkeys(Disk, _BOTH),
    DiskLayout.IMAGES_APART: dict.fromkeys((Disk.IMAGES, Disk.CONTAINERS), _BOTH),
    DiskLayout.SPLIT: {
        Disk.NODE: (Reclaim.DEAD_CONTAINERS,),
        Disk.IMAGES: (Reclaim.UNUSED_IMAGES,),
        Disk.CONTAINERS: (Reclaim.DEAD_CONTAINERS,),
    },
}
"""The things on each disk that can go, by where images and containers are."""


@frozen(kw_only=True)
class Progress:
    """The memory of the steps that were taken. Times are trio's clock.

    An observation from before `settled_at` says nothing of what the last step gave back: of memory
    and process ids once a pod has stopped, of disks (`disks_settled_at`) once all of it is gone.
    """

    stopping: int = 0
    """The pods that went and may still run: until then nothing is known of any signal."""
    removing: int = 0
    """The pods that went and of which something is left."""
    is_ending_for_own_limits: bool = False
    """Pods end that were over their own limits; memory and process ids do not wait for them."""
    has_time: bool = False
    """True if one that stops has more time than a hard threshold leaves."""
    settled_at: float = float("-inf")
    disks_settled_at: float = float("-inf")
    is_reclaiming: bool = False
    """Node-level things are going: meanwhile memory and process ids alone count."""
    reclaimed: Signal | None = None
    """The signal for which they have gone since a pod went last."""
    futile_until: Mapping[Signal, float] = field(factory=dict)
    """By signal, for how long it is not tried again: there was no pod that could go."""

    def while_reclaiming(self) -> "Progress":
        """Node-level things are going."""
        return evolve(self, is_reclaiming=True)

    def after_reclaim(self, signal: Signal, at: float) -> "Progress":
        """Node-level things have gone."""
        disks_settled_at = max(self.disks_settled_at, at)
        return evolve(
            self, disks_settled_at=disks_settled_at, reclaimed=signal, is_reclaiming=False
        )

    def while_ending(self, *, has_time: bool = False) -> "Progress":
        """A pod ends."""
        return evolve(
            self,
            stopping=self.stopping + 1,
            removing=self.removing + 1,
            has_time=self.has_time or has_time,
            reclaimed=None,
        )

    def hastened(self) -> "Progress":
        """The pods that stop have no more time."""
        return evolve(self, has_time=False)

    def after_stop(self, at: float) -> "Progress":
        """A pod has stopped, or is not waited for any longer."""
        left = self.stopping - 1
        settled_at = max(self.settled_at, at)
        return evolve(
            self, stopping=left, settled_at=settled_at, has_time=self.has_time and left > 0
        )

    def after_end(self, at: float) -> "Progress":
        """All of a pod is gone from the disk, too."""
        disks_settled_at = max(self.disks_settled_at, at)
        return evolve(
            self, removing=self.removing - 1, disks_settled_at=disks_settled_at, reclaimed=None
        )

    def while_ending_for_own_limits(self) -> "Progress":
        """Pods end that were over their own limits."""
        return evolve(self, is_ending_for_own_limits=True)

    def after_ends_for_own_limits(self, at: float) -> "Progress":
        """They have ended."""
        disks_settled_at = max(self.disks_settled_at, at)
        return evolve(self, is_ending_for_own_limits=False, disks_settled_at=disks_settled_at)

    def counts(self, signal: Signal, observed_at: float) -> bool:
        """True if an observation shows what the steps so far have given back."""
        if observed_at < self.futile_until.get(signal, float("-inf")):
            return False
        if SIGNALS[signal].disk is None:
            return self.stopping == 0 and observed_at >= self.settled_at
        if self.removing or self.is_ending_for_own_limits or self.is_reclaiming:
            return False
        return observed_at >= self.disks_settled_at

    def without_victim(self, signal: Signal, until: float) -> "Progress":
        """There was none to evict: nothing is tried `until` then, and node-level things first."""
        return evolve(self, reclaimed=None, futile_until={**self.futile_until, signal: until})


@frozen(kw_only=True)
class GracePolicy:
    """The time that pods get; `most_seconds` is evictionMaxPodGracePeriod.

    A negative one leaves each pod its own, as the flag's description says.
    """

    most_seconds: int = 0

    def seconds_of(self, pod: Pod, threshold: Threshold) -> int:
        """The grace of a pod that is evicted for a threshold."""
        if threshold.is_hard:
            return IMMEDIATE_GRACE_SECONDS
        graces = (self.most_seconds, pod.spec.termination_grace_period_seconds)
        told = [each for each in graces if each is not None and each >= 0]
        return min(told, default=IMMEDIATE_GRACE_SECONDS)


@frozen(kw_only=True)
class Victim:
    """A pod that is to be evicted, and all that is said of it.

    `cause` is the label of the metric: a signal, or the kind of limit. `disruption` is the message
    of DisruptionTarget, empty for a pod that broke a limit of its own: that is no disruption.
    """

    pod: Pod
    cause: str
    message: str
    grace_seconds: int
    disruption: str = ""
    annotations: Mapping[str, str]


@frozen(kw_only=True)
class EvictionStep:
    """One step, or none. `starved` is what is short and is to be acted on now."""

    starved: Starvation | None = None
    reclaim: tuple[Reclaim, ...] = ()
    needs: Figures | None = None
    """The figures of pods that are needed to tell which one has to go."""
    victim: Victim | None = None
    hasten: bool = False
    """True if a hard threshold is met while a pod that went for a soft one takes its time."""


NOTHING = EvictionStep()


def decide(
    assessment: Assessment,
    progress: Progress,
    grace: GracePolicy,
    candidates: Collection[Candidate] | None = None,
) -> EvictionStep:
    """The next step. `candidates` are the pods that could go; None if nobody has measured them."""
    starved = starvation(assessment, progress)
    if starved is None:
        is_late = progress.has_time and any(each.is_hard for each in assessment.met)
        return EvictionStep(hasten=True) if is_late else NOTHING
    signal, layout = starved.threshold.signal, assessment.observed.layout
    disk = SIGNALS[signal].disk
    reclaim = RECLAIMS[layout].get(disk, ()) if disk is not None else ()
    if reclaim and progress.reclaimed != signal:
        return EvictionStep(starved=starved, reclaim=reclaim)
    if candidates is None:
        return EvictionStep(starved=starved, needs=figures_for(signal, layout))
    in_order = ranked(signal, candidates, layout)
    if not in_order:
        return EvictionStep(starved=starved)
    first = in_order[0]
    message = eviction_message(starved, first)
    victim = Victim(
        pod=first.pod,
        cause=str(signal),
        message=message,
        grace_seconds=grace.seconds_of(first.pod, starved.threshold),
        disruption=message,
        annotations=eviction_annotations(starved, first),
    )
    return EvictionStep(starved=starved, victim=victim)


def starvation(assessment: Assessment, progress: Progress) -> Starvation | None:
    """The threshold that is acted on first; None if none is, or nothing newer is known."""
    observed = assessment.observed
    met = [each for each in assessment.met if progress.counts(each.signal, observed.at)]
    if not met:
        return None
    threshold = min(met, key=lambda each: _MOST_URGENT_FIRST.index(SIGNALS[each.signal].condition))
    amounts = observed.signals[threshold.signal]
    return Starvation(
        threshold=threshold,
        resource=SIGNALS[threshold.signal].resource,
        quantity=threshold.value.of(Quantity(amounts.capacity)).canonical,
        available=amount_text(threshold.signal, amounts.available),
    )


def is_urgent(assessment: Assessment, progress: Progress) -> bool:
    """True if memory or process ids run out: nothing that takes as long as disks comes before.

    Not where no pod could go for them.
    """
    at = assessment.observed.at
    return any(
        SIGNALS[each.signal].disk is None
        and at >= progress.futile_until.get(each.signal, float("-inf"))
        for each in assessment.met
    )


def over_own_limits(candidates: Iterable[Candidate], layout: DiskLayout) -> tuple[Victim, ...]:
    """The pods that use more of the disk than their own limits allow; all of them go at once."""
    return tuple(
        Victim(
            pod=each.pod,
            cause=exceeded.cause,
            message=exceeded.message,
            grace_seconds=IMMEDIATE_GRACE_SECONDS,
            annotations={},
        )
        for each in candidates
        if not is_critical(each.pod) and (exceeded := exceeded_limit(each, layout)) is not None
    )
