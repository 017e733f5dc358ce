"""Fills in what a manifest leaves open, as the API server does when it stores a pod.

Pods of a control plane arrive with their defaults; static pods have never met an API server,
and everything behind the sources relies on the same fields being set. What admission adds
there (priority, tolerations, service account) is not part of this.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from state_machines.container import RestartPolicy
from state_machines.image import default_pull_policy
from trio_kubelet.k8s.claims import PersistentVolumeClaimSpec, PersistentVolumeMode
from trio_kubelet.k8s.container import (
    Container,
    ContainerPort,
    EnvVar,
    ObjectFieldSelector,
    Protocol,
    TerminationMessagePolicy,
)
from trio_kubelet.k8s.pod import DNSPolicy, Pod, PodSpec
from trio_kubelet.k8s.probes import (
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Probe,
    URIScheme,
)
from trio_kubelet.k8s.quantity import NANO, Quantity
from trio_kubelet.k8s.resources import HUGEPAGES_PREFIX, ResourceRequirements
from trio_kubelet.k8s.security import PodSecurityContext
from trio_kubelet.k8s.totals import total_limits, total_requests
from trio_kubelet.k8s.volumes import (
    DownwardAPIVolumeFile,
    EmptyDirVolumeSource,
    Volume,
    VolumeProjection,
)

GRACE_PERIOD_SECONDS = 30
SCHEDULER = "default-scheduler"
TERMINATION_MESSAGE_PATH = "/dev/termination-log"
FILE_MODE = 0o644
TOKEN_EXPIRATION_SECONDS = 3600

T = TypeVar("T")
_MILLI = NANO // 1000
_OVERCOMMITTABLE = ("cpu", "memory")

_PROBE_DEFAULTS = {
    "timeout_seconds": 1,
    "period_seconds": 10,
    "success_threshold": 1,
    "failure_threshold": 3,
}

_SOURCE_DEFAULTS: dict[str, dict[str, Any]] = {
    "config_map": {"default_mode": FILE_MODE},
    "secret": {"default_mode": FILE_MODE},
    "downward_api": {"default_mode": FILE_MODE},
    "projected": {"default_mode": FILE_MODE},
    "host_path": {"type": ""},
    "iscsi": {"iscsi_interface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azure_disk": {
        "caching_mode": "ReadWrite",
        "kind": "Shared",
        "fs_type": "ext4",
        "read_only": False,
    },
    "scale_io": {"storage_mode": "ThinProvisioned", "fs_type": "xfs"},
}
"""The values that are set in a volume source where it is absent."""


def with_defaults(pod: Pod) -> Pod:
    """Return the pod with the API's defaults; one that has them all comes back equal."""
    spec = _spec(pod.spec)
    return attrs.evolve(pod, spec=_pod_level_resources(spec))


def _spec(spec: PodSpec) -> PodSpec:
    account = spec.service_account_name or spec.service_account
    host_network = spec.host_network is True
    spec = _filled(
        spec,
        dns_policy=DNSPolicy.CLUSTER_FIRST.value,
        restart_policy=RestartPolicy.ALWAYS.value,
        security_context=PodSecurityContext(),
        termination_grace_period_seconds=GRACE_PERIOD_SECONDS,
        scheduler_name=SCHEDULER,
        enable_service_links=True,
    )
    return attrs.evolve(
        spec,
        service_account_name=account,
        service_account=account,
        overhead=_rounded(spec.overhead),
        volumes=tuple(_volume(volume) for volume in spec.volumes),
        containers=tuple(_container(one, host_network) for one in spec.containers),
        init_containers=tuple(_container(one, host_network) for one in spec.init_containers),
        ephemeral_containers=tuple(_any_container(one) for one in spec.ephemeral_containers),
    )


def _container(container: Container, host_network: bool) -> Container:
    container = _any_container(container)
    if host_network:
        ports = tuple(_host_port(port) for port in container.ports)
        container = attrs.evolve(container, ports=ports)
    if container.resources is None or not container.resources.limits:
        return container
    limits, requests = container.resources.limits, container.resources.requests
    resources = attrs.evolve(container.resources, requests={**limits, **requests})
    return attrs.evolve(container, resources=resources)


C = TypeVar("C", bound=Container)


def _any_container(container: C) -> C:
    """Fill in what every kind of container has."""
    container = _filled(
        container,
        image_pull_policy=default_pull_policy(container.image).value,
        termination_message_path=TERMINATION_MESSAGE_PATH,
        termination_message_policy=TerminationMessagePolicy.FILE.value,
    )
    return attrs.evolve(
        container,
        ports=tuple(_filled(port, protocol=Protocol.TCP.value) for port in container.ports),
        env=tuple(_variable(variable) for variable in container.env),
        resources=_present(container.resources, _rounded_resources),
        liveness_probe=_present(container.liveness_probe, _probe),
        readiness_probe=_present(container.readiness_probe, _probe),
        startup_probe=_present(container.startup_probe, _probe),
        lifecycle=_present(container.lifecycle, _lifecycle),
    )


def _host_port(port: ContainerPort) -> ContainerPort:
    return attrs.evolve(port, host_port=port.host_port or port.container_port)


def _variable(variable: EnvVar) -> EnvVar:
    if variable.value_from is None:
        return variable
    source = attrs.evolve(
        variable.value_from, field_ref=_present(variable.value_from.field_ref, _field_ref)
    )
    return attrs.evolve(variable, value_from=source)


