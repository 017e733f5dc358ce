"""The hash of a container: the value that the Go kubelet has, and how often it is made."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import Container, ContainerPort, Quantity, ResourceRequirements
from trio_kubelet.runtime.config import container_hash as module
from trio_kubelet.runtime.config.container_hash import ContainerHashes, container_hash


def test_the_hash_is_the_go_kubelets() -> None:
    assert container_hash(Container(name="c", image="busybox:latest")) == "6047fbf3"
    assert container_hash(Container(name="i", image="busybox:latest")) == "8f68def7"


def test_only_name_and_image_count() -> None:
    plain = Container(name="c", image="busybox:latest")
    dressed = Container(
        name="c",
        image="busybox:latest",
        command=("sleep", "1"),
        ports=(ContainerPort(container_port=80),),
        resources=ResourceRequirements(limits={"cpu": Quantity("1")}),
    )
    assert container_hash(dressed) == container_hash(plain)


@given(st.text(), st.text())
def test_another_image_is_another_hash(image: str, other: str) -> None:
    same = container_hash(Container(name="c", image=image)) == container_hash(
        Container(name="c", image=other)
    )
    assert same == (image == other)


@given(st.text(), st.text())
def test_the_hash_has_at_most_eight_digits_and_no_padding(name: str, image: str) -> None:
    text = container_hash(Container(name=name, image=image))
    assert f"{int(text, 16):x}" == text
    assert len(text) <= 8


def test_no_container_is_made_of_an_image_whose_name_is_too_long() -> None:
    assert container_hash(Container(name="c", image="a" * 4096)) == "50ee833a"
    assert container_hash(Container(name="c", image="a" * 4097)) == ""


async def test_a_hash_is_made_again_only_for_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(container: Container) -> str:
        made.append(f"{container.name} {container.image}")
        return container_hash(container)

    monkeypatch.setattr(module, "container_hash", counted)
    hashes = ContainerHashes()
    one, two = Container(name="a", image="i"), Container(name="b", image="i")
    for _ in range(2):
        # Another version of the pod has other objects of the same value.
        again = Container(name="a", image="".join(["i"]), command=("sleep",))
        assert await hashes.of([again, two]) == {n.name: container_hash(n) for n in (one, two)}
    assert made == ["a i", "b i"]
    changed = Container(name="b", image="j")
    assert await hashes.of([changed]) == {"b": container_hash(changed)}
    assert made[2:] == ["b j"]
    await hashes.of([one])
    assert made[3:] == ["a i"], "what the pod does not have any more is not kept"


async def test_others_have_their_turn_between_the_hashes_of_many_containers() -> None:
    turns = 0
    containers = [Container(name=f"c{n}", image="i") for n in range(20)]

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await ContainerHashes().of(containers)
        nursery.cancel_scope.cancel()
    assert turns >= len(containers) - 1
