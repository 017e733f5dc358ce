"""What is started and stopped: in a `with` block, it runs for as long as the block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """A context manager of `start` and `stop`; both block."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and return when it is of use."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it, and leave nothing running."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
