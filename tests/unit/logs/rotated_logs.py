"""A container that prints numbered lines, the log of it, and the rotator that keeps that small."""

import gzip
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from attrs import define, field

from tests.trio_clock import TrioClock
from trio_kubelet.logs.rotation import RotationPolicy
from trio_kubelet.logs.rotator import LogRotator
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

LINE_BYTES = 10


@define
class Printing(RuntimeClient):
    """A runtime with one container, whose lines it writes where the log was when it opened it.

    `reopens` say what becomes of the next calls: nothing is done, it is done and the answer lost.
    """

    root: Path
    id: str = "id"
    lines: int = 0
    reopens: list[str] = field(factory=list)
    calls: int = 0
    _file: FileIO | None = None

    def __attrs_post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    @property
    def path(self) -> Path:
        return self.root / "ns_pod_u1" / "c" / "0.log"

    def _open(self) -> None:
        self.close()
        self._file = FileIO(self.path, "ab")

    def close(self) -> None:
        """End with printing."""
        if self._file is not None:
            self._file.close()

    def write(self, lines: int) -> None:
        """Print lines, all of one length."""
        text = "".join(f"{self.lines + number:09}\n" for number in range(lines))
        assert self._file is not None
        self._file.write(text.encode())
        self.lines += lines

    async def reopen_container_log(self, container_id: str) -> None:
        assert container_id == self.id
        self.calls += 1
        outcome = self.reopens.pop(0) if self.reopens else "done"
        if outcome == "refused":
            raise RpcError(Code.UNKNOWN, "container is not running")
        self._open()
        if outcome == "lost":
            raise RpcError(Code.DEADLINE_EXCEEDED, "timed out")

    def rotator(self, **changes: int) -> LogRotator:
        """A new agent's rotator, which has not seen the container yet."""
        runtime_health = RuntimeHealth()
        runtime_health.update(RuntimeState(up=True, network_ready=True))
        settings = {"max_bytes": 10 * LINE_BYTES, "max_files": 3, "interval_seconds": 10}
        policy = RotationPolicy(**{**settings, **changes})
        return LogRotator(self, runtime_health, str(self.root), policy, TrioClock(), 1)

    def observed(self, state: ObservedState = ObservedState.RUNNING) -> ObservedPod:
        container = ObservedContainer(
            id=self.id,
            name="c",
            sandbox_id="s",
            state=state,
            log_path=str(self.path),
            started_at=TrioClock().now_ns(),
        )
        return ObservedPod(
            uid="u1", name="pod", namespace="ns", observed_at=0.0, containers=(container,)
        )

    def names(self) -> list[str]:
        return sorted(each.name for each in self.path.parent.iterdir())

    def read(self) -> list[int]:
        """The numbers of all lines that are there, in the order in which a reader has them."""
        return [int(line) for text in self._texts() for line in text.splitlines()]

    def _texts(self) -> Iterator[str]:
        rotated = {name.removesuffix(".gz") for name in self.names() if name != "0.log"}
        for name in sorted(each for each in rotated if not each.endswith(".tmp")):
            plain = self.path.with_name(name)
            if plain.exists():
                yield plain.read_text()
            else:
                yield gzip.decompress(plain.with_name(f"{name}.gz").read_bytes()).decode()
        if self.path.exists():
            yield self.path.read_text()


NOTHING = ObservedPod(uid="u1", name="pod", namespace="ns", observed_at=0.0)
