"""What must be true of the devices of a plugin, whatever goes wrong with agent and plugin.

No device is with two running containers, each container has the number that it asks for, out of
those that there are, and the same ones for as long as its pod lives. A pod is not rejected for want
of devices, of which there are enough for all: it waits for its plugin.
"""

from collections.abc import Callable, Collection, Iterator

from attrs import define, field

from tests.apiserver.storage import Change
from tests.simulation.node import NODE, Node
from tests.simulation.record import Kind, Life, Record
from tests.simulation.shapes import DEVICE
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.k8s import NODES, PODS

DEVICES = tuple(f"device-{number:02}" for number in range(60))
"""More than all pods of a day can have, even while some are in trouble."""
VARIABLE = "DEVICES"
REJECTED = ("UnexpectedAdmissionError", f"OutOf{DEVICE}")


@define(eq=False)
class DeviceRules:
    """Watches the devices of one node. `violated` is called with the words of what must not be."""

    node: Node
    record: Record
    violated: Callable[..., None]
    _given: dict[tuple[str, str], frozenset[str]] = field(factory=dict)
    """The devices of each container, by the UID of its pod and its name."""

    def on_allocate(self, ids: Collection[str]) -> None:
        """Only devices that there are can be allocated."""
        self.record.note("plugin allocates", *ids)
        if unknown := set(ids) - set(DEVICES):
            self.violated("devices are allocated that do not exist:", *sorted(unknown))

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Observer of the runtime's events: what a container has that starts."""
        uid = sandbox.config.metadata.uid
        wanted = self.record.wanted.get(uid)
        is_start = kind == Kind.CONTAINER_STARTED_EVENT and container_id != sandbox.id
        if wanted is None or not is_start:
            return
        life = self.record.lives[uid][container_id]
        ids = _devices_of(life)
        if len(ids) != wanted.shape.devices.get(life.name, 0):
            self.violated(life.name, "of pod", uid, "started with the devices", *sorted(ids))
        if self._given.setdefault((uid, life.name), ids) != ids:
            before = sorted(self._given[uid, life.name])
            self.violated(life.name, "of pod", uid, "has", *sorted(ids), "and had", *before)
        for other in self._running():
            if other is not life and (shared := ids & _devices_of(other)):
                self.violated(
                    life.name, "of pod", uid, "and", other.name, "of", other.uid, "have", *shared
                )

    def on_write(self, change: Change) -> None:
        """Observer of the API server's storage: no pod is rejected for want of devices."""
        if change.resource == (PODS.group, PODS.resource) and change.after is not None:
            status = change.after.get("status", {})
            if status.get("reason") in REJECTED:
                name = change.after["metadata"]["name"]
                self.violated("pod", name, "is rejected:", status.get("message"))

    def wrong_amounts(self) -> Iterator[str]:
        """What the Node has of devices, when all are there and healthy."""
        node = self.node.api.find(NODES, NODE)
        if node is None:
            return
        status = node.status
        amounts = [
            each[DEVICE].value if DEVICE in each else 0
            for each in (status.capacity, status.allocatable)
        ]
        if amounts != [len(DEVICES)] * 2:
            yield f"the Node has {amounts} devices, there are {len(DEVICES)}"

    def _running(self) -> Iterator[Life]:
        for lives in self.record.lives.values():
            for life in lives.values():
                if life.started_at is not None and life.ended_at is None and not life.removed:
                    yield life


def _devices_of(life: Life) -> frozenset[str]:
    for variable in life.container.config.envs:
        if variable.key == VARIABLE:
            return frozenset(str(variable.value, "ascii").split(","))
    return frozenset()
