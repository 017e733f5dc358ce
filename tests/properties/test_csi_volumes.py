"""A driver that fails, hangs and loses answers, pods that come and go, an agent that is killed.

Whatever happens: a volume is staged before it is published, published before a container may
start, given back only after the pod has ended, unstaged only when no pod has it; and in the end
nothing is left.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import trio
import trio.testing
from attrs import define, field, frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.csi_driver import NAME, STAGES
from tests.file_work import in_place
from tests.unit.volumes.csi_scene import NOT_ATTACHED, Scene, claiming, describe
from trio_kubelet.csi.driver import DriverClient, NodeInfo
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.volumes import csi_stages, csi_volume
from trio_kubelet.volumes.plugin import VolumeBusy, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

UIDS = ("a", "b")
CALM_SECONDS = 600.0
"""Longer than the longest back-off, and the deadline of a call that hangs."""

FAULTS = ("", "", "", "fails", "fails after", "hangs", "hangs after")
DEEDS = ("start", "start", "end", "end", "kill", "driver goes", "driver comes")


@frozen
class Step:
    """Something that happens to a pod or the agent, and what it has for it in seconds."""

    does: str
    uid: str
    seconds: float


STEPS = st.lists(
    st.builds(
        Step,
        does=st.sampled_from(DEEDS),
        uid=st.sampled_from(UIDS),
        seconds=st.sampled_from((0.0, 1.0, 7.0, 200.0)),
    ),
    min_size=3,
    max_size=12,
)


@define
class Driver(csi.NodeBase):
    """A driver whose mounts are a set of paths; `faults` are those of its next calls."""

    faults: list[str]
    staged: set[str] = field(factory=set)
    published: dict[str, str] = field(factory=dict)
    """The stage that each target was published from."""
    running: set[str] = field(factory=set)
    """The UIDs of pods whose containers may run."""
    wrongs: list[str] = field(factory=list)

    def is_mounted(self, path: Path) -> bool:
        return str(path) in self.staged or str(path) in self.published

    async def node_get_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        await trio.lowlevel.checkpoint()
        stages = csi.NodeServiceCapability(rpc=csi.NodeServiceCapabilityRpc(type=STAGES))
        return csi.NodeGetCapabilitiesResponse(capabilities=[stages])

    async def node_stage_volume(
        self, request: csi.NodeStageVolumeRequest
    ) -> csi.NodeStageVolumeResponse:
        await self._misbehave("before")
        self.staged.add(request.staging_target_path)
        await self._misbehave("after")
        return csi.NodeStageVolumeResponse()

    async def node_unstage_volume(
        self, request: csi.NodeUnstageVolumeRequest
    ) -> csi.NodeUnstageVolumeResponse:
        await self._misbehave("before")
        path = request.staging_target_path
        if path in self.published.values():
            self.wrongs.append("unstaged while a pod has it")
        self.staged.discard(path)
        await self._misbehave("after")
        return csi.NodeUnstageVolumeResponse()

    async def node_publish_volume(
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        await self._misbehave("before")
        if request.staging_target_path not in self.staged:
            self.wrongs.append("published though it is not staged")
        if request.target_path in self.published and self._is_running(request.target_path):
            self.wrongs.append("published anew under a container that runs")
        self.published[request.target_path] = request.staging_target_path
        await self._misbehave("after")
        return csi.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        await self._misbehave("before")
        if self._is_running(request.target_path):
            self.wrongs.append("unpublished under a container that runs")
        self.published.pop(request.target_path, None)
        await self._misbehave("after")
        return csi.NodeUnpublishVolumeResponse()

    def _is_running(self, target: str) -> bool:
        return any(f"/pods/{uid}/" in target for uid in self.running)

    async def _misbehave(self, when: str) -> None:
        await trio.lowlevel.checkpoint()
        fault = self.faults[0] if self.faults else ""
        if fault.endswith("after") != (when == "after"):
            return
        if self.faults:
            self.faults.pop(0)
        if fault.startswith("fails"):
            raise RpcError(Code.INTERNAL, "no")
        if fault.startswith("hangs"):
            await trio.sleep_forever()


@define
class Life:
    """The agent and its driver, which come and go."""

    scene: Scene
    model: Driver
    volumes: Volumes = field(init=False)
    agent: trio.CancelScope = field(init=False)
    registered: ExitStack = field(factory=ExitStack)

    async def begin(self) -> None:
        """Start an agent."""
        self.agent = trio.CancelScope()
        self.volumes = self.scene.agent()
        staged, scope = self.scene.staged, self.agent

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await staged.run(task_status=task_status)

        await self.scene.nursery.start(run)

    async def kill(self) -> None:
        """Have another agent in the place of the one that is there."""
        self.agent.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await self.begin()

    def driver_comes(self) -> None:
        self.registered.close()
        client = DriverClient(name=NAME, version=(1, 12), transport=InProcess(self.model))
        node = NodeInfo(node_id="n")
        self.registered.enter_context(self.scene.drivers.registered(client, node))

    async def start(self, uid: str) -> None:
        """Prepare a pod; its containers start if that goes well."""
        try:
            mounted = await self.volumes.prepare(claiming(uid))
        except VolumesNotReady:
            return
        if mounted["v"].host_path not in self.model.published:
            self.model.wrongs.append("a container starts before its volume is published")
        self.model.running.add(uid)

    async def end(self, uid: str) -> None:
        """Stop a pod's containers and give its volumes back, if that goes well."""
        self.model.running.discard(uid)
        try:
            await self.volumes.tear_down(uid)
        except VolumeBusy:
            return

    async def step(self, step: Step) -> None:
        """Do it; what a pod's task does is cut off when its time is over."""
        with trio.move_on_after(step.seconds):
            if step.does == "start":
                await self.start(step.uid)
            elif step.does == "end":
                await self.end(step.uid)
        if step.does == "kill":
            await self.kill()
        elif step.does == "driver goes":
            self.registered.close()
        elif step.does == "driver comes":
            self.driver_comes()
        await trio.sleep(1.0)

    async def until_all_is_undone(self) -> None:
        """End all pods with a driver that does what it is asked for."""
        self.model.faults.clear()
        self.driver_comes()
        for uid in UIDS:
            await self.end(uid)
        await trio.sleep(CALM_SECONDS)
        for uid in UIDS:
            self.model.running.discard(uid)
            await self.volumes.tear_down(uid)
        await trio.sleep(CALM_SECONDS)


