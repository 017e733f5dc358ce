from typing import Any

import pytest
from attrs import evolve

from tests.node_facts import node_facts
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, VolumeDevice, VolumeMount
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.mounts import (
    MountSources,
    PreparedVolume,
    container_devices,
    container_mounts,
    mounted_sub_paths,
    mounts_etc_hosts,
)
from trio_kubelet.runtime.node_facts import NodeFacts

NODE = node_facts("/k")
POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u-1"))
ON_HOST_NETWORK = evolve(POD, spec=PodSpec(host_network=True))
VOLUMES = {"data": PreparedVolume(host_path="/k/data")}


def mount(path: str = "/data", **fields: object) -> VolumeMount:
    return VolumeMount(name="data", mount_path=path, **fields)  # type: ignore[arg-type]


def mounted(
    *mounts: VolumeMount,
    volumes: dict[str, PreparedVolume] = VOLUMES,
    sub_paths: dict[int, str] | None = None,
    node: NodeFacts = NODE,
    recursive_read_only: bool = False,
) -> list[cri.Mount]:
    container = Container(name="c", volume_mounts=mounts)
    return list(
        container_mounts(
            POD,
            container,
            node,
            MountSources(
                volumes=volumes,
                sub_paths=sub_paths or {},
                pod_ips=(),
                recursive_read_only=recursive_read_only,
            ),
        )
    )


@pytest.mark.parametrize(("read_only", "permissions"), [(False, "mrw"), (True, "r")])
def test_a_volume_that_is_a_device_is_one_in_the_container(
    read_only: bool, permissions: str
) -> None:
    wanted = Container(name="c", volume_devices=(VolumeDevice(name="d", device_path="/dev/d"),))
    volumes = {"d": PreparedVolume(device="/k/link", read_only=read_only)}
    assert container_devices(wanted, volumes) == (
        cri.Device(container_path="/dev/d", host_path="/k/link", permissions=permissions),
    )


@pytest.mark.parametrize("volumes", [{}, {"d": PreparedVolume(host_path="/k/folder")}])
def test_a_volume_that_is_no_device_is_not_passed_on(volumes: dict[str, PreparedVolume]) -> None:
    wanted = Container(name="c", volume_devices=(VolumeDevice(name="d", device_path="/dev/d"),))
    with pytest.raises(ConfigError, match='cannot find volume "d" to pass into container "c"'):
        container_devices(wanted, volumes)


def test_a_volume_is_mounted_where_the_container_wants_it() -> None:
    (made,) = mounted(mount())
    assert (made.container_path, made.host_path) == ("/data", "/k/data")
    assert not made.readonly
    assert made.propagation == cri.MountPropagation.PROPAGATION_PRIVATE


@pytest.mark.parametrize(
    ("path", "absolute"), [("data", "/data"), ("/data/", "/data"), ("/a//b/./c", "/a/b/c")]
)
def test_paths_in_the_container_are_absolute_and_clean(path: str, absolute: str) -> None:
    assert mounted(mount(path))[0].container_path == absolute


def test_either_side_can_make_a_mount_read_only() -> None:
    assert mounted(mount(read_only=True))[0].readonly
    unwritable = {"data": PreparedVolume(host_path="/x", read_only=True)}
    assert mounted(mount(), volumes=unwritable)[0].readonly


@pytest.mark.parametrize(
    ("mode", "propagation"), [("", 0), ("None", 0), ("HostToContainer", 1), ("Bidirectional", 2)]
)
def test_propagation_follows_the_mode(mode: str, propagation: int) -> None:
    assert mounted(mount(mount_propagation=mode))[0].propagation == propagation


def test_an_unknown_propagation_is_an_error() -> None:
    with pytest.raises(ConfigError, match='invalid MountPropagation mode: "Sideways"'):
        mounted(mount(mount_propagation="Sideways"))


def test_a_volume_that_is_not_mounted_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        mounted(mount(), volumes={})
    assert caught.value.message == 'cannot find volume "data" to mount into container "c"'


def test_labels_are_changed_only_where_selinux_is_on_and_the_volume_is_the_nodes() -> None:
    relabelled = {"data": PreparedVolume(host_path="/x", relabel=True)}
    with_selinux = evolve(NODE, selinux=True)
    assert mounted(mount(), volumes=relabelled, node=with_selinux)[0].selinux_relabel
    assert not mounted(mount(), volumes=relabelled)[0].selinux_relabel
    assert not mounted(mount(), node=with_selinux)[0].selinux_relabel


