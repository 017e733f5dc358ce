"""Who is given CPUs for himself, what others run on, and what is kept of it."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.unit.resource_managers.machines import (
    EIGHT_NODES,
    HYBRID,
    SINGLE_THREADED,
    SMALL,
    SPLIT_CACHES,
    Shape,
    machine,
    managers_of,
)
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import Container, Pod, Quantity, ResourceRequirements
from trio_kubelet.resource_managers import Refusal, ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import (
    CpuDraft,
    StaticCpuPolicy,
    exclusive_cpu_counts,
    static_cpu_policy,
)
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus
from trio_kubelet.resource_managers.placement import RefusedError


def policy(shape: Shape = SMALL, *options: str, reserved: str = "0") -> StaticCpuPolicy:
    return static_cpu_policy(
        machine(shape),
        CpuPolicyOptions(**dict.fromkeys(options, True)),
        reserved_cpus=reserved,
        reserved_milli=0,
    )


def managers(root: Path = Path("/nowhere"), by: StaticCpuPolicy | None = None) -> ResourceManagers:
    return managers_of(by or policy(), root)


def nobody(_uid: str) -> bool:
    return False


def cpus_of(at: ResourceManagers, uid: str, *names: str) -> list[str]:
    return [at.placement(uid, name).cpuset_cpus for name in names or ("c0",)]


# Who


@pytest.mark.parametrize(
    ("container", "count"),
    [
        (guaranteed("c", "2"), 2),
        (guaranteed("c", "2000m"), 2),
        (guaranteed("c", "1500m"), 0),
        (guaranteed("c", "100m"), 0),
        (Container(name="c", image="i"), 0),
        (
            Container(
                name="c",
                image="i",
                resources=ResourceRequirements(
                    requests={"cpu": Quantity("2"), "memory": Quantity("1Gi")},
                    limits={"cpu": Quantity("2"), "memory": Quantity("2Gi")},
                ),
            ),
            0,
        ),
    ],
    ids=["whole", "in millicores", "a fraction more", "a fraction", "best effort", "burstable"],
)
def test_whole_cpus_of_guaranteed_pods_are_exclusive(container: Container, count: int) -> None:
    assert exclusive_cpu_counts(a_pod("u", container)).get("c", 0) == count


def test_a_pod_that_asks_for_cpus_as_a_whole_shares_them() -> None:
    pod = a_pod("u", "2", whole="2")
    assert exclusive_cpu_counts(pod) == {}


# Which


def assigned(
    pod: Pod, by: StaticCpuPolicy, others: str = "", known: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    has = {name: parsed_cpus(cpus) for name, cpus in (known or {}).items()}
    taken = parsed_cpus(others).union(*has.values())
    draft = CpuDraft(pod, by, by.free(taken), has)
    for container in pod.spec.admitted_containers:
        draft.take(container, None)
    return {name: cpu_list(cpus) for name, cpus in draft.chosen.items()}


def test_containers_of_a_pod_have_different_cpus_and_none_that_is_reserved() -> None:
    pod = a_pod("u", "2", "1", "500m", "1")
    assert assigned(pod, policy()) == {"c0": "1,5", "c1": "4", "c3": "2"}


def test_what_others_have_is_not_free() -> None:
    assert assigned(a_pod("u", "2"), policy(), others="1,5") == {"c0": "2,6"}


INIT = guaranteed("init", "4")
SMALL_INIT = guaranteed("small", "2")
SIDECAR = guaranteed("sidecar", "2", sidecar=True)


@pytest.mark.parametrize(
    ("pod", "cpus"),
    [
        (a_pod("u", "2", "2", init=(INIT,)), {"init": "1-2,5-6", "c0": "1,5", "c1": "2,6"}),
        (a_pod("u", "6", init=(INIT,)), {"init": "1-2,5-6", "c0": "1-3,5-7"}),
        (
            a_pod("u", "2", init=(SMALL_INIT, INIT)),
            {"small": "1,5", "init": "1-2,5-6", "c0": "1,5"},
        ),
        (
            a_pod("u", "2", init=(SIDECAR, INIT)),
            {"sidecar": "1,5", "init": "2-3,6-7", "c0": "2,6"},
        ),
        (
            a_pod("u", "2", init=(INIT, SIDECAR)),
            {"init": "1-2,5-6", "sidecar": "1,5", "c0": "2,6"},
        ),
    ],
    ids=["two apps", "larger app", "two inits", "sidecar first", "sidecar last"],
)
def test_cpus_of_init_containers_are_used_again_and_those_of_sidecars_are_not(
    pod: Pod, cpus: Mapping[str, str]
) -> None:
    assert assigned(pod, policy()) == cpus


def test_a_container_keeps_what_it_has_when_its_pod_is_looked_at_again() -> None:
    given = assigned(a_pod("u", "2", "1"), policy(), known={"c1": "1"})
    assert given == {"c0": "2,6", "c1": "1"}


@pytest.mark.parametrize(
    ("pod", "by", "others", "reason", "message"),
    [
        (
            a_pod("u", "8"),
            policy(),
            "",
            "UnexpectedAdmissionError",
            "Allocate failed due to not enough cpus available to satisfy request: "
            "requested=8, available=7, which is unexpected",
        ),
        (
            a_pod("u", "3"),
            policy(SMALL, "full_pcpus_only", reserved="0,4"),
            "",
            "SMTAlignmentError",
            "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
        ),
        (
            a_pod("u", "8"),
            policy(SMALL, "full_pcpus_only"),
            "",
            "SMTAlignmentError",
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, "
            "requested CPUs = 8, CPUs per core = 2",
        ),
        (
            a_pod("u", "1"),
            policy(HYBRID, "full_pcpus_only", reserved="0,4"),
            "8-11",
            "SMTAlignmentError",
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, "
            "requested CPUs = 1, CPUs per core = 1",
        ),
    ],
    ids=["too many", "half a core", "a core is reserved in part", "only cores of two are free"],
)
def test_a_pod_that_cannot_have_its_cpus_is_refused_in_upstreams_words(
    pod: Pod, by: StaticCpuPolicy, others: str, reason: str, message: str
) -> None:
    with pytest.raises(RefusedError) as raised:
        assigned(pod, by, others)
    assert raised.value.refusal == Refusal(reason=reason, message=message)


def test_with_full_cores_nobody_gets_the_other_half_of_a_reserved_core() -> None:
    assert assigned(a_pod("u", "6"), policy(SMALL, "full_pcpus_only")) == {"c0": "1-3,5-7"}


# Reserved CPUs


@pytest.mark.parametrize(
    ("milli", "cpus"), [(100, "0"), (1000, "0"), (1001, "0,4"), (2500, "0-1,4"), (8000, "0-7")]
)
def test_an_amount_reserves_whole_cpus_from_the_first_core_on(milli: int, cpus: str) -> None:
    made = static_cpu_policy(machine(), CpuPolicyOptions(), reserved_cpus="", reserved_milli=milli)
    assert cpu_list(made.reserved) == cpus


@pytest.mark.parametrize(
    ("cpus", "milli", "options", "problem"),
    [
        ("0,8", 0, (), r"unable to reserve CPUs 8: CPUs 0-7 are online"),
        ("", 9000, (), r"unable to reserve 9 CPUs: not enough cpus available"),
    ],
)
def test_what_cannot_be_reserved_is_an_error(
    cpus: str, milli: int, options: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        static_cpu_policy(machine(), CpuPolicyOptions(), reserved_cpus=cpus, reserved_milli=milli)


def test_sockets_cannot_be_aligned_to_where_a_numa_node_has_several() -> None:
    two_in_one = machine(Shape(sockets=2, cores_per_node=2, one_node=True))
    with pytest.raises(ValueError, match="Align by socket is not compatible with hardware"):
        static_cpu_policy(
            two_in_one,
            CpuPolicyOptions(align_by_socket=True),
            reserved_cpus="0",
            reserved_milli=0,
        )


def test_cpus_are_distributed_over_no_more_numa_nodes_than_can_be_compared() -> None:
    large = machine(Shape(sockets=13, cores_per_node=1))
    static_cpu_policy(large, CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0)
    with pytest.raises(ValueError, match="in more than 12 NUMA Nodes: this one has them in 13"):
        static_cpu_policy(
            large,
            CpuPolicyOptions(distribute_cpus_across_numa=True),
            reserved_cpus="0",
            reserved_milli=0,
        )


# What is shared


def test_others_run_on_what_is_left_reserved_cpus_among_it() -> None:
    at = managers()
    assert at.reserve(a_pod("u", "2"), nobody) is None
    assert cpus_of(at, "u") == ["1,5"]
    assert cpus_of(at, "other") == ["0,2-4,6-7"]
    assert at.placement("u", "c0").has_exclusive_cpus
    assert not at.placement("other", "c0").has_exclusive_cpus


def test_with_strict_reservation_nobody_runs_on_reserved_cpus_unless_no_other_is_left() -> None:
    at = managers(by=policy(SMALL, "strict_cpu_reservation"))
    assert cpus_of(at, "other") == ["1-7"]
    assert at.reserve(a_pod("u", "7"), nobody) is None
    assert cpus_of(at, "other") == ["0"]


@pytest.mark.parametrize(
    ("shape", "options", "wanted", "boundaries"),
    [
        (SMALL, (), "2", {"uncore_cache": True}),
        (SMALL, ("full_pcpus_only",), "2", {"physical_cpu": True, "uncore_cache": True}),
        (SMALL, ("full_pcpus_only",), "3", {"physical_cpu": False}),
        (SPLIT_CACHES, (), "4", {}),
        (SPLIT_CACHES, ("prefer_align_cpus_by_uncorecache",), "4", {"uncore_cache": True}),
    ],
)
def test_it_is_told_which_boundaries_cpus_of_a_container_keep_to(
    shape: Shape, options: tuple[str, ...], wanted: str, boundaries: Mapping[str, bool]
) -> None:
    at = managers(by=policy(shape, *options))
    told: dict[str, bool] = {}
    at.on_boundary.add(lambda boundary, _scope, is_inside: told.update({boundary: is_inside}))
    at.reserve(a_pod("u", wanted), nobody)
    assert told == boundaries


def test_a_released_pod_leaves_its_cpus_to_all_and_they_are_told_once() -> None:
    at, changes = managers(), []
    at.on_change.add(lambda: changes.append(cpus_of(at, "other")[0]))
    at.reserve(a_pod("u", "2"), nobody)
    at.reserve(a_pod("shared", "500m"), nobody)
    at.release("u")
    at.release("u")
    assert changes == ["0,2-4,6-7", "0-7"]


def test_what_a_pod_has_that_is_gone_is_given_to_the_next() -> None:
    at = managers()
    assert at.reserve(a_pod("gone", "6"), nobody) is None
    assert at.reserve(a_pod("new", "6"), nobody) is not None
    assert at.reserve(a_pod("new", "6"), lambda uid: uid == "gone") is None
    assert at.uids() == {"new"}


def test_a_pod_that_was_admitted_before_runs_on_without_cpus_of_its_own() -> None:
    at = managers()
    at.reserve(a_pod("u", "6"), nobody)
    with capture_logs() as logs:
        at.recall(a_pod("old", "2"), nobody)
    assert [each["event"] for each in logs] == ["pod runs without exclusive resources"]
    assert cpus_of(at, "old") == cpus_of(at, "other")


def test_without_a_policy_nothing_is_assigned_and_nobody_is_told_where_to_run() -> None:
    at = managers_of(None)
    assert at.reserve(a_pod("u", "2"), nobody) is None
    assert cpus_of(at, "u") == [""]
    assert not at.assigns_cpus
    assert not at.is_without_quota(a_pod("u", "2"))


# What is kept


async def started(root: Path, by: StaticCpuPolicy | None = None) -> ResourceManagers:
    at = managers(root, by)
    await at.load()
    return at


def kept(root: Path) -> dict[str, object]:
    content = json.loads((root / "cpu_manager_state").read_text())
    content.pop("checksum")
    return dict(content)


async def test_an_agent_goes_on_with_what_the_last_one_kept(tmp_path: Path) -> None:
    at = await started(tmp_path)
    assert kept(tmp_path) == {"policyName": "static", "defaultCpuSet": "0-7"}
    at.reserve(a_pod("u", "2"), nobody)
    assert await at.keep()
    assert kept(tmp_path) == {
        "policyName": "static",
        "defaultCpuSet": "0,2-4,6-7",
        "entries": {"u": {"c0": "1,5"}},
    }
    again = await started(tmp_path)
    assert cpus_of(again, "u") == ["1,5"]
    assert again.reserve(a_pod("other", "6"), nobody) is not None


async def test_a_file_that_is_damaged_is_set_aside_and_nobody_has_to_remove_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cpu_manager_state"
    file.write_text('{"policyName":"static","defaultCpuSet":"0-')
    with capture_logs() as logs:
        await started(tmp_path)
    assert [each["event"] for each in logs] == ["damaged state file set aside"]
    assert (tmp_path / "cpu_manager_state.damaged").exists()
    assert kept(tmp_path) == {"policyName": "static", "defaultCpuSet": "0-7"}


async def test_of_a_file_that_has_no_end_only_its_beginning_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").symlink_to("/dev/zero")
    with capture_logs() as logs:
        await started(tmp_path)
    assert [each["error"] for each in logs] == ["it has more than 67108864 bytes"]


async def test_what_does_not_fit_is_repaired_with_a_line_that_says_how(tmp_path: Path) -> None:
    at = await started(tmp_path, policy(Shape(threads=1, cores_per_node=12)))
    at.reserve(a_pod("v", "2"), nobody)
    at.reserve(a_pod("u", "8"), nobody)
    await at.keep()
    with capture_logs() as logs:
        smaller = await started(tmp_path, policy(SINGLE_THREADED))
    assert smaller.uids() == {"v"}
    assert [each["repair"] for each in logs] == [
        "container c0 of pod u had CPUs 3-10: CPUs 8-10 are not online; it is assigned others",
        "CPUs 8-11 are not online any more and leave the shared pool",
    ]


async def test_a_policy_that_changed_starts_anew_both_ways(tmp_path: Path) -> None:
    at = await started(tmp_path)
    at.reserve(a_pod("u", "2"), nobody)
    await at.keep()
    await managers_of(None, tmp_path).load()
    assert kept(tmp_path) == {"policyName": "none", "defaultCpuSet": ""}
    at = await started(tmp_path)
    assert kept(tmp_path) == {"policyName": "static", "defaultCpuSet": "0-7"}
    assert at.uids() == set()


async def test_the_policy_none_leaves_no_file_where_there_was_none(tmp_path: Path) -> None:
    await managers_of(None, tmp_path).load()
    with pytest.raises(FileNotFoundError):
        kept(tmp_path)


async def test_a_file_that_cannot_be_written_is_told_of_once_and_tried_again(
    tmp_path: Path,
) -> None:
    at = await started(tmp_path)
    file = tmp_path / "cpu_manager_state"
    file.unlink()
    file.mkdir()
    with capture_logs() as logs:
        at.reserve(a_pod("u", "2"), nobody)
        assert not await at.keep()
        assert not await at.keep()
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        "state file write failed"
    ]
    file.rmdir()
    assert await at.keep()
    assert "entries" in kept(tmp_path)


def test_a_large_machine_is_no_hindrance() -> None:
    at = managers(by=policy(EIGHT_NODES, reserved="0,256"))
    for number in range(255):
        assert at.reserve(a_pod(f"u{number}", "2"), nobody) is None
    assert at.cpus.free_count == 0
    assert cpus_of(at, "other") == ["0,256"]
