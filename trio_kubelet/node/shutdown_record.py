"""The pods that shutdowns of the machine have ended, on the disk.

Their last statuses may not reach the API before the machine is gone, and an agent may be killed
while they end. The next one finds them here, and ends them for the same reason instead of running
them again. No pod of the API that was ended is ever to run under its UID, so nothing has to be
taken off the record but what is too old to matter. Static pods run anew after each boot, and are
not in it.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import frozen

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from trio_kubelet.k8s import Pod, json_text
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventRecorder

log = structlog.get_logger("shutdown")

REASON = "Terminated"
MESSAGE = "Pod was terminated in response to imminent node shutdown."

FILE = "shutdown_pods.json"
MOST_PODS = 1000
"""Those that were ended last stay in the record: more than a node runs at once."""

_SAVE_SECONDS = 1.0


@frozen
class EndedPod:
    """A pod that is ended by a shutdown, and the seconds that its containers have."""

    uid: str
    grace_seconds: int

    @property
    def ending(self) -> Ending:
        """The end that the pod gets."""
        return Ending(
            causes=(PodEvent.NODE_SHUTDOWN,),
            grace_seconds=self.grace_seconds,
            reason=REASON,
            message=MESSAGE,
            disruption=MESSAGE,
        )

    def tell(self, _recorder: EventRecorder, pod: Pod) -> None:
        """Log that the pod ends once more. As on the Go kubelet there is no event of it."""
        log.info("pod was ended by a shutdown before", pod=pod.metadata.key, uid=self.uid)


def ended_pod(pod: Pod, seconds: float) -> EndedPod:
    """The ending of a pod: with its own grace period, but not longer than its group has."""
    own = pod.spec.termination_grace_period_seconds
    grace_seconds = int(seconds) if own is None else min(own, int(seconds))
    return EndedPod(pod.metadata.uid, grace_seconds)


def printed(pods: Iterable[EndedPod]) -> bytes:
    """The text of a file with these pods."""
    return json_text.dumps({"pods": {pod.uid: pod.grace_seconds for pod in pods}})


def parsed(text: bytes) -> dict[str, EndedPod]:
    """The pods in the text of a file, by UID. Raises ValueError for what is none."""
    content = json_text.loads(text)
    pods = content.get("pods") if isinstance(content, dict) else None
    if not isinstance(pods, dict):
        raise ValueError("it has another form")
    for uid, seconds in pods.items():
        if type(seconds) is not int:
            raise ValueError(f"the seconds of {uid} are no number")
    return {uid: EndedPod(uid, seconds) for uid, seconds in pods.items()}


class ShutdownRecord:
    """Owner of the record; `root` is --root-dir."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._pods: dict[str, EndedPod] = {}
        self._threads = trio.CapacityLimiter(1)

    async def load(self) -> None:
        """Read what an earlier agent kept. Before the first pod."""
        try:
            self._pods = parsed(await run_in_thread(self._path.read_bytes))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("shutdown record read failed", file=str(self._path), error=str(error))

    def ended(self, uid: str) -> EndedPod | None:
        """The end of a pod that a shutdown has ended; None for others."""
        return self._pods.get(uid)

    async def add(self, pods: Iterable[EndedPod]) -> None:
        """Return when these are on the disk, or could not be written within a second."""
        added = {pod.uid: pod for pod in pods}
        if not added:
            return
        kept = [pod for uid, pod in self._pods.items() if uid not in added]
        newest = [*kept, *added.values()][-MOST_PODS:]
        self._pods = {pod.uid: pod for pod in newest}
        write = partial(write_whole, self._path, printed(newest), folder_mode=0o750, durable=True)
        try:
            with trio.move_on_after(_SAVE_SECONDS) as scope:
                await run_in_thread(write, limiter=self._threads, abandon_on_cancel=True)
        except OSError as error:
            log.warning("shutdown record write failed", file=str(self._path), error=str(error))
        if scope.cancelled_caught:
            log.warning("shutdown record write timed out", file=str(self._path))
