"""What must be true of the volumes of a CSI driver, whatever goes wrong with agent and driver.

A volume is staged while it is attached, and published while it is staged; containers run between
publishing and unpublishing; each call that was answered well is undone before it is made again; and
a volume is detached, because the Node does not name it, only after it was unstaged.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import trio
from attrs import define, field

from tests.simulation.mounts import MountTable
from tests.simulation.node import NODE, Node
from tests.simulation.record import Kind, Life, Record
from tests.simulation.shapes import CSI_DRIVER
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.k8s import NODES, PODS, TERMINAL_PHASES
from trio_kubelet.volumes.csi_records import PLUGIN, RECORD, VolumeKey
from trio_kubelet.volumes.folders import plugin_folder

_FOLDER = plugin_folder(PLUGIN)


@define(eq=False)
class VolumeRules:
    """Watches the driver of one node, which tells of each call just before its effect.

    `violated` is called with the words of what must not be.
    """

    node: Node
    record: Record
    table: MountTable
    violated: Callable[..., None]
    _answers: dict[str, tuple[int, float]] = field(factory=dict)
    """By path: the agent that has a good answer, and since when; until the next call about it."""

    def __attrs_post_init__(self) -> None:
        self.table.on_unmount = self._unmounted

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Observer of the runtime's events: a container starts after its pod has all volumes."""
        uid = sandbox.config.metadata.uid
        wanted = self.record.wanted.get(uid)
        is_start = kind == Kind.CONTAINER_STARTED_EVENT and container_id != sandbox.id
        if wanted is None or not is_start:
            return
        for name in wanted.shape.csi_volumes:
            if self._target(uid, name) not in self.table.mounts:
                what = sandbox.containers[container_id].config.metadata.name
                self.violated(what, "of pod", uid, "started, and", name, "is not published")

    def on_stage(self, volume: str, path: str) -> None:
        """A volume is staged where it is attached, and not anew while containers use it."""
        self.record.note("driver stages", volume)
        if not Path(path).is_dir():
            self.violated("volume", volume, "is to be staged at", path, "where there is no folder")
        node = self.node.api.find(NODES, NODE)
        if node is not None and not any(
            each.name.endswith(f"^{volume}") for each in node.status.volumes_attached
        ):
            self.violated("volume", volume, "is staged, and is not attached")
        self._check_again("staged", volume, path, self._users(volume))

    def on_unstage(self, volume: str, path: str) -> None:
        """A volume is unstaged after it was unpublished for all pods."""
        self.record.note("driver unstages", volume)
        self._answers.pop(path, None)
        if users := self._users(volume):
            self.violated("volume", volume, "is unstaged, and published for", *users)

    def on_publish(self, volume: str, target: str, stage: str) -> None:
        """A volume is published while it is staged, and not anew under a container."""
        uid = _uid_of(target)
        self.record.note("driver publishes", volume, "for", uid)
        if stage and stage not in self.table.mounts:
            self.violated("volume", volume, "is published for", uid, "and is not staged")
        self._check_again("published", volume, target, [uid] if target in self.table.mounts else [])

    def on_unpublish(self, volume: str, target: str) -> None:
        """A volume is unpublished after the containers of its pod have ended."""
        uid = _uid_of(target)
        self.record.note("driver unpublishes", volume, "for", uid)
        self._answers.pop(target, None)
        if target in self.table.mounts and not Path(target).is_dir():
            self.violated("the mount of", volume, "for", uid, "was removed under the driver")
        for life in self._running(uid):
            self.violated("volume", volume, "is unpublished, and", life.name, "of", uid, "runs")

    def on_answer(self, path: str) -> None:
        """The agent has a good answer, unless it has been killed meanwhile."""
        self._answers[path] = self.node.lives, trio.current_time()

    def detached(self, volume: str) -> None:
        """The controller detaches a volume that the Node does not name as in use."""
        self.record.note("cluster detaches", volume)
        paths = [path for path, mount in self.table.mounts.items() if mount.volume == volume]
        if paths:
            self.violated("volume", volume, "is detached, and mounted at", *paths)

    def damage_record(self, chance: random.Random) -> None:
        """Cut off the record of a volume that is staged and published, if there is one.

        Where neither pod nor mount tells which volume it is, somebody would have to help.
        """
        staged = {m.volume for path, m in self.table.mounts.items() if not _is_in_pod(path)}
        targets = [
            path
            for path, mount in self.table.mounts.items()
            if _is_in_pod(path) and mount.volume in staged and path in self._answers
        ]
        records = [Path(path).parent / RECORD for path in targets]
        found = [each for each in records if each.is_file()]
        if found:
            record = chance.choice(found)
            self.record.note("world damages", record)
            record.write_bytes(record.read_bytes()[: chance.choice((0, 10))])

    def leftovers(self) -> Iterator[str]:
        """What is left of volumes of pods that do not need them any more."""
        node = self.node
        shown = {each.metadata.uid: each.status.phase for each in node.api.all(PODS)}
        here = [
            wanted.shape
            for uid, wanted in self.record.wanted.items()
            if not wanted.deleted and shown.get(uid) not in TERMINAL_PHASES
        ]
        targets = {self._target(shape.uid, name) for shape in here for name in shape.csi_volumes}
        handles = {f"handle-of-{claim}" for shape in here for claim in shape.claims}
        for path, mount in self.table.mounts.items():
            if _is_in_pod(path) and path not in targets:
                yield f"volume {mount.volume} is published for pod {_uid_of(path)}"
            elif not _is_in_pod(path) and mount.volume not in handles:
                yield f"volume {mount.volume} is staged, and no pod uses it"
        root = node.pod_folders.parent
        used = {VolumeKey(CSI_DRIVER, handle).digest for handle in handles}
        for stage in sorted((root / "plugins" / PLUGIN).glob("*/*/globalmount")):
            if stage.parent.name not in used:
                yield f"{stage} is left of a volume"
        shown_node = node.api.find(NODES, NODE)
        for name in shown_node.status.volumes_in_use if shown_node is not None else ():
            if name.partition("^")[2] not in handles:
                yield f"the Node says that volume {name} is in use"

    def _target(self, uid: str, name: str) -> str:
        return str(self.node.pod_folders / uid / "volumes" / _FOLDER / name / "mount")

    def _users(self, volume: str) -> list[str]:
        """The pods for which a persistent volume is published."""
        mounts = self.table.mounts.items()
        return [_uid_of(path) for path, m in mounts if m.volume == volume and _is_in_pod(path)]

    def _check_again(self, done: str, volume: str, path: str, users: list[str]) -> None:
        """Whether a call is made again without need: it was answered, and nothing was undone."""
        agent_life, since = self._answers.pop(path, (0, 0.0))
        if path not in self.table.mounts:
            return
        if agent_life == self.node.lives and trio.current_time() > since:
            self.violated("volume", volume, "is", done, "twice at", path)
        for life in (life for uid in users for life in self._running(uid)):
            self.violated("volume", volume, "is", done, "again under", life.name, "of", life.uid)

    def _running(self, uid: str) -> list[Life]:
        return [
            life
            for life in self.record.lives.get(uid, {}).values()
            if life.started_at is not None
            and life.ended_at is None
            and not life.removed
            and life.container.id not in self.record.lost
        ]

    def _unmounted(self, path: str) -> None:
        self.violated("the agent unmounts", path, "which its driver has mounted")


def _is_in_pod(path: str) -> bool:
    """Whether a mount is in a pod's folder, and not a stage."""
    return f"/{_FOLDER}/" in path


def _uid_of(target: str) -> str:
    """The UID of the pod in whose folder a path is."""
    return target.partition("/pods/")[2].partition("/")[0]
