"""The cluster's side of the days' resource claims: who may use them.

Claims are allocated for good; a pod may use one some time after it came, as the scheduler says.
"""

import random

import trio
from attrs import evolve

from tests.apiserver.server import ApiServer
from tests.apiserver.storage import Change
from tests.simulation.shapes import DRA_DRIVER, NAMESPACE, RESOURCE_CLAIM_NAMES
from trio_kubelet.k8s import (
    PODS,
    RESOURCE_CLAIMS,
    TERMINAL_PHASES,
    AllocatedClaim,
    AllocatedClaimStatus,
    AllocatedDevice,
    AllocatedDevices,
    ClaimAllocation,
    ClaimConsumer,
    ObjectMeta,
)

LONGEST_LAG_SECONDS = 3.0


class ClaimController:
    """Reserves claims for the pods that name them, and takes that back when they have ended."""

    def __init__(self, api: ApiServer, chance: random.Random) -> None:
        self._api = api
        self._chance = chance
        self._changed = trio.Event()
        api.storage.observers.append(self._on_write)

    def create_all(self) -> None:
        """Create the claims."""
        devices = AllocatedDevices(results=(AllocatedDevice(driver=DRA_DRIVER),))
        for name in RESOURCE_CLAIM_NAMES:
            self._api.create(
                RESOURCE_CLAIMS,
                AllocatedClaim(
                    metadata=ObjectMeta(name=name, namespace=NAMESPACE),
                    status=AllocatedClaimStatus(allocation=ClaimAllocation(devices=devices)),
                ),
            )

    async def run(self) -> None:
        """Reserve after each change of a pod."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await trio.sleep(self._chance.uniform(0, LONGEST_LAG_SECONDS))
            self._reserve()

    def _on_write(self, change: Change) -> None:
        if change.resource == (PODS.group, PODS.resource):
            self._changed.set()

    def _reserve(self) -> None:
        pods = [pod for pod in self._api.all(PODS) if pod.status.phase not in TERMINAL_PHASES]
        for claim in self._api.all(RESOURCE_CLAIMS):
            name = claim.metadata.name
            users = tuple(
                ClaimConsumer(resource="pods", uid=pod.metadata.uid)
                for pod in pods
                if any(each.resource_claim_name == name for each in pod.spec.resource_claims)
            )
            if [each.uid for each in users] != [each.uid for each in claim.status.reserved_for]:
                status = evolve(claim.status, reserved_for=users)
                self._api.update(RESOURCE_CLAIMS, evolve(claim, status=status))
