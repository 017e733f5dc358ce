"""Which events of the runtime tell anything."""

import pytest
from attrs import evolve

from trio_kubelet.pleg.listing import Announcement, is_news
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)

SANDBOX = ObservedSandbox(
    id="s", name="web", namespace="shop", uid="u", attempt=0, ready=True, created_at=0
)
CONTAINER = ObservedContainer(id="c", name="c", sandbox_id="s", state=ObservedState.CREATED)
NOTHING = ObservedPod(uid="u", name="web", namespace="shop", observed_at=0.0)
CREATED = evolve(NOTHING, sandboxes=(SANDBOX,), containers=(CONTAINER,))
RUNNING = evolve(CREATED, containers=(evolve(CONTAINER, state=ObservedState.RUNNING),))
UNKNOWN = evolve(CREATED, containers=(evolve(CONTAINER, state=ObservedState.UNKNOWN),))
EXITED = evolve(CREATED, containers=(evolve(CONTAINER, state=ObservedState.EXITED),))
STOPPED = evolve(EXITED, sandboxes=(evolve(SANDBOX, ready=False),))


@pytest.mark.parametrize(
    ("id_", "what", "known", "expected"),
    [
        ("c", "CREATED", NOTHING, True),
        ("c", "CREATED", CREATED, False),
        ("c", "STARTED", NOTHING, True),
        ("c", "STARTED", CREATED, True),
        ("c", "STARTED", UNKNOWN, True),
        ("c", "STARTED", RUNNING, False),
        ("c", "STARTED", EXITED, False),
        ("c", "STOPPED", RUNNING, True),
        ("c", "STOPPED", UNKNOWN, True),
        ("c", "STOPPED", EXITED, False),
        ("c", "DELETED", EXITED, True),
        ("c", "DELETED", NOTHING, False),
        ("s", "CREATED", NOTHING, True),
        ("s", "CREATED", RUNNING, False),
        ("s", "STARTED", NOTHING, True),
        ("s", "STARTED", RUNNING, False),
        ("s", "STOPPED", EXITED, True),
        ("s", "STOPPED", STOPPED, False),
        ("s", "DELETED", STOPPED, True),
        ("s", "DELETED", NOTHING, False),
    ],
)
def test_an_event_is_news_unless_what_it_tells_is_known(
    id_: str, what: str, known: ObservedPod, expected: bool
) -> None:
    told = Announcement(id_, cri.ContainerEventType[f"CONTAINER_{what}_EVENT"])
    assert is_news(told, known) is expected
