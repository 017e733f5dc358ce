"""The way to a container's image, on the hollow runtime: what is pulled, when, and what is said."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from state_machines.image import ImageState
from tests.unit.runtime.image_nodes import (
    NOT_FOUND,
    POD,
    SANDBOX,
    _nothing,
    node,
    pull_records,
)
from trio_kubelet.errors import ConfigError
from trio_kubelet.hollow import (
    HollowRegistry,
    RemoteImage,
)
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.images.credentials import Keyring
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.images.pod_images import PodImages, WantedImage
from trio_kubelet.runtime.images.pull_rate import PullRate


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
        said = (
            r'Pulled: Successfully pulled image "busybox:1" in \S+s \(\S+s including waiting\)\. '
        )
        assert re.fullmatch(said + r"Image size: 4194304 bytes\.", pulled)


class NotingHandlers(InProcess):
    """Notes the handlers that images are asked for and pulled for."""

    handlers: list[str]

    async def unary_raw(self, method: Any, request: Any, **options: Any) -> bytes:
        if isinstance(request, cri.ImageStatusRequest | cri.PullImageRequest):
            self.handlers.append(request.image.runtime_handler)
        return await super().unary_raw(method, request, **options)


async def crun(pod: Pod) -> str:
    await trio.lowlevel.checkpoint()
    return "crun"


@pytest.mark.parametrize("named", [True, False])
async def test_an_image_is_got_for_the_handler_of_its_pod_if_the_runtime_is_told_of_any(
    mock_clock: MockClock, named: bool
) -> None:
    async with node() as at:
        transport = NotingHandlers(at.runtime)
        transport.handlers = []
        client = RuntimeClient(transport)
        handler = crun if named else None
        at = evolve(at, images=evolve(at.images, client=client, runtime_handler=handler))
        await at.ensure("busybox:1")
        assert transport.handlers == ["crun" if named else ""] * 3, "look, pull, look"


async def test_an_image_for_a_class_that_is_gone_waits(mock_clock: MockClock) -> None:
    async def gone(pod: Pod) -> str:
        await trio.lowlevel.checkpoint()
        raise ConfigError('runtimeclass.node.k8s.io "gone" not found')

    async with node(present=("busybox:1",)) as at:
        at = evolve(at, images=evolve(at.images, runtime_handler=gone))
        with pytest.raises(ImageError) as caught:
            await at.ensure("busybox:1")
        assert caught.value.reason == "ImageInspectError"
        assert 'Failed to inspect image "busybox:1": runtimeclass.node.k8s.io "gone"' in str(
            caught.value
        )


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


async def test_a_name_that_is_too_long_is_refused_before_anything_is_done_with_it(
    mock_clock: MockClock,
) -> None:
    name = "a" * 100_000
    async with node() as at:
        for _ in range(2):
            with pytest.raises(ImageError) as raised:
                await at.ensure(name)
            assert raised.value.reason == "InvalidImageName"
            assert raised.value.message.endswith(
                f'couldn\'t parse image name "{name[:128]}...": '
                "invalid reference format: must have at most 4096 bytes"
            )
            assert len("".join(at.said())) < 1000
        assert at.known.state("c") is ImageState.INVALID
        async with at.known.turn(name):
            with pytest.raises(ImageError, match="InvalidImageName"):
                await at.ensure(name)


@pytest.mark.parametrize("policy", ["Never", "IfNotPresent"])
async def test_an_image_that_takes_the_place_of_one_that_cannot_be_had_is_looked_for_anew(
    mock_clock: MockClock, policy: str
) -> None:
    async with node(registry=HollowRegistry(unreachable=frozenset({"away.test"}))) as at:
        with pytest.raises(ImageError, match="ErrImage"):
            await at.ensure("away.test/busybox:1", policy)
        with pytest.raises(ImageError, match="InvalidImageName"):
            await at.ensure("Bad/Name", policy)
        assert at.known.state("c") is ImageState.INVALID
        if policy != "Never":
            assert (await at.ensure("busybox:1", policy)).id


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
            wanted = WantedImage(key=f"c{number}", image=f"image-{number}:1")
            nursery.start_soon(at.images.ensure, POD, wanted, PodImages(), SANDBOX)
        nursery.start_soon(_nothing)
    assert trio.current_time() - began >= 15


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
        wanted = WantedImage(key="c", image="slow:1")
        nursery.start_soon(images.ensure, slow, wanted, PodImages(), SANDBOX)
        await asked.wait()
        with trio.fail_after(20):
            await images.ensure(POD, WantedImage(key="c", image="quick:1"), at.known, SANDBOX)
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
    async with node(registry=HollowRegistry(pull_seconds=1.5), limit=sys.maxsize) as at:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.ensure, "busybox:1", "", "first")
            nursery.start_soon(at.ensure, "busybox:1", "", "second")
        pulling, pulled, present = at.said()
        assert pulling == 'Pulling: Pulling image "busybox:1"'
        assert pulled.startswith('Pulled: Successfully pulled image "busybox:1" in ')
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


async def test_pulls_that_wait_take_turns_by_namespace(mock_clock: MockClock) -> None:
    async with node(limit=1) as at:
        looked_up: list[str] = []

        def read_keyring() -> Keyring:
            looked_up.append("keyring")
            return Keyring()

        images = evolve(at.images, read_keyring=read_keyring)

        async def pull(image: str, number: int) -> None:
            meta = ObjectMeta(name=f"p{number}", namespace=image, uid=f"u{number}")
            wanted = WantedImage(key="c", image=image)
            await images.ensure(Pod(metadata=meta), wanted, PodImages(), SANDBOX)

        async with trio.open_nursery() as nursery, images.limiter.share("other"):
            for number, image in enumerate(("hostile", "hostile", "hostile", "good")):
                nursery.start_soon(pull, image, number)
                while len(looked_up) <= number or images.threads.held:
                    await trio.lowlevel.checkpoint()
                await wait_all_tasks_blocked()
        pulls = [line for line in at.said() if line.startswith("Pulling")]
        assert [line.split('"')[1] for line in pulls] == ["hostile", "good", "hostile", "hostile"]


def test_a_namespace_is_not_refused_because_of_others_alone() -> None:
    rate = PullRate(per_second=2, burst=4)
    assert [rate.take(0, "hostile") for _ in range(5)] == [True] * 4 + [False]
    assert [rate.take(0, "good") for _ in range(2)] == [True, False]
    # All of it counts: one token has been taken in advance.
    assert [rate.take(0.5, "hostile"), rate.take(1.0, "hostile")] == [False, True]


def test_another_pace_holds_from_the_next_pull_on() -> None:
    rate = PullRate(per_second=1, burst=4)
    rate.use(2, 2)
    assert [rate.take(0, "ns") for _ in range(3)] == [True, True, False]
    assert [rate.take(1, "ns") for _ in range(3)] == [True, True, False]
    rate.use(0, 0)
    assert rate.take(1, "ns")


def test_of_tokens_in_advance_there_are_as_many_as_at_once() -> None:
    rate = PullRate(per_second=2, burst=2)
    assert [rate.take(0, f"ns-{number}") for number in range(6)] == [True] * 4 + [False] * 2


def test_the_bucket_fills_up_again() -> None:
    rate = PullRate(per_second=2, burst=3)
    assert [rate.take(now, "ns") for now in (0, 0, 0, 0, 0.5, 0.5)] == [True] * 3 + [
        False,
        True,
        False,
    ]
