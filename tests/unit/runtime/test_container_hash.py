from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import Container, ContainerPort, Quantity, ResourceRequirements
from trio_kubelet.runtime.config.container_hash import container_hash


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
