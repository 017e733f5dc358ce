"""`cpu_manager_state`: the record of exclusive CPUs, in the form of the Go kubelet.

One file, replaced whole: the assignments and the shared pool that follows from them are one
record. The file ends with an FNV-1a of its content, as the Go kubelet prints the record; where it
has the gate PodLevelResourceManagers on, the record has the CPUs of pods, too. What does not fit
the machine or the policy is repaired: each repair is told in a line, and containers keep their CPUs
where these are there.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from trio_kubelet.k8s.fnv import fnv1a_32
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.kernel.state_file import checked_name
from trio_kubelet.resource_managers.cpu_sets import CpuSet, cpu_list, parsed_cpus

FILE = "cpu_manager_state"

Assignments = Mapping[str, Mapping[str, CpuSet]]
"""The exclusive CPUs by the pod's UID and the container's name."""


@frozen(kw_only=True)
class CpuState:
    """One record. `shared` are the CPUs of all containers that have none of their own."""

    policy: str
    shared: CpuSet = frozenset()
    assignments: Assignments = field(factory=dict)
    wholes: Mapping[str, CpuSet] | None = None
    """The CPUs of pods that have them as one part, by UID; None for a record without such."""


def printed(state: CpuState) -> str:
    """Return the text of a file with this record."""
    content = _content(state)
    return go_json({**content, "checksum": _checksum(content, state.wholes)})


def parsed(text: str) -> CpuState:
    """Return the record in the text of a file. Raises ValueError if it is not whole."""
    try:
        content = json.loads(text)
        checksum = content.pop("checksum")
        entries = content.get("entries") or {}
        wholes = {
            checked_name(uid): parsed_cpus(entry.get("cpuSet", ""))
            for uid, entry in (content.get("podEntries") or {}).items()
        }
        state = CpuState(
            policy=checked_name(content["policyName"]),
            shared=parsed_cpus(content["defaultCpuSet"]),
            assignments={
                checked_name(uid): {
                    checked_name(name): parsed_cpus(cpus) for name, cpus in containers.items()
                }
                for uid, containers in entries.items()
            },
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it has another form") from error
    # Releases before checkpoints had checksums wrote 0.
    if checksum in (0, _checksum(content, None)):
        return state
    if checksum == _checksum(content, wholes):
        return evolve(state, wholes=wholes)
    raise ValueError("its checksum does not fit")


def repaired(
    found: CpuState, policy: str, online: CpuSet, reserved: CpuSet
) -> tuple[CpuState, tuple[str, ...]]:
    """Return the record with what can stay, and a line for each thing that did not fit.

    `online` are the CPUs of the machine, `reserved` those that the system keeps now.
    """
    if found.policy != policy:
        line = f"the CPU manager policy was {found.policy} and is {policy}"
        lines = (f"{line}: {_pods(found)} are assigned CPUs anew",) if found.assignments else ()
        return CpuState(policy=policy), lines
    kept: dict[str, dict[str, CpuSet]] = {}
    wholes: dict[str, CpuSet] = {}
    told: list[str] = []
    taken: set[int] = set()
    for uid, whole in (found.wholes or {}).items():
        problem = _problem(whole, online, taken)
        parts = found.assignments.get(uid, {}).values()
        if not problem and not all(cpus and cpus <= whole for cpus in parts):
            problem = "its containers had others"
        if problem:
            told.append(f"pod {uid} had CPUs {cpu_list(whole)}: {problem}; it is assigned others")
            continue
        told.extend(_reserved_since(f"pod {uid}", whole, reserved))
        taken |= whole
        wholes[uid] = whole
        kept[uid] = dict(found.assignments.get(uid, {}))
    for uid, containers in found.assignments.items():
        if uid in (found.wholes or {}):
            continue
        for name, cpus in containers.items():
            problem = _problem(cpus, online, taken)
            if problem:
                told.append(
                    f"container {name} of pod {uid} had CPUs {cpu_list(cpus)}: {problem}; "
                    "it is assigned others"
                )
                continue
            told.extend(_reserved_since(f"container {name} of pod {uid}", cpus, reserved))
            kept.setdefault(uid, {})[name] = cpus
        # Containers of one pod may follow one another on the same CPUs, those of two may not.
        taken |= frozenset().union(*kept.get(uid, {}).values())
    state = CpuState(policy=policy, assignments=kept, wholes=wholes)
    return state, (*told, *_changes_of_machine(found, online))


def _reserved_since(who: str, cpus: CpuSet, reserved: CpuSet) -> Iterator[str]:
    if cpus & reserved:
        yield f"{who} keeps CPUs {cpu_list(cpus & reserved)}, which are reserved now"


def _problem(cpus: CpuSet, online: CpuSet, taken: set[int]) -> str:
    if not cpus:
        return "that is none"
    if cpus - online:
        return f"CPUs {cpu_list(cpus - online)} are not online"
    if cpus & taken:
        return f"CPUs {cpu_list(cpus & taken)} are another pod's"
    return ""


def _changes_of_machine(found: CpuState, online: CpuSet) -> Iterator[str]:
    known = found.shared.union(*(c for each in found.assignments.values() for c in each.values()))
    if gone := known - online:
        yield f"CPUs {cpu_list(gone)} are not online any more and leave the shared pool"


def _pods(state: CpuState) -> str:
    count = len(state.assignments)
    return "1 pod" if count == 1 else f"{count} pods"


def _content(state: CpuState) -> dict[str, Any]:
    entries = {
        uid: {name: cpu_list(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.assignments.items())
    }
    wholes = sorted((state.wholes or {}).items())
    pod_entries = {uid: {"cpuSet": cpu_list(cpus)} for uid, cpus in wholes}
    return {
        "policyName": state.policy,
        "defaultCpuSet": cpu_list(state.shared),
        **({"entries": entries} if entries else {}),
        **({"podEntries": pod_entries} if pod_entries else {}),
    }


def _checksum(content: Mapping[str, Any], wholes: Mapping[str, CpuSet] | None) -> int:
    entries = content.get("entries") or {}
    listed = " ".join(
        f"{uid}:map[{' '.join(f'{name}:{cpus}' for name, cpus in sorted(containers.items()))}]"
        for uid, containers in sorted(entries.items())
    )
    text = (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){content['policyName']} "
        f"DefaultCPUSet:(string){content['defaultCpuSet']} "
        f"Entries:(map[string]map[string]string)map[{listed}] "
        f"{_printed_wholes(wholes)}Checksum:(checksum.Checksum)0}}"
    )
    return fnv1a_32(text.encode())


def _printed_wholes(wholes: Mapping[str, CpuSet] | None) -> str:
    if wholes is None:
        return ""
    listed = " ".join(
        f"{uid}:{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{_elements(cpus)}]}}}}"
        for uid, cpus in sorted(wholes.items())
    )
    return f"PodEntries:(state.PodCPUAssignments)map[{listed}] "


def _elements(cpus: CpuSet) -> str:
    return " ".join(f"{cpu}:{{}}" for cpu in sorted(cpus))
