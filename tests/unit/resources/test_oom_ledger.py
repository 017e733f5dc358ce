"""Which containers the OOM killer ended, by what cgroups count."""

import pytest
from attrs import evolve

from trio_kubelet.resources.oom_ledger import (
    KEPT_VERDICTS,
    KillCounts,
    Kills,
    OomLedger,
    SeenContainer,
    first_ledger,
    judged,
    shows_all,
)

POD = "boot/1"
A = SeenContainer(id="a", name="a")
B = SeenContainer(id="b", name="b")
C = SeenContainer(id="c", name="c")


def killed(container: SeenContainer) -> SeenContainer:
    return evolve(container, ended=True, exit_code=137)


def told(container: SeenContainer) -> SeenContainer:
    return evolve(killed(container), told_killed=True)


def exited(container: SeenContainer, code: int = 1) -> SeenContainer:
    return evolve(container, ended=True, exit_code=code)


def counts(processes: int, groups: int = 0, **below: int) -> KillCounts:
    return KillCounts(
        cgroup=POD,
        total=Kills(processes, groups),
        below={name: Kills(own, own > 0 and groups > 0) for name, own in below.items()},
    )


@pytest.mark.parametrize(
    ("seen", "now", "verdicts"),
    [
        ([killed(A)], counts(1, 1), {"a": True}),
        ([killed(A)], counts(5, 1), {"a": True}),
        ([killed(A)], counts(1), {"a": True}),
        ([killed(A)], counts(0), {"a": False}),
        ([exited(A)], counts(0), {"a": False}),
        ([exited(A)], counts(1), {"a": False}),
        ([killed(A)], counts(1, 1, a=1), {"a": True}),
        ([killed(A)], counts(1, 1, **{"cri-containerd-a.scope": 1}), {"a": True}),
        ([killed(A), B], counts(1, 1, b=0), {"a": True}),
        ([killed(A), B], counts(1, 0, b=1), {"a": False}),
        ([killed(A), B], counts(2, 0, b=1), {"a": True}),
        ([killed(A), killed(B)], counts(2, 2), {"a": True, "b": True}),
        ([killed(A), killed(B)], counts(2, 1), {"a": False, "b": False}),
        ([told(A), killed(B)], counts(2, 1), {"a": True, "b": False}),
        ([killed(A), killed(B)], counts(1, 1, a=0), {"a": False, "b": True}),
        ([killed(A), exited(B)], counts(1, 1), {"a": True, "b": False}),
        ([killed(A), B], counts(1, 1), {}),
        ([killed(A), B], counts(2, 2), {"a": True}),
        ([killed(A), B], counts(0), {"a": False}),
        ([killed(A), B], counts(1, 1, **{"crio-conmon-b.scope": 0}), {}),
    ],
    ids=[
        "killed",
        "killed with its children",
        "killed where groups are not counted",
        "killed by somebody else",
        "failed by itself",
        "failed after its child was killed",
        "killed and its cgroup is there",
        "killed and its scope is there",
        "killed beside one that runs",
        "killed by somebody else after a child of another was killed",
        "killed after a child of another was killed",
        "both killed",
        "one of two killed",
        "one of two killed and the runtime knows which",
        "killed by somebody else while the other was killed",
        "killed when another failed by itself",
        "one that ended or one whose end was not seen",
        "that one and another whose end was not seen",
        "none while another ends",
        "a monitor is no container",
    ],
)
def test_a_verdict_is_given_where_the_counts_leave_no_doubt(
    seen: list[SeenContainer], now: KillCounts, verdicts: dict[str, bool]
) -> None:
    assert judged(OomLedger(cgroup=POD), now, seen, whole=True).verdicts == verdicts


@pytest.mark.parametrize(
    ("seen", "now", "verdicts"),
    [
        ([killed(A)], counts(1), {"a": True}),
        ([killed(A), exited(B)], counts(1), {"a": False, "b": False}),
        ([killed(A), exited(B)], counts(1, 0, b=1), {"a": False, "b": False}),
        ([killed(A), killed(B)], counts(2, 2), {"a": False, "b": False}),
        ([killed(A), exited(B), C], counts(1), {}),
    ],
    ids=["alone", "or its neighbour's child", "its neighbour's child", "both or one", "not yet"],
)
def test_where_single_processes_are_killed_any_container_may_have_had_them(
    seen: list[SeenContainer], now: KillCounts, verdicts: dict[str, bool]
) -> None:
    assert judged(OomLedger(cgroup=POD), now, seen, whole=False).verdicts == verdicts


