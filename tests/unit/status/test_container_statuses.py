"""Container statuses: what is shown of a container that waits, runs, has ended or is lost."""

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
    seen,
    sidecar,
    status_of,
)
from trio_kubelet.k8s import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    LinuxContainerUser,
    Pod,
    PodStatus,
    Probe,
    Quantity,
    ResourceRequirements,
    Time,
    VolumeMount,
    VolumeMountStatus,
)
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.observed import ObservedPod, ObservedUser

CRASH_LOOP = Reason(
    reason="CrashLoopBackOff",
    message="back-off 40s restarting failed container=c pod=p_n(u)",
)


def lost(container_id: str) -> ContainerState:
    return ContainerState(
        terminated=ContainerStateTerminated(
            reason="ContainerStatusUnknown",
            message="The container could not be located when the pod was terminated",
            exit_code=137,
            container_id=container_id,
        )
    )


def waiting(reason: str, message: str = "") -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))


def only(status: PodStatus) -> ContainerStatus:
    (container,) = status.container_statuses
    return container


def the(
    pod: Pod,
    observed: ObservedPod,
    *,
    previous: PodStatus | None = None,
    reasons: dict[str, Reason] | None = None,
    stopped: bool = False,
) -> ContainerStatus:
    """The status of the only regular container."""
    return only(status_of(pod, observed, previous=previous, reasons=reasons, stopped=stopped))


# --- waiting


def test_a_container_that_was_never_made_is_being_created() -> None:
    status = the(a_pod(), NOTHING)
    assert status == ContainerStatus(
        name="c", image="web", state=waiting("ContainerCreating"), started=False
    )


def test_with_init_containers_everything_waits_for_the_pod_to_be_initialized() -> None:
    status = status_of(a_pod(init=(Container(name="i"),), ephemeral=("e",)), NOTHING)
    every = (
        *status.init_container_statuses,
        *status.container_statuses,
        *status.ephemeral_container_statuses,
    )
    assert [(s.name, s.state) for s in every] == [
        (name, waiting("PodInitializing")) for name in ("i", "c", "e")
    ]


def test_a_container_that_cannot_be_made_says_why() -> None:
    reason = Reason(reason="ErrImagePull", message="not found")
    assert the(a_pod(), seen(), reasons={"c": reason}).state == waiting("ErrImagePull", "not found")
    made = seen(instance("c", CREATED))
    failed = Reason(reason="RunContainerError", message="no such file")
    assert the(a_pod(), made, reasons={"c": failed}).state == waiting(
        "RunContainerError", "no such file"
    )


def test_a_container_that_ended_well_and_is_to_run_again_all_the_same_says_why_it_waits() -> None:
    pod = a_pod(restart_policy="OnFailure")
    observed = seen(instance("c", EXITED, 3, exit_code=0))
    reasons = {"c": CRASH_LOOP}
    waits = only(status_of(pod, observed, reasons=reasons, restarting=frozenset({"c"})))
    assert waits.state == waiting("CrashLoopBackOff", CRASH_LOOP.message)
    over = the(pod, observed, reasons=reasons).state
    assert over is not None
    assert over.terminated is not None


def test_a_container_in_back_off_shows_its_last_end_beside() -> None:
    pod = a_pod()
    status = the(pod, seen(instance("c", EXITED, 3, exit_code=1)), reasons={"c": CRASH_LOOP})
    assert status.state == waiting("CrashLoopBackOff", CRASH_LOOP.message)
    assert status.last_state is not None
    assert status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 1
    assert status.last_state.terminated.container_id == "containerd://c-3"
    assert (status.restart_count, status.container_id) == (3, "containerd://c-3")


def test_a_container_that_will_not_run_again_does_not_wait() -> None:
    ended = seen(instance("c", EXITED, exit_code=1))
    reasons = {"c": CRASH_LOOP}
    never, deleted = a_pod(restart_policy="Never"), a_pod(deleted=True)
    for status in (
        the(never, ended, reasons=reasons),
        the(deleted, ended, reasons=reasons),
        the(a_pod(), ended, reasons=reasons, stopped=True),
    ):
        assert status.state is not None
        assert status.state.terminated is not None


def test_a_reason_of_the_past_does_not_hide_that_the_container_runs() -> None:
    status = the(a_pod(), seen(instance("c", RUNNING)), reasons={"c": CRASH_LOOP})
    assert status.state == ContainerState(
        running=ContainerStateRunning(started_at=Time.from_ns(NOW))
    )


