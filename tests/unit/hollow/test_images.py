"""Pulling from the pretended registry, and what the store makes of it."""

import base64

import pytest
import trio
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import HollowRegistry, RemoteImage
from trio_kubelet.hollow.images import ImageStore
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

NAME = "docker.io/library/app:1"


def store(*present: str, **settings: object) -> ImageStore:
    return ImageStore(TrioClock(), HollowRegistry(**settings), present)  # type: ignore[arg-type]


async def pull(images: ImageStore, name: str, auth: cri.AuthConfig | None = None) -> str:
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name))
    if auth is not None:
        request.auth = auth
    return (await images.pull(request)).image_ref


async def test_a_pulled_image_is_found_by_every_name(autojump_clock: MockClock) -> None:
    images = store()
    image_id = await pull(images, "app:1")
    image = images.resolve(image_id)
    assert image is not None
    assert image.tags == (NAME,)
    for name in ("app:1", NAME, image_id, image_id.removeprefix("sha256:"), *image.digests):
        assert images.resolve(name) is image


async def test_a_pull_takes_its_time_and_can_be_cancelled(autojump_clock: MockClock) -> None:
    images = store(images={NAME: RemoteImage(pull_seconds=30)})
    start = trio.current_time()
    with trio.move_on_after(10):
        await pull(images, "app:1")
    assert images.resolve("app:1") is None
    await pull(images, "app:1")
    assert trio.current_time() - start == pytest.approx(40)


async def test_an_unlisted_image_may_be_unknown(autojump_clock: MockClock) -> None:
    with pytest.raises(RpcError) as raised:
        await pull(store(has_all=False), "app:1")
    assert raised.value.code is Code.NOT_FOUND
    assert raised.value.message == (
        f'failed to pull and unpack image "{NAME}": failed to resolve image: {NAME}: not found'
    )


async def test_the_first_pulls_may_fail(autojump_clock: MockClock) -> None:
    failures = (RpcError(Code.UNAVAILABLE, "first"), RpcError(Code.UNKNOWN, "second"))
    images = store(images={NAME: RemoteImage(failures=failures)})
    for failure in failures:
        with pytest.raises(RpcError, match=failure.message):
            await pull(images, "app:1")
    assert images.resolve(await pull(images, "app:1"))


BASIC = base64.b64encode(b"me:secret").decode()


@pytest.mark.parametrize(
    ("auth", "allowed"),
    [
        (None, False),
        (cri.AuthConfig(username="me", password="wrong"), False),
        (cri.AuthConfig(username="me", password="secret"), True),
        (cri.AuthConfig(auth=BASIC), True),
        (cri.AuthConfig(auth=BASIC, server_address="https://docker.io/v1"), True),
        (cri.AuthConfig(auth=BASIC, server_address="registry.test"), False),
    ],
)
async def test_a_private_image_needs_credentials(
    autojump_clock: MockClock, auth: cri.AuthConfig | None, allowed: bool
) -> None:
    images = store(images={NAME: RemoteImage(credentials=("me", "secret"))})
    if allowed:
        assert await pull(images, "app:1", auth)
        return
    with pytest.raises(RpcError, match="pull access denied"):
        await pull(images, "app:1", auth)


async def test_a_tag_that_moved_leaves_the_old_image_without_it(autojump_clock: MockClock) -> None:
    images = store(images={NAME: RemoteImage(content="old")})
    old = await pull(images, "app:1")
    images.registry = HollowRegistry(images={NAME: RemoteImage(content="new")})
    new = await pull(images, "app:1")
    assert old != new
    found, left = images.resolve("app:1"), images.resolve(old)
    assert found is not None
    assert left is not None
    assert (found.id, left.tags) == (new, ())


async def test_one_image_may_have_several_names(autojump_clock: MockClock) -> None:
    same = RemoteImage(content="same")
    images = store(images={NAME: same, "docker.io/library/app:2": same})
    assert await pull(images, "app:1") == await pull(images, "app:2")
    found = images.resolve("app:1")
    assert found is not None
    assert found.tags == (NAME, "docker.io/library/app:2")


async def test_a_removed_image_is_gone_with_all_its_names(autojump_clock: MockClock) -> None:
    images = store("app:1")
    request = cri.RemoveImageRequest(image=cri.ImageSpec(image="app:1"))
    await images.remove(request)
    await images.remove(request)
    assert images.resolve("app:1") is None
