"""The results of admission."""

from typing import TypeAlias

from attrs import frozen

from trio_kubelet.k8s import Pod


@frozen(kw_only=True)
class Rejection:
    """Why a pod is not admitted, in the words of its event.

    `is_paced`: another pod like it would be rejected as well, until the node has room again.
    """

    reason: str
    message: str
    is_paced: bool = False


@frozen(kw_only=True)
class Preemption:
    """The pod is admitted, but starts only when the victims have stopped.

    `resource` is the first of those that were short, for the count of preemptions.
    """

    victims: tuple[Pod, ...]
    resource: str


@frozen(kw_only=True)
class Shortage:
    """Too little is left of a resource; cpu in millicores, others in units and bytes."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """The amount that others would have to give up."""
        return self.requested - (self.capacity - self.used)

    @property
    def rejection(self) -> Rejection:
        """The rejection of a pod for which nobody makes way."""
        return Rejection(
            reason=f"OutOf{self.resource}",
            message=f"Node didn't have enough resource: {self.resource}, "
            f"requested: {self.requested}, used: {self.used}, capacity: {self.capacity}",
        )


AdmissionResult: TypeAlias = Rejection | Preemption | None
"""None admits the pod."""


def predicate_failed(name: str, message: str) -> Rejection:
    """The rejection by a check that the scheduler makes under the same name."""
    return Rejection(reason=name, message=f"Predicate {name} failed: {message}")
