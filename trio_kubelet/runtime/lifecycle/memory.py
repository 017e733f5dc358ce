"""What one incarnation of a pod remembers between two syncs.

Owned by the pod's session, read by its status. None of it outlives the agent, and nothing of
it is needed to be right after a restart: it only spares work and tells users why.
"""

import trio
from attrs import define, field, frozen

from state_machines.backoff import Backoff
from state_machines.container import ContainerStage
from state_machines.image import ImageState


@frozen(kw_only=True)
class Reason:
    """Why a container waits, in the words that its status shows.

    `until_ns`: before that time (nanoseconds since the epoch) trying again is no use; None where
    nobody knows.
    """

    reason: str
    message: str = ""
    until_ns: int | None = None


@frozen(kw_only=True)
class ContainerMemory:
    """Where a container stands in its machine.

    `left_behind` are the ids of earlier instances, whose end was taken note of already.
    """

    state: ContainerStage = ContainerStage.WAITING
    left_behind: frozenset[str] = frozenset()


@define
class PodMemory:
    """The mutable memory of one incarnation. By container name, unless it says otherwise.

    `reasons` is the last failed action of each container, `crash_backoffs` how long it must
    wait after the next exit, `containers` its place in its machine, `images` how far its image is.
    `image_backoffs`, `pull_errors` (the last one's words) and `image_turns` are by image.
    `acted_at` is trio's clock when the last call that may have changed the pod in the runtime
    had returned, failed or been given up.
    """

    reasons: dict[str, Reason] = field(factory=dict)
    crash_backoffs: dict[str, Backoff] = field(factory=dict)
    containers: dict[str, ContainerMemory] = field(factory=dict)
    images: dict[str, ImageState] = field(factory=dict)
    image_backoffs: dict[str, Backoff] = field(factory=dict)
    pull_errors: dict[str, str] = field(factory=dict)
    image_turns: dict[str, trio.Lock] = field(factory=dict)
    acted_at: float = 0.0
