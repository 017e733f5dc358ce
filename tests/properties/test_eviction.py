"""Evictions, whatever the node, its pods and the order of events: what never happens."""

from collections.abc import Mapping
from typing import Any

from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.pressure import is_shown
from tests.unit.eviction.candidates import MI, MIRROR, STATIC, disk, pod, stats
from trio_kubelet.config.eviction import SIGNALS, Signal, ThresholdValue
from trio_kubelet.eviction.decision import (
    GracePolicy,
    Progress,
    Victim,
    decide,
    over_own_limits,
)
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import Assessment, assess
from trio_kubelet.eviction.pressure_record import (
    MOST_UNSEEN_SECONDS,
    SAVE_SECONDS,
    Moment,
    is_due,
    parsed,
    printed,
)
from trio_kubelet.eviction.ranking import Candidate, claim, ranked
from trio_kubelet.eviction.thresholds import DiskLayout, Threshold
from trio_kubelet.k8s import Pod, Quantity, ResourceRequirements
from trio_kubelet.pod_source import is_critical

SETTABLE = [signal for signal in Signal if not signal.startswith("containerfs")]
REQUESTABLE = [
    signal for signal in Signal if SIGNALS[signal].resource in ("memory", "ephemeral-storage")
]
TRANSITION = 300.0


@st.composite
def candidates(draw: st.DrawFn, name: str) -> Candidate:
    """A pod of any kind, with any figures or none."""
    amounts = st.sampled_from(["", "1Mi", "50Mi", "100Mi"])
    asked = {"memory": draw(amounts), "ephemeral-storage": draw(amounts)}
    priority = draw(st.sampled_from([None, -5, 0, 7, 1_999_999_999, 2_000_000_000, 2_000_001_000]))
    spec: dict[str, Any] = {} if priority is None else {"priority": priority}
    made = pod(
        name,
        requests={resource: amount for resource, amount in asked.items() if amount},
        annotations=draw(st.sampled_from([{}, {}, {}, STATIC, MIRROR])),
        **spec,
    )
    if draw(st.integers(0, 9)) == 0:
        return Candidate(pod=made)
    used = st.one_of(st.none(), st.integers(0, 200))
    whole = draw(used)
    layer = min(draw(st.integers(0, 200)), whole or 0)
    return Candidate(
        pod=made,
        stats=stats(
            name,
            memory_mi=draw(used),
            tasks=draw(used),
            layer=disk(layer, layer),
            whole=None if whole is None else disk(whole, whole),
        ),
    )


@st.composite
def many_candidates(draw: st.DrawFn) -> list[Candidate]:
    return [draw(candidates(f"p{number}")) for number in range(draw(st.integers(0, 8)))]


@given(many_candidates(), st.sampled_from(list(Signal)), st.sampled_from(list(DiskLayout)))
def test_no_static_mirror_or_critical_pod_is_ever_evicted(
    pods: list[Candidate], signal: Signal, layout: DiskLayout
) -> None:
    order = ranked(signal, pods, layout)
    assert not any(is_critical(each.pod) for each in order)
    assert len(order) == sum(not is_critical(each.pod) for each in pods)


@given(many_candidates(), st.sampled_from(REQUESTABLE), st.sampled_from(list(DiskLayout)))
def test_who_keeps_to_its_request_stays_while_another_does_not(
    pods: list[Candidate], signal: Signal, layout: DiskLayout
) -> None:
    order = [(claim(signal, each, layout), each) for each in ranked(signal, pods, layout)]
    excess = [found.excess > 0 if found is not None else False for found, _ in order]
    assert excess == sorted(excess, reverse=True)


@given(many_candidates(), st.sampled_from(list(Signal)), st.sampled_from(list(DiskLayout)))
def test_the_order_does_not_depend_on_that_of_the_pods(
    pods: list[Candidate], signal: Signal, layout: DiskLayout
) -> None:
    assert ranked(signal, pods, layout) == ranked(signal, pods[::-1], layout)


