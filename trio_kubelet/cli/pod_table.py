"""Pods as people know them from `kubectl get pods`: one row a pod, the status in one word.

`pod_row` reads the JSON of a pod and nothing else; the rules for its status are those of
kubectl: the first init container that is not through speaks for the pod, else the first of its
containers that has a reason; a pod that is being deleted is Terminating.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import frozen
from rich.table import Table
from rich.text import Text

from trio_kubelet.foreign_text import printable
from trio_kubelet.pod_source import CONFIG_SEEN

Json = Mapping[str, Any]

_GOOD = frozenset({"Running", "Completed", "Succeeded"})
_ON_THE_WAY = frozenset({"Pending", "ContainerCreating", "PodInitializing", "Terminating"})


@frozen(kw_only=True)
class PodRow:
    """One line of the table, all as text."""

    namespace: str
    name: str
    ready: str
    status: str
    restarts: str
    age: str
    ip: str
    node: str
    qos: str
    images: str


@frozen(kw_only=True)
class PodSummary:
    """The status of a pod in one word, and its containers counted."""

    status: str
    ready: int
    containers: int
    restarts: int
    last_restart: datetime | None = None


def pod_row(pod: Json, now: datetime) -> PodRow:
    """The row of one pod at the time `now` (with a time zone)."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    summary = pod_summary(pod)
    restarts = str(summary.restarts)
    if summary.restarts and summary.last_restart is not None:
        restarts += f" ({age(summary.last_restart, now)} ago)"
    born = instant(
        metadata.get("creationTimestamp")
        or status.get("startTime")
        or metadata.get("annotations", {}).get(CONFIG_SEEN)
    )
    return PodRow(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        ready=f"{summary.ready}/{summary.containers}",
        status=summary.status,
        restarts=restarts,
        age=age(born, now) if born else "<unknown>",
        ip=status.get("podIP") or "<none>",
        node=spec.get("nodeName") or "<none>",
        qos=status.get("qosClass", ""),
        images=",".join(container.get("image", "") for container in spec["containers"]),
    )


def pod_summary(pod: Json) -> PodSummary:
    """The word that kubectl has for a pod's state."""
    spec, status = pod["spec"], pod.get("status", {})
    sidecars = {
        container["name"]
        for container in spec.get("initContainers", [])
        if container.get("restartPolicy") == "Always"
    }
    init_statuses = status.get("initContainerStatuses", [])
    statuses = status.get("containerStatuses", [])
    word = status.get("reason") or status.get("phase") or "Unknown"
    if _condition(status, "PodScheduled").get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    waits_for = _init_word(init_statuses, sidecars, len(spec.get("initContainers", [])))
    counted = [each for each in init_statuses if waits_for or each["name"] in sidecars]
    ready = sum(each["name"] in sidecars and _runs_ready(each) for each in init_statuses)
    initialized = _condition(status, "Initialized").get("status") == "True"
    if waits_for:
        word = waits_for
    if not waits_for or initialized:
        counted = [each for each in init_statuses if each["name"] in sidecars] + statuses
        running = sum(_runs_ready(each) for each in statuses)
        ready += running
        word = next(filter(None, map(_word, statuses)), word)
        if word == "Completed" and running:
            is_ready = _condition(status, "Ready").get("status") == "True"
            word = "Running" if is_ready else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        word = _deleted_word(status, word)
    return PodSummary(
        status=word,
        ready=ready,
        containers=len(spec["containers"]) + len(sidecars),
        restarts=sum(each.get("restartCount", 0) for each in counted),
        last_restart=max(filter(None, map(_last_end, counted)), default=None),
    )


def _init_word(statuses: Sequence[Json], sidecars: Iterable[str], total: int) -> str:
    """The word of the first init container that is not through; empty if all are."""
    for position, each in enumerate(statuses):
        state = each.get("state", {})
        ended, waiting = state.get("terminated"), state.get("waiting", {}).get("reason", "")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if each["name"] in sidecars and each.get("started"):
            continue
        if ended is not None:
            return f"Init:{_end_word(ended)}"
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{position}/{total}"
    return ""


def _word(status: Json) -> str:
    """The word of one container for its pod; empty if all is well with it."""
    state = status.get("state", {})
    if reason := state.get("waiting", {}).get("reason"):
        return str(reason)
    ended = state.get("terminated")
    return _end_word(ended) if ended is not None else ""


def _end_word(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _deleted_word(status: Json, word: str) -> str:
    if status.get("reason") == "NodeLost":
        return "Unknown"
    return word if status.get("phase") in ("Succeeded", "Failed") else "Terminating"


def _runs_ready(status: Json) -> bool:
    return bool(status.get("ready")) and "running" in status.get("state", {})


def _last_end(status: Json) -> datetime | None:
    return instant(status.get("lastState", {}).get("terminated", {}).get("finishedAt"))


def _condition(status: Json, kind: str) -> Json:
    found: Iterable[Json] = (c for c in status.get("conditions", []) if c.get("type") == kind)
    return next(iter(found), {})


def instant(text: str | None) -> datetime | None:
    """An instant of the API; it may have nanoseconds, of which microseconds are kept."""
    if not text:
        return None
    whole, _, fraction = text.removesuffix("Z").partition(".")
    instant = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return instant.replace(microsecond=int(fraction[:6].ljust(6, "0")) if fraction else 0)


def age(since: datetime, now: datetime) -> str:
    """The time between in the two largest units that matter, as kubectl shows it: `5m30s`."""
    seconds = int((now - since).total_seconds())
    if seconds < 0:
        return "0s"
    for limit, unit, small, names in _AGES:
        if seconds < limit:
            whole, rest = divmod(seconds, unit)
            rest //= small or 1
            return f"{whole}{names[0]}" + (f"{rest}{names[1]}" if small and rest else "")
    return f"{seconds // _YEAR}y"


_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400
_AGES = (
    (2 * _MINUTE, 1, 0, "s"),
    (10 * _MINUTE, _MINUTE, 1, "ms"),
    (3 * _HOUR, _MINUTE, 0, "m"),
    (8 * _HOUR, _HOUR, _MINUTE, "hm"),
    (2 * _DAY, _HOUR, 0, "h"),
    (8 * _DAY, _DAY, _HOUR, "dh"),
    (2 * _YEAR, _DAY, 0, "d"),
    (8 * _YEAR, _YEAR, _DAY, "yd"),
)
"""Up to so many seconds: the unit, the smaller one (0 for none), and their letters."""


def pod_rows(pods: Iterable[Json], now: datetime) -> tuple[PodRow, ...]:
    """The rows of all pods, by namespace and name."""
    rows = (pod_row(pod, now) for pod in pods)
    return tuple(sorted(rows, key=lambda row: (row.namespace, row.name)))


def pod_table(rows: Iterable[PodRow], *, wide: bool = False) -> Table:
    """The rows as a table for rich; `wide` adds node, QoS class and images."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    columns = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"]
    columns += ["NODE", "QOS", "IMAGES"] if wide else []
    for column in columns:
        table.add_column(column, no_wrap=column != "NAME", overflow="fold")
    for row in rows:
        words = [row.namespace, row.name, row.ready, row.status, row.restarts, row.age, row.ip]
        words += [row.node, row.qos, row.images] if wide else []
        cells = [Text(printable(word)) for word in words]
        cells[columns.index("STATUS")].stylize(_style(row.status))
        table.add_row(*cells)
    return table


def _style(status: str) -> str:
    if status in _GOOD:
        return "green"
    waits = status in _ON_THE_WAY or status.removeprefix("Init:")[:1].isdigit()
    return "yellow" if waits else "red"
