"""The config of a container: image, command, environment, mounts, resources and confinement.

Pure, as `sandbox_config` is: whatever has to be read of the node, the image or the API has been
read before and comes in as `ContainerFacts`.
"""

from collections.abc import Mapping
from copy import copy

from attrs import field, frozen

from trio_kubelet.devices.allocation import NOTHING_ALLOCATED, ContainerAllocation
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.resource_managers.placement import ANYWHERE, ContainerPlacement
from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.environment import EnvironmentSources
from trio_kubelet.runtime.config.expansion import MAX_BYTES, TooLargeError, expand_all
from trio_kubelet.runtime.config.labels import container_annotations, container_labels
from trio_kubelet.runtime.config.mounts import PreparedVolume
from trio_kubelet.runtime.config.names import container_log_path
from trio_kubelet.runtime.config.resources import container_resources
from trio_kubelet.runtime.config.security import (
    NO_SECURITY_FACTS,
    ImageUser,
    SecurityFacts,
    container_security_context,
    id_mapping,
)
from trio_kubelet.runtime.node_facts import NodeFacts


@frozen(kw_only=True)
class PodInputs:
    """The inputs of a pod's containers, got ready before any of them is.

    `volumes` by name; `sources` and `services` as for `environment`.
    """

    volumes: Mapping[str, PreparedVolume] = field(factory=dict)
    sources: EnvironmentSources = field(factory=EnvironmentSources)
    services: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class ContainerFacts:
    """The facts that are known of a container at the moment it is made."""

    image_id: str
    """The image's id in the runtime."""
    image_user: ImageUser = field(factory=ImageUser)
    """The user that the image names."""
    environment: Mapping[str, str] = field(factory=dict)
    """Made by `environment`."""
    mounts: tuple[cri.Mount, ...] = ()
    """Made by `container_mounts`."""
    devices: tuple[cri.Device, ...] = ()
    """Made by `container_devices`."""
    allocation: ContainerAllocation = NOTHING_ALLOCATED
    """The things that device plugins and resource claims give it."""
    security: SecurityFacts = NO_SECURITY_FACTS
    placement: ContainerPlacement = ANYWHERE
    """The parts of the machine that the resource managers give it."""
    target_container_id: str = ""
    """As in `container_security_context`."""


def container_config(
    pod: Pod, container: Container, node: NodeFacts, facts: ContainerFacts, *, restart_count: int
) -> cri.ContainerConfig:
    """The config for the container's incarnation number `restart_count` (0 is its first).

    Raises ConfigError when the container cannot run as its security context demands.
    """
    command, args = _command(container, facts.environment)
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=restart_count),
        image=cri.ImageSpec(image=facts.image_id, user_specified_image=container.image),
        command=command,
        args=args,
        working_dir=container.working_dir,
        envs=[
            cri.KeyValue(key=name, value=value.encode("utf-8", "surrogateescape"))
            for name, value in facts.environment.items()
        ],
        mounts=_mapped((*facts.allocation.mounts, *facts.mounts), facts.security),
        devices=[*facts.allocation.devices, *facts.devices],
        cdi_devices=[cri.CdiDevice(name=name) for name in facts.allocation.cdi_devices],
        labels=container_labels(pod, container),
        annotations={
            **facts.allocation.annotations,
            **container_annotations(pod, container, restart_count),
        },
        log_path=container_log_path(container.name, restart_count),
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdin_once),
        tty=bool(container.tty),
        stop_signal=_stop_signal(container, node),
        linux=cri.LinuxContainerConfig(
            resources=container_resources(pod, container, node, facts.placement),
            security_context=container_security_context(
                pod,
                container,
                node,
                image_user=facts.image_user,
                facts=facts.security,
                target_container_id=facts.target_container_id,
            ),
        ),
    )


def _command(container: Container, variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Command and arguments, expanded. Raises ConfigError for more than a process can have."""
    try:
        expanded = expand_all((*container.command, *container.args), variables)
    except TooLargeError:
        raise ConfigError(
            f'command and args of container "{container.name}" are too large: expanded they would '
            f"have more than {MAX_BYTES} bytes"
        ) from None
    count = len(container.command)
    return expanded[:count], expanded[count:]


def image_user(image: cri.Image) -> ImageUser:
    """The user that an image's config names: a number, else a name, else root."""
    if is_present(image.uid):
        return ImageUser(image.uid.value)
    if image.username:
        return ImageUser(None, image.username)
    return ImageUser(0)


def _mapped(mounts: tuple[cri.Mount, ...], security: SecurityFacts) -> list[cri.Mount]:
    """The mounts, each with the id mappings of the pod's user namespace, if it has one."""
    if security.user_namespace is None:
        return list(mounts)
    return [_with_ids(mount, id_mapping(security.user_namespace)) for mount in mounts]


def _with_ids(mount: cri.Mount, ids: cri.IdMapping) -> cri.Mount:
    mapped = copy(mount)
    mapped.uid_mappings = [ids]
    mapped.gid_mappings = [ids]
    return mapped


def _stop_signal(container: Container, node: NodeFacts) -> cri.Signal:
    """`lifecycle.stopSignal` (KEP-4960); the image's own, else SIGTERM, where there is none."""
    name = ""
    if node.settings.gates["ContainerStopSignals"] and container.lifecycle is not None:
        name = container.lifecycle.stop_signal.replace("+", "PLUS").replace("-", "MINUS")
    return cri.Signal.from_string(name or "RUNTIME_DEFAULT")