@given(many_candidates(), st.sampled_from(SETTABLE), st.sampled_from(list(DiskLayout)))
def test_a_decision_spares_critical_pods_and_those_within_their_requests(
    pods: list[Candidate], signal: Signal, layout: DiskLayout
) -> None:
    limit = Threshold(signal=signal, value=ThresholdValue.parse("60%"))
    seen = observed({signal: 10}, 0.0, layout)
    short = assess(Assessment(), [limit], seen, TRANSITION)
    victim = decide(short, Progress(reclaimed=signal), GracePolicy(), pods).victim
    excess = {
        each.pod.metadata.uid: found.excess
        for each in pods
        if not is_critical(each.pod) and (found := claim(signal, each, layout)) is not None
    }
    above = {uid for uid, amount in excess.items() if amount > 0}
    assert (victim is None) is all(is_critical(each.pod) for each in pods)
    if victim is not None:
        assert not is_critical(victim.pod)
        if not SIGNALS[signal].priority_first:
            assert victim.pod.metadata.uid in above or not above


@given(many_candidates(), st.sampled_from(list(DiskLayout)))
def test_no_critical_pod_goes_for_limits_of_its_own(
    pods: list[Candidate], layout: DiskLayout
) -> None:
    limited = [evolve(each, pod=with_limit(each.pod)) for each in pods]
    assert not any(is_critical(each.pod) for each in over_own_limits(limited, layout))


def with_limit(made: Pod) -> Pod:
    """The pod whose first container may use 50 MiB of the disk."""
    (container,) = made.spec.containers
    asked = container.resources or ResourceRequirements()
    limits = {"ephemeral-storage": Quantity("50Mi")}
    limited = evolve(container, resources=evolve(asked, limits=limits))
    return evolve(made, spec=evolve(made.spec, containers=(limited,)))


@define
class Round:
    """What happens in a round: what is available, and how long the last step takes."""

    available: dict[Signal, int]
    seconds: float
    step_seconds: float


rounds = st.builds(
    Round,
    available=st.dictionaries(st.sampled_from(list(Signal)), st.integers(0, 100)),
    seconds=st.floats(0.1, 400),
    step_seconds=st.floats(0, 60),
)
one_threshold = st.builds(
    Threshold,
    signal=st.sampled_from(SETTABLE),
    value=st.sampled_from(["5", "20%", "60%"]).map(ThresholdValue.parse),
    minimum_reclaim=st.sampled_from([None, ThresholdValue.parse("10")]),
    is_hard=st.just(False),
    grace_seconds=st.sampled_from([0.0, 30.0]),
)
thresholds = st.lists(one_threshold, max_size=4, unique=True)


def observed(available: Mapping[Signal, int], at: float, layout: DiskLayout) -> Observations:
    amounts = {
        signal: Observed(available=amount, capacity=100) for signal, amount in available.items()
    }
    return Observations(at=at, signals=amounts, layout=layout)


@given(st.lists(rounds, max_size=25), thresholds, st.sampled_from(list(DiskLayout)))
def test_between_two_victims_there_is_an_observation_newer_than_the_end_of_the_first(
    days: list[Round], limits: list[Threshold], layout: DiskLayout
) -> None:
    """Each step of a manager, but in any rhythm: rounds come before a step has ended, too.

    A pod has stopped after half of the time until all of it is gone.
    """
    assessment, progress, now = Assessment(), Progress(), 0.0
    stops: list[float] = []
    ends: list[float] = []
    pods = [Candidate(pod=pod("p"), stats=stats("p", memory_mi=5, tasks=5, whole=disk(5, 5)))]
    for each in days:
        now += each.seconds
        while progress.stopping and stops[-1] <= now:
            progress = progress.after_stop(stops[-1])
        for end in [end for end in ends if end <= now]:
            progress = progress.after_end(end)
            ends.remove(end)
        assessment = assess(assessment, limits, observed(each.available, now, layout), TRANSITION)
        step = decide(assessment, progress, GracePolicy(), pods)
        if step.victim is not None:
            assert all(stop <= now for stop in stops)
            assert not ends or SIGNALS[Signal(step.victim.cause)].disk is None
            assert_grace_is_over(assessment, step.victim)
            progress = progress.while_ending()
            stops.append(now + each.step_seconds / 2)
            ends.append(now + each.step_seconds)
        elif step.reclaim and step.starved is not None:
            signal = step.starved.threshold.signal
            progress = progress.while_reclaiming().after_reclaim(signal, now)
        else:
            progress = progress.hastened() if step.hasten else progress


