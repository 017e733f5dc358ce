"""The phase of a pod: one row a case."""

from typing import Any

import pytest

from state_machines.probe import ProbeVerdict
from tests.unit.status.pods import (
    CREATED,
    EXITED,
    NOTHING,
    NOW,
    RUNNING,
    SECOND,
    UNKNOWN,
    a_pod,
    instance,
    sandbox,
    seen,
    sidecar,
    status_of,
)
from trio_kubelet.k8s import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    Pod,
    PodCondition,
    PodStatus,
    Time,
)
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status import Failure

INIT = (Container(name="i"),)
TWO_INITS = (Container(name="i"), Container(name="j"))
SIDECAR = (sidecar("s"),)
NEVER: dict[str, Any] = {"restart_policy": "Never"}
ON_FAILURE: dict[str, Any] = {"restart_policy": "OnFailure"}


def ended(name: str, exit_code: int = 0) -> Any:
    return instance(name, EXITED, exit_code=exit_code)


def runs(name: str) -> Any:
    return instance(name, RUNNING)


def restarts_on(code: int, name: str = "c") -> Container:
    rule = ContainerRestartRule(
        action="Restart",
        exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(code,)),
    )
    return Container(name=name, restart_policy="Never", restart_policy_rules=(rule,))


@pytest.mark.parametrize(
    ("pod", "observed", "restarting", "phase"),
    [
        # stopped for a probe, or for another definition: the exit code does not count
        (a_pod(**ON_FAILURE), seen(ended("c")), "c", "Running"),
        (a_pod(**NEVER), seen(ended("c")), "c", "Running"),
        (a_pod(**NEVER), seen(ended("c", 1)), "c", "Running"),
        (a_pod("c", "d", **ON_FAILURE), seen(ended("c"), ended("d")), "cd", "Running"),
        (a_pod("c", "d", **ON_FAILURE), seen(ended("c"), ended("d")), "d", "Running"),
        (a_pod("c", "d", **ON_FAILURE), seen(ended("c"), ended("d")), "", "Succeeded"),
        (a_pod("c", "d", **NEVER), seen(ended("c", 1), ended("d")), "", "Failed"),
        # the next instance is made, and not started yet
        (a_pod(**ON_FAILURE), seen(ended("c"), instance("c", CREATED, 1)), "c", "Running"),
        # one that never ran has no end that could count
        (a_pod(**ON_FAILURE), seen(instance("c", CREATED)), "c", "Pending"),
        (a_pod(init=INIT, **NEVER), seen(ended("i", 1)), "i", "Pending"),
        (a_pod(init=INIT, **NEVER), seen(ended("i", 1)), "", "Failed"),
    ],
)
def test_a_container_that_is_to_run_again_whatever_it_ended_with_ends_no_pod(
    pod: Pod, observed: ObservedPod, restarting: str, phase: str
) -> None:
    assert status_of(pod, observed, restarting=frozenset(restarting)).phase == phase


