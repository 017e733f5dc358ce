"""Pods with resources of their own, served as one part of the machine or container by container.

What a Go kubelet 1.36.3 with the gate PodLevelResourceManagers gave the same pods on the same
machine, two NUMA nodes of 16 cores of two threads with CPU 0 reserved, is what is expected.
"""

from pathlib import Path

import pytest
from attrs import evolve
from structlog.testing import capture_logs

from tests.unit.resource_managers.machines import Shape, machine, managers_of
from tests.unit.resource_managers.pods import guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import (
    Container,
    ContainerRestartPolicy,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.resource_managers import Refusal, ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.memory_draft import static_memory_policy
from trio_kubelet.resource_managers.pod_level import EMPTY_POOL, PodLevel

GO_MACHINE = Shape(sockets=2, cores_per_node=16, gib=16, pages=512)
MIB = 1 << 20
BEST, RESTRICTED = "best-effort", "restricted"


def nobody(_uid: str) -> bool:
    return False


def shares(name: str, *, sidecar: bool = False) -> Container:
    """A container that asks for nothing itself."""
    restarts = ContainerRestartPolicy.ALWAYS if sidecar else ""
    return Container(name=name, image="i", restart_policy=restarts)


def slice_of(name: str, cpu: str, mib: int, *, sidecar: bool = False) -> Container:
    return guaranteed(name, cpu, sidecar=sidecar, memory=f"{mib}Mi")


def pod(
    cpu: str,
    *containers: Container,
    init: tuple[Container, ...] = (),
    uid: str = "u",
    huge: str = "",
) -> Pod:
    """A pod of so many CPUs and 1 GiB, and of so much memory in huge pages."""
    amounts = {"cpu": Quantity(cpu), "memory": Quantity("1Gi")}
    amounts |= {"hugepages-2Mi": Quantity(huge)} if huge else {}
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="ns", uid=uid),
        spec=PodSpec(
            init_containers=init,
            containers=containers,
            resources=ResourceRequirements(requests=amounts, limits=amounts),
        ),
    )


def node(
    pod_level: PodLevel = PodLevel.BY_POD,
    policy: str = BEST,
    root: Path = Path("/nowhere"),
    shape: Shape = GO_MACHINE,
    **options: bool,
) -> ResourceManagers:
    """A machine of which CPU 0 and no memory is reserved."""
    topology = machine(shape)
    return managers_of(
        static_cpu_policy(
            topology,
            CpuPolicyOptions(**options),
            reserved_cpus="0",
            reserved_milli=0,
            pod_level=pod_level,
        ),
        root,
        memory=static_memory_policy(topology, (), {}, pod_level),
        name=policy,
        by_pod=pod_level is PodLevel.BY_POD,
        pod_level=pod_level,
    )


def cpus(at: ResourceManagers, of: Pod) -> str:
    """The CPUs of each container; an asterisk where no other container has them."""
    uid = of.metadata.uid
    given = {each.name: at.placement(uid, each.name) for each in of.spec.admitted_containers}
    return " ".join(
        f"{name}={each.cpuset_cpus}{'*' * each.has_exclusive_cpus}" for name, each in given.items()
    )


