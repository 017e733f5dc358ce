"""Evictions, whatever the node, its pods and the order of events: what never happens."""

from typing import Any

from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from state_machines.pressure import is_shown
from tests.unit.eviction.candidates import MI, MIRROR, STATIC, disk, pod, stats
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.decision import GracePolicy, Progress, Victim, decide
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import CONDITION_OF, PressureHistory, next_history
from trio_kubelet.eviction.ranking import RESOURCE_OF, Candidate, claim, ranked
from trio_kubelet.eviction.thresholds import DiskLayout, Threshold
from trio_kubelet.pod_source import is_critical

SIGNALS = [signal for signal in Signal if not signal.startswith("containerfs")]
REQUESTABLE = [
    signal for signal in Signal if RESOURCE_OF[signal] in ("memory", "ephemeral-storage")
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
thresholds = st.lists(
    st.builds(
        Threshold,
        signal=st.sampled_from(SIGNALS),
        value=st.sampled_from(["5", "20%", "60%"]).map(ThresholdValue.parse),
        minimum_reclaim=st.sampled_from([None, ThresholdValue.parse("10")]),
        is_hard=st.just(False),
        grace_seconds=st.sampled_from([0.0, 30.0]),
    ),
    max_size=4,
    unique=True,
)


def observed(given_round: Round, at: float, layout: DiskLayout) -> Observations:
    amounts = {
        signal: Observed(available=available, capacity=100)
        for signal, available in given_round.available.items()
    }
    return Observations(at=at, signals=amounts, layout=layout)


@given(st.lists(rounds, max_size=25), thresholds, st.sampled_from(list(DiskLayout)))
def test_between_two_victims_there_is_an_observation_newer_than_the_end_of_the_first(
    days: list[Round], limits: list[Threshold], layout: DiskLayout
) -> None:
    """Each step of a manager, but in any rhythm: rounds come before a step has ended, too."""
    history, progress, now, ends_at = PressureHistory(), Progress(), 0.0, float("-inf")
    pods = [Candidate(pod=pod("p"), stats=stats("p", memory_mi=5, tasks=5, whole=disk(5, 5)))]
    last_end = float("-inf")
    for each in days:
        now += each.seconds
        if ends_at <= now and progress.settled_at == float("inf"):
            progress, last_end = progress.after_end(ends_at), ends_at
        history = next_history(history, limits, observed(each, now, layout), TRANSITION)
        step = decide(history, progress, GracePolicy(), pods)
        if step.victim is not None:
            assert now >= last_end
            assert progress.settled_at != float("inf")
            assert_grace_is_over(history, step.victim)
            progress, ends_at = progress.while_ending(), now + each.step_seconds
        elif step.reclaim and step.starved is not None:
            signal = step.starved.threshold.signal
            progress = progress.while_reclaiming().after_reclaim(signal, now)
        else:
            progress = progress.without_victim()


def assert_grace_is_over(history: PressureHistory, victim: Victim) -> None:
    at = history.observed.at
    assert any(
        str(threshold.signal) == victim.cause and at - since >= threshold.grace_seconds
        for threshold, since in history.crossed.items()
    )


@given(st.lists(rounds, max_size=25), thresholds, st.sampled_from(list(DiskLayout)))
def test_a_pressure_that_is_shown_stays_for_the_transition_period(
    days: list[Round], limits: list[Threshold], layout: DiskLayout
) -> None:
    history, now = PressureHistory(), 0.0
    last_crossed: dict[object, float] = {}
    for each in days:
        now += each.seconds
        history = next_history(history, limits, observed(each, now, layout), TRANSITION)
        for threshold in history.crossed:
            last_crossed[CONDITION_OF[threshold.signal]] = now
        for kind, state in history.states.items():
            recent = kind in last_crossed and now - last_crossed[kind] < TRANSITION
            assert is_shown(state) is recent


def test_the_amounts_of_these_tests_are_those_of_the_figures() -> None:
    assert disk(3).used == 3 * MI
