"""The way to a container's image, on the hollow runtime: what is pulled, when, and what is said."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve, frozen
from trio.testing import MockClock

from state_machines.image import ImageState
from trio_kubelet.clock import TrioClock
from trio_kubelet.config.records import ImagePullSecret
from trio_kubelet.hollow import (
    CallFault,
    HollowOptions,
    HollowRegistry,
    HollowRuntime,
    RemoteImage,
    ScriptedFaults,
    open_hollow_runtime,
)
from trio_kubelet.k8s import Container, ObjectMeta, Pod, Secret
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.images.access import Verification
from trio_kubelet.runtime.images.credentials import Keyring, RegistryCredentials, keyring_of
from trio_kubelet.runtime.images.manager import ImageError, ImageManager, PullRate, stored_id
from trio_kubelet.runtime.images.pod_images import PodImages
from trio_kubelet.runtime.images.pull_record_files import file_name
from trio_kubelet.runtime.images.pull_records import ImageAccess, PullRecords, UnverifiedAccess
from trio_kubelet.telemetry import EventRecorder, Journal, RecordedEvent

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u"))
NOT_FOUND = RpcError(Code.NOT_FOUND, "no such image")
SANDBOX = cri.PodSandboxConfig()


@frozen(kw_only=True)
class Node:
    images: ImageManager
    runtime: HollowRuntime
    known: PodImages
    events: list[RecordedEvent]

    async def ensure(self, image: str, policy: str = "", name: str = "c") -> cri.Image:
        container = Container(name=name, image=image, image_pull_policy=policy)
        return await self.images.ensure(POD, container, self.known, SANDBOX)

    def said(self) -> list[str]:
        said = [f"{event.reason}: {event.message}" for event in self.events]
        self.events.clear()
        return said


PRIVATE = "registry.test/private:1"


def closed(*, failures: tuple[RpcError, ...] = ()) -> HollowRegistry:
    """A registry that gives its image to whoever knows the password."""
    remote = RemoteImage(credentials=("me", "good"), failures=failures)
    return HollowRegistry(images={PRIVATE: remote})


def secret(password: str, name: str = "key") -> Secret:
    auth = {"username": "me", "password": password}
    return Secret(
        metadata=ObjectMeta(name=name, namespace="ns", uid=name),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": json.dumps({"auths": {"registry.test": auth}}).encode()},
    )


async def pull_records(root: Path) -> PullRecords:
    records = PullRecords(root, Verification(), TrioClock())
    await records.load()
    return records


@asynccontextmanager
async def node(
    *,
    present: tuple[str, ...] = (),
    registry: HollowRegistry | None = None,
    limit: int | None = 1,
    rate: PullRate | None = None,
    keyring: Keyring | None = None,
    pod_keyring: Keyring | None = None,
    access: ImageAccess | None = None,
) -> AsyncIterator[Node]:
    clock = TrioClock()
    journal = Journal(clock)
    recorder = EventRecorder(journal, "node")
    events: list[RecordedEvent] = []
    recorder.add_sink(events.append)

    async def of_pod(pod: Pod) -> Keyring:
        return pod_keyring or Keyring()

    options = HollowOptions(images=present, registry=registry or HollowRegistry())
    async with open_hollow_runtime(clock, options) as runtime:
        yield Node(
            images=ImageManager(
                client=RuntimeClient(InProcess(runtime)),
                recorder=recorder,
                journal=journal,
                clock=clock,
                limiter=trio.CapacityLimiter(limit) if limit else None,
                rate=rate or PullRate(0, 0),
                read_keyring=lambda: keyring or Keyring(),
                pod_keyring=of_pod,
                access=access or UnverifiedAccess(),
            ),
            runtime=runtime,
            known=PodImages(),
            events=events,
        )


@pytest.mark.parametrize("verified", [True, False])
async def test_an_image_that_is_there_is_not_pulled(
    mock_clock: MockClock, tmp_path: Path, verified: bool
) -> None:
    access = await pull_records(tmp_path) if verified else None
    async with node(present=("busybox:1",), access=access) as at:
        assert (await at.ensure("busybox:1", "IfNotPresent")).id
        words = 'Container image "busybox:1" already present on machine'
        assert at.said() == [
            f"Pulled: {words} and can be accessed by the pod" if verified else f"Pulled: {words}"
        ]


async def test_an_image_that_is_not_there_is_pulled(mock_clock: MockClock) -> None:
    mock_clock.rate = 10
    async with node(registry=HollowRegistry(pull_seconds=1.5)) as at:
        assert (await at.ensure("busybox:1")).id
        pulling, pulled = at.said()
        assert pulling == 'Pulling: Pulling image "busybox:1"'
        assert pulled.startswith('Pulled: Successfully pulled image "busybox:1" in 1.')
        assert pulled.endswith("Image size: 4194304 bytes.")


async def test_a_tag_that_moves_is_pulled_before_each_start(mock_clock: MockClock) -> None:
    async with node(present=("busybox:latest",)) as at:
        for _ in range(2):
            await at.ensure("busybox")
            assert any("Pulling image" in line for line in at.said())


async def test_policy_never_waits_for_somebody_else_to_bring_the_image(
    mock_clock: MockClock,
) -> None:
    async with node() as at:
        with pytest.raises(ImageError) as raised:
            await at.ensure("busybox:1", "Never")
        message = 'Container image "busybox:1" is not present with pull policy of Never'
        assert (raised.value.reason, raised.value.message) == ("ErrImageNeverPull", message)
        assert at.said() == [f"ErrImageNeverPull: {message}", "Failed: Error: ErrImageNeverPull"]
        await at.images.client.pull_image(cri.ImageSpec(image="busybox:1"), None, SANDBOX)
        assert (await at.ensure("busybox:1", "Never")).id


async def test_a_name_that_is_none_is_refused_in_the_words_of_the_go_kubelet(
    mock_clock: MockClock,
) -> None:
    async with node() as at:
        with pytest.raises(ImageError) as raised:
            await at.ensure("Bad/Name")
        assert raised.value.reason == "InvalidImageName"
        assert raised.value.message.startswith(
            'Failed to apply default image tag "Bad/Name": couldn\'t parse image name "Bad/Name": '
        )
        assert at.known.state("c") is ImageState.INVALID


async def test_a_pull_that_fails_backs_off_and_says_why(mock_clock: MockClock) -> None:
    registry = HollowRegistry(
        images={"docker.io/library/busybox:1": RemoteImage(failures=(NOT_FOUND,))}
    )
    async with node(registry=registry) as at:
        with pytest.raises(ImageError) as first:
            await at.ensure("busybox:1")
        assert (first.value.reason, first.value.message) == ("ErrImagePull", "no such image")
        assert at.said() == [
            'Pulling: Pulling image "busybox:1"',
            'Failed: Failed to pull image "busybox:1": no such image',
            "Failed: Error: ErrImagePull",
        ]
        with pytest.raises(ImageError) as second:
            await at.ensure("busybox:1")
        assert second.value.reason == "ImagePullBackOff"
        assert second.value.message == (
            'Back-off pulling image "busybox:1": ErrImagePull: no such image'
        )
        assert second.value.until_ns == first.value.until_ns
        assert at.said() == [
            'BackOff: Back-off pulling image "busybox:1"',
            "Failed: Error: ImagePullBackOff",
        ]
        mock_clock.jump(10)
        assert (await at.ensure("busybox:1")).id
        # The next failure begins with a short back-off again.
        assert at.known.pull_failed("busybox:1", "gone", now_ns=0) == 10_000_000_000


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RpcError(Code.UNAVAILABLE, "containerd restarts"), "ErrImagePull"),
        (RpcError(Code.FAILED_PRECONDITION, "no space left"), "ErrImagePull"),
        (RpcError(Code.UNKNOWN, "RegistryUnavailable: connection refused"), "RegistryUnavailable"),
        (
            RpcError(Code.UNKNOWN, "SignatureValidationFailed: not signed"),
            "SignatureValidationFailed",
        ),
    ],
)
async def test_the_reason_of_a_failed_pull_is_the_one_that_the_runtime_tells(
    mock_clock: MockClock, error: RpcError, reason: str
) -> None:
    registry = HollowRegistry(
        images={"docker.io/library/busybox:1": RemoteImage(failures=(error,))}
    )
    async with node(registry=registry) as at:
        with pytest.raises(ImageError) as raised:
            await at.ensure("busybox:1")
        assert raised.value.reason == reason


async def test_the_back_off_doubles_up_to_five_minutes(mock_clock: MockClock) -> None:
    failures = RemoteImage(failures=(NOT_FOUND,) * 9)
    async with node(
        registry=HollowRegistry(images={"docker.io/library/busybox:1": failures})
    ) as at:
        waits = []
        for _ in range(8):
            with pytest.raises(ImageError) as raised:
                await at.ensure("busybox:1")
            assert raised.value.until_ns is not None
            wait = (raised.value.until_ns - at.images.clock.now_ns()) / 1e9
            waits.append(round(wait))
            mock_clock.jump(wait)
        assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


async def test_a_pull_that_was_cancelled_is_looked_for_before_it_is_made_again(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 10
    async with node(registry=HollowRegistry(pull_seconds=60)) as at:
        with trio.move_on_after(1):
            await at.ensure("busybox:1", "IfNotPresent")
        assert at.known.state("c") is ImageState.UNCHECKED
        at.runtime.images.registry = HollowRegistry()
        await at.images.client.pull_image(cri.ImageSpec(image="busybox:1"), None, SANDBOX)
        at.said()
        await at.ensure("busybox:1", "IfNotPresent")
        assert at.said()[0].startswith("Pulled: Container image")


async def test_pulls_go_one_after_another(mock_clock: MockClock) -> None:
    mock_clock.rate = 20
    async with node(registry=HollowRegistry(pull_seconds=5)) as at, trio.open_nursery() as nursery:
        began = trio.current_time()
        for number in range(3):
            container = Container(name=f"c{number}", image=f"image-{number}:1")
            nursery.start_soon(at.images.ensure, POD, container, PodImages(), SANDBOX)
        nursery.start_soon(_nothing)
    assert trio.current_time() - began >= 15


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


async def test_a_pod_whose_pull_secrets_do_not_come_holds_up_no_other_pull(
    mock_clock: MockClock,
) -> None:
    asked, secrets_come = trio.Event(), trio.Event()

    async def keyring(pod: Pod) -> Keyring:
        if pod.metadata.name == "slow":
            asked.set()
            await secrets_come.wait()
        return Keyring()

    mock_clock.rate = 10
    slow = Pod(metadata=ObjectMeta(name="slow", namespace="ns", uid="slow"))
    async with node(limit=1) as at, trio.open_nursery() as nursery:
        images = evolve(at.images, pod_keyring=keyring)
        container = Container(name="c", image="slow:1")
        nursery.start_soon(images.ensure, slow, container, PodImages(), SANDBOX)
        await asked.wait()
        with trio.fail_after(20):
            await images.ensure(POD, Container(name="c", image="quick:1"), at.known, SANDBOX)
        assert at.runtime.images.resolve("slow:1") is None
        secrets_come.set()
    assert at.runtime.images.resolve("slow:1") is not None


@pytest.mark.parametrize("algorithm", [("sha256", 64), ("sha384", 96), ("sha512", 128)])
async def test_an_image_may_be_named_by_a_digest_of_any_algorithm(
    mock_clock: MockClock, algorithm: tuple[str, int]
) -> None:
    name, length = algorithm
    async with node() as at:
        assert (await at.ensure(f"busybox:1@{name}:{'0' * length}")).id


async def test_two_containers_with_one_image_pull_it_once(mock_clock: MockClock) -> None:
    mock_clock.rate = 10
    async with node(registry=HollowRegistry(pull_seconds=1.5), limit=None) as at:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.ensure, "busybox:1", "", "first")
            nursery.start_soon(at.ensure, "busybox:1", "", "second")
        pulling, pulled, present = at.said()
        assert pulling == 'Pulling: Pulling image "busybox:1"'
        assert pulled.startswith('Pulled: Successfully pulled image "busybox:1" in 1.')
        assert present.startswith('Pulled: Container image "busybox:1" already present')


async def test_what_one_container_could_not_pull_the_other_waits_for(mock_clock: MockClock) -> None:
    async with node(registry=HollowRegistry(has_all=False)) as at:
        with pytest.raises(ImageError) as first:
            await at.ensure("busybox:1", name="first")
        with pytest.raises(ImageError) as second:
            await at.ensure("busybox:1", name="second")
        assert (first.value.reason, second.value.reason) == ("ErrImagePull", "ImagePullBackOff")
        assert second.value.message.startswith('Back-off pulling image "busybox:1": ErrImagePull: ')


async def test_pulls_beyond_the_rate_fail(mock_clock: MockClock) -> None:
    async with node(rate=PullRate(per_second=1, burst=1)) as at:
        await at.ensure("a:1")
        with pytest.raises(ImageError) as raised:
            await at.ensure("b:1")
        assert raised.value.message == "pull QPS exceeded"


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


def is_free(records: PullRecords, image: str) -> Awaitable[bool]:
    """Whether a pod without secrets may use an image that nothing is recorded of."""

    async def nothing() -> Sequence[ImagePullSecret]:
        return ()

    return records.may_use(image, cri.Image(id="sha256:unknown"), nothing)


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
            at.images.recorder.add_sink(lambda event: pulling.set())
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
    blocker = tmp_path / "image_manager" / "pulling" / f"{file_name('busybox:1')}.tmp"
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
        return keyring_of(secrets)

    return keyring


def test_the_bucket_fills_up_again() -> None:
    rate = PullRate(per_second=2, burst=3)
    assert [rate.take(now) for now in (0, 0, 0, 0, 0.5, 0.5)] == [True] * 3 + [False, True, False]
