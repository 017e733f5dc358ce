"""The memory that config maps, or secrets, which are kept at hand take, by namespace.

An object of 600 kB with 50,000 keys takes nine megabytes once it is read, and the pods of one
namespace may refer to thousands of objects. Beyond its share a namespace gets no more of them.
To read one takes up to five milliseconds a megabyte, so what they may change in a time is bounded
too.
"""

from collections import Counter
from sys import getsizeof

from trio_kubelet.k8s import ConfigMap, Secret
from trio_kubelet.references.object_references import Key, ObjectError

MOST_BYTES_OF_NAMESPACE = 16 << 20
"""Of one kind. The last object may go beyond it."""

KEY_BYTES = getsizeof("")
"""Of a key, beside its characters, which are ASCII."""


class KeptBytes:
    """The bytes that each object takes now. Written by the one who keeps the objects."""

    def __init__(self) -> None:
        self._of_object: dict[Key, int] = {}
        self._of_namespace: Counter[str] = Counter()

    def has_room(self, key: Key) -> bool:
        """True if an object may be kept beside the others of its namespace."""
        others = self._of_namespace[key[0]] - self._of_object.get(key, 0)
        return others < MOST_BYTES_OF_NAMESPACE

    def keep(self, key: Key, found: ConfigMap | Secret) -> None:
        """The object is kept, in the place of its last version."""
        self.forget(key)
        self._of_object[key] = size = memory_bytes(found)
        self._of_namespace[key[0]] += size

    def of(self, key: Key) -> int:
        """The bytes of an object; 0 if it is not kept."""
        return self._of_object.get(key, 0)

    def forget(self, key: Key) -> None:
        """The object is not kept any more, if it was."""
        self._of_namespace[key[0]] -= self._of_object.pop(key, 0)
        self._of_namespace += Counter()  # without namespaces that have none


CHANGED_BYTES_PER_SECOND = 8 << 20
CHANGED_BYTES_AT_ONCE = 128 << 20
LEAST_CHANGE_BYTES = 64 << 10
"""The memory of versions of objects that are followed; a small version counts as so many."""


class ChangeRates:
    """The bytes that the objects of each namespace may still change: a bucket for each."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """The bytes that were left, and when, by namespace."""

    def take(self, namespace: str, size: int, now: float) -> bool:
        """Count a version of this size; False if it is more than the namespace has left."""
        left, at = self._left.get(namespace, (CHANGED_BYTES_AT_ONCE, now))
        left = min(CHANGED_BYTES_AT_ONCE, left + (now - at) * CHANGED_BYTES_PER_SECOND)
        left -= max(size, LEAST_CHANGE_BYTES)
        self._left[namespace] = max(0.0, left), now
        return left >= 0

    def forget(self, namespace: str) -> None:
        """Nothing of the namespace is followed any more."""
        self._left.pop(namespace, None)


def memory_bytes(found: ConfigMap | Secret) -> int:
    """The memory of an object's texts and bytes; all else of it is small."""
    meta = found.metadata
    maps = [found.data, meta.annotations, meta.labels]
    if isinstance(found, ConfigMap):
        maps.append(found.binary_data)
    return sum(
        getsizeof(each)
        + KEY_BYTES * len(each)
        + sum(map(len, each))
        + sum(map(getsizeof, each.values()))
        for each in maps
    )


def no_room(word: str, key: Key) -> ObjectError:
    """The error for an object that its namespace has no room for."""
    return ObjectError(
        f'{word} "{key[1]}" cannot be kept at hand: the {word}s that the pods of namespace '
        f'"{key[0]}" refer to here take more than {MOST_BYTES_OF_NAMESPACE} bytes of memory'
    )
