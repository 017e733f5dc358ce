"""What this agent does not act on yet: no setting is ignored silently.

`not_acted_on` names every field and flag that was given another value than its default and that
no part of the agent reads. A part that begins to act on a setting adds it to the table here.
"""

from typing import Any

import attrs

from trio_kubelet.config.codec import to_wire
from trio_kubelet.config.flag_table import OPTION_FLAGS
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions

ACTED_UPON_FIELDS = frozenset(
    {
        "address",
        "allowedUnsafeSysctls",
        "cgroupDriver",
        "cgroupRoot",
        "cgroupsPerQOS",
        "clusterDNS",
        "clusterDomain",
        "containerRuntimeEndpoint",
        "configMapAndSecretChangeDetectionStrategy",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "crashLoopBackOff",
        "enableControllerAttachDetach",
        "enableServer",
        "eventBurst",
        "eventRecordQPS",
        "failCgroupV1",
        "failSwapOn",
        "featureGates",
        "fileCheckFrequency",
        "healthzBindAddress",
        "healthzPort",
        "httpCheckFrequency",
        "imageServiceEndpoint",
        "kubeAPIBurst",
        "kubeAPIQPS",
        "kubeReserved",
        "localStorageCapacityIsolation",
        "logging.format",
        "logging.verbosity",
        "maxOpenFiles",
        "maxParallelImagePulls",
        "maxPods",
        "memorySwap",
        "nodeLeaseDurationSeconds",
        "nodeStatusMaxImages",
        "nodeStatusReportFrequency",
        "nodeStatusUpdateFrequency",
        "oomScoreAdj",
        "podLogsDir",
        "podPidsLimit",
        "podsPerCore",
        "providerID",
        "readOnlyPort",
        "registerNode",
        "registerWithTaints",
        "registryBurst",
        "registryPullQPS",
        "resolvConf",
        "runOnce",
        "runtimeRequestTimeout",
        "seccompDefault",
        "serializeImagePulls",
        "staticPodPath",
        "staticPodURL",
        "staticPodURLHeader",
        "syncFrequency",
        "systemReserved",
    }
)
"""Fields of the configuration, by path; a path stands for all that is below it."""

WITHOUT_EFFECT_ANYWHERE = frozenset(
    {
        "hairpinMode",  # the networks that it was for are gone from Kubernetes
        "iptablesDropBit",
        "iptablesMasqueradeBit",
        "logging.flushFrequency",
        "mergeDefaultEvictionSettings",  # done with when the file is read
        "streamingConnectionIdleTimeout",
    }
)
"""Fields that do nothing in the Go kubelet either, or whose effect ends with loading."""

ACTED_UPON_OPTIONS = frozenset(
    {
        "bootstrap_kubeconfig",
        "cert_dir",
        "cloud_provider",
        "config",
        "config_dir",
        "exit_on_lock_contention",
        "experimental_allocatable_ignore_eviction",
        "hollow",
        "hostname_override",
        "kubeconfig",
        "lock_file",
        "maximum_dead_containers",
        "maximum_dead_containers_per_container",
        "minimum_container_ttl_duration",
        "node_ip",
        "node_labels",
        "root_dir",
        "seccomp_default",
        "version",
    }
)
"""Attributes of `NodeOptions`."""


def not_acted_on(configuration: KubeletConfiguration, options: NodeOptions) -> tuple[str, ...]:
    """The settings that were given and have no effect: fields by path, flags with their dashes."""
    changed = _changed(to_wire(configuration), to_wire(KubeletConfiguration()), "")
    fields = (
        path
        for path in changed
        if not _covered(path, ACTED_UPON_FIELDS) and not _covered(path, WITHOUT_EFFECT_ANYWHERE)
    )
    return (*fields, *_ignored_flags(options))


def _changed(value: Any, default: Any, path: str) -> list[str]:
    """Paths of the fields whose value is not the default; a map of the user's is one field."""
    if value == default:
        return []
    if isinstance(value, dict) and isinstance(default, dict) and path not in _USER_MAPS:
        return [
            changed
            for name in {**default, **value}
            for changed in _changed(
                value.get(name), default.get(name), f"{path}.{name}" if path else name
            )
        ]
    return [path]


_USER_MAPS = frozenset({"evictionHard"})


def _covered(path: str, table: frozenset[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:count]) in table for count in range(1, len(parts) + 1))


def _ignored_flags(options: NodeOptions) -> tuple[str, ...]:
    defaults = NodeOptions()
    flag_names = {flag.option: flag.name for flag in OPTION_FLAGS}
    attributes = (
        attribute.name
        for attribute in attrs.fields(NodeOptions)
        if attribute.name not in ACTED_UPON_OPTIONS and attribute.name != "cadvisor"
    )
    ignored = (
        f"--{flag_names[name]}"
        for name in attributes
        if getattr(options, name) != getattr(defaults, name)
    )
    return (*ignored, *(f"--{name}" for name in options.cadvisor))
