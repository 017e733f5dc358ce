"""What a person wants to see of pods: a row for each, in the words that kubectl uses.

Pure: pods come as the agent lists them (JSON of v1 Pod), rows go out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShownPod:
    """A pod in the table."""

    name: str
    ready: str
    status: str
    restarts: int
    ip: str
    age: str


def rows(pods: Iterable[Json], now: datetime) -> tuple[ShownPod, ...]:
    """Make the table's rows, by name."""
    shown = (row(pod, now) for pod in pods)
    return tuple(sorted(shown, key=lambda each: each.name))


def row(pod: Json, now: datetime) -> ShownPod:
    """Make the row of one pod."""
    status = pod.get("status", {})
    containers = status.get("containerStatuses", ())
    wanted = len(pod["spec"]["containers"])
    return ShownPod(
        name=pod["metadata"]["name"],
        ready=f"{sum(each.get('ready', False) for each in containers)}/{wanted}",
        status=state_in_words(pod),
        restarts=sum(each.get("restartCount", 0) for each in containers),
        ip=status.get("podIP", ""),
        age=_age(status.get("startTime", ""), now),
    )


def state_in_words(pod: Json) -> str:
    """Say what a pod does, or why it does not: `Init:0/1`, `CrashLoopBackOff`, `Running`."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    inits = status.get("initContainerStatuses", ())
    for done, each in enumerate(inits):
        if each["state"].get("terminated", {}).get("exitCode") == 0 or each.get("started"):
            continue
        why = _why(each["state"])
        return f"Init:{why}" if why not in ("", "PodInitializing") else f"Init:{done}/{len(inits)}"
    reasons = (_why(each["state"]) for each in status.get("containerStatuses", ()))
    found = next((reason for reason in reasons if reason), "")
    return found or status.get("reason") or status.get("phase") or "Pending"


def is_at_work(pod: Json) -> bool:
    """Whether all containers are ready, or one has shown that it is restarted when it fails."""
    containers = pod.get("status", {}).get("containerStatuses", ())
    if any(each.get("restartCount", 0) for each in containers):
        return True
    return len(containers) == len(pod["spec"]["containers"]) and all(
        each.get("ready", False) for each in containers
    )


def events(entries: Iterable[Json]) -> Iterator[str]:
    """Turn the events in the agent's journal into lines: `web-node: Started: Container started`."""
    for entry in entries:
        if entry["kind"] == "event" and "/" in entry["key"]:
            pod = entry["key"].split("/")[1]
            yield f"{pod}: {entry['event']}: {entry['cause']}"


def _why(state: Json) -> str:
    """Give the reason why a container does not run; empty if it does."""
    if "waiting" in state:
        return str(state["waiting"].get("reason", "Waiting"))
    if "terminated" in state:
        ended = state["terminated"]
        return str(ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}")
    return ""


def _age(start: str, now: datetime) -> str:
    if not start:
        return ""
    seconds = int((now - datetime.fromisoformat(start)).total_seconds())
    minutes, seconds = divmod(max(seconds, 0), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
