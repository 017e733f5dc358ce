"""The node's part of the agent: its object, its lease and the view of it, as one thing to run.

Three tasks that need each other only through the view: the watch tells it, the reporter registers
and reports, the lease waits there for its owner. Nothing here stops pods: an API server that is
away is waited for by each of the three.
"""

import random
from collections.abc import Callable, Iterable

import trio

from trio_kubelet.clock import Clock
from trio_kubelet.k8s.client import Api
from trio_kubelet.node.addresses import Network
from trio_kubelet.node.lease import NodeLease
from trio_kubelet.node.observation import Pressures
from trio_kubelet.node.observer import NodeObserver
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.readiness import Errors, Readiness
from trio_kubelet.node.reporter import NodeReporter
from trio_kubelet.node.view import NodeView
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.gate import RuntimeGate
from trio_kubelet.telemetry import EventRecorder


class NodeAgent:
    """Keeps one node's objects in the cluster. `view` is for those who ask about the node.

    `api` is the general client, `heartbeat` one with a connection of its own and a deadline
    shorter than the lease. `errors` are asked, beside the runtime, for what keeps the node from
    being ready; `pressures()` is what eviction knows. `chance` spreads what many nodes do.
    """

    def __init__(
        self,
        *,
        profile: NodeProfile,
        api: Api,
        heartbeat: Api,
        client: RuntimeClient,
        gate: RuntimeGate,
        recorder: EventRecorder,
        clock: Clock,
        errors: Iterable[Errors] = (),
        pressures: Callable[[], Pressures] = Pressures,
        network: Network | None = None,
        chance: random.Random | None = None,
    ) -> None:
        chance = chance or random.Random()  # noqa: S311 - spreads load, guards nothing
        self.profile = profile
        self.view = NodeView(profile.name)
        readiness = Readiness(gate, errors)
        observer = NodeObserver(
            profile=profile,
            client=client,
            gate=gate,
            readiness=readiness,
            pressures=pressures,
            network=network,
        )
        self._api = api
        self._reporter = NodeReporter(
            profile=profile,
            view=self.view,
            api=api,
            heartbeat=heartbeat,
            observe=observer.observe,
            recorder=recorder,
            clock=clock,
            chance=chance,
        )
        readiness.add_listener(self._reporter.wake)
        self._lease = NodeLease(
            api=heartbeat,
            view=self.view,
            clock=clock,
            seconds=profile.lease_seconds,
            chance=chance,
        )

    def wake(self) -> None:
        """Look at the node now: something that its status tells of has changed."""
        self._reporter.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep node and lease for ever; reports started once the node is known."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.view.watch, self._api)
            nursery.start_soon(self._reporter.run)
            nursery.start_soon(self._lease.run)
            await self.view.wait_known()
            task_status.started()