# --- running and ended


def test_a_running_container_shows_all_that_the_runtime_knows_of_it() -> None:
    amounts = ResourceRequirements(requests={"cpu": Quantity("100m")})
    container = Container(
        name="c",
        image="web:1",
        resources=amounts,
        volume_mounts=(VolumeMount(name="data", mount_path="/data"),),
    )
    running = instance(
        "c",
        RUNNING,
        2,
        image="docker.io/library/web:1",
        image_ref="docker.io/library/web@sha256:1",
        image_id="sha256:2",
        user=ObservedUser(uid=1000, gid=3000, supplemental_groups=(3000, 4000)),
        stop_signal="SIGUSR1",
    )
    assert the(a_pod(containers=(container,)), seen(running)) == ContainerStatus(
        name="c",
        image="docker.io/library/web:1",
        image_id="docker.io/library/web@sha256:1",
        container_id="containerd://c-2",
        state=ContainerState(
            running=ContainerStateRunning(started_at=Time.from_ns(NOW + 2 * SECOND))
        ),
        ready=True,
        started=True,
        restart_count=2,
        resources=amounts,
        allocated_resources={"cpu": Quantity("100m")},
        user=ContainerUser(
            linux=LinuxContainerUser(uid=1000, gid=3000, supplemental_groups=(3000, 4000))
        ),
        stop_signal="SIGUSR1",
        volume_mounts=(VolumeMountStatus(name="data", mount_path="/data"),),
    )


def test_an_ended_container_shows_how() -> None:
    ended = instance("c", EXITED, exit_code=1, message="no config")
    assert the(a_pod(), seen(ended)).state == ContainerState(
        terminated=ContainerStateTerminated(
            exit_code=1,
            reason="Error",
            message="no config",
            started_at=Time.from_ns(NOW),
            finished_at=Time.from_ns(NOW + SECOND),
            container_id="containerd://c-0",
        )
    )


def test_the_end_before_is_that_of_the_next_older_container() -> None:
    older = instance("c", EXITED, 0, exit_code=3)
    status = the(a_pod(), seen(instance("c", RUNNING, 1), older))
    assert status.last_state is not None
    assert status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 3


def test_the_end_before_is_remembered_when_the_runtime_has_removed_that_container() -> None:
    pod = a_pod()
    first = status_of(pod, seen(instance("c", EXITED, 0, exit_code=3)))
    second = status_of(pod, seen(instance("c", RUNNING, 1)), previous=first)
    third = status_of(pod, seen(instance("c", RUNNING, 1)), previous=second)
    assert only(second).last_state == only(first).state
    assert only(third).last_state == only(first).state


@pytest.mark.parametrize("count", [0, 1])
def test_a_pod_deleted_in_a_crash_loop_keeps_its_last_end_beside_its_state(count: int) -> None:
    older = (instance("c", EXITED, 0, exit_code=3),) if count else ()
    ended = seen(instance("c", EXITED, count, exit_code=4), *older)
    in_back_off = status_of(a_pod(), ended, reasons={"c": CRASH_LOOP})
    end = only(in_back_off).last_state
    assert end is not None
    for stopped in (False, True, True):
        status = the(a_pod(deleted=True), ended, previous=in_back_off, stopped=stopped)
        assert (status.state, status.last_state) == (end, end)


def test_an_end_that_no_back_off_followed_is_not_its_own_predecessor() -> None:
    running = status_of(a_pod(), seen(instance("c", RUNNING)))
    ended = seen(instance("c", EXITED, exit_code=3))
    status = status_of(a_pod(), ended, previous=running)
    assert only(status).last_state is None
    assert only(status_of(a_pod(), ended, previous=status)).last_state is None


def test_what_the_messages_of_one_pod_take_up_is_limited() -> None:
    pod = a_pod("c", "d", "e")
    ended = seen(instance("c", EXITED, message="\N{EURO SIGN}" * 4000))
    state = status_of(pod, ended).container_statuses[0].state
    assert state is not None
    assert state.terminated is not None
    assert state.terminated.message == "\N{EURO SIGN}" * 1365


