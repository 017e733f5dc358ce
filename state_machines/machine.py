"""The kernel: what a machine is, and the one way to move through it.

Theory of operation
===================

A machine is data. Its states and its events are two enumerations, its rules are rows:

    Row(source, event, target, why)              "in this state, this event leads there, because"
    Row(source, event, target, why, guard=rule)  "... but only if the rule holds for the evidence"

There is no other place where a lifecycle's state may change, and a row without a reason is not
accepted. `machine.step(state, event)` looks the row up and returns its target; what no row
allows raises `IllegalTransition`. An event that may arrive in a state and has no effect there
has a row that says so: silence is never a rule.

The kernel holds no state. Who owns a lifecycle keeps one variable, and the same rows drive the
agent, the diagrams (`mermaid.py`) and the flight recorder.

Guards. A row may depend on evidence: a small frozen value that the caller hands to `step`. Rows
with the same source and event are tried in order; the first whose guard holds is taken, and one
without a guard, which must be the last, means "otherwise". Without evidence no guard holds.

What is checked, once, when a machine is built (so a bad table cannot be imported):
- no two rows compete for the same source and event without a guard to tell them apart,
- every state can be reached from a start, and every state but the terminal ones can be left,
- where there are terminal states, each state can reach one, and none of them has a way out,
- every event has a row, and every row and start has a reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
C = TypeVar("C")


class InvalidMachineError(ValueError):
    """The rows of a machine contradict each other or leave a gap. Lists every problem."""


class IllegalTransition(Exception):  # noqa: N818 - the name is the one people search the log for
    """No row allows this event in this state.

    `machine`, `state` and `event` are the names as the journal shows them, `legal` the events
    that would have been accepted. If rows exist but no guard held, `refused_by` names the
    guards and the message shows the evidence.
    """

    def __init__(
        self,
        machine: str,
        state: StrEnum,
        event: StrEnum,
        legal: tuple[StrEnum, ...],
        refused_by: tuple[str, ...] = (),
        evidence: object = None,
    ) -> None:
        self.machine = machine
        self.state = state
        self.event = event
        self.legal = legal
        self.refused_by = refused_by
        refusal = f" unless {' or '.join(refused_by)} (given: {evidence!r})" if refused_by else ""
        would_be = ", ".join(legal) or "nothing: the state is terminal"
        super().__init__(
            f"{machine}: {event} is illegal in {state}{refusal}; legal there: {would_be}"
        )


@dataclass(frozen=True)
class Start(Generic[S]):
    """A state in which a machine may begin, and when it does."""

    state: S
    why: str


@dataclass(frozen=True)
class Row(Generic[S, E, C]):
    """One rule: in `source`, `event` leads to `target`, because of `why`.

    `guard` is a pure function of the machine's evidence; its name, with spaces for
    underscores, is what diagrams and errors show.
    """

    source: S
    event: E
    target: S
    why: str
    guard: Callable[[C], bool] | None = None

    @property
    def guard_name(self) -> str:
        """The guard in words, empty if the row has none."""
        return self.guard.__name__.replace("_", " ") if self.guard else ""

    @property
    def stays(self) -> bool:
        """True if the event is taken note of without leaving the state."""
        return self.source is self.target

    def holds(self, evidence: C | None) -> bool:
        """True if the row may be taken. Without evidence no guard holds."""
        return self.guard is None or (evidence is not None and self.guard(evidence))


@dataclass(frozen=True, kw_only=True)
class StateMachine(Generic[S, E, C]):
    """A lifecycle as a table; `C` is the type of the evidence that guards ask for, or None.

    Raises `InvalidMachineError` at construction if the table has a gap (see the module).
    """

    name: str
    starts: tuple[Start[S], ...]
    rows: tuple[Row[S, E, C], ...]
    terminal: frozenset[S] = frozenset()
    _rows_at: dict[tuple[S, E], tuple[Row[S, E, C], ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for row in self.rows:
            at = (row.source, row.event)
            self._rows_at[at] = (*self._rows_at.get(at, ()), row)
        if problems := tuple(_problems(self)):
            raise InvalidMachineError(f"machine {self.name}: " + "; ".join(problems))

    @property
    def initial(self) -> tuple[S, ...]:
        """The states in which an instance may begin."""
        return tuple(start.state for start in self.starts)

    @property
    def states(self) -> tuple[S, ...]:
        """Every state, in the order of the enumeration."""
        return tuple(type(self.starts[0].state))

    @property
    def events(self) -> tuple[E, ...]:
        """Every event, in the order of the enumeration."""
        return tuple(type(self.rows[0].event))

    def is_terminal(self, state: S) -> bool:
        """True if the lifecycle is over: nothing leads out of this state."""
        return state in self.terminal

    def rows_from(self, state: S) -> tuple[Row[S, E, C], ...]:
        """Return the rows that begin in this state, in the order of the table."""
        return tuple(row for row in self.rows if row.source is state)

    def legal_events(self, state: S) -> tuple[E, ...]:
        """Return the events that have a row in this state, guarded or not."""
        return tuple(dict.fromkeys(row.event for row in self.rows_from(state)))

    def row(self, state: S, event: E, evidence: C | None = None) -> Row[S, E, C]:
        """Return the row that `step` would take: its target, and why.

        Raises `IllegalTransition` if there is none.
        """
        candidates = self._rows_at.get((state, event), ())
        for row in candidates:
            if row.holds(evidence):
                return row
        raise IllegalTransition(
            self.name,
            state,
            event,
            self.legal_events(state),
            tuple(row.guard_name for row in candidates),
            evidence,
        )

    def step(self, state: S, event: E, evidence: C | None = None) -> S:
        """Return the next state. Raises `IllegalTransition` if no row allows the event here."""
        return self.row(state, event, evidence).target

    def allows(self, state: S, event: E, evidence: C | None = None) -> bool:
        """True if `step` would accept this."""
        return any(row.holds(evidence) for row in self._rows_at.get((state, event), ()))


def _problems(machine: StateMachine[S, E, C]) -> Iterable[str]:
    """List everything that is wrong with a table, in words."""
    if not machine.name or not machine.starts or not machine.rows:
        yield "needs a name, a start and a row"
        return
    yield from _missing_reasons(machine)
    yield from _competing_rows(machine)
    yield from _dead_ends(machine)
    used = {row.event for row in machine.rows}
    yield from (f"event {event} has no row" for event in machine.events if event not in used)


def _missing_reasons(machine: StateMachine[S, E, C]) -> Iterable[str]:
    for start in machine.starts:
        if not start.why.strip():
            yield f"start {start.state} has no reason"
    for row in machine.rows:
        if not row.why.strip():
            yield f"row {row.source}, {row.event} has no reason"


def _competing_rows(machine: StateMachine[S, E, C]) -> Iterable[str]:
    groups: dict[tuple[S, E], list[Row[S, E, C]]] = {}
    for row in machine.rows:
        groups.setdefault((row.source, row.event), []).append(row)
    for (source, event), rows in groups.items():
        if any(row.guard is None for row in rows[:-1]):
            yield f"rows {source}, {event} compete: one without a guard must be the last"
        guards = [row.guard for row in rows]
        if len(set(guards)) < len(guards):
            yield f"rows {source}, {event} compete: the same guard twice"


def _dead_ends(machine: StateMachine[S, E, C]) -> Iterable[str]:
    if len(set(machine.initial)) < len(machine.initial):
        yield "a state is a start twice"
    reached = _closure(machine.initial, [(row.source, row.target) for row in machine.rows])
    ending = _closure(machine.terminal, [(row.target, row.source) for row in machine.rows])
    for state in machine.states:
        leaves = [row for row in machine.rows_from(state) if not row.stays]
        if state not in reached:
            yield f"state {state} cannot be reached"
        if machine.is_terminal(state):
            if machine.rows_from(state):
                yield f"terminal state {state} has rows"
        elif not leaves:
            yield f"state {state} cannot be left"
        elif machine.terminal and state not in ending:
            yield f"state {state} never comes to an end"


def _closure(start: Iterable[S], edges: list[tuple[S, S]]) -> set[S]:
    """Return the states that can be reached from `start` along the edges."""
    reached = set(start)
    frontier = list(reached)
    while frontier:
        state = frontier.pop()
        new = {target for source, target in edges if source is state} - reached
        reached |= new
        frontier += new
    return reached
