"""Whose credentials pull an image, who may use it then, and what is recorded of it."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.image import ImageState
from tests.unit.runtime.image_nodes import PRIVATE, closed, node, pull_records, secret
from trio_kubelet.config.records import ImagePullSecret, ImagePullServiceAccount
from trio_kubelet.hollow import (
    CallFault,
    HollowRegistry,
    RemoteImage,
    ScriptedFaults,
)
from trio_kubelet.k8s import Pod, Secret
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.images.access import AccessCheck
from trio_kubelet.runtime.images.credentials import (
    Keyring,
    RegistryCredentials,
    joined,
    secret_keyring,
)
from trio_kubelet.runtime.images.manager import ImageError, stored_id
from trio_kubelet.runtime.images.pod_images import PodImages
from trio_kubelet.runtime.images.pull_record_files import file_name
from trio_kubelet.runtime.images.pull_records import PullRecords, ShownCredentials


async def test_the_nodes_credentials_are_tried_and_are_in_no_event(mock_clock: MockClock) -> None:
    private = HollowRegistry(
        images={"registry.test/a:1": RemoteImage(credentials=("me", "secret"))}
    )
    keyring = Keyring(
        {
            "registry.test/a": RegistryCredentials(username="me", password="wrong"),
            "registry.test": RegistryCredentials(username="me", password="secret"),
        }
    )
    async with node(registry=private, keyring=keyring) as at:
        assert (await at.ensure("registry.test/a:1")).id
        assert "secret" not in "".join(at.said())


@pytest.mark.parametrize("good", ["own", "shared"])
async def test_a_pods_own_credentials_are_tried_and_then_the_nodes(
    mock_clock: MockClock, good: str
) -> None:
    private = HollowRegistry(images={"registry.test/a:1": RemoteImage(credentials=("me", good))})
    own, shared = (
        Keyring({"registry.test": RegistryCredentials(username="me", password=password)})
        for password in ("own", "shared")
    )
    async with node(registry=private, keyring=shared, pod_keyring=own) as at:
        assert (await at.ensure("registry.test/a:1")).id


async def test_a_private_image_is_for_those_who_have_shown_their_secret(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    access = await pull_records(tmp_path)
    async with node(registry=closed(), access=access) as at:
        ours, theirs, wrong, copy = (
            evolve(at, images=evolve(at.images, pod_keyring=keyring), known=PodImages())
            for keyring in (
                shows(secret("good")),
                shows(),
                shows(secret("guessed", "other")),
                shows(secret("good", "copy")),
            )
        )
        await ours.ensure(PRIVATE, "IfNotPresent")
        assert at.said()[0].startswith("Pulling")
        for policy in ("IfNotPresent", "Never"):
            await ours.ensure(PRIVATE, policy)
            await copy.ensure(PRIVATE, policy)
            said = at.said()
            assert len(said) == 2
            assert all("can be accessed by the pod" in line for line in said)
        for stranger in (theirs, wrong):
            with pytest.raises(ImageError) as raised:
                await stranger.ensure(PRIVATE, "IfNotPresent", "first")
            assert raised.value.reason == "ErrImagePull"
            assert at.said()[0] == f'Pulling: Pulling image "{PRIVATE}"'
            with pytest.raises(ImageError) as raised:
                await stranger.ensure(PRIVATE, "Never", "second")
            message = f'Container image "{PRIVATE}" is not present with pull policy of Never'
            assert (raised.value.reason, raised.value.message) == ("ErrImageNeverPull", message)
            at.said()
        await ours.ensure(PRIVATE, "IfNotPresent")


async def test_an_image_that_the_node_may_pull_is_for_everybody(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    access = await pull_records(tmp_path)
    keyring = Keyring({"registry.test": RegistryCredentials(username="me", password="good")})
    async with node(registry=closed(), keyring=keyring, access=access) as at:
        await at.ensure(PRIVATE, "IfNotPresent")
        await at.ensure("busybox:1", "IfNotPresent")
        await at.ensure(PRIVATE, "Never", "second")
        await at.ensure("busybox:1", "Never", "third")
    async with node(present=(PRIVATE,), access=await pull_records(tmp_path)) as at:
        await at.ensure(PRIVATE, "Never")


async def test_the_same_login_in_several_secrets_is_tried_once(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    refused = RpcError(Code.UNKNOWN, "refused")
    registry = closed(failures=(refused,))
    async with node(registry=registry) as at:
        keyring = shows(secret("good"), secret("good", "copy"))
        images = evolve(at.images, pod_keyring=keyring)
        with pytest.raises(ImageError, match="refused"):
            await evolve(at, images=images).ensure(PRIVATE)


async def is_free(records: PullRecords, image: str) -> bool:
    """Whether a pod without secrets may use an image that nothing is recorded of."""

    async def no_secrets() -> Sequence[ImagePullSecret]:
        return ()

    async def no_accounts(_: object) -> Sequence[ImagePullServiceAccount]:
        return ()

    nothing = ShownCredentials(no_secrets, no_accounts)
    check = await records.check(image, cri.Image(id="sha256:unknown"), nothing)
    return check is not AccessCheck.MUST_AUTHENTICATE


@pytest.mark.parametrize(
    ("failure", "free"),
    [
        (RpcError(Code.UNKNOWN, "refused"), True),
        (RpcError(Code.NOT_FOUND, "no such image"), True),
        (RpcError(Code.UNAVAILABLE, "the runtime restarts"), False),
    ],
)
async def test_a_pull_that_may_have_worked_all_the_same_leaves_its_intent(
    mock_clock: MockClock, tmp_path: Path, failure: RpcError, free: bool
) -> None:
    access = await pull_records(tmp_path)
    image = RemoteImage(failures=(failure,))
    registry = HollowRegistry(images={"docker.io/library/busybox:1": image})
    async with node(registry=registry, access=access) as at:
        with pytest.raises(ImageError):
            await at.ensure("busybox:1")
        assert await is_free(access, "busybox:1") is free


async def test_a_pull_that_is_cancelled_leaves_its_intent(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    access = await pull_records(tmp_path)
    async with node(registry=HollowRegistry(pull_seconds=1000), access=access) as at:
        async with trio.open_nursery() as nursery:
            pulling = trio.Event()
            at.images.recorder.on_event.add(lambda event: pulling.set())
            nursery.start_soon(at.ensure, "busybox:1")
            await pulling.wait()
            nursery.cancel_scope.cancel()
        assert at.known.state("c") is ImageState.UNCHECKED
        assert not await is_free(await pull_records(tmp_path), "busybox:1")


DIGEST_ANSWER = f"registry.test/private@sha256:{'2' * 64}"


@pytest.mark.parametrize(
    ("answer", "found", "expected"),
    [
        (f"sha256:{'1' * 64}", None, f"sha256:{'1' * 64}"),
        (f"sha256:{'1' * 64}", cri.Image(id="another"), f"sha256:{'1' * 64}"),
        ("1" * 64, None, "1" * 64),
        (DIGEST_ANSWER, cri.Image(id="1" * 64, repo_digests=[DIGEST_ANSWER]), "1" * 64),
        (DIGEST_ANSWER, cri.Image(id="1" * 64), "1" * 64),
        (DIGEST_ANSWER, None, None),
        ("registry.test/private:1", None, None),
        ("", None, None),
    ],
)
def test_a_pull_is_recorded_by_the_id_of_its_image(
    answer: str, found: cri.Image | None, expected: str | None
) -> None:
    assert stored_id(answer, found) == expected


async def test_a_pull_that_is_answered_with_a_digest_and_not_seen_gives_nobody_the_image(
    mock_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = await pull_records(tmp_path)
    async with node(registry=closed(), access=access) as at:
        store = at.runtime.images
        pull = store.pull

        async def answer_with_digest(request: cri.PullImageRequest) -> cri.PullImageResponse:
            stored = store.by_id((await pull(request)).image_ref)
            assert stored is not None
            return cri.PullImageResponse(image_ref=stored.digests[0])

        monkeypatch.setattr(store, "pull", answer_with_digest)
        failure = CallFault(error=RpcError(Code.UNKNOWN, "no answer"))
        at.runtime.faults = ScriptedFaults([("ImageStatus", CallFault()), ("ImageStatus", failure)])
        ours = evolve(at, images=evolve(at.images, pod_keyring=shows(secret("good"))))
        stranger = evolve(at, known=PodImages())
        with pytest.raises(ImageError, match="ImageInspectError"):
            await ours.ensure(PRIVATE, "IfNotPresent")
        assert store.resolve(PRIVATE) is not None, "the pull has brought it"
        with pytest.raises(ImageError, match="ErrImageNeverPull"):
            await stranger.ensure(PRIVATE, "Never")
        await access.tidy(at.images.client)
        with pytest.raises(ImageError, match="ErrImageNeverPull"):
            await stranger.ensure(PRIVATE, "Never")
        for policy in ("IfNotPresent", "Never"):
            await ours.ensure(PRIVATE, policy)
        with pytest.raises(ImageError, match="ErrImageNeverPull"):
            await stranger.ensure(PRIVATE, "Never")


async def test_a_pull_that_cannot_be_recorded_is_not_made(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    access = await pull_records(tmp_path)
    blocker = tmp_path / "image_manager" / "pulling" / f".{file_name('busybox:1')}.new"
    blocker.mkdir()
    async with node(access=access) as at:
        with pytest.raises(ImageError) as raised:
            await at.ensure("busybox:1")
        assert raised.value.reason == "ErrImagePull"
        assert raised.value.message.startswith(
            'Failed to record image pull intent for container image "busybox:1": '
        )
        assert at.said() == ["Failed: Error: ErrImagePull"]
        assert at.runtime.images.resolve("busybox:1") is None
        blocker.rmdir()
        mock_clock.jump(10)
        await at.ensure("busybox:1")


def shows(*secrets: Secret) -> Callable[[Pod], Awaitable[Keyring]]:
    async def keyring(pod: Pod) -> Keyring:
        return joined(map(secret_keyring, secrets))

    return keyring
