"""A queue whose items have owners, and whose owners take turns.

First come, first served lets one owner with a thousand items stand before everybody else. Here the
next item is of the owner whose last turn is longest ago, and the oldest of that owner's.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class TurnQueue(Generic[T]):
    """Items that wait, each once for its owner. An owner costs nothing once none of its waits."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, dict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def put(self, owner: Hashable, item: T) -> None:
        """Let an item wait, behind the others of its owner."""
        self._queues.setdefault(owner, {})[item] = None

    def take(self) -> T:
        """Take the next item. Raises KeyError if there is none."""
        owner = next(iter(self._queues), None)
        item = next(iter(self._queues[owner]))
        self.remove(owner, item)
        if owner in self._queues:
            self._queues.move_to_end(owner)
        return item

    def remove(self, owner: Hashable, item: T) -> None:
        """Take this item, out of its turn. Raises KeyError if it does not wait."""
        queue = self._queues[owner]
        del queue[item]
        if not queue:
            del self._queues[owner]