def test_a_sub_path_is_mounted_from_where_it_was_resolved_to() -> None:
    one, two = mounted(mount(), mount("/part", sub_path="part"), sub_paths={1: "/k/bound"})
    assert (one.host_path, two.host_path) == ("/k/data", "/k/bound")


def test_an_image_is_mounted_by_the_runtime() -> None:
    image = cri.ImageSpec(image="sha256:1")
    (made,) = mounted(mount(), volumes={"data": PreparedVolume(image=image)}, sub_paths={0: "a"})
    assert (made.image, made.image_sub_path, made.host_path) == (image, "a", "")


def test_sub_paths_are_expanded_from_the_environment() -> None:
    container = Container(
        name="c",
        volume_mounts=(
            mount("/a"),
            mount("/b", sub_path="$(PART)"),
            mount("/c", sub_path_expr="x/$(PART)/$$(PART)"),
        ),
    )
    assert mounted_sub_paths(container, {"PART": "one"}) == {1: "$(PART)", 2: "x/one/$(PART)"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sub_path_expr": "$(A)/$(EMPTY)"}, "missing value for A, EMPTY"),
        ({"sub_path": "/etc"}, "error SubPath `/etc` must not be an absolute path"),
        ({"sub_path_expr": "$(ROOT)"}, "error SubPath `/etc` must not be an absolute path"),
        ({"sub_path": "a/../.."}, "unable to provision SubPath `a/../..`: must not contain '..'"),
    ],
)
def test_sub_paths_that_lead_astray_are_errors(fields: dict[str, str], message: str) -> None:
    container = Container(name="c", volume_mounts=(mount(**fields),))
    with pytest.raises(ConfigError) as caught:
        mounted_sub_paths(container, {"EMPTY": "", "ROOT": "/etc"})
    assert caught.value.message == message


def test_dots_in_a_name_are_no_way_up() -> None:
    container = Container(name="c", volume_mounts=(mount(sub_path="a..b/..c"),))
    assert mounted_sub_paths(container, {}) == {0: "a..b/..c"}


@pytest.mark.parametrize(
    ("mode", "supported", "recursive"),
    [
        ("", True, False),
        ("Disabled", True, False),
        ("IfPossible", True, True),
        ("IfPossible", False, False),
        ("Enabled", True, True),
    ],
)
def test_mounts_below_are_read_only_where_asked_for_and_possible(
    mode: str, supported: bool, recursive: bool
) -> None:
    asked = mount(read_only=True, recursive_read_only=mode)
    (made,) = mounted(asked, recursive_read_only=supported)
    assert made.readonly
    assert made.recursive_read_only is recursive


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"read_only": True}, "supported by the runtime"),
        ({}, "read-only"),
        (
            {"read_only": True, "mount_propagation": "HostToContainer"},
            'compatible with propagation "HostToContainer"',
        ),
    ],
)
def test_recursive_read_only_that_cannot_be_is_an_error(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mounted(mount(recursive_read_only="Enabled", **fields))
    assert caught.value.message == (
        'failed to resolve recursive read-only mode: volume "data" requested recursive read-only'
        f" mode, but it is not {what}"
    )


def test_the_hosts_file_is_mounted_once_the_pod_has_an_address() -> None:
    container = Container(name="c")
    assert not mounts_etc_hosts(POD, container, ())
    assert mounts_etc_hosts(POD, container, ("10.0.0.5",))
    assert mounts_etc_hosts(ON_HOST_NETWORK, container, ())


def test_a_hosts_file_of_the_containers_own_is_left_alone() -> None:
    container = Container(name="c", volume_mounts=(mount("/etc/hosts"),))
    assert not mounts_etc_hosts(POD, container, ("10.0.0.5",))


def test_the_nodes_own_files_come_last() -> None:
    container = Container(
        name="c", volume_mounts=(mount(),), termination_message_path="dev/termination-log"
    )
    made = container_mounts(
        POD,
        container,
        evolve(NODE, selinux=True),
        MountSources(
            volumes=VOLUMES,
            sub_paths={},
            pod_ips=("10.0.0.5",),
            termination_message_file="/k/m",
        ),
    )
    assert [(each.container_path, each.host_path) for each in made] == [
        ("/data", "/k/data"),
        ("/etc/hosts", "/k/pods/u-1/etc-hosts"),
        ("/dev/termination-log", "/k/m"),
    ]
    assert [each.selinux_relabel for each in made] == [False, True, True]
