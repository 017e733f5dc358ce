"""The hash by which a running container is known to be still the one that the spec asks for.

Kept in the annotation `io.kubernetes.container.hash`. It is the Go kubelet's own, down to the
way Go prints a byte slice, so that containers change hands between the two without a restart.
Only what cannot change without a restart is in it: the name and the image.
"""

from trio_kubelet.k8s import Container
from trio_kubelet.k8s.json_text import go_json

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_UINT32 = 0xFFFFFFFF


def container_hash(container: Container) -> str:
    """FNV-1a (32 bit) of the container's name and image, lower-case hex without padding."""
    fields = go_json({"image": container.image, "name": container.name}).encode()
    printed = "([]uint8)[" + " ".join(str(byte) for byte in fields) + "]"
    return f"{fnv1a_32(printed.encode()):x}"


def fnv1a_32(data: bytes) -> int:
    """The Fowler-Noll-Vo hash that Go has as `fnv.New32a`."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _UINT32
    return value
