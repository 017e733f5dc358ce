"""What an exit that restarts all containers of a pod comes to, a row a case."""

import pytest
from attrs import evolve

from tests.unit.runtime.planned_pods import (
    GIVEN,
    container,
    exited,
    make_pod,
    observe,
    plan_of,
    planned,
    sandbox,
    seen,
    table,
)
from trio_kubelet.k8s import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    Pod,
)
from trio_kubelet.runtime.lifecycle.plan import Plan
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.runtime.restarts import is_restarting_all

RULE = ContainerRestartRule(
    action="RestartAllContainers",
    exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(42,)),
)
INIT, SIDE = container("init"), container("side", policy="Always")


def with_rule(one: Container) -> Container:
    return evolve(one, restart_policy=one.restart_policy or "Never", restart_policy_rules=(RULE,))


def pod(*regular: Container, init: tuple[Container, ...] = ()) -> Pod:
    made = make_pod(init=init, ephemeral=("debug",), policy="Never")
    return evolve(made, spec=evolve(made.spec, containers=regular))


CAUSE = with_rule(container("cause"))
POD = pod(CAUSE, container("other"), init=(INIT, SIDE))
OF_SIDECAR = pod(container("main"), init=(with_rule(SIDE),))
OF_INIT = pod(container("main"), init=(SIDE, with_rule(INIT)))


def words(plan: Plan) -> str:
    parts = [
        *(f"kill {order.container.name}" for order in plan.stop if order.at_once),
        *(f"stop {order.container.name}" for order in plan.stop if not order.at_once),
        *(f"remove {each.name}" for each in plan.remove),
        *(f"start {order.container.name}" for order in plan.start),
        *(["stop pod"] if plan.stop_pod else []),
    ]
    return ", ".join(parts) or "nothing"


def end(name: str, exit_code: int = 42, *, ago: float = 1.0) -> ObservedContainer:
    return exited(name, exit_code, ended_ago=ago)


@pytest.mark.parametrize(
    ("pod", "observed", "expected"),
    [
        pytest.param(
            POD,
            observe(
                sandbox(), seen("other"), end("cause"), seen("side"), end("init", 0), seen("debug")
            ),
            "kill debug, kill side, kill other",
            id="what runs is killed, whatever it is",
        ),
        pytest.param(
            POD,
            observe(sandbox(), end("other", 137), end("cause"), end("init", 0), end("debug", 137)),
            "remove other, remove init",
            id="what has ended is removed, but for debuggers and the cause",
        ),
        pytest.param(
            POD, observe(sandbox(), end("cause"), end("debug", 1)), "remove cause", id="cause last"
        ),
        pytest.param(
            POD,
            observe(sandbox(), end("cause", 1), seen("other"), seen("side"), end("init", 0)),
            "start debug",
            id="another exit code restarts nothing",
        ),
        pytest.param(
            POD,
            observe(sandbox(attempt=1), end("cause"), end("debug", 1)),
            "start init",
            id="nor does what ended in an earlier sandbox",
        ),
        pytest.param(
            OF_SIDECAR,
            observe(sandbox(), seen("main"), end("side"), end("debug", 1)),
            "kill main",
            id="a sidecar beside what runs",
        ),
        pytest.param(
            OF_SIDECAR,
            observe(sandbox(), end("main", 137, ago=1), end("side", ago=2), end("debug", 1)),
            "remove main",
            id="a sidecar before the rest was killed for it",
        ),
        pytest.param(
            OF_SIDECAR,
            observe(sandbox(), end("main", 0, ago=2), end("side", ago=1)),
            "stop pod",
            id="a sidecar of a pod that was through before",
        ),
        pytest.param(
            OF_INIT,
            observe(sandbox(), seen("side"), end("init"), end("debug", 1)),
            "kill side",
            id="an init container",
        ),
    ],
)
def test_the_next_step(pod: Pod, observed: ObservedPod, expected: str) -> None:
    anything = tuple(evolve(each, hash="") for each in observed.containers)
    assert words(planned(pod, evolve(observed, containers=anything))) == expected


def test_when_all_are_removed_the_pod_starts_as_a_new_one_and_counts_on() -> None:
    ends = observe(sandbox(), end("other", 137), end("cause"), end("side", 137), end("init", 0))
    containers = table(POD, ends)
    gone = observe(sandbox())
    containers.observe(POD, gone)
    plan = plan_of(POD, gone, evolve(GIVEN, containers=containers.records))
    assert plan.starts_over
    assert plan.sandbox is gone.ready_sandbox
    assert words(plan) == "start init"
    (order,) = plan.start
    assert order.predecessor is not None
    assert order.predecessor.exit_code == 0
    containers.decide(POD, plan.decisions)
    containers.start_over()
    again = observe(sandbox(), evolve(seen("init"), id="init-1", restart_count=1))
    containers.observe(POD, again)
    plan = plan_of(POD, again, evolve(GIVEN, containers=containers.records))
    assert words(plan) == "start debug", "regular containers wait for the init container"


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ((end("cause"), seen("other")), True),
        ((end("cause"),), True),
        ((end("cause", 1), seen("other")), False),
        ((seen("cause"), evolve(end("cause"), id="older")), False),
        ((seen("cause", ObservedState.UNKNOWN),), False),
        ((), False),
    ],
)
def test_it_goes_on_until_the_cause_is_removed(
    containers: tuple[ObservedContainer, ...], expected: bool
) -> None:
    assert is_restarting_all(POD, observe(sandbox(), *containers)) is expected
    assert not is_restarting_all(make_pod("cause"), observe(sandbox(), *containers))
    assert not is_restarting_all(POD, observe(sandbox(ready=False), *containers))
