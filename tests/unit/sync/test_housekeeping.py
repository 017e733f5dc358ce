"""Who is a orphan, and who is not."""

from trio_kubelet.sync.housekeeping import (
    ORPHAN_ENDING,
    FoundPod,
    Leftover,
    combine,
    orphaned_pod,
    orphaned_pods,
)

RUNTIME = FoundPod(uid="u", namespace="ns", name="p", leftovers=frozenset({Leftover.RUNTIME}))
FOLDER = FoundPod(uid="u", leftovers=frozenset({Leftover.FOLDER}))
SNAPSHOT = combine(10.0, [FOLDER, RUNTIME])


def test_sightings_of_one_pod_are_put_together_with_its_name() -> None:
    (found,) = SNAPSHOT.pods.values()
    assert found == FoundPod(
        uid="u", namespace="ns", name="p", leftovers=frozenset({Leftover.RUNTIME, Leftover.FOLDER})
    )


def test_a_pod_that_nobody_wants_is_orphaned() -> None:
    assert [s.uid for s in orphaned_pods(SNAPSHOT, wanted=[], at_work=[], gone_at={})] == ["u"]


def test_a_pod_that_a_source_has_is_none() -> None:
    assert orphaned_pods(SNAPSHOT, wanted=["u"], at_work=[], gone_at={}) == ()


def test_a_pod_whose_task_is_at_work_is_none() -> None:
    assert orphaned_pods(SNAPSHOT, wanted=[], at_work=["u"], gone_at={}) == ()


def test_a_cgroup_whose_name_may_be_that_of_a_pod_that_is_there_is_none() -> None:
    slice_of_it = FoundPod(uid="a-b", leftovers=frozenset({Leftover.CGROUP}))
    folder = FoundPod(uid="a-b", leftovers=frozenset({Leftover.FOLDER}))
    there, gone = combine(10.0, [slice_of_it]), combine(10.0, [slice_of_it, folder])
    assert orphaned_pods(there, wanted=["a_b"], at_work=[], gone_at={}) == ()
    assert orphaned_pods(there, wanted=[], at_work=["a_b"], gone_at={}) == ()
    assert len(orphaned_pods(there, wanted=["a_c"], at_work=[], gone_at={})) == 1
    assert len(orphaned_pods(gone, wanted=["a_b"], at_work=[], gone_at={})) == 1


def test_a_pod_whose_task_ended_after_the_snapshot_is_none() -> None:
    assert orphaned_pods(SNAPSHOT, wanted=[], at_work=[], gone_at={"u": 11.0}) == ()


def test_a_pod_whose_task_ended_before_the_snapshot_has_left_something() -> None:
    assert len(orphaned_pods(SNAPSHOT, wanted=[], at_work=[], gone_at={"u": 9.0})) == 1


def test_an_orphaned_pod_of_which_only_a_folder_is_left_has_a_name_for_the_log() -> None:
    pod = orphaned_pod(FOLDER)
    assert (pod.metadata.uid, pod.metadata.name, pod.metadata.namespace) == ("u", "u", "unknown")


def test_an_orphaned_pod_gets_one_second_and_nothing_of_it_is_kept() -> None:
    assert ORPHAN_ENDING.grace_seconds == 1
    assert ORPHAN_ENDING.delete_remains
