"""`cpu_manager_state`: the record of exclusive CPUs, in the form of the Go kubelet.

One file, replaced whole: the assignments and the shared pool that follows from them are one
record. The file ends with an FNV-1a of its content, as the Go kubelet prints the record. What
does not fit the machine or the policy is repaired: each repair is told in a line, and containers
keep their CPUs where these are there.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

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


def printed(state: CpuState) -> str:
    """Return the text of a file with this record."""
    content = _content(state)
    return go_json({**content, "checksum": _checksum(content)})


def parsed(text: str) -> CpuState:
    """Return the record in the text of a file. Raises ValueError if it is not whole."""
    try:
        content = json.loads(text)
        checksum = content.pop("checksum")
        entries = content.get("entries") or {}
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
    if checksum not in (0, _checksum(content)):
        raise ValueError("its checksum does not fit")
    return state


def repaired(
    found: CpuState, policy: str, online: CpuSet, reserved: CpuSet
) -> tuple[Assignments, tuple[str, ...]]:
    """Return the assignments that can stay, and a line for each thing that did not fit.

    `online` are the CPUs of the machine, `reserved` those that the system keeps now.
    """
    if found.policy != policy:
        line = f"the CPU manager policy was {found.policy} and is {policy}"
        return {}, (f"{line}: {_pods(found)} are assigned CPUs anew",) if found.assignments else ()
    kept: dict[str, dict[str, CpuSet]] = {}
    lines: list[str] = []
    taken: set[int] = set()
    for uid, containers in found.assignments.items():
        for name, cpus in containers.items():
            problem = _problem(cpus, online, taken)
            if problem:
                lines.append(
                    f"container {name} of pod {uid} had CPUs {cpu_list(cpus)}: {problem}; "
                    "it is assigned others"
                )
                continue
            if cpus & reserved:
                lines.append(
                    f"container {name} of pod {uid} keeps CPUs {cpu_list(cpus & reserved)}, "
                    "which are reserved now"
                )
            kept.setdefault(uid, {})[name] = cpus
        # Containers of one pod may follow one another on the same CPUs, those of two may not.
        taken |= frozenset().union(*kept.get(uid, {}).values())
    return kept, (*lines, *_changes_of_machine(found, online))


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
    return {
        "policyName": state.policy,
        "defaultCpuSet": cpu_list(state.shared),
        **({"entries": entries} if entries else {}),
    }


def _checksum(content: Mapping[str, Any]) -> int:
    entries = content.get("entries") or {}
    listed = " ".join(
        f"{uid}:map[{' '.join(f'{name}:{cpus}' for name, cpus in sorted(containers.items()))}]"
        for uid, containers in sorted(entries.items())
    )
    text = (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){content['policyName']} "
        f"DefaultCPUSet:(string){content['defaultCpuSet']} "
        f"Entries:(map[string]map[string]string)map[{listed}] Checksum:(checksum.Checksum)0}}"
    )
    return fnv1a_32(text.encode())
