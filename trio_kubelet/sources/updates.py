"""The way of pods from all sources to the sync loop: what changed, in order, in one channel."""

from collections.abc import Iterable

import structlog
import trio

from trio_kubelet.callbacks import Callbacks
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import Source
from trio_kubelet.sources.merge import PodUpdate, SourceMerge

log = structlog.get_logger("sources")

CHANNEL_SIZE = 64


class PodUpdates:
    """Sends updates into `channel`. `on_update` is called with each of them before."""

    def __init__(self, merge: SourceMerge) -> None:
        self.merge = merge
        self.on_update: Callbacks[[PodUpdate]] = Callbacks()
        self._channel_in, self.channel = trio.open_memory_channel[PodUpdate](CHANNEL_SIZE)

    async def take(self, source: Source, pods: tuple[Pod, ...]) -> None:
        """Take the full set of pods that a source has now; waits while the sync loop is behind."""
        await self.send(self.merge.apply(source, pods))

    async def send(self, updates: Iterable[PodUpdate]) -> None:
        """Hand on what changed in a source; waits while the sync loop is behind."""
        for update in updates:
            try:
                self.on_update.call(update)
            except Exception:  # whatever becomes of mirrors, the pods themselves are dealt with
                names = [pod.metadata.key for pod in update.pods]
                log.exception("mirror pod sync failed", pods=names)
            await self._channel_in.send(update)