def memory(at: ResourceManagers, of: Pod) -> dict[str, list[int]]:
    """The MiB of each container, block by block."""
    return {
        name: [block.size_bytes // MIB for block in blocks]
        for name, blocks in at.memory.blocks[of.metadata.uid].items()
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (pod("4", shares("a"), shares("b")), "a=1-2,33-34 b=1-2,33-34"),
        (pod("4", slice_of("a", "2", 256), shares("b")), "a=1,33* b=2,34"),
        (
            pod("4", slice_of("a", "2", 256), slice_of("b", "500m", 100), shares("d")),
            "a=1,33* b=2,34 d=2,34",
        ),
        (pod("4", slice_of("a", "2", 256)), "a=1,33*"),
        (
            pod("4", slice_of("a", "2", 256), shares("b"), init=(slice_of("i", "3", 512),)),
            "i=1-2,33* a=1,33* b=2,34",
        ),
        (
            pod(
                "4",
                slice_of("a", "2", 256),
                shares("b"),
                init=(slice_of("i", "3", 512), shares("j")),
            ),
            "i=1-2,33* j=1-2,33-34 a=1,33* b=2,34",
        ),
        (pod("2", shares("a"), init=(slice_of("i", "2", 1024),)), "i=1,33* a=1,33"),
        (
            pod(
                "4",
                shares("a"),
                slice_of("b", "1", 128),
                init=(slice_of("s", "2", 256, sidecar=True),),
            ),
            "s=1,33* a=34 b=2*",
        ),
        (pod("4", slice_of("a", "4", 512), init=(shares("i"),)), "i=1-2,33-34 a=1-2,33-34*"),
        (
            pod(
                "4",
                slice_of("a", "2", 256),
                init=(slice_of("s", "2", 256, sidecar=True), shares("i")),
            ),
            "s=1,33* i=2,34 a=2,34*",
        ),
        (
            pod("2", slice_of("a", "1", 128), init=(shares("s", sidecar=True),)),
            "s=33 a=1*",
        ),
        (
            pod(
                "4",
                slice_of("a", "1", 64),
                shares("b"),
                init=(shares("s", sidecar=True), slice_of("i", "3", 128)),
            ),
            "s=2,33-34 i=1-2,33* a=1* b=2,33-34",
        ),
        (
            pod(
                "4",
                shares("a"),
                init=(
                    slice_of("s1", "1", 64, sidecar=True),
                    slice_of("i1", "1", 64),
                    slice_of("s2", "1", 64, sidecar=True),
                    shares("i2"),
                    slice_of("i3", "2", 64),
                ),
            ),
            "s1=1* i1=33* s2=33* i2=2,34 i3=2,34* a=2,34",
        ),
        # A fraction of a CPU is nobody's alone.
        (pod("2500m", slice_of("a", "1", 256), shares("b")), "a=0-63 b=0-63"),
    ],
)
def test_a_pod_has_its_cpus_as_one_part(asked: Pod, expected: str) -> None:
    at = node()
    assert at.reserve(asked, nobody) is None
    assert cpus(at, asked) == expected


def test_a_container_without_memory_of_its_own_shares_the_pool() -> None:
    amounts = {"cpu": Quantity("2")}
    half = Container(
        name="a", image="i", resources=ResourceRequirements(requests=amounts, limits=amounts)
    )
    at, asked = node(), pod("4", half, shares("b"))
    assert at.reserve(asked, nobody) is None
    assert cpus(at, asked) == "a=1-2,33-34 b=1-2,33-34"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (pod("4", shares("a"), shares("b")), {"a": [1024], "b": [1024]}),
        (
            pod("4", slice_of("a", "2", 256), slice_of("b", "500m", 100), shares("d")),
            {"a": [256], "b": [100], "d": [668]},
        ),
        (pod("4", slice_of("a", "2", 256)), {"a": [256]}),
        (
            pod(
                "4",
                slice_of("a", "2", 256),
                shares("b"),
                init=(slice_of("i", "3", 512), shares("j")),
            ),
            {"i": [512], "j": [1024], "a": [256], "b": [768]},
        ),
        (
            pod(
                "4",
                slice_of("a", "2", 256),
                init=(slice_of("s", "2", 256, sidecar=True), shares("i")),
            ),
            {"s": [256], "i": [768], "a": [256]},
        ),
        (pod("2500m", slice_of("a", "1", 256), shares("b")), {"a": [256], "b": [768]}),
        # Who has no huge pages of his own has the rest of them.
        (
            pod("2", slice_of("a", "1", 64), shares("b"), huge="128Mi"),
            {"a": [64], "b": [960, 128]},
        ),
    ],
)
def test_a_pod_has_its_memory_as_one_part(asked: Pod, expected: dict[str, list[int]]) -> None:
    at = node()
    assert at.reserve(asked, nobody) is None
    assert memory(at, asked) == expected


