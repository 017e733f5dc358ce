"""The owners of a day's pods: they create, change, replace and delete them, and what pods share."""

import json
import random
from collections.abc import Callable

import trio
from attrs import evolve

from tests.simulation.node import NODE, Node
from tests.simulation.pods import PodMaker
from tests.simulation.policies import Policies, asking_for_cpus
from tests.simulation.record import Record, Wanted
from tests.simulation.shapes import Fate, Shape
from tests.simulation.shared import SharedObjects
from trio_kubelet.k8s import PODS, Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults

MOST_PODS = 14


class Owners:
    """Owners of pods, each a method for what they do. `start_soon` runs what takes time."""

    def __init__(
        self,
        node: Node,
        record: Record,
        chance: random.Random,
        start_soon: Callable[..., None],
        policies: Policies,
    ) -> None:
        self._node = node
        self._record = record
        self._chance = chance
        self._start_soon = start_soon
        self._pods = PodMaker(chance, str(node.root / "host" / "data"), node.knows_devices)
        self._policies = policies
        # Of its own, as that of claims.
        self._cpu_chance = random.Random(str(chance.getstate()))
        self._shared = SharedObjects(node.api, chance)
        self._gone: list[Wanted] = []

    def begin(self) -> None:
        """Create what pods share, and the first pods."""
        self._shared.create_all()
        for _ in range(self._chance.randint(2, 6)):
            self.add()

    def add(self) -> None:
        """Create a pod, if there are not too many."""
        if len(self._record.wanted) < MOST_PODS:
            is_static = self._chance.random() < 0.4
            shape = self._pods.make(is_static=is_static)
            if self._policies.gives_away:
                amounts = self._policies.cpu_amounts
                shape = asking_for_cpus(shape, amounts, self._cpu_chance)
            self._want(shape, is_static=is_static)

    def _want(self, shape: Shape, *, is_static: bool) -> None:
        if not is_static:
            shape = shape.with_uid(self._node.api.create(PODS, _bound(shape)).metadata.uid)
        now = trio.current_time()
        wanted = Wanted(shape=shape, is_static=is_static, made_at=now, touched_at=now)
        self._record.wanted[shape.uid] = wanted
        self._record.note("wanted", shape.uid, shape.name, "static" if is_static else "api")
        if is_static:
            self._node.write_manifest(shape.name, json.dumps(shape.document))

    def remove(self) -> None:
        """Delete a pod."""
        if wanted := self._any_pod():
            self._drop(wanted)

    def replace_evicted(self) -> None:
        """Delete a pod that was evicted or kept away, and create another one, as controllers do."""
        gone = {*self._record.evictions, *self._record.kept_away}
        pods = [
            each for uid, each in self._record.wanted.items() if uid in gone and not each.deleted
        ]
        if pods:
            self._drop(self._chance.choice(pods))
            self.add()

    def _drop(self, wanted: Wanted) -> None:
        uid = wanted.shape.uid
        wanted.deleted = True
        if wanted.is_static:
            self._gone.append(wanted)
            (self._node.manifests / f"{wanted.shape.name}.json").unlink()
            self._forget(uid)
        else:
            # At once, whatever the node has to say; as the pod itself says; or in some seconds.
            grace = self._chance.choice((0, None, 1, 3, 30))
            wanted.forced = True
            self._node.api.delete(PODS, wanted.shape.name, grace_seconds=grace)
            wanted.forced = self._node.api.find(PODS, wanted.shape.name) is None

    def _forget(self, uid: str) -> None:
        self._record.wanted.pop(uid, None)

    def change(self) -> None:
        """Change a pod in place: the UID stays."""
        if wanted := self._any_pod():
            self._update(wanted, self._pods.changed(wanted.shape))

    def resize(self) -> None:
        """Have a pod of the API ask for other amounts, some of them more than the node has.

        A pod that was not admitted yet would not be with those.
        """
        pods = [
            each
            for each in self._record.wanted.values()
            if each.shape.amounts and not (each.deleted or each.is_static)
        ]
        if pods:
            wanted = self._chance.choice(pods)
            # Limits of the pod as a whole go before what its containers ask for.
            refused = not wanted.shape.has_limits and self._node.has_allocated(wanted.shape.uid)
            self._update(wanted, self._pods.resized(wanted.shape, may_be_refused=refused))

    def _update(self, wanted: Wanted, shape: Shape) -> None:
        before, wanted.shape = wanted.shape, shape
        wanted.former.append(before)
        wanted.touched_at = trio.current_time()
        if before.images != wanted.shape.images and before.fate is not Fate.RUNS:
            wanted.harmed = True  # A job that is cut off ends otherwise.
        if wanted.is_static:
            self._node.write_manifest(wanted.shape.name, json.dumps(wanted.shape.document))
            return
        known = self._node.api.get(PODS, wanted.shape.name)
        pod = _bound(wanted.shape)
        labels = evolve(known.metadata, labels=pod.metadata.labels)
        self._node.api.update(PODS, evolve(known, metadata=labels, spec=pod.spec))

    def replace(self) -> None:
        """Put a pod with the same name and another UID in the place of one."""
        wanted = self._any_pod()
        if wanted is not None and wanted.is_static:
            self._gone.append(wanted)
            self._forget(wanted.shape.uid)
            self._want(self._pods.renamed(wanted.shape), is_static=True)

    def bring_back(self) -> None:
        """Put a manifest back that was removed: its pod comes back under its UID."""
        gone = [each for each in self._gone if each.shape.uid not in self._record.wanted]
        taken = {each.shape.name for each in self._record.wanted.values()}
        gone = [each for each in gone if each.shape.name not in taken]
        if gone and len(self._record.wanted) < MOST_PODS:
            again = self._chance.choice(gone)
            self._gone.remove(again)
            self._want(again.shape, is_static=True)
            # An agent that was away in between never noticed: to it, it is the same pod.
            back = self._record.wanted[again.shape.uid]
            back.harmed, back.made_at = again.harmed, again.made_at

    def spoil_manifest(self) -> None:
        """Leave a half-written manifest for a while: its pod runs on.

        Not while the agent had no room to keep what the manifest said.
        """
        wanted = self._any_pod()
        if wanted is not None and wanted.is_static:
            if self._record.lives.get(wanted.shape.uid) and not self._node.keeps(wanted.shape.uid):
                return
            text = json.dumps(wanted.shape.document)
            self._node.write_manifest(wanted.shape.name, text[: len(text) // 2])
            self._start_soon(self._mend, wanted)

    async def _mend(self, wanted: Wanted) -> None:
        await trio.sleep(self._chance.uniform(0, 60))
        if self._record.wanted.get(wanted.shape.uid) is wanted:
            self._node.write_manifest(wanted.shape.name, json.dumps(wanted.shape.document))

    def change_shared(self) -> None:
        """Change a config map or secret."""
        self._shared.change(self._shared.any_name())

    def lose_shared(self) -> None:
        """Take an object away for a while: who has it keeps it, who needs it waits."""
        name = self._shared.any_name()
        if self._shared.take_away(name):
            self._start_soon(self._return_shared, name)

    async def _return_shared(self, name: str) -> None:
        await trio.sleep(self._chance.uniform(0, 100))
        self._shared.create(name)

    def _any_pod(self) -> Wanted | None:
        pods = [each for each in self._record.wanted.values() if not each.deleted]
        return self._chance.choice(pods) if pods else None


def _bound(shape: Shape) -> Pod:
    """The pod as its owner creates it, bound to the node."""
    pod = with_defaults(decode(Pod, shape.document))
    return evolve(pod, spec=evolve(pod.spec, node_name=NODE))
