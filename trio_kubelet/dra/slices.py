"""ResourceSlices of this node whose driver has gone are removed, so that no more pods get devices.

A driver publishes its devices itself, and again when it finds that they are missing. It has time to
come back, as in an upgrade; at the agent's start all have, for none has registered yet. The API
server does the choosing: nothing is listed.
"""

import structlog
import trio

from state_machines.backoff import BackoffPolicy
from trio_kubelet.dra.drivers import DRADrivers
from trio_kubelet.k8s import RESOURCE_SLICES
from trio_kubelet.k8s.client import Api, ApiError, Selection
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("dra")

GRACE_SECONDS = 30.0
"""The time that a driver has to come back, as on the Go kubelet."""
RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=300.0, jitter=0.2)
MAX_NAMED = 64
"""Drivers that were there and have gone; if there are more, all that are not there are meant."""


class ResourceSliceRemoval:
    """Removes the slices of drivers that are not registered and had time to be.

    `_due` has the drivers that have gone, and when their slices go; `_others_due` is when those of
    all drivers go that have not come, None once that is done.
    """

    def __init__(self, drivers: DRADrivers, node_name: str, api: Api) -> None:
        self._drivers = drivers
        self._node_name = node_name
        self._api = api
        self._due: dict[str, float] = {}
        self._others_due: float | None = None
        self._changed = trio.Event()

    async def run(self) -> None:
        """Remove for ever. An API server that is away is waited for."""
        self._others_due = trio.current_time() + GRACE_SECONDS
        retries = Retries(RETRY)
        self._drivers.on_change.add(self._driver_changed)
        while True:
            await self._wait_due()
            recovered = self._api.recovery.next
            try:
                await self._remove()
            except ApiError as error:
                words = "slices of drivers that have gone cannot be removed, will retry"
                retries.warn(log, words, error=str(error))
                with trio.move_on_after(retries.next_seconds()):
                    await recovered.wait()
            else:
                retries.reset()

    def _driver_changed(self, name: str) -> None:
        if self._drivers.get(name) is not None:
            self._due.pop(name, None)
        else:
            self._due[name] = trio.current_time() + GRACE_SECONDS
            if len(self._due) > MAX_NAMED:
                self._due.clear()
                self._others_due = trio.current_time() + GRACE_SECONDS
        self._changed.set()

    async def _wait_due(self) -> None:
        """Return when some slices may go."""
        while True:
            self._changed = trio.Event()
            others = () if self._others_due is None else (self._others_due,)
            first = min((*self._due.values(), *others), default=float("inf"))
            if first <= trio.current_time():
                return
            with trio.move_on_at(first):
                await self._changed.wait()

    async def _remove(self) -> None:
        """Remove what is due. Raises ApiError."""
        now = trio.current_time()
        for name, at in sorted(self._due.items()):
            if at <= now and self._due.get(name) == at:
                await self._remove_selected(f"spec.driver={name}")
                if self._due.get(name) == at:
                    del self._due[name]
        others = self._others_due
        if others is not None and others <= now:
            kept = {*self._drivers.names(), *self._due}
            await self._remove_selected(*(f"spec.driver!={name}" for name in sorted(kept)))
            if self._others_due == others:
                self._others_due = None

    async def _remove_selected(self, *drivers: str) -> None:
        selected = Selection(fields=",".join((f"spec.nodeName={self._node_name}", *drivers)))
        try:
            number = await self._api.delete_selected(RESOURCE_SLICES, selected)
        except ApiError as error:
            if not error.is_not_found:  # a server without such objects
                raise
        else:
            if number:
                words = "removed slices of drivers that have gone"
                log.info(words, number=number, selected=selected.fields)
