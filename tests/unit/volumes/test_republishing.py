"""Persistent volumes of drivers that want to be asked again, with tokens and groups."""

from collections.abc import AsyncIterator

import orjson
import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from lab.csi_driver import STAGES
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import NOT_ATTACHED, Scene, calls, claiming, describe
from trio_kubelet.k8s import CSITokenRequest, ObjectMeta, PodSecurityContext, ServiceAccount
from trio_kubelet.k8s.kinds import SERVICE_ACCOUNTS
from trio_kubelet.rpc.stubs.csi import v1 as csi

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
        volumes = scene.agent()
        await scene.nursery.start(scene.staged.run)
        await volumes.prepare(scene.pod)
        await trio.sleep(600)
        await volumes.prepare(scene.pod)
        assert len(calls(driver, "NodeStageVolume")) == 1
        published = calls(driver, "NodePublishVolume")
    told = [call["secrets" if in_secrets else "context"][TOKENS] for call in published]
    first, second = (orjson.loads(each)["vault"] for each in told)
    assert first["expirationTimestamp"] < second["expirationTimestamp"]
    assert first["token"] != second["token"]
    assert all((TOKENS in call["context"]) != in_secrets for call in published)
    assert published[0]["target"] == published[1]["target"]


async def test_a_claimed_volume_that_cannot_be_published_again_stays_and_says_so(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene, evolve(NOT_ATTACHED, requires_republish=True))
    with scene.driver_in_process(capabilities=(STAGES,)) as driver:
        volumes = scene.agent()
        await scene.nursery.start(scene.staged.run)
        before = (await volumes.prepare(scene.pod))["v"]
        driver.set_faults(NodePublishVolume={"fail": "INTERNAL: no"})
        after = (await volumes.prepare(scene.pod))["v"]
        words = 'MountVolume.SetUp failed for volume "pv" : rpc error: code = Internal desc = no'
        assert str(after.outdated) == words
        assert after.host_path == before.host_path
        assert driver.published() == [before.host_path]


async def test_a_driver_that_gives_files_to_groups_is_told_the_group_of_the_pod(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    pod = claiming()
    security = PodSecurityContext(fs_group=2000)
    pod = evolve(pod, spec=evolve(pod.spec, security_context=security))
    with scene.driver_in_process(capabilities=(STAGES, GIVES_TO_GROUPS)) as driver:
        volumes = scene.agent()
        await scene.nursery.start(scene.staged.run)
        await volumes.prepare(pod)
        (stage,) = calls(driver, "NodeStageVolume")
        (publish,) = calls(driver, "NodePublishVolume")
    assert (stage["group"], publish["group"]) == ("2000", "2000")
