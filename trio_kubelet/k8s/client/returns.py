"""The news that an API server answers again, for those who wait before they ask it once more."""

import trio


class Returns:
    """Told by whoever finds out: the heartbeat, which asks most often, or a reflection.

    Who waits takes `next` before it asks, and so hears of a return during a request that hangs.
    """

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = trio.Event()

    def tell(self) -> None:
        """The server answers again: wake all who wait for that."""
        told, self.next = self.next, trio.Event()
        told.set()