@pytest.mark.parametrize("character", ["x", "\N{EURO SIGN}", "\udcff"])
def test_a_reason_to_wait_takes_no_more_of_a_status_than_an_end(character: str) -> None:
    pod = a_pod("c", "d")
    reasons = {"c": Reason(reason="RunContainerError", message=character * 100_000)}
    state = status_of(pod, seen(), reasons=reasons).container_statuses[0].state
    assert state is not None
    assert state.waiting is not None
    assert 6 * 1024 - 3 < len(state.waiting.message.encode()) <= 6 * 1024


# --- restart counts


def test_the_restart_count_goes_on_when_the_runtime_begins_anew() -> None:
    pod = a_pod()
    ended = status_of(pod, seen(instance("c", EXITED, 5, exit_code=1)))
    anew = instance("c", RUNNING, 0, id="other")
    running = status_of(pod, seen(anew), previous=ended)
    assert only(running).restart_count == 6
    assert only(status_of(pod, seen(anew), previous=running)).restart_count == 6


def test_one_that_was_made_and_never_started_is_no_restart_for_the_next_of_its_number() -> None:
    pod = a_pod()
    ended = status_of(pod, seen(instance("c", EXITED, 0, exit_code=1)))
    made = status_of(pod, seen(instance("c", CREATED, 1)), previous=ended)
    assert only(made).restart_count == 1
    again = seen(instance("c", RUNNING, 1, id="other"))
    assert only(status_of(pod, again, previous=made)).restart_count == 1


# --- lost containers


def test_a_running_container_that_vanished_has_ended_somehow_and_counts_as_restarted() -> None:
    pod = a_pod()
    before = status_of(pod, seen(instance("c", RUNNING, 2)))
    after = status_of(pod, NOTHING, previous=before)
    status = only(after)
    assert status.state == waiting("ContainerCreating")
    assert status.last_state == ContainerState(
        terminated=ContainerStateTerminated(
            reason="ContainerStatusUnknown",
            message="The container could not be located when the pod was deleted.  "
            "The container used to be Running",
            exit_code=137,
            container_id="containerd://c-2",
        )
    )
    assert status.restart_count == 3
    assert only(status_of(pod, NOTHING, previous=after)).restart_count == 3


def test_in_a_deleted_pod_a_vanished_container_was_not_restarted() -> None:
    before = status_of(a_pod(), seen(instance("c", RUNNING, 2)))
    after = status_of(a_pod(deleted=True), NOTHING, previous=before)
    assert only(after).restart_count == 2


def test_an_end_that_was_seen_stays_known_when_its_container_is_removed() -> None:
    pod = a_pod(restart_policy="Never")
    before = status_of(pod, seen(instance("c", EXITED, exit_code=1)))
    assert the(pod, NOTHING, previous=before) == only(before)


def test_a_container_that_ran_and_whose_state_is_unknown_counts_as_failed() -> None:
    pod = a_pod()
    before = status_of(pod, seen(instance("c", RUNNING)))
    unknown = seen(instance("c", UNKNOWN))
    after = status_of(pod, unknown, previous=before)
    assert only(after).state == lost("containerd://c-0")
    assert only(after).restart_count == 1
    assert only(status_of(pod, unknown, previous=after)) == only(after)


def test_the_unknown_end_stays_known_while_the_next_start_waits() -> None:
    pod, unknown = a_pod(), seen(instance("c", UNKNOWN))
    status = status_of(pod, seen(instance("c", RUNNING)))
    for _ in range(3):
        status = status_of(pod, unknown, previous=status, reasons={"c": CRASH_LOOP})
        assert only(status).last_state == lost("containerd://c-0")
        assert only(status).restart_count == 1


def test_when_a_pod_was_stopped_what_has_no_known_end_has_failed() -> None:
    before = status_of(a_pod(), seen(instance("c", RUNNING)))
    status = the(a_pod(), NOTHING, previous=before, stopped=True)
    assert status.state == lost("")
    assert (status.ready, status.started) == (False, False)


def test_in_a_stopped_pod_containers_that_never_had_their_turn_go_on_waiting() -> None:
    pod = a_pod(init=(Container(name="i"), Container(name="j")))
    status = status_of(pod, seen(instance("i", EXITED, exit_code=1)), stopped=True)
    states = [s.state for s in (*status.init_container_statuses, *status.container_statuses)]
    assert [state.terminated is not None for state in states if state] == [True, False, False]


def test_in_a_stopped_pod_the_first_init_container_had_its_turn() -> None:
    status = status_of(a_pod(init=(Container(name="i"),)), NOTHING, stopped=True)
    assert status.init_container_statuses[0].state == lost("")
    assert status.container_statuses[0].state == waiting("PodInitializing")


