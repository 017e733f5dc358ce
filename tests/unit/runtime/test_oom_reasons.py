"""Where the kernel knows more of an end than the runtime says."""

import pytest
from attrs import evolve

from trio_kubelet.resources.oom_ledger import SeenContainer
from trio_kubelet.runtime.inspection import seen_containers, with_reasons
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

CONTAINER = ObservedContainer(
    id="id", name="c", sandbox_id="s", state=ObservedState.EXITED, exit_code=137, restart_count=2
)


def pod(*containers: ObservedContainer) -> ObservedPod:
    return ObservedPod(uid="u", name="p", namespace="n", observed_at=0, containers=containers)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("Error", "OOMKilled"),
        ("", "OOMKilled"),
        ("OOMKilled", "OOMKilled"),
        ("ContainerStatusUnknown", "ContainerStatusUnknown"),
    ],
)
def test_a_killed_container_says_oom_killed_unless_the_runtime_is_specific(
    reason: str, shown: str
) -> None:
    other = evolve(CONTAINER, id="other", reason="Error")
    observed = with_reasons(pod(evolve(CONTAINER, reason=reason), other), {"id"})
    assert [each.reason for each in observed.containers] == [shown, "Error"]


def test_containers_are_judged_as_they_are_shown() -> None:
    created = evolve(CONTAINER, id="new", state=ObservedState.CREATED, exit_code=0)
    running = evolve(CONTAINER, id="old", state=ObservedState.RUNNING, exit_code=0)
    told = evolve(CONTAINER, reason="OOMKilled")
    assert seen_containers(pod(created, running, told)) == (
        SeenContainer(id="new", name="c", restart_count=2, started=False),
        SeenContainer(id="old", name="c", restart_count=2),
        SeenContainer(
            id="id", name="c", restart_count=2, ended=True, exit_code=137, told_killed=True
        ),
    )
