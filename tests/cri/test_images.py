"""The image service, as far as it goes without a registry."""

import re

import pytest

from lab.images import BUSYBOX, BUSYBOX_AS_USER
from tests.cri.node import ABSENT_IMAGE, Images, Node, image_status, until
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def test_an_image_has_an_id_names_and_a_size(node: Node) -> None:
    image = await image_status(node, BUSYBOX)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", image.id)
    assert BUSYBOX in image.repo_tags
    assert image.size > 0
    assert not image.pinned
    assert (await image_status(node, image.id)).id == image.id


async def test_an_image_names_its_user(node: Node) -> None:
    assert (await image_status(node, BUSYBOX_AS_USER)).uid.value == 1000


@pytest.mark.parametrize("name", [ABSENT_IMAGE, "Bad Name::", "sha256:0"])
async def test_an_absent_image_has_an_empty_status(node: Node, name: str) -> None:
    assert (await image_status(node, name)).id == ""


async def test_the_list_has_them_all_and_the_sandboxes_image_pinned(node: Node) -> None:
    answer = await node.transport.unary(Images.list_images, cri.ListImagesRequest())
    tags = {tag: image for image in answer.images for tag in image.repo_tags}
    assert {BUSYBOX, BUSYBOX_AS_USER} <= set(tags)
    assert [tag for tag, image in tags.items() if image.pinned and "pause" in tag]


async def test_the_list_has_them_all_even_if_asked_for_one(node: Node) -> None:
    wanted = cri.ImageFilter(image=cri.ImageSpec(image=BUSYBOX))
    request = cri.ListImagesRequest(filter=wanted)
    images = (await node.transport.unary(Images.list_images, request)).images
    assert {BUSYBOX, BUSYBOX_AS_USER} <= {tag for image in images for tag in image.repo_tags}


async def test_an_absent_image_can_be_removed(node: Node) -> None:
    request = cri.RemoveImageRequest(image=cri.ImageSpec(image=ABSENT_IMAGE))
    await node.transport.unary(Images.remove_image, request)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a/UPPER", "invalid reference format: repository name (a/UPPER) must be lowercase"),
        ("Bad Name::", "invalid reference format: repository name (library/Bad Name) must be"),
        ("a b", "invalid reference format"),
        ("a:", "invalid reference format"),
        ("a@sha256:12", "invalid reference format"),
        (f"a@sha512:{'0' * 64}", "invalid checksum digest length"),
        (f"a@sha512:{'A' * 128}", "invalid checksum digest format"),
        (f"a@md5:{'0' * 32}", "unsupported digest algorithm"),
    ],
)
async def test_a_name_that_is_none_cannot_be_pulled(node: Node, name: str, problem: str) -> None:
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name))
    with pytest.raises(RpcError) as raised:
        await node.transport.unary(Images.pull_image, request)
    assert raised.value.code is Code.UNKNOWN
    start = f'failed to parse image reference "{name}": {problem}'
    assert raised.value.message.startswith(start)


async def test_a_registry_that_is_away_fails_the_pull(node: Node) -> None:
    name = "127.0.0.1:1/none:1"
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name))
    with pytest.raises(RpcError) as raised:
        await node.transport.unary(Images.pull_image, request)
    assert raised.value.code is Code.UNKNOWN
    start = f'failed to pull and unpack image "{name}": failed to resolve image: '
    assert raised.value.message.startswith(start)


async def test_the_image_filesystem_is_measured(node: Node) -> None:
    async def measured() -> cri.FilesystemUsage:
        answer = await node.transport.unary(Images.image_fs_info, cri.ImageFsInfoRequest())
        (usage,) = answer.image_filesystems
        return usage

    # containerd measures every ten seconds, and what it had not measured yet counts as nothing.
    usage = await until(measured, lambda usage: usage.used_bytes.value > 0)
    assert usage.timestamp > 0
    assert usage.fs_id.mountpoint.startswith("/")
    assert usage.inodes_used.value > 0