def test_an_init_container_without_a_record_was_through_if_a_regular_one_was_made() -> None:
    pod = a_pod(init=(Container(name="i"), sidecar("s")))
    status = status_of(pod, seen(instance("c", RUNNING)))
    completed, waits = status.init_container_statuses
    assert completed.state is not None
    assert completed.state.terminated is not None
    assert completed.state.terminated.reason == "Completed"
    assert completed.ready
    assert waits.state == waiting("PodInitializing")


def test_an_init_container_that_waits_to_run_again_is_not_taken_for_one_that_was_through() -> None:
    pod, back_off = a_pod(init=(Container(name="i"),)), Reason(reason="CrashLoopBackOff")
    before = status_of(pod, seen(instance("i", EXITED, exit_code=1)))
    observed = seen(instance("c", CREATED))
    for _ in range(2):
        before = status_of(pod, observed, previous=before, reasons={"i": back_off})
        assert before.init_container_statuses[0].state == waiting("CrashLoopBackOff")


# --- ready and started


def test_a_container_is_ready_once_it_runs_unless_probes_say_otherwise() -> None:
    pod, observed = a_pod(), seen(instance("c", RUNNING))
    verdicts = {
        (True, True): None,
        (True, False): ProbeVerdict(ready=False),
        (False, False): ProbeVerdict(started=False, ready=True),
    }
    for (started, ready), verdict in verdicts.items():
        probed = {"c-0": verdict} if verdict is not None else {}
        status = only(status_of(pod, observed, probed=probed))
        assert (status.started, status.ready) == (started, ready)


@pytest.mark.parametrize(
    ("probes", "told", "expected"),
    [
        ({}, (False, False), (True, True)),
        ({"liveness_probe"}, (False, False), (True, True)),
        ({"readiness_probe"}, (True, False), (True, False)),
        ({"readiness_probe"}, (True, True), (True, True)),
        ({"startup_probe"}, (False, False), (False, False)),
        ({"startup_probe"}, (True, True), (True, True)),
        ({"startup_probe", "readiness_probe"}, (True, False), (True, False)),
    ],
)
def test_before_a_probe_was_run_what_was_told_of_the_same_instance_holds(
    probes: set[str], told: tuple[bool, bool], expected: tuple[bool, bool]
) -> None:
    fields: dict[str, Any] = dict.fromkeys(probes, Probe())
    container = Container(name="c", **fields)
    pod, observed = a_pod(containers=(container,)), seen(instance("c", RUNNING))
    started, ready = told
    before = ContainerStatus(
        name="c", container_id="containerd://c-0", started=started, ready=ready
    )
    status = only(status_of(pod, observed, previous=PodStatus(container_statuses=(before,))))
    assert (status.started, status.ready) == expected


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("liveness_probe", (True, True)),
        ("readiness_probe", (True, False)),
        ("startup_probe", (False, False)),
    ],
)
def test_a_new_instance_has_nothing_of_the_one_before_it(
    probe: str, expected: tuple[bool, bool]
) -> None:
    fields: dict[str, Any] = {probe: Probe()}
    container = Container(name="c", **fields)
    pod, observed = a_pod(containers=(container,)), seen(instance("c", RUNNING))
    before = ContainerStatus(name="c", container_id="containerd://c-9", started=True, ready=True)
    status = only(status_of(pod, observed, previous=PodStatus(container_statuses=(before,))))
    assert (status.started, status.ready) == expected


def test_an_init_container_is_ready_when_it_is_through_and_a_sidecar_while_it_runs() -> None:
    pod = a_pod(init=(Container(name="i"), Container(name="j"), sidecar("s")))
    observed = seen(
        instance("i", EXITED), instance("j", EXITED, exit_code=1), instance("s", RUNNING)
    )
    statuses = status_of(pod, observed).init_container_statuses
    assert [(s.name, s.ready, s.started) for s in statuses] == [
        ("i", True, False),
        ("j", False, False),
        ("s", True, True),
    ]


def test_nothing_is_said_of_the_readiness_of_ephemeral_containers() -> None:
    status = status_of(a_pod(ephemeral=("e",)), seen(instance("e", RUNNING)))
    (guest,) = status.ephemeral_container_statuses
    assert (guest.ready, guest.started) == (False, None)


# --- mounts
