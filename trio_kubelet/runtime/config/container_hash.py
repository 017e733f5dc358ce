"""The hash by which a running container is known to be still the one that the spec asks for.

It is the Go kubelet's own, down to the way Go prints a byte slice, so that containers change hands
between the two without a restart. Only what cannot change without a restart is in it: the name and
the image.
"""

from collections.abc import Iterable, Mapping

import trio

from trio_kubelet.k8s import Container
from trio_kubelet.k8s.fnv import fnv1a_32
from trio_kubelet.k8s.image_reference import is_too_long
from trio_kubelet.k8s.json_text import go_json


def container_hash(container: Container) -> str:
    """FNV-1a (32 bit) of the container's name and image, lower-case hex without padding.

    Empty, as that of no container is, if the image has too long a name: nothing is made of it.
    """
    if is_too_long(container.image):
        return ""
    fields = go_json({"image": container.image, "name": container.name}).encode()
    printed = "([]uint8)[" + " ".join(str(byte) for byte in fields) + "]"
    return f"{fnv1a_32(printed.encode()):x}"


class ContainerHashes:
    """The hashes of the containers of one pod, each made once for a name and image."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, str]] = {}

    async def of(self, containers: Iterable[Container]) -> Mapping[str, str]:
        """Return the hash of each container, by name; those of other containers are forgotten.

        One takes a millisecond if its image has a long name: others have their turn after each.
        """
        before, self._made = self._made, {}
        for container in containers:
            known = before.get(container.name)
            if known is None or known[0] != container.image:
                known = container.image, container_hash(container)
                await trio.lowlevel.checkpoint()
            self._made[container.name] = known
        return {name: made for name, (_, made) in self._made.items()}