def left(root: Path) -> list[Path]:
    """Return the files that are left of volumes on the disk."""
    folders = (root / "plugins", root / "csi_calls")
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


async def live(root: Path, model: Driver, steps: Sequence[Step]) -> None:
    async with trio.open_nursery() as nursery:
        life = Life(Scene(root, nursery), model)
        describe(life.scene, NOT_ATTACHED)
        life.driver_comes()
        await life.begin()
        for step in steps:
            await life.step(step)
        await life.until_all_is_undone()
        assert life.scene.staged.in_use() == ()
        nursery.cancel_scope.cancel()
    assert left(root) == []


NOT_PUBLISHED = [Step("start", "a", 7.0), Step("kill", "a", 0.0), Step("start", "a", 7.0)]
"""Steps after whose first call of NodePublishVolume, if that fails, there is a record alone."""


@settings(max_examples=200)
@example(["", "fails"], NOT_PUBLISHED)
@given(st.lists(st.sampled_from(FAULTS), max_size=12), STEPS)
def test_volumes_are_staged_published_and_undone_in_order_whatever_goes_wrong(
    faults: list[str], steps: list[Step]
) -> None:
    model = Driver(faults)
    with tempfile.TemporaryDirectory() as folder, in_place(), ExitStack() as patches:
        for module in (csi_stages, csi_volume):
            patches.enter_context(mock.patch.object(module, "is_mounted", model.is_mounted))
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(live, Path(folder), model, steps, clock=clock)
    assert model.wrongs == []
    assert (model.staged, model.published) == (set(), {})
