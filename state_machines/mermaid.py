"""Draws the machines into the documentation, out of the tables that the agent runs on.

A document says where with a pair of comments; what stands between them is replaced:

    <!-- pod-machine:begin -->   the diagram and the table of its rows
    <!-- pod-machine:end -->
    <!-- pod-diagram:begin -->   the diagram alone
    <!-- pod-diagram:end -->

    python -m state_machines.mermaid --write docs/state-machines.md README.md
    python -m state_machines.mermaid --check docs/state-machines.md README.md
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from state_machines.certificate import CERTIFICATE
from state_machines.claim import CLAIM
from state_machines.container import CONTAINER
from state_machines.device_plugin import DEVICE_PLUGIN
from state_machines.image import IMAGE
from state_machines.machine import C, E, Row, S, StateMachine
from state_machines.pleg import PLEG
from state_machines.pod import POD
from state_machines.pressure import PRESSURE
from state_machines.probe import PROBE
from state_machines.resize import RESIZE, RESIZE_REQUEST
from state_machines.shutdown import SHUTDOWN
from state_machines.volume import STAGE, VOLUME

EVENTS_A_LINE = 3

_MARKER = re.compile(r"^<!-- (?P<block>[a-z-]+):(?P<side>begin|end) -->$", re.MULTILINE)


class MarkerError(Exception):
    """A document cannot be drawn into: it or its markers are missing or do not fit."""


def diagram(machine: StateMachine[S, E, C]) -> str:
    """Return the machine as a Mermaid state diagram; events on the same way share an arrow."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {start.state} : {start.why}" for start in machine.starts]
    arrows: dict[tuple[S, S], list[str]] = {}
    for row in machine.rows:
        arrows.setdefault((row.source, row.target), []).append(_event(machine, row, "[{}]"))
    lines += [
        f"    {source} --> {target} : {_wrapped(events)}"
        for (source, target), events in arrows.items()
    ]
    lines += [f"    {state} --> [*]" for state in machine.states if machine.is_terminal(state)]
    return "\n".join(lines)


def table(machine: StateMachine[S, E, C]) -> str:
    """Return the rows of the machine as a Markdown table, each with its reason."""
    lines = ["| in | event | goes to | because |", "|---|---|---|---|"]
    for row in machine.rows:
        target = "stays" if row.stays else row.target
        cells = (row.source, _event(machine, row, "if *{}*"), target, row.why)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def blocks() -> Mapping[str, str]:
    """Return what may stand between markers: the name of each block, and its text."""
    return {
        **_blocks_of(POD),
        **_blocks_of(CONTAINER),
        **_blocks_of(IMAGE),
        **_blocks_of(PLEG),
        **_blocks_of(PRESSURE),
        **_blocks_of(PROBE),
        **_blocks_of(RESIZE_REQUEST),
        **_blocks_of(RESIZE),
        **_blocks_of(CERTIFICATE),
        **_blocks_of(STAGE),
        **_blocks_of(VOLUME),
        **_blocks_of(CLAIM),
        **_blocks_of(SHUTDOWN),
        **_blocks_of(DEVICE_PLUGIN),
    }


def redrawn(text: str, known: Mapping[str, str]) -> str:
    """Return the document with every block between markers replaced by its present form.

    Raises `MarkerError` if there is no marker, or one that is unknown, open or out of place.
    """
    markers = list(_MARKER.finditer(text))
    if not markers:
        raise MarkerError("has no marker such as <!-- pod-machine:begin -->")
    if len(markers) % 2:
        raise MarkerError(f"the marker {markers[-1].group()} has no partner")
    parts = []
    end_of_last = 0
    for begin, end in zip(markers[::2], markers[1::2], strict=True):
        block = begin["block"]
        if (begin["side"], end["side"], end["block"]) != ("begin", "end", block):
            raise MarkerError(f"{begin.group()} is not followed by its end, but {end.group()}")
        if block not in known:
            raise MarkerError(f"{begin.group()} is unknown; known are {', '.join(known)}")
        parts += [text[end_of_last : begin.end()], f"\n{known[block]}\n"]
        end_of_last = end.start()
    return "".join([*parts, text[end_of_last:]])


def draw(path: Path, *, write: bool) -> bool:
    """Bring one document up to date, or only look; return whether it was up to date.

    Raises `MarkerError` if it cannot be read or its markers do not fit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MarkerError(error.strerror or "cannot be read") from error
    new = redrawn(text, blocks())
    if write and new != text:
        path.write_text(new, encoding="utf-8")
    return new == text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 1 if a document is out of date or cannot be drawn into."""
    parser = argparse.ArgumentParser(prog="python -m state_machines.mermaid")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="bring the documents up to date")
    mode.add_argument("--check", action="store_true", help="fail if one is not up to date")
    parser.add_argument("documents", nargs="+", type=Path, metavar="DOCUMENT")
    options = parser.parse_args(arguments)
    problems = list(_problems(options.documents, write=options.write))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _problems(documents: Iterable[Path], *, write: bool) -> Iterable[str]:
    for path in documents:
        try:
            up_to_date = draw(path, write=write)
        except MarkerError as error:
            yield f"{path}: {error}"
            continue
        if not up_to_date and not write:
            yield f"{path}: differs from the tables; run with --write"


def _blocks_of(machine: StateMachine[S, E, C]) -> Mapping[str, str]:
    picture = f"```mermaid\n{diagram(machine)}\n```"
    return {
        f"{machine.name}-machine": f"{picture}\n\n{table(machine)}",
        f"{machine.name}-diagram": picture,
    }


def _event(machine: StateMachine[S, E, C], row: Row[S, E, C], condition: str) -> str:
    if row.guard:
        return f"{row.event} {condition.format(row.guard_name)}"
    rivals = [r for r in machine.rows_from(row.source) if r.event is row.event and r.guard]
    return f"{row.event} otherwise" if rivals else str(row.event)


def _wrapped(events: Sequence[str]) -> str:
    rows = (events[i : i + EVENTS_A_LINE] for i in range(0, len(events), EVENTS_A_LINE))
    return "<br/>".join(", ".join(row) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