def assert_grace_is_over(assessment: Assessment, victim: Victim) -> None:
    at = assessment.observed.at
    assert any(
        str(threshold.signal) == victim.cause and at - since >= threshold.grace_seconds
        for threshold, since in assessment.crossed_since.items()
    )


@given(st.lists(rounds, max_size=25), thresholds, st.sampled_from(list(DiskLayout)))
def test_a_pressure_that_is_shown_stays_for_the_transition_period(
    days: list[Round], limits: list[Threshold], layout: DiskLayout
) -> None:
    assessment, now = Assessment(), 0.0
    last_crossed: dict[object, float] = {}
    for each in days:
        now += each.seconds
        assessment = assess(assessment, limits, observed(each.available, now, layout), TRANSITION)
        for threshold in assessment.crossed_since:
            last_crossed[SIGNALS[threshold.signal].condition] = now
        for kind, state in assessment.states.items():
            recent = kind in last_crossed and now - last_crossed[kind] < TRANSITION
            assert is_shown(state) is recent


GAPS = [1, 3, 4, 9, int(MOST_UNSEEN_SECONDS - SAVE_SECONDS)]
"""Seconds between two observations: some are less than the age of a record may be."""
EPOCH_NS = 1_767_225_600_000_000_000
SHORT_TRANSITION = 30.0


@define
class Restarted:
    """An agent that may be killed after each observation, and goes on from its last record."""

    limits: list[Threshold]
    saves_always: bool
    assessment: Assessment = field(factory=Assessment)
    _saved: Assessment = field(factory=Assessment)
    _text: bytes | None = None

    def observe(self, seen: Observations) -> None:
        """Assess one more observation; the record is replaced if it is due."""
        self.assessment = assess(self.assessment, self.limits, seen, SHORT_TRANSITION)
        if self.saves_always or is_due(self._saved, self.assessment):
            self._saved = self.assessment
            self._text = printed(self.assessment, "boot", moment(seen.at))

    def restart(self, at: float) -> None:
        """Forget all but the record."""
        self.assessment = Assessment()
        if self._text is not None:
            found = parsed(self._text, self.limits, "boot", moment(at))
            assert found is not None
            self.assessment = self._saved = found


def moment(seconds: float) -> Moment:
    return Moment(seconds=seconds, epoch_ns=EPOCH_NS + round(seconds * 1e9))


FEW = [Signal.MEMORY, Signal.ALLOCATABLE_MEMORY]  # of one condition
GRACES = st.sampled_from([0.0, 5.0, 15.0])


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(FEW), st.sampled_from([2, 12, 25, 65, 90]), min_size=1),
            st.sampled_from(GAPS),
            st.booleans(),
        ),
        min_size=2,
        max_size=25,
    ),
    st.lists(
        st.builds(evolve, one_threshold, signal=st.sampled_from(FEW), grace_seconds=GRACES),
        min_size=1,
        max_size=4,
        unique_by=lambda each: (each.signal, each.value),
    ),
    st.booleans(),
)
def test_a_restart_at_any_moment_changes_no_decision_but_relieves_by_ten_seconds_sooner_at_most(
    days: list[tuple[dict[Signal, int], int, bool]], limits: list[Threshold], saves_always: bool
) -> None:
    through, restarted, now = Assessment(), Restarted(limits, saves_always), 0
    for available, seconds, is_killed in days:
        if is_killed:
            restarted.restart(now + seconds / 2)
        now += seconds
        seen = observed(available, now, DiskLayout.SHARED)
        through = assess(through, limits, seen, SHORT_TRANSITION)
        restarted.observe(seen)
        assert restarted.assessment.crossed_since == through.crossed_since
        assert restarted.assessment.met == through.met
        for kind, state in through.states.items():
            last = max(
                (
                    at
                    for t, at in through.last_crossed_at.items()
                    if SIGNALS[t.signal].condition is kind
                ),
                default=now,
            )
            is_nearly_relieved = now - last > SHORT_TRANSITION - 10
            if saves_always or not is_nearly_relieved:
                assert restarted.assessment.states[kind] is state


def test_the_amounts_of_these_tests_are_those_of_the_figures() -> None:
    assert disk(3).used == 3 * MI
