"""Pods as the runtime shows them, written as short words: a letter for each container."""

from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)

STATES = {
    "R": ObservedState.RUNNING,
    "X": ObservedState.EXITED,
    "C": ObservedState.CREATED,
    "U": ObservedState.UNKNOWN,
}
HOUR_NS = 3_600_000_000_000
NOW_NS = 1000 * HOUR_NS


def series(name: str, states: str, sandbox: str = "sandbox") -> list[ObservedContainer]:
    """Incarnations of a container, oldest first, an hour apart, the last an hour ago.

    Their ids are the name and their number: `a0` is the oldest.
    """
    return [
        ObservedContainer(
            id=f"{name}{number}",
            name=name,
            sandbox_id=sandbox,
            state=STATES[letter],
            restart_count=number,
            created_at=NOW_NS - (len(states) - number) * HOUR_NS,
        )
        for number, letter in enumerate(states)
    ]


def pod(uid: str = "uid", /, sandboxes: str = "", **containers: str) -> ObservedPod:
    """A pod with containers by name, and sandboxes oldest first: `r` ready, `n` not."""
    made = [each for name, states in containers.items() for each in series(name, states)]
    return ObservedPod(
        uid=uid,
        name="web",
        namespace="default",
        observed_at=0.0,
        containers=tuple(sorted(made, key=lambda c: c.created_at, reverse=True)),
        sandboxes=tuple(
            ObservedSandbox(
                id=f"s{number}",
                name="web",
                namespace="default",
                uid=uid,
                attempt=number,
                ready=letter == "r",
                created_at=number,
            )
            for number, letter in reversed(list(enumerate(sandboxes)))
        ),
    )