def test_kills_that_are_settled_count_for_nobody_else() -> None:
    ledger = judged(OomLedger(cgroup=POD), counts(1, 1, b=0), [killed(A), B], whole=True)
    ledger = judged(ledger, counts(1, 1), [killed(A), killed(B)], whole=True)
    assert ledger.verdicts == {"a": True, "b": False}
    ledger = judged(ledger, counts(2, 2), [killed(A), killed(B), killed(C)], whole=True)
    assert ledger.killed == {"a", "c"}


def test_an_end_that_was_left_open_is_judged_when_the_other_is_seen() -> None:
    ledger = judged(OomLedger(cgroup=POD), counts(1, 1), [killed(A), B], whole=True)
    assert not ledger.knows_ends_of([killed(A), B])
    seen = [killed(A), exited(B)]
    ledger = judged(ledger, counts(1, 1), seen, whole=True)
    assert ledger.knows_ends_of(seen)
    assert ledger.verdicts == {"a": True, "b": False}


def test_a_cgroup_with_kills_that_goes_takes_them_along() -> None:
    ledger = judged(OomLedger(cgroup=POD), counts(1, 0, x=1), [exited(A, 0)], whole=False)
    assert ledger.shared == {"x"}
    ledger = judged(ledger, counts(1), [exited(A, 0), killed(B)], whole=False)
    assert ledger.verdicts == {"a": False, "b": False}


def test_a_cgroup_that_was_made_anew_counts_anew() -> None:
    ledger = OomLedger(cgroup="boot/0", settled=Kills(1, 1), verdicts={"a": True})
    ledger = judged(ledger, counts(1, 1), [killed(A), killed(B)], whole=True)
    assert ledger.killed == {"a", "b"}
    assert (ledger.cgroup, ledger.settled) == (POD, Kills(1, 1))


@pytest.mark.parametrize(
    ("counts_of_restarts", "is_all"), [((), True), ((0,), True), ((0, 1), True), ((1,), False)]
)
def test_a_pod_is_shown_whole_while_no_instance_is_missing(
    counts_of_restarts: tuple[int, ...], is_all: bool
) -> None:
    seen = [evolve(A, id=str(count), restart_count=count) for count in counts_of_restarts]
    assert shows_all(seen) is is_all


def test_of_what_was_before_nothing_is_invented() -> None:
    now = counts(3, 3)
    young = [killed(A)]
    assert judged(first_ledger(now, young), now, young, whole=True).killed == {"a"}
    old = [evolve(killed(A), restart_count=7), evolve(told(B), restart_count=1)]
    ledger = judged(first_ledger(now, old), now, old, whole=True)
    assert ledger.verdicts == {"a": False, "b": True}
    next_end = [*old, evolve(killed(C), restart_count=8)]
    assert judged(ledger, counts(4, 4), next_end, whole=True).killed == {"b", "c"}


def test_old_verdicts_go_and_those_of_shown_containers_stay() -> None:
    many = {str(number): True for number in range(KEPT_VERDICTS + 5)}
    ledger = OomLedger(cgroup=POD, verdicts=many).with_newest([evolve(A, id="0")])
    assert list(ledger.verdicts) == ["0", *map(str, range(5, KEPT_VERDICTS + 5))]


@pytest.mark.parametrize(
    ("ledger", "is_kept"),
    [
        (OomLedger(cgroup=POD), False),
        (OomLedger(cgroup=POD, verdicts={"a": False}), False),
        (OomLedger(cgroup=POD, verdicts={"a": True}), True),
        (OomLedger(cgroup=POD, settled=Kills(1)), True),
    ],
)
def test_what_was_killed_is_worth_a_record(ledger: OomLedger, is_kept: bool) -> None:
    assert (ledger.record is not None) is is_kept
