"""The node's lease: the heartbeat that says, cheaply and often, that the node is alive.

It is created with the node as its owner, taken over from an earlier agent, renewed after a quarter
of its duration (nodeLeaseDurationSeconds) with a little jitter, and made anew when somebody deleted
it. A renewal starts from the answer to the last one, so that it is one request; only a conflict
asks for the lease again. `renewed_lease` is pure.
"""

import random
from collections.abc import Callable

import structlog
import trio
from attrs import define, evolve, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import LEASES, Lease, LeaseSpec, MicroTime, Node, ObjectMeta, OwnerReference
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.node.reporter import NodeView
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries, stretched

log = structlog.get_logger("lease")

LEASE_NAMESPACE = "kube-node-lease"
RENEW_FRACTION = 0.25
JITTER = 0.04
RENEWALS = 5
"""The tries of a renewal in one round."""

RETRY = BackoffPolicy(initial_seconds=0.2, cap_seconds=7.0)


def new_lease(name: str) -> Lease:
    """A lease that is not there yet."""
    return Lease(
        metadata=ObjectMeta(name=name, namespace=LEASE_NAMESPACE),
        spec=LeaseSpec(holder_identity=name),
    )


def renewed_lease(lease: Lease, node: Node | None, *, seconds: int, now: MicroTime) -> Lease:
    """The lease as it is to be written: renewed now, owned by the node once that is known."""
    metadata = lease.metadata
    if not metadata.owner_references and node is not None:
        owner = OwnerReference(
            api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid
        )
        metadata = evolve(metadata, owner_references=(owner,))
    spec = evolve(
        lease.spec,
        holder_identity=lease.spec.holder_identity or metadata.name,
        lease_duration_seconds=seconds,
        renew_time=now,
    )
    return evolve(lease, metadata=metadata, spec=spec)


@define(kw_only=True, eq=False)
class NodeLease:
    """Owner of the lease. `api` is the heartbeat's own client, with a deadline of its own.

    `on_return()` is called when a renewal succeeds after one has failed; it must not block.
    """

    _api: Api
    _view: NodeView
    _clock: Clock
    _seconds: int
    _chance: random.Random
    _on_return: Callable[[], None] = lambda: None
    _retries: Retries = field(init=False, factory=lambda: Retries(RETRY))
    _is_failing: bool = field(init=False, default=False)
    _latest: Lease | None = field(init=False, default=None)

    async def run(self) -> None:
        """Renew for ever. An API server that is away is asked until it is back."""
        interval = self._seconds * RENEW_FRACTION
        while True:
            try:
                await self._round()
            except Exception:
                log.exception("node lease renewal failed")
            await trio.sleep(stretched(interval, JITTER, self._chance.random))

    async def _round(self) -> None:
        if self._latest is not None and await self._renew(self._latest):
            return
        lease, created = await self._ensure()
        self._latest = lease
        if not created:
            await self._renew(lease)

    async def _renew(self, lease: Lease) -> bool:
        """True if the lease could be written, after a few tries."""
        for _ in range(RENEWALS):
            try:
                self._latest = await self._api.update(LEASES, self._renewed(lease))
            except ApiError as error:
                if error.is_not_found:
                    return False
                if error.is_conflict:
                    lease, _ = await self._ensure()
                else:
                    self._failed("node lease renewal failed, will retry", error)
            else:
                self._succeeded()
                return True
        return False

    async def _ensure(self) -> tuple[Lease, bool]:
        """The lease as it is, and whether it had to be made. Waits until there is an answer.

        A lease is made only for a node that exists: it would have no owner.
        """
        while True:
            try:
                return await self._get_or_create()
            except ApiError as error:
                self._failed("node lease request failed, will retry", error)
            await self._retries.wait()

    async def _get_or_create(self) -> tuple[Lease, bool]:
        name = self._view.name
        try:
            return await self._api.get(LEASES, name, LEASE_NAMESPACE), False
        except ApiError as error:
            if not error.is_not_found:
                raise
        await self._view.wait_known()
        return await self._api.create(LEASES, self._renewed(new_lease(name)), LEASE_NAMESPACE), True

    def _failed(self, event: str, error: ApiError) -> None:
        self._is_failing = True
        self._retries.warn(log, event, name=self._view.name, error=str(error))

    def _succeeded(self) -> None:
        self._retries.reset()
        if self._is_failing:
            self._is_failing = False
            self._on_return()

    def _renewed(self, lease: Lease) -> Lease:
        now = MicroTime.from_ns(self._clock.now_ns())
        return renewed_lease(lease, self._view.current, seconds=self._seconds, now=now)