def _field_ref(selector: ObjectFieldSelector) -> ObjectFieldSelector:
    return _filled(selector, api_version="v1")


def _probe(probe: Probe) -> Probe:
    numbers: dict[str, Any] = {
        name: getattr(probe, name) or value for name, value in _PROBE_DEFAULTS.items()
    }
    return attrs.evolve(
        probe,
        http_get=_present(probe.http_get, _http_get),
        grpc=_present(probe.grpc, _grpc),
        **numbers,
    )


def _http_get(action: HTTPGetAction) -> HTTPGetAction:
    return _filled(action, path="/", scheme=URIScheme.HTTP.value)


def _grpc(action: GRPCAction) -> GRPCAction:
    return _filled(action, service="")


def _lifecycle(lifecycle: Lifecycle) -> Lifecycle:
    return attrs.evolve(
        lifecycle,
        post_start=_present(lifecycle.post_start, _hook),
        pre_stop=_present(lifecycle.pre_stop, _hook),
    )


def _hook(hook: LifecycleHandler) -> LifecycleHandler:
    return attrs.evolve(hook, http_get=_present(hook.http_get, _http_get))


def _volume(volume: Volume) -> Volume:
    sources = {
        attribute.name: getattr(volume, attribute.name)
        for attribute in attrs.fields(Volume)
        if attribute.name != "name" and getattr(volume, attribute.name) is not None
    }
    if not sources:
        return attrs.evolve(volume, empty_dir=EmptyDirVolumeSource())
    filled = {
        name: _filled(source, **_SOURCE_DEFAULTS.get(name, {})) for name, source in sources.items()
    }
    return _volume_parts(attrs.evolve(volume, **filled))


def _volume_parts(volume: Volume) -> Volume:
    """Fill in what lies deeper in the sources that have parts."""
    if volume.downward_api is not None:
        items = _downward_files(volume.downward_api.items)
        return attrs.evolve(volume, downward_api=attrs.evolve(volume.downward_api, items=items))
    if volume.projected is not None:
        parts = tuple(_projection(source) for source in volume.projected.sources)
        return attrs.evolve(volume, projected=attrs.evolve(volume.projected, sources=parts))
    if volume.image is not None:
        policy = default_pull_policy(volume.image.reference).value
        return attrs.evolve(volume, image=_filled(volume.image, pull_policy=policy))
    if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is not None:
        template = volume.ephemeral.volume_claim_template
        template = attrs.evolve(template, spec=_claim(template.spec))
        ephemeral = attrs.evolve(volume.ephemeral, volume_claim_template=template)
        return attrs.evolve(volume, ephemeral=ephemeral)
    return volume


def _projection(source: VolumeProjection) -> VolumeProjection:
    if source.downward_api is not None:
        items = _downward_files(source.downward_api.items)
        source = attrs.evolve(source, downward_api=attrs.evolve(source.downward_api, items=items))
    if source.service_account_token is not None:
        token = _filled(source.service_account_token, expiration_seconds=TOKEN_EXPIRATION_SECONDS)
        source = attrs.evolve(source, service_account_token=token)
    return source


def _downward_files(items: tuple[DownwardAPIVolumeFile, ...]) -> tuple[DownwardAPIVolumeFile, ...]:
    return tuple(
        attrs.evolve(item, field_ref=_present(item.field_ref, _field_ref)) for item in items
    )


def _claim(claim: PersistentVolumeClaimSpec) -> PersistentVolumeClaimSpec:
    claim = _filled(claim, volume_mode=PersistentVolumeMode.FILESYSTEM.value)
    if claim.resources is None:
        return claim
    resources = attrs.evolve(
        claim.resources,
        limits=_rounded(claim.resources.limits),
        requests=_rounded(claim.resources.requests),
    )
    return attrs.evolve(claim, resources=resources)


def _pod_level_resources(spec: PodSpec) -> PodSpec:
    """Complete the pod's own resources from its containers' (KEP-2837)."""
    if spec.resources is None:
        return spec
    resources = _rounded_resources(spec.resources)
    limits, requests = dict(resources.limits), dict(resources.requests)
    if limits or requests:
        for name, amount in total_limits(spec).items():
            if name.startswith(HUGEPAGES_PREFIX) and name not in requests:
                limits.setdefault(name, amount)
    if limits:
        for name, amount in total_requests(spec).items():
            if name in _OVERCOMMITTABLE:
                requests.setdefault(name, amount)
        for name, amount in limits.items():
            if name in _OVERCOMMITTABLE or name.startswith(HUGEPAGES_PREFIX):
                requests.setdefault(name, amount)
    return attrs.evolve(spec, resources=attrs.evolve(resources, limits=limits, requests=requests))


def _rounded_resources(resources: ResourceRequirements) -> ResourceRequirements:
    return attrs.evolve(
        resources, limits=_rounded(resources.limits), requests=_rounded(resources.requests)
    )


def _rounded(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Round up to thousandths, the finest step of stored resources."""
    return {
        name: amount
        if amount.nano % _MILLI == 0
        else Quantity.from_nano(amount.milli_value * _MILLI, amount.notation)
        for name, amount in amounts.items()
    }


def _filled(instance: T, **defaults: Any) -> T:
    """Set the fields that are absent or empty text."""
    missing = {
        name: value for name, value in defaults.items() if getattr(instance, name) in (None, "")
    }
    return attrs.evolve(instance, **missing) if missing else instance  # type: ignore[misc]


def _present(value: T | None, change: Callable[[T], T]) -> T | None:
    return None if value is None else change(value)