@pytest.mark.parametrize(
    ("pod", "observed", "phase"),
    [
        # regular containers alone
        (a_pod(), NOTHING, "Pending"),
        (a_pod(), seen(), "Pending"),
        (a_pod(), seen(instance("c", CREATED)), "Pending"),
        (a_pod(), seen(runs("c")), "Running"),
        (a_pod("c", "d"), seen(runs("c")), "Pending"),
        (a_pod("c", "d"), seen(runs("c"), ended("d", 1)), "Running"),
        (a_pod("c", "d"), seen(runs("c"), runs("d")), "Running"),
        (a_pod(), seen(ended("c")), "Running"),
        (a_pod(), seen(ended("c", 1)), "Running"),
        (a_pod(**ON_FAILURE), seen(ended("c")), "Succeeded"),
        (a_pod(**ON_FAILURE), seen(ended("c", 1)), "Running"),
        (a_pod(**NEVER), seen(ended("c")), "Succeeded"),
        (a_pod(**NEVER), seen(ended("c", 1)), "Failed"),
        (a_pod("c", "d", **NEVER), seen(ended("c"), ended("d", 1)), "Failed"),
        (a_pod("c", "d", **NEVER), seen(ended("c"), runs("d")), "Running"),
        (a_pod("c", "d", **ON_FAILURE), seen(ended("c"), ended("d", 1)), "Running"),
        (a_pod("c", "d", **ON_FAILURE), seen(ended("c"), ended("d")), "Succeeded"),
        # a container whose state the runtime cannot tell, and that was not seen running before
        (a_pod(), seen(instance("c", UNKNOWN)), "Pending"),
        # restart policies and rules of containers (KEP-5307)
        (
            a_pod(containers=(Container(name="c", restart_policy="Always"),), **NEVER),
            seen(ended("c")),
            "Running",
        ),
        (
            a_pod(containers=(Container(name="c", restart_policy="Never"),)),
            seen(ended("c", 1)),
            "Failed",
        ),
        (a_pod(containers=(restarts_on(42),)), seen(ended("c", 42)), "Running"),
        (a_pod(containers=(restarts_on(42),)), seen(ended("c", 1)), "Failed"),
        (
            a_pod(containers=(restarts_on(42), Container(name="d")), **NEVER),
            seen(ended("c", 42), ended("d", 1)),
            "Running",
        ),
        # init containers
        (a_pod(init=INIT), seen(), "Pending"),
        (a_pod(init=INIT), seen(runs("i")), "Pending"),
        (a_pod(init=INIT), seen(ended("i")), "Pending"),
        (a_pod(init=INIT), seen(ended("i", 1)), "Pending"),
        (a_pod(init=INIT), seen(ended("i"), runs("c")), "Running"),
        (a_pod(init=INIT), seen(runs("c")), "Running"),
        (a_pod(init=INIT, **NEVER), seen(ended("i", 1)), "Failed"),
        (a_pod(init=INIT, **ON_FAILURE), seen(ended("i", 1)), "Pending"),
        (a_pod(init=TWO_INITS, **NEVER), seen(ended("i"), ended("j", 1)), "Failed"),
        (a_pod(init=TWO_INITS, **NEVER), seen(ended("i"), runs("j")), "Pending"),
        (a_pod(init=(restarts_on(42, "i"),)), seen(ended("i", 42)), "Pending"),
        (a_pod(init=(restarts_on(42, "i"),)), seen(ended("i", 1)), "Failed"),
        (a_pod(init=INIT, **NEVER), seen(ended("i"), ended("c")), "Succeeded"),
        # sidecars (KEP-753)
        (a_pod(init=SIDECAR), seen(runs("s")), "Pending"),
        (a_pod(init=SIDECAR), seen(runs("s"), runs("c")), "Running"),
        (a_pod(init=SIDECAR, **NEVER), seen(runs("s"), ended("c")), "Running"),
        (a_pod(init=SIDECAR, **NEVER), seen(ended("s", 137), ended("c")), "Succeeded"),
        (a_pod(init=SIDECAR, **NEVER), seen(ended("s"), ended("c", 1)), "Failed"),
        (a_pod(init=SIDECAR), seen(ended("s", 1), runs("c")), "Running"),
        (a_pod(init=SIDECAR), seen(instance("s", CREATED), runs("c")), "Pending"),
        # what failed for good is told once the rest of the pod has stopped
        (
            a_pod(init=(*SIDECAR, *INIT), **NEVER),
            seen(runs("s"), ended("i", 1)),
            "Pending",
        ),
        (a_pod(init=(*SIDECAR, *INIT), **NEVER), seen(ended("s"), ended("i", 1)), "Failed"),
        # ephemeral containers are guests
        (a_pod(ephemeral=("e",)), seen(runs("c")), "Running"),
        (a_pod(ephemeral=("e",)), seen(runs("c"), ended("e", 1)), "Running"),
        (a_pod(ephemeral=("e",), **NEVER), seen(ended("c"), ended("e", 1)), "Succeeded"),
    ],
)
def test_the_phase_sums_up_the_containers(pod: Pod, observed: ObservedPod, phase: str) -> None:
    assert status_of(pod, observed).phase == phase


@pytest.mark.parametrize(
    ("pod", "observed", "phase"),
    [
        (a_pod(), seen(ended("c", 137)), "Failed"),
        (a_pod(), seen(ended("c")), "Succeeded"),
        (a_pod(), NOTHING, "Failed"),
        (a_pod(init=INIT), seen(ended("i")), "Failed"),
        (a_pod(init=INIT), seen(ended("i", 1)), "Failed"),
        (a_pod(init=SIDECAR), seen(ended("s", 137), ended("c")), "Succeeded"),
        (a_pod("c", "d"), seen(ended("c")), "Failed"),
        (a_pod(annotations={"kubernetes.io/config.source": "file"}), seen(ended("c")), "Running"),
        (
            a_pod(annotations={"kubernetes.io/config.source": "http"}, **NEVER),
            seen(ended("c")),
            "Succeeded",
        ),
    ],
)
def test_a_pod_that_was_stopped_has_succeeded_or_failed_unless_it_is_static(
    pod: Pod, observed: ObservedPod, phase: str
) -> None:
    assert status_of(pod, observed, stopped=True).phase == phase


@pytest.mark.parametrize("final", ["Succeeded", "Failed"])
@pytest.mark.parametrize("observed", [NOTHING, seen(runs("c")), seen(ended("c", 1))])
@pytest.mark.parametrize("known_to", ["us", "the API"])
def test_a_terminal_phase_is_never_taken_back(
    final: str, observed: ObservedPod, known_to: str
) -> None:
    told = PodStatus(phase=final, reason="Why", message="words")
    pod = a_pod(status=told if known_to == "the API" else None)
    before = told if known_to == "us" else PodStatus(phase="Running")
    after = status_of(
        pod, observed, previous=before, failure=Failure(reason="Evicted"), stopped=True
    )
    assert (after.phase, after.reason, after.message) == (final, "Why", "words")


