"""Statuses of mounts: read only, recursively or not, as far as the runtime can."""

import tracemalloc

from attrs import evolve

from tests.unit.status.pods import NOTHING, RUNNING, a_pod, instance, sandbox, seen, status_of
from trio_kubelet.k8s import Container, VolumeMount, VolumeMountStatus
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status import NodeIdentity


def mounted(
    mount: VolumeMount,
    *,
    able: frozenset[str] = frozenset(),
    observed: ObservedPod = NOTHING,
    runtime_class: str = "",
) -> VolumeMountStatus:
    pod = a_pod(containers=(Container(name="c", volume_mounts=(mount,)),))
    pod = evolve(pod, spec=evolve(pod.spec, runtime_class_name=runtime_class))
    status = status_of(pod, observed, node=NodeIdentity(recursive_read_only=able))
    ((shown,),) = (each.volume_mounts for each in status.container_statuses)
    return shown


def test_no_long_path_is_kept_when_its_pod_has_gone() -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            mounted(VolumeMount(name="v", mount_path=f"/{number}" + "v" * 1_000_000))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 4_000_000


def test_a_read_only_mount_says_whether_it_will_be_recursively_so() -> None:
    mount = VolumeMount(name="v", mount_path="/v", read_only=True)
    if_possible = evolve(mount, recursive_read_only="IfPossible")
    propagated = evolve(if_possible, mount_propagation="HostToContainer")
    cases = [
        (mount, True, "Disabled"),
        (if_possible, True, "Enabled"),
        (if_possible, False, "Disabled"),
        (propagated, True, "Disabled"),
        (evolve(mount, recursive_read_only="Enabled"), True, "Enabled"),
        (evolve(mount, read_only=None), True, ""),
        (evolve(mount, read_only=False), True, ""),
    ]
    for given, supported, mode in cases:
        shown = mounted(given, able=frozenset({""} if supported else ()))
        assert shown.recursive_read_only == mode
        assert shown.read_only == (True if mode else None)


def test_whether_a_mount_will_be_recursively_read_only_depends_on_the_pods_handler() -> None:
    mount = VolumeMount(name="v", mount_path="/v", read_only=True, recursive_read_only="IfPossible")
    able = frozenset({"", "crun"})
    for handler, mode in (("crun", "Enabled"), ("", "Enabled"), ("kata", "Disabled")):
        made = seen(sandboxes=(sandbox(runtime_handler=handler),))
        shown = mounted(mount, able=able, observed=made, runtime_class="any")
        assert shown.recursive_read_only == mode
    assert mounted(mount, able=able, runtime_class="kata").recursive_read_only == "Disabled"


def test_a_container_that_was_made_shows_how_its_mounts_were_made() -> None:
    """Another runtime may have made it than the one that is there now."""
    mount = VolumeMount(name="v", mount_path="v/", read_only=True, recursive_read_only="IfPossible")
    new = seen(instance("c", RUNNING, recursively_read_only=frozenset({"/v"})))
    shown = [
        mounted(mount, able=able, observed=observed).recursive_read_only
        for observed in (seen(instance("c", RUNNING)), new)
        for able in (frozenset({""}), frozenset[str]())
    ]
    assert shown == ["Disabled", "Disabled", "Enabled", "Enabled"]


def test_an_image_volume_has_the_digest_that_the_runtime_tells_where_the_gate_is_on() -> None:
    mount = VolumeMount(name="tools", mount_path="/tools/")
    pod = a_pod(containers=(Container(name="c", volume_mounts=(mount,)),))
    told = seen(instance("c", RUNNING, image_mounts={"/tools": "docker.io/tools@sha256:1"}))
    for on, observed, image in (
        (True, told, "docker.io/tools@sha256:1"),
        (False, told, ""),
        (True, seen(instance("c", RUNNING)), ""),
        (True, NOTHING, ""),
    ):
        status = status_of(pod, observed, node=NodeIdentity(tells_image_digests=on))
        ((shown,),) = (each.volume_mounts for each in status.container_statuses)
        found = shown.volume_status and shown.volume_status.image
        assert (found.image_ref if found else "") == image
