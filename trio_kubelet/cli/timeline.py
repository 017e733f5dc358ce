"""`trio-kubelet timeline POD`: what happened to a pod, and where the time went.

It reads the agent's flight recorder (`/debug/journal`): every step of every state machine and
every event, with times. Two tables come out: what happened, one line an entry, with the time
since the pod was first seen and since the line before; and how long the pod, its images and its
containers spent in each state.
"""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

from trio_kubelet.cli.agent_requests import AgentAddress, Json, root_option
from trio_kubelet.foreign_text import printable

if TYPE_CHECKING:
    from rich.table import Table

UNLIMITED_WIDTH = 10_000
ID_CHARACTERS = 64
SHORT_ID_CHARACTERS = 13
NOTICEABLE_SECONDS = 0.1
LASTING_MACHINES = frozenset({"pod", "container"})
"""Machines that begin with the pod and last as long; others begin anew each time."""


@click.command()
@root_option
@click.argument("pod")
def timeline(root_dir: Path, pod: str) -> None:
    """Show what happened to POD, and where the time went.

    POD is a name or NAMESPACE/NAME; the name of a static pod may be given as in its manifest,
    without the node's.
    """
    from rich.console import Console
    from rich.text import Text

    agent = AgentAddress(root_dir=root_dir)
    listed = agent.get("/pods")["items"]
    key = _key(pod, agent, listed)
    journal = agent.get("/debug/journal", pod=key)
    present = next((each for each in listed if _pod_key(each) == key), None)
    lives = incarnations(journal["entries"])
    if not lives:
        raise click.ClickException(_nothing_known(key, present is not None, journal["dropped"]))
    console = Console(width=None if sys.stdout.isatty() else UNLIMITED_WIDTH, highlight=False)
    for number, entries in enumerate(lives, 1):
        is_last = number == len(lives)
        history = read_history(
            key, entries, present if is_last else None, datetime.now(UTC), is_over=not is_last
        )
        which = f" ({number} of {len(lives)} of this name)" if len(lives) > 1 else ""
        console.print(Text.assemble((key, "bold"), f"{which}: {history.headline}"))
        for table in (lines_table(history.lines), states_table(history.states)):
            console.print()
            console.print(table)
        if not is_last:
            console.print()
    if journal["dropped"]:
        console.print(f"\nOlder entries may be gone: the journal has dropped {journal['dropped']}.")


def _nothing_known(key: str, is_present: bool, dropped: int) -> str:
    if not is_present:
        return f"pod {key} is not known here; `trio-kubelet pods` lists those that are"
    why = f"; it dropped {dropped} older entries" if dropped else " yet"
    return f"pod {key} is here, but nothing of it is in the journal{why}"