EVICTED = Failure(reason="Evicted", message="The node was low on resource: memory.")


def test_a_failed_pod_says_why() -> None:
    after = status_of(a_pod(), seen(ended("c")), failure=EVICTED, stopped=True)
    assert (after.phase, after.reason, after.message) == (
        "Failed",
        "Evicted",
        "The node was low on resource: memory.",
    )


REJECTED = Failure(reason="OutOfcpu", message="Pod was rejected: no cpu", rejected=True)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_rejected_pod_says_why_and_nothing_of_containers(stopped: bool) -> None:
    scheduled = PodCondition(type="PodScheduled", status="True")
    gate = PodCondition(type="example.com/gate", status="True")
    told = PodStatus(phase="Pending", conditions=(scheduled, gate))
    after = status_of(a_pod(status=told), NOTHING, failure=REJECTED, stopped=stopped)
    assert after == PodStatus(
        phase="Failed",
        reason="OutOfcpu",
        message="Pod was rejected: no cpu",
        conditions=(gate,),
        qos_class="BestEffort",
        start_time=Time.from_ns(NOW),
    )


def test_a_pod_that_an_earlier_agent_rejected_stays_as_it_was_told() -> None:
    rejected = status_of(a_pod(), NOTHING, failure=REJECTED, stopped=True)
    pod = a_pod(status=rejected)
    assert status_of(pod, NOTHING, previous=rejected, now_ns=NOW + SECOND) == rejected
    assert status_of(pod, NOTHING, previous=rejected, stopped=True) == rejected


def test_a_static_pod_that_was_evicted_has_failed() -> None:
    pod = a_pod(annotations={"kubernetes.io/config.source": "file"})
    assert status_of(pod, seen(ended("c")), failure=EVICTED, stopped=True).phase == "Failed"


@pytest.mark.parametrize("observed", [NOTHING, seen(), seen(ended("c")), seen(runs("c"))])
def test_a_failure_is_told_once_it_was_seen_that_nothing_runs(observed: ObservedPod) -> None:
    """A call that was cut short may have started a container that nobody knows of yet."""
    before = status_of(a_pod(), seen(runs("c")))
    during = status_of(a_pod(), observed, previous=before, failure=EVICTED)
    assert (during.phase, during.reason) == ("Running", "")
    after = status_of(a_pod(), seen(ended("c")), previous=during, failure=EVICTED, stopped=True)
    assert (after.phase, after.reason) == ("Failed", "Evicted")


def test_the_reason_stays_as_long_as_the_phase_does() -> None:
    failed = status_of(a_pod(), seen(ended("c")), failure=EVICTED, stopped=True)
    again = status_of(a_pod(), seen(ended("c")), previous=failed, stopped=True)
    assert (again.reason, again.message) == (EVICTED.reason, EVICTED.message)


def test_a_container_that_ran_and_cannot_be_accounted_for_fails_a_pod_that_never_restarts() -> None:
    pod = a_pod(**NEVER)
    before = status_of(pod, seen(runs("c")))
    after = status_of(pod, seen(instance("c", UNKNOWN)), previous=before)
    assert after.phase == "Failed"


def test_a_running_pod_whose_containers_vanished_is_not_pending_again() -> None:
    before = status_of(a_pod(), seen(runs("c")))
    assert status_of(a_pod(), NOTHING, previous=before).phase == "Running"


def test_a_sidecar_that_is_not_started_keeps_a_pod_pending_only_until_it_is_initialized() -> None:
    pod = a_pod(init=SIDECAR)
    unstarted = {"s-0": ProbeVerdict(started=False, ready=False)}
    assert status_of(pod, seen(runs("s")), probed=unstarted).phase == "Pending"
    assert status_of(pod, seen(runs("s"), runs("c")), probed=unstarted).phase == "Running"
    elsewhere = seen(runs("s"), instance("c", RUNNING, sandbox_id="gone"))
    assert status_of(pod, elsewhere, probed=unstarted).phase == "Pending"


def test_the_containers_of_an_old_sandbox_do_not_make_a_new_one_initialized() -> None:
    pod = a_pod(init=INIT)
    new = sandbox(id="s-1", attempt=1)
    old = sandbox(ready=False)
    before = status_of(pod, seen(ended("i"), runs("c")))
    observed = seen(
        instance("i", RUNNING, 1, sandbox_id="s-1"), ended("c", 1), sandboxes=(new, old)
    )
    assert status_of(pod, observed, previous=before).phase == "Pending"
