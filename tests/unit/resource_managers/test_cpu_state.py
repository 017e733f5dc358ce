"""The record of exclusive CPUs: the Go kubelet's file, and repairs of what does not fit."""

import pytest
from attrs import evolve

from trio_kubelet.resource_managers.cpu_sets import parsed_cpus
from trio_kubelet.resource_managers.cpu_state import (
    Assignments,
    CpuState,
    parsed,
    printed,
    repaired,
)

# Files as Go kubelets wrote them, from documentation of theirs.
WRITTEN = [
    '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
    '{"policyName":"static","defaultCpuSet":"0-63","checksum":1058907510}',
    '{"policyName":"static","defaultCpuSet":"2-15,17-31,34-47,49-63","checksum":4141502832}',
    '{"policyName":"static","defaultCpuSet":"0,10-15,25-31","entries":'
    '{"777870b5-c64f-42f5-9296-688b9dc212ba":{"container-1":"16-24"},'
    '"fb15e10a-b6a5-4aaa-8fcd-76c1aa64e6fd":{"container-1":"1-9"}},"checksum":318470969}',
    # With the gate PodLevelResourceManagers, by a Go kubelet 1.36.3.
    '{"policyName":"static","defaultCpuSet":"0-15","checksum":3394376107}',
    '{"policyName":"static","defaultCpuSet":"0,4-8,12-15","entries":'
    '{"u-mixed":{"a":"1,9","b":"2,10","c":"2,10"},"u-plain":{"a":"3,11"}},'
    '"podEntries":{"u-mixed":{"cpuSet":"1-2,9-10"}},"checksum":65800748}',
]
STATIC = CpuState(
    policy="static",
    shared=parsed_cpus("0,3"),
    assignments={"b": {"app": parsed_cpus("2")}, "a": {"init": parsed_cpus("1")}},
)
ONLINE = parsed_cpus("0-3")


@pytest.mark.parametrize("text", WRITTEN)
def test_files_of_the_go_kubelet_are_read_and_written_byte_for_byte(text: str) -> None:
    assert printed(parsed(text)) == text


def test_a_record_is_read_as_it_was_written_whatever_its_order() -> None:
    assert parsed(printed(STATIC)) == STATIC
    assert printed(STATIC) == printed(parsed(printed(STATIC)))


def test_a_file_without_a_checksum_is_as_good() -> None:
    text = '{"policyName":"static","defaultCpuSet":"0-3","checksum":0}'
    assert parsed(text) == CpuState(policy="static", shared=ONLINE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"policyName":"static","defaultCpuSet":"0-3"}',
        '{"policyName":"static","defaultCpuSet":"0-2","checksum":1058907510}',
        '{"policyName":"static","defaultCpuSet":"many","checksum":0}',
        '{"policyName":"static","defaultCpuSet":3,"checksum":0}',
        '{"policyName":"static","defaultCpuSet":"","entries":[],"checksum":0}'[:-1] + ',"x":',
        '{"policyName":"static","defaultCpuSet":"","entries":{"u":"1"},"checksum":0}',
        '{"policyName":"static","defaultCpuSet":"","entries":{"u":{"c":"0-99999999"}},"checksum":0}',
        '{"policyName":"static","defaultCpuSet":"0-65535,0-65535","checksum":0}',
        '{"policyName":"static","defaultCpuSet":"","entries":{"../..":{"c":"1"}},"checksum":0}',
        '{"policyName":"static","defaultCpuSet":"","entries":{"u":{"\\ud800":"1"}},"checksum":0}',
        '{"policyName":["static"],"defaultCpuSet":"0-3","checksum":0}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(text)


def repair(
    state: CpuState, *, online: str = "0-3", reserved: str = "0"
) -> tuple[Assignments, list[str]]:
    kept, lines = repaired(state, "static", parsed_cpus(online), parsed_cpus(reserved))
    return kept.assignments, list(lines)


def holding(**cpus: str) -> CpuState:
    """Pods of one container, by their names."""
    return CpuState(
        policy="static",
        assignments={uid: {"c": parsed_cpus(given)} for uid, given in cpus.items()},
    )


def test_what_fits_is_left_alone() -> None:
    assert repair(STATIC) == (STATIC.assignments, [])


def test_containers_keep_their_cpus_when_the_machine_has_grown() -> None:
    assert repair(STATIC, online="0-7") == (STATIC.assignments, [])


def test_cpus_that_are_offline_are_nobodys() -> None:
    kept, lines = repair(holding(a="1", b="2-3"), online="0-2")
    assert kept == holding(a="1").assignments
    assert lines == [
        "container c of pod b had CPUs 2-3: CPUs 3 are not online; it is assigned others",
        "CPUs 3 are not online any more and leave the shared pool",
    ]


def test_cpus_of_two_pods_are_the_first_ones() -> None:
    kept, lines = repair(holding(a="1-2", b="2-3"))
    assert kept == holding(a="1-2").assignments
    assert lines == [
        "container c of pod b had CPUs 2-3: CPUs 2 are another pod's; it is assigned others"
    ]


def test_containers_of_one_pod_may_have_the_same_cpus_one_after_the_other() -> None:
    both = {"a": {"init": parsed_cpus("1"), "app": parsed_cpus("1")}}
    assert repair(CpuState(policy="static", assignments=both)) == (both, [])


def test_cpus_that_were_reserved_since_stay_with_their_container() -> None:
    kept, lines = repair(holding(a="0-1"))
    assert kept == holding(a="0-1").assignments
    assert lines == ["container c of pod a keeps CPUs 0, which are reserved now"]


@pytest.mark.parametrize(
    ("whole", "part", "problem"),
    [
        ("1-4", "1", "CPUs 4 are not online"),
        ("", "1", "that is none"),
        ("1-2", "3", "its containers had others"),
    ],
)
def test_a_pods_part_stays_whole_or_is_assigned_anew(whole: str, part: str, problem: str) -> None:
    state = evolve(holding(a=part), wholes={"a": parsed_cpus(whole)})
    kept, lines = repaired(state, "static", ONLINE, frozenset())
    assert not kept.assignments
    assert not kept.wholes
    assert lines[0] == f"pod a had CPUs {whole}: {problem}; it is assigned others"


def test_cpus_of_a_pods_part_are_not_another_pods() -> None:
    state = evolve(holding(a="1", b="2"), wholes={"a": parsed_cpus("1-2")})
    kept, lines = repaired(state, "static", ONLINE, parsed_cpus("1"))
    assert kept.assignments == {"a": {"c": {1}}}
    assert kept.wholes == {"a": parsed_cpus("1-2")}
    assert list(lines) == [
        "pod a keeps CPUs 1, which are reserved now",
        "container c of pod b had CPUs 2: CPUs 2 are another pod's; it is assigned others",
    ]


def test_an_assignment_of_nothing_is_none() -> None:
    kept, lines = repair(holding(a=""))
    assert kept == {}
    assert lines == ["container c of pod a had CPUs : that is none; it is assigned others"]


def test_under_another_policy_all_is_assigned_anew() -> None:
    kept, lines = repaired(STATIC, "none", ONLINE, frozenset())
    assert kept == CpuState(policy="none")
    assert lines == (
        "the CPU manager policy was static and is none: 2 pods are assigned CPUs anew",
    )
    assert repair(CpuState(policy="none")) == ({}, [])
