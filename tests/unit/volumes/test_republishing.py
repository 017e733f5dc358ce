"""Volumes of drivers that want to be asked again, with tokens of that time, beside their pods."""

from collections.abc import AsyncIterator

import orjson
import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from lab.csi_driver import NAME, STAGES
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import (
    EPHEMERAL,
    NOT_ATTACHED,
    UID,
    Scene,
    a_pod,
    an_agent,
    calls,
    claiming,
    describe,
)
from trio_kubelet.k8s import (
    CSI_DRIVERS,
    CSITokenRequest,
    ObjectMeta,
    PodSecurityContext,
    ServiceAccount,
)
from trio_kubelet.k8s.kinds import SERVICE_ACCOUNTS
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.volumes import csi_volume

LOOK_SECONDS = 60.0
"""The pause between two times, of the scene's agents."""
GIVES_TO_GROUPS = csi.NodeServiceCapabilityRpcType.VOLUME_MOUNT_GROUP
TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
WANTS_TOKENS = evolve(
    NOT_ATTACHED,
    requires_republish=True,
    token_requests=(CSITokenRequest(audience="vault", expiration_seconds=600),),
)


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery, pod=claiming())
        yield scene
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("in_secrets", [False, True])
async def test_a_claimed_volume_is_published_again_with_the_token_of_that_time(
    autojump_clock: MockClock, scene: Scene, in_secrets: bool
) -> None:
    account = ServiceAccount(metadata=ObjectMeta(name="sa", namespace="default"))
    scene.server.create(SERVICE_ACCOUNTS, account)
    describe(scene, evolve(WANTS_TOKENS, service_account_token_in_secrets=in_secrets))
    with scene.driver_in_process(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(scene.pod)
        await trio.sleep(600)
        assert len(calls(driver, "NodeStageVolume")) == 1
        published = calls(driver, "NodePublishVolume")
    told = [call["secrets" if in_secrets else "context"][TOKENS] for call in published]
    first, second = (orjson.loads(told[at])["vault"] for at in (0, -1))
    assert first["expirationTimestamp"] < second["expirationTimestamp"]
    assert first["token"] != second["token"]
    assert all((TOKENS in call["context"]) != in_secrets for call in published)
    assert published[0]["target"] == published[1]["target"]


async def test_a_volume_that_cannot_be_published_again_stays_and_an_event_says_so(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene, evolve(NOT_ATTACHED, requires_republish=True))
    with scene.driver_in_process(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(scene.pod)
        driver.set_faults(NodePublishVolume={"fail": "INTERNAL: no"})
        await trio.sleep(LOOK_SECONDS + 1)
        await volumes.prepare(scene.pod)
        words = 'MountVolume.SetUp failed for volume "pv" : rpc error: code = Internal desc = no'
        assert [(each.reason, each.message) for each in scene.events] == [("FailedMount", words)]
        driver.set_faults()
        await trio.sleep(LOOK_SECONDS)
        assert len(calls(driver, "NodePublishVolume")) == 2


async def test_a_driver_that_hangs_holds_up_neither_a_sync_nor_the_end_of_the_pod(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.pod = a_pod()
    scene.describe(evolve(EPHEMERAL, requires_republish=True))
    with scene.driver_in_process() as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(scene.pod)
        driver.set_faults(NodePublishVolume={"hang": True})
        await trio.sleep(LOOK_SECONDS + 1)
        assert len(calls(driver, "NodePublishVolume", "begun")) == 2
        with trio.fail_after(1):
            await volumes.prepare(scene.pod)
            await volumes.tear_down(UID)
        await trio.sleep(10 * LOOK_SECONDS)
        assert len(calls(driver, "NodePublishVolume", "begun")) == 2
        assert driver.published() == []


async def test_an_agent_that_starts_has_a_volume_published_again_at_once(
    autojump_clock: MockClock, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_volume, "is_mounted", lambda _: True)
    scene.pod = a_pod()
    scene.describe(evolve(EPHEMERAL, requires_republish=True))
    with scene.driver_in_process() as driver:
        await (await an_agent(scene)).prepare(scene.pod)
        await (await an_agent(scene)).prepare(scene.pod)
        await trio.sleep(1)
        assert len(calls(driver, "NodePublishVolume")) == 2


async def test_it_ends_when_the_cluster_does_not_want_it_any_more(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.pod = a_pod()
    scene.describe(evolve(EPHEMERAL, requires_republish=True))
    with scene.driver_in_process() as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(scene.pod)
        scene.server.delete(CSI_DRIVERS, NAME)
        await trio.sleep(1)
        await volumes.prepare(scene.pod)
        await trio.sleep(10 * LOOK_SECONDS)
        assert len(calls(driver, "NodePublishVolume")) == 1


async def test_a_driver_that_gives_files_to_groups_is_told_the_group_of_the_pod(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    pod = claiming()
    security = PodSecurityContext(fs_group=2000)
    pod = evolve(pod, spec=evolve(pod.spec, security_context=security))
    with scene.driver_in_process(capabilities=(STAGES, GIVES_TO_GROUPS)) as driver:
        volumes = await an_agent(scene)
        await volumes.prepare(pod)
        (stage,) = calls(driver, "NodeStageVolume")
        (publish,) = calls(driver, "NodePublishVolume")
    assert (stage["group"], publish["group"]) == ("2000", "2000")