@pytest.mark.parametrize("policy", [BEST, RESTRICTED, "single-numa-node"])
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (pod("4", slice_of("a", "4", 512), shares("b")), ("cpu", "cpus")),
        (pod("2", shares("a"), init=(slice_of("s", "2", 64, sidecar=True),)), ("cpu", "cpus")),
        (pod("4", slice_of("a", "2", 1024), shares("b")), ("memory", "memory")),
    ],
)
def test_a_pod_that_leaves_nothing_for_those_that_share_is_refused(
    policy: str, asked: Pod, words: tuple[str, str]
) -> None:
    at = node(policy=policy)
    assert at.reserve(asked, nobody) == Refusal(
        reason=EMPTY_POOL,
        message=f"pod rejected, sum of exclusive container {words[0]} requests equals pod budget, "
        f"leaving no {words[1]} for shared containers",
    )
    assert not at.uids()


def test_huge_pages_may_be_all_of_one_container() -> None:
    huge = slice_of("a", "1", 64)
    assert huge.resources is not None
    amounts = {**huge.resources.limits, "hugepages-2Mi": Quantity("128Mi")}
    huge = evolve(huge, resources=ResourceRequirements(requests=amounts, limits=amounts))
    at, asked = node(), pod("2", huge, shares("b"))
    assert at.reserve(asked, nobody) is None
    assert memory(at, asked) == {"a": [64, 128], "b": [960]}


@pytest.mark.parametrize(
    ("policy", "asked", "refusal"),
    [
        (RESTRICTED, "32", None),
        (RESTRICTED, "33", "TopologyAffinityError"),
        ("single-numa-node", "33", "TopologyAffinityError"),
        (BEST, "33", "UnexpectedAdmissionError"),
    ],
)
def test_the_pod_is_aligned_as_one(policy: str, asked: str, refusal: str | None) -> None:
    at = node(policy=policy)
    assert at.reserve(pod("31", shares("a"), uid="before"), nobody) is None
    found = at.reserve(pod(asked, shares("a")), nobody)
    assert (found and found.reason) == refusal
    if refusal == "TopologyAffinityError":
        assert found is not None
        assert found.message == (
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology "
            "manager"
        )


def test_pods_are_placed_on_the_node_that_has_room_for_all_of_it() -> None:
    at = node(policy=RESTRICTED)
    small, large = pod("4", shares("a"), uid="small"), pod("30", shares("a"), uid="large")
    assert at.reserve(small, nobody) is None
    assert at.reserve(large, nobody) is None
    assert cpus(at, large) == "a=16-30,48-62"
    assert at.placement("large", "a").cpuset_mems == "1"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (pod("3", shares("a")), "SMTAlignmentError"),
        (pod("4", slice_of("a", "1", 128), shares("b")), None),
    ],
)
def test_whole_cores_are_the_pods(asked: Pod, reason: str | None) -> None:
    at = node(policy=RESTRICTED, full_pcpus_only=True)
    refusal = at.reserve(asked, nobody)
    assert (refusal and refusal.reason) == reason
    if refusal is None:
        assert cpus(at, asked) == "a=1* b=2,33-34"


def test_in_the_scope_of_containers_slices_are_of_the_node() -> None:
    at = node(PodLevel.BY_CONTAINER, RESTRICTED)
    asked = pod("4", slice_of("a", "2", 256), slice_of("b", "500m", 100), shares("d"))
    assert at.reserve(asked, nobody) is None
    assert cpus(at, asked) == "a=1,33* b=0,2-32,34-63 d=0,2-32,34-63"
    assert memory(at, asked) == {"a": [256], "b": [100]}
    # Nothing is left of the pod, but of the node.
    full = pod("4", slice_of("a", "4", 512), shares("b"), uid="full")
    assert at.reserve(full, nobody) is None
    assert cpus(at, full) == "a=2-3,34-35* b=0,4-32,36-63"


def test_with_the_gate_off_nobody_has_anything_alone() -> None:
    at = node(PodLevel.SHARED, RESTRICTED)
    asked = pod("4", slice_of("a", "2", 256), shares("b"))
    assert at.reserve(asked, nobody) is None
    assert cpus(at, asked) == "a=0-63 b=0-63"
    assert not at.uids()


