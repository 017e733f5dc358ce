"""The memory of one incarnation of a pod for its images, between two syncs.

None of it is needed to be right after a restart of the agent: it spares the registry, and tells
users why a container waits.
"""

import math
from typing import Self

import trio
from attrs import frozen

from state_machines.backoff import NANOSECONDS, Backoff, next_backoff, remaining_seconds
from state_machines.image import IMAGE, IMAGE_BACKOFF, ImageState
from trio_kubelet.k8s import Container


@frozen(kw_only=True)
class WantedImage:
    """An image that something in a pod wants.

    `key` names it within the pod; `container` is the one that events are about, empty for the pod.
    """

    key: str
    image: str
    pull_policy: str = ""
    container: str = ""

    @classmethod
    def of_container(cls, container: Container) -> Self:
        """The image that a container is made of."""
        name = container.name
        policy = container.image_pull_policy
        return cls(key=name, image=container.image, pull_policy=policy, container=name)


class PodImages:
    """The state of each image that is wanted, by its key (WantedImage), and each image's back-off.

    Times are nanoseconds since the epoch.
    """

    def __init__(self) -> None:
        self._states: dict[str, ImageState] = {}
        self._sought: dict[str, str] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._errors: dict[str, str] = {}
        self._turns: dict[str, trio.Lock] = {}

    def turn(self, image: str) -> trio.Lock:
        """Held by the container that looks for the image: others of the pod wait for it."""
        return self._turns.setdefault(image, trio.Lock())

    def state(self, key: str) -> ImageState:
        """The state of the image that is wanted under a key."""
        return self._states.get(key, ImageState.UNCHECKED)

    def begin(self, key: str, image: str) -> None:
        """A new search: what one for another image came to, or what ended one, does not count."""
        if IMAGE.is_terminal(self.state(key)) or self._sought.get(key) != image:
            self._states[key] = ImageState.UNCHECKED
        self._sought[key] = image

    def reach(self, key: str, state: ImageState) -> None:
        """A step of the machine has led to this state."""
        self._states[key] = state

    def remaining_seconds(self, image: str, now_ns: int) -> float:
        """The seconds that the next pull of the image must still wait."""
        backoff = self._backoffs.get(image)
        if backoff is None:
            return 0.0
        return remaining_seconds(
            backoff, IMAGE_BACKOFF, failed_at_ns=backoff.decided_at_ns, now_ns=now_ns
        )

    def last_error(self, image: str) -> str:
        """The error of the last pull of the image; empty if none has."""
        return self._errors.get(image, "")

    def pull_failed(self, image: str, error: str, now_ns: int) -> int:
        """Lengthen the back-off of the image; returns when it is over."""
        backoff = next_backoff(
            self._backoffs.get(image), IMAGE_BACKOFF, failed_at_ns=now_ns, now_ns=now_ns
        )
        self._backoffs[image] = backoff
        self._errors[image] = error
        return now_ns + math.ceil(backoff.delay_seconds * NANOSECONDS)

    def found(self, image: str) -> None:
        """The image is there: the next failure begins with a short back-off."""
        self._backoffs.pop(image, None)