def _pod_key(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _key(wanted: str, agent: AgentAddress, listed: Iterable[Json]) -> str:
    """The pod that is meant, as `namespace/name`. Raises ClickException if that is not clear."""
    if "/" in wanted and not wanted.startswith("/"):
        known = [_pod_key(pod) for pod in listed]
        candidates = [key for key in known if key == wanted] or _of_manifest(wanted, listed)
        return candidates[0] if len(candidates) == 1 else wanted
    journal = agent.get("/debug/journal")["entries"]
    known = sorted({_pod_key(pod) for pod in listed} | set(_keys_of_pods(journal)))
    candidates = [key for key in known if key.partition("/")[2] == wanted]
    candidates = candidates or [key for key in _of_manifest(wanted, listed) if key in known]
    if not candidates:
        raise click.ClickException(
            f"no pod {wanted} is known here; `trio-kubelet pods` lists those that are"
        )
    if len(candidates) > 1:
        raise click.ClickException(f"{wanted} may be any of {', '.join(candidates)}; name one")
    return candidates[0]


def _of_manifest(wanted: str, listed: Iterable[Json]) -> list[str]:
    """The static pods whose manifests have that name: they run as `<name>-<node>`."""
    return [
        _pod_key(pod)
        for pod in listed
        if f"{wanted}-{pod['spec'].get('nodeName', '').lower()}"
        in (pod["metadata"]["name"], _pod_key(pod))
    ]


def _keys_of_pods(entries: Iterable[Json]) -> Iterable[str]:
    """`namespace/name` of each pod that the journal knows; other keys are paths, or one word."""
    for entry in entries:
        namespace, *rest = entry["key"].split("/")
        if namespace and rest and entry["kind"] in ("pod", "container", "image", "event"):
            yield f"{namespace}/{rest[0]}"


@frozen(kw_only=True)
class TimelineLine:
    """Something that happened: seconds since the pod was first seen, and since the line before.

    `about` is the container's name, or `pod`.
    """

    at_seconds: float
    gap_seconds: float
    about: str
    what: str
    why: str
    is_warning: bool = False


@frozen(kw_only=True)
class StateTime:
    """The time of the pod, an image or a container in one state. `is_now`: it still is."""

    about: str
    machine: str
    state: str
    seconds: float
    times: int
    is_now: bool


@frozen(kw_only=True)
class History:
    """A pod's part of the journal, read."""

    headline: str
    lines: tuple[TimelineLine, ...]
    states: tuple[StateTime, ...]


def incarnations(entries: Iterable[Json]) -> Sequence[Sequence[Json]]:
    """The entries about a name, apart for each pod that had it, the oldest first."""
    lives: list[list[Json]] = []
    for entry in entries:
        begins = entry["kind"] == "pod" and entry["event"] == "Added"
        if not lives or (begins and any(e["kind"] == "pod" for e in lives[-1])):
            lives.append([])
        lives[-1].append(entry)
    return lives


def read_history(
    key: str,
    entries: Sequence[Json],
    pod: Json | None,
    now: datetime,
    *,
    is_over: bool = False,
) -> History:
    """The story that the journal's entries tell of a pod; `pod` is its object if it is there still.

    `is_over`: another pod of the same name came after it, so it is in no state now.
    """
    from trio_kubelet.cli.pod_table import pod_summary

    if not entries:
        return History(headline="", lines=(), states=())
    began_ns = _first_seen_ns(entries, pod)
    began = datetime.fromtimestamp(began_ns / 1e9, UTC).astimezone()
    uid = next((e["details"]["uid"] for e in entries if "uid" in e["details"]), "")
    words = [f"UID {uid}"] if uid else []
    words += [f"first seen at {began:%H:%M:%S}.{began.microsecond // 1000:03d}"]
    started = _all_started_seconds(entries, pod, began_ns)
    if started is not None:
        words.append(f"all containers started after {duration(started)}")
    if pod is not None:
        words.append(f"now {pod_summary(pod).status}")
    else:
        words.append("followed by another one" if is_over else "no longer here")
    end_ns = entries[-1]["time_ns"] if is_over else round(now.timestamp() * 1e9)
    return History(
        headline=", ".join(words),
        lines=tuple(_lines(key, entries, began_ns)),
        states=tuple(_state_times(key, entries, began_ns, end_ns, is_over=is_over)),
    )


def _first_seen_ns(entries: Sequence[Json], pod: Json | None) -> int:
    """The time at which its source first saw the pod, before anything of it is in the journal."""
    from trio_kubelet.cli.pod_table import instant
    from trio_kubelet.pod_source import CONFIG_SEEN

    first: int = entries[0]["time_ns"]
    annotations = pod["metadata"].get("annotations", {}) if pod is not None else {}
    seen = instant(annotations.get(CONFIG_SEEN))
    return min(first, round(seen.timestamp() * 1e9)) if seen is not None else first


def _all_started_seconds(entries: Iterable[Json], pod: Json | None, began_ns: int) -> float | None:
    """Seconds until every container of the pod had been started once; None if not all were."""
    if pod is None:
        return None
    started: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "event" and entry["event"] == "Started":
            started.setdefault(entry["key"].rpartition("/")[2], entry["time_ns"])
    times = [started.get(container["name"]) for container in pod["spec"]["containers"]]
    known = [time_ns for time_ns in times if time_ns is not None]
    return (max(known) - began_ns) / 1e9 if len(known) == len(times) else None


def _lines(key: str, entries: Iterable[Json], began_ns: int) -> Iterable[TimelineLine]:
    before_ns = began_ns
    for entry in entries:
        yield TimelineLine(
            at_seconds=(entry["time_ns"] - began_ns) / 1e9,
            gap_seconds=(entry["time_ns"] - before_ns) / 1e9,
            about=_about(key, entry),
            what=_what(entry),
            why="\n".join(map(printable, shorten_ids(entry["cause"]).split("\n"))),
            is_warning=entry["details"].get("type") == "Warning",
        )
        before_ns = entry["time_ns"]


def _about(key: str, entry: Json) -> str:
    return str(entry["key"]).removeprefix(key).removeprefix("/") or "pod"


def _what(entry: Json) -> str:
    if entry["source"] or entry["target"]:
        step = f"{entry['kind']} {entry['source']} → {entry['target']}"
        return f"{step} ({entry['event']})"
    return entry["event"] if entry["kind"] == "event" else f"{entry['kind']}: {entry['event']}"


def _state_times(
    key: str, entries: Iterable[Json], began_ns: int, now_ns: int, *, is_over: bool
) -> Iterable[StateTime]:
    """Time in each state, by machine: from the step into it to the step out of it, or until now."""
    spent: dict[tuple[str, str, str], list[float]] = {}
    present: dict[tuple[str, str], tuple[str, int]] = {}
    for entry in entries:
        source, target, kind = entry["source"], entry["target"], entry["kind"]
        if not target or source == target:
            continue
        machine = (_about(key, entry), kind)
        begins_with_pod = kind in LASTING_MACHINES and machine not in present
        begun = (source, began_ns) if begins_with_pod else ("", began_ns)
        state, since_ns = present.get(machine, begun)
        present[machine] = (target, entry["time_ns"])
        seconds = entry["duration_seconds"]
        if not source:
            continue  # It began: what it was before has no name.
        if seconds is None and state == source:
            seconds = (entry["time_ns"] - since_ns) / 1e9
        if seconds is not None:
            spent.setdefault((*machine, source), []).append(seconds)
    lasting = {m: state for m, (state, _) in present.items() if m[1] in LASTING_MACHINES}
    for machine, state in lasting.items():
        seconds = (now_ns - present[machine][1]) / 1e9
        spent.setdefault((*machine, state), []).append(seconds)
    for (about, kind, state), durations in spent.items():
        yield StateTime(
            about=about,
            machine=kind,
            state=state,
            seconds=sum(durations),
            times=len(durations),
            is_now=not is_over and lasting.get((about, kind)) == state,
        )


def duration(seconds: float) -> str:
    """A length of time: `0.4 ms`, `37 ms`, `1.54 s`, `2m05s`, `3h20m`."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def shorten_ids(text: str) -> str:
    """The same with ids of containers cut as every tool shows them."""
    return " ".join(
        word[:SHORT_ID_CHARACTERS] if len(word) == ID_CHARACTERS and word.isalnum() else word
        for word in text.split(" ")
    )


def lines_table(lines: Iterable[TimelineLine]) -> "Table":
    """The entries as a table of rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("TIME", justify="right", no_wrap=True)
    table.add_column("SINCE LAST", justify="right", no_wrap=True)
    table.add_column("OF", no_wrap=True)
    table.add_column("WHAT", overflow="fold")
    table.add_column("", overflow="fold")
    for line in lines:
        noticeable = line.gap_seconds >= NOTICEABLE_SECONDS
        table.add_row(
            f"+{duration(line.at_seconds)}",
            Text(f"+{duration(line.gap_seconds)}", style="bold" if noticeable else "dim"),
            Text(line.about),
            Text(line.what, style="red" if line.is_warning else ""),
            Text(line.why),
        )
    return table


def states_table(states: Iterable[StateTime]) -> "Table":
    """The time that each state took, for rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("OF", "WHAT", "STATE"):
        table.add_column(column, no_wrap=True)
    table.add_column("SPENT", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in states:
        times = f"{each.times} times" if each.times > 1 else ""
        notes = ", ".join(filter(None, (times, "until now" if each.is_now else "")))
        table.add_row(
            Text(each.about), each.machine, each.state, duration(each.seconds), Text(notes)
        )
    return table
