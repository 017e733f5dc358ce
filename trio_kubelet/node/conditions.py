"""The four conditions of a node that are the agent's: what holds, why, and since when.

A pressure keeps its words until it changes; Ready is written anew each time, because its message
lists what is missing. Conditions of others stay where they are. The order is that of the Go
kubelet: what is there keeps its place, what is new is appended, Ready last.
"""

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from trio_kubelet.errors import aggregated
from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import NodeCondition, NodeConditionType, Time

TRUE, FALSE = "True", "False"
READY_MESSAGE = "kubelet is posting ready status"


@frozen
class Words:
    """The names of one state of a condition: in the condition, and in the event."""

    reason: str
    message: str
    event: str


@frozen(kw_only=True)
class PressureRow:
    """One pressure: which field of `Pressures` says so, and the words for both states."""

    type: NodeConditionType
    field: str
    under: Words
    relieved: Words


PRESSURES = (
    PressureRow(
        type=NodeConditionType.MEMORY_PRESSURE,
        field="memory",
        under=Words(
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
            "NodeHasInsufficientMemory",
        ),
        relieved=Words(
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
            "NodeHasSufficientMemory",
        ),
    ),
    PressureRow(
        type=NodeConditionType.DISK_PRESSURE,
        field="disk",
        under=Words("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        relieved=Words(
            "KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"
        ),
    ),
    PressureRow(
        type=NodeConditionType.PID_PRESSURE,
        field="pid",
        under=Words(
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
            "NodeHasInsufficientPID",
        ),
        relieved=Words(
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
            "NodeHasSufficientPID",
        ),
    ),
)

OWN_CONDITIONS = (*(row.type for row in PRESSURES), NodeConditionType.READY)


def node_conditions(
    previous: Sequence[NodeCondition],
    pressures: Pressures | None,
    errors: Iterable[str],
    now: Time,
) -> tuple[NodeCondition, ...]:
    """The conditions as they are now; `errors` are why the node is not ready.

    Before the node was measured (`pressures` is None) a pressure is what it was before.
    """
    known = {condition.type: condition for condition in previous}
    for row in PRESSURES:
        before = known.get(row.type)
        if pressures is None:
            under = before is not None and before.status == TRUE
        else:
            under = getattr(pressures, row.field)
        known[row.type] = _pressure(row, before, under, now)
    known[NodeConditionType.READY] = _ready(known.get(NodeConditionType.READY), errors, now)
    return tuple(known.values())


def condition_events(
    before: Sequence[NodeCondition], after: Sequence[NodeCondition]
) -> tuple[str, ...]:
    """The reasons of the events that a change of conditions is worth, in order.

    A node that is made not ready is no news; everything else that holds for the first time is.
    """
    old = {condition.type: condition.status for condition in before}
    new = {condition.type: condition.status for condition in after}
    events = [
        (row.under if new[row.type] == TRUE else row.relieved).event
        for row in PRESSURES
        if row.type in new and new[row.type] != old.get(row.type)
    ]
    ready = new.get(NodeConditionType.READY)
    if ready is not None and ready != old.get(NodeConditionType.READY):
        if ready == TRUE:
            events.append("NodeReady")
        elif NodeConditionType.READY in old:
            events.append("NodeNotReady")
    return tuple(events)


def is_ready(conditions: Iterable[NodeCondition]) -> bool:
    return any(c.type == NodeConditionType.READY and c.status == TRUE for c in conditions)


def _pressure(
    row: PressureRow, previous: NodeCondition | None, under: bool, now: Time
) -> NodeCondition:
    status, words = (TRUE, row.under) if under else (FALSE, row.relieved)
    if previous is not None and previous.status == status:
        return evolve(previous, last_heartbeat_time=now)
    return NodeCondition(
        type=row.type,
        status=status,
        last_heartbeat_time=now,
        last_transition_time=now,
        reason=words.reason,
        message=words.message,
    )


def _ready(previous: NodeCondition | None, errors: Iterable[str], now: Time) -> NodeCondition:
    missing = tuple(errors)
    status = FALSE if missing else TRUE
    since = now
    if previous is not None and previous.status == status:
        since = previous.last_transition_time or now
    return NodeCondition(
        type=NodeConditionType.READY,
        status=status,
        last_heartbeat_time=now,
        last_transition_time=since,
        reason="KubeletNotReady" if missing else "KubeletReady",
        message=aggregated(missing) if missing else READY_MESSAGE,
    )