@pytest.mark.parametrize(
    ("pod_level", "asked", "is_without"),
    [
        (PodLevel.BY_POD, pod("4", slice_of("a", "2", 256)), True),
        (PodLevel.BY_POD, pod("4", slice_of("a", "2", 256), shares("b")), False),
        (PodLevel.BY_POD, pod("4", slice_of("a", "4", 256), init=(shares("i"),)), False),
        (PodLevel.BY_POD, pod("4", shares("a")), False),
        (PodLevel.BY_CONTAINER, pod("4", slice_of("a", "4", 512)), True),
        (PodLevel.BY_CONTAINER, pod("4", slice_of("a", "2", 256), shares("b")), False),
    ],
)
def test_a_pod_keeps_its_quota_for_those_that_share(
    pod_level: PodLevel, asked: Pod, is_without: bool
) -> None:
    at = node(pod_level)
    assert at.reserve(asked, nobody) is None
    assert at.is_without_quota(asked) is is_without


def test_only_slices_are_told_of_as_a_containers_own() -> None:
    at, asked = node(), pod("4", slice_of("a", "2", 256), shares("b"))
    assert at.reserve(asked, nobody) is None
    assert at.cpus.cpus_of_pod("u") == {"a": {1, 33}}
    assert at.cpus.assigned == {1, 2, 33, 34}


def test_what_no_container_of_the_pod_uses_is_the_pods_until_it_goes() -> None:
    at = node()
    assert at.reserve(pod("4", slice_of("a", "2", 256)), nobody) is None
    assert at.placement("other", "c").cpuset_cpus == "0,3-32,35-63"
    at.release("u")
    assert at.placement("other", "c").cpuset_cpus == "0-63"


@pytest.mark.parametrize("pod_level", PodLevel)
def test_only_in_the_scope_of_pods_is_a_pod_one_part(pod_level: PodLevel) -> None:
    at, asked = node(pod_level), pod("4", shares("b"))
    assert at.is_whole(asked) is (pod_level is PodLevel.BY_POD)


async def load(at: ResourceManagers) -> ResourceManagers:
    await at.load()
    return at


async def test_a_pod_keeps_its_part_over_restarts_and_the_gate(tmp_path: Path) -> None:
    asked = pod("4", slice_of("a", "2", 256), shares("b"), shares("c"))
    at = await load(node(root=tmp_path))
    assert at.reserve(asked, nobody) is None
    assert await at.keep()
    given, blocks = cpus(at, asked), memory(at, asked)
    for pod_level in (PodLevel.BY_POD, PodLevel.SHARED, PodLevel.BY_CONTAINER, PodLevel.BY_POD):
        at = await load(node(pod_level, root=tmp_path))
        at.recall(asked, nobody)
        assert await at.keep()
        assert (cpus(at, asked), memory(at, asked)) == (given, blocks)
        other = pod("2", slice_of("a", "2", 64), uid="other")
        if at.reserve(other, nobody) is None:
            assert not at.cpus.assigned_to("other") & {1, 2, 33, 34}
        at.release("other")


async def test_a_pod_of_before_the_gate_is_given_its_part_as_it_runs(tmp_path: Path) -> None:
    asked = pod("4", slice_of("a", "2", 256), shares("b"))
    at = await load(node(PodLevel.SHARED, root=tmp_path))
    assert at.reserve(asked, nobody) is None
    at = await load(node(root=tmp_path))
    at.recall(asked, nobody)
    assert cpus(at, asked) == "a=1,33* b=2,34"


async def test_a_pods_part_with_a_cpu_that_is_gone_is_another(tmp_path: Path) -> None:
    asked = pod("4", slice_of("a", "2", 256), shares("b"))
    at = await load(node(root=tmp_path))
    assert at.reserve(asked, nobody) is None
    assert await at.keep()
    with capture_logs() as logs:
        at = await load(node(root=tmp_path, shape=evolve(GO_MACHINE, offline=(2,))))
    assert [each["repair"] for each in logs if "repair" in each] == [
        "pod u had CPUs 1-2,33-34: CPUs 2 are not online; it is assigned others",
        "CPUs 2 are not online any more and leave the shared pool",
    ]
    at.recall(asked, nobody)
    assert cpus(at, asked) == "a=32,34* b=1,33"
