"""What came of carrying out a plan, and what of a whole sync."""

from collections.abc import Collection, Iterable

from attrs import frozen

from state_machines.image import WAITING_REASONS, ImageState
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.lifecycle.container_starter import ContainerStartError
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.plan import PodActions, StopContainer
from trio_kubelet.runtime.observed import ObservedPod

IMAGE_PULL_BACK_OFF = WAITING_REASONS[ImageState.BACK_OFF]


@frozen(kw_only=True)
class RuntimeOutcome:
    """What a sync came to.

    `failed`: something did not work and is to be tried again. `due_ns`: the earliest time
    (nanoseconds since the epoch) at which a postponed container may start.
    """

    observed: ObservedPod
    failed: bool = False
    due_ns: int | None = None


@frozen(kw_only=True)
class Made:
    """A sandbox and the containers that were started in it, by their ids."""

    sandbox_id: str
    containers: tuple[str, ...]


@frozen(kw_only=True)
class Done:
    """What came of a plan: why something failed, else what it made, if it was to make anything."""

    failures: tuple[Reason, ...] = ()
    made: Made | None = None


def is_empty(observed: ObservedPod) -> bool:
    """Whether nothing of the pod was there: then what was just made is all."""
    return not observed.sandboxes and not observed.containers


def have_stopped(observed: ObservedPod, orders: Iterable[StopContainer]) -> bool:
    """Whether all that had to stop has."""
    living = {container.id for container in observed.living}
    return living.isdisjoint(order.container.id for order in orders)


def reason_of(error: ImageError | ContainerStartError) -> Reason:
    """What the status of a container says that could not be started."""
    until_ns = error.until_ns if isinstance(error, ImageError) else None
    return Reason(reason=error.reason, message=error.message, until_ns=until_ns)


def failed_outcome(
    observed: ObservedPod, plan: PodActions, failures: Collection[Reason]
) -> RuntimeOutcome:
    """What did not work is tried again: soon, or when the back-off of its image is over.

    A pull that has just failed is looked at again soon, too: that look finds the back-off, and
    then the status says ImagePullBackOff.
    """
    times = [reason.until_ns for reason in failures if reason.until_ns is not None]
    return RuntimeOutcome(
        observed=observed,
        failed=any(reason.reason != IMAGE_PULL_BACK_OFF for reason in failures),
        due_ns=min([*times, *(postponed.until_ns for postponed in plan.postponed)], default=None),
    )


def due_ns(plan: PodActions) -> int | None:
    """When the first postponed container may start, in nanoseconds since the epoch."""
    return min((postponed.until_ns for postponed in plan.postponed), default=None)
