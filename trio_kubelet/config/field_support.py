"""The support of each field of the configuration and of each option of the node in this agent.

Every field is in exactly one of the groups, by its path or by that of a part that it belongs to;
`tests/unit/config/test_support.py` holds the groups against the API and against the code that
reads the fields. Who begins to act on a field moves it to ACTED_ON.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trio_kubelet.config.tls_names import OLD_VERSIONS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ACTED_ON = _names(
    """
    address allowedUnsafeSysctls authentication authorization cgroupDriver cgroupRoot
    cgroupsPerQOS clusterDNS clusterDomain configMapAndSecretChangeDetectionStrategy
    containerRuntimeEndpoint cpuCFSQuota cpuCFSQuotaPeriod crashLoopBackOff
    enableControllerAttachDetach enableDebugFlagsHandler enableDebuggingHandlers
    enableProfilingHandler enableServer enableSystemLogHandler enableSystemLogQuery eventBurst
    eventRecordQPS
    evictionPressureTransitionPeriod failCgroupV1 failSwapOn fileCheckFrequency
    healthzBindAddress healthzPort httpCheckFrequency imagePullCredentialsVerificationPolicy
    imageServiceEndpoint kubeAPIBurst kubeAPIQPS kubeReserved localStorageCapacityIsolation
    logging.format logging.verbosity maxOpenFiles maxParallelImagePulls maxPods
    memoryReservationPolicy memorySwap memoryThrottlingFactor nodeLeaseDurationSeconds
    nodeStatusMaxImages nodeStatusReportFrequency nodeStatusUpdateFrequency oomScoreAdj
    podLogsDir podPidsLimit podsPerCore port preloadedImagesVerificationAllowlist providerID
    readOnlyPort registerNode registerWithTaints registryBurst registryPullQPS
    reservedSystemCPUs resolvConf runtimeRequestTimeout seccompDefault serializeImagePulls
    singleProcessOOMKill staticPodPath staticPodURL staticPodURLHeader
    streamingConnectionIdleTimeout syncFrequency systemReserved tlsCertFile tlsCipherSuites
    tlsPrivateKeyFile userNamespaces volumeStatsAggPeriod
    """
)
"""Fields that the agent does what it is told with."""

ENDS_WITH_LOADING = _names(
    """
    featureGates mergeDefaultEvictionSettings runOnce serverTLSBootstrap
    """
)
"""Fields that are done with when the configuration is read.

`runOnce: true` is refused, and so is `serverTLSBootstrap: true` on a node with a server.
"""

WITHOUT_EFFECT_ANYWHERE = _names(
    """
    hairpinMode iptablesDropBit iptablesMasqueradeBit logging.flushFrequency
    """
)
"""Fields that do nothing in the Go kubelet either, or that are for what this agent needs not."""

FIXED: Mapping[str, Any] = {
    "contentType": "application/json",
    "makeIPTablesUtilChains": False,
}
"""Fields that the agent acts on as if they had this value, whatever they have."""


def _only_pods(levels: Any) -> bool:
    return {"pods", "none"}.issuperset(levels)


PARTLY: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "enforceNodeAllocatable": ("reserved cgroups", _only_pods),
    "evictionHard": ("eviction", lambda _: False),
    "evictionMinimumReclaim": ("eviction", lambda _: False),
    "evictionSoft": ("eviction", lambda _: False),
    "tlsMinVersion": ("server", lambda version: version not in OLD_VERSIONS),
}
"""Fields of which something is done: what is missing, and for which values that does not matter.

Allocatable follows from `evictionHard`, and from all thresholds the node's pressures and which
pods are admitted, but no pod is evicted; `port` is only told in the node's status.
"""

NOT_YET: Mapping[str, frozenset[str]] = {
    capability: _names(names)
    for capability, names in {
        "server": """
            enableContentionProfiling showHiddenMetricsForVersion tlsCurvePreferences
        """,
        "renewal of the client certificate": "rotateCertificates",
        "garbage collection of images": """
            imageGCHighThresholdPercent imageGCLowThresholdPercent imageMaximumGCAge
            imageMinimumGCAge
        """,
        "rotation of container logs": """
            containerLogMaxFiles containerLogMaxSize containerLogMaxWorkers
            containerLogMonitorInterval
        """,
        "eviction": """
            evictionMaxPodGracePeriod evictionSoftGracePeriod kernelMemcgNotification
        """,
        "reserved cgroups": """
            kubeReservedCgroup kubeletCgroups systemCgroups systemReservedCgroup
        """,
        "resource managers": """
            cpuManagerPolicy cpuManagerPolicyOptions cpuManagerReconcilePeriod
            memoryManagerPolicy qosReserved reservedMemory topologyManagerPolicy
            topologyManagerPolicyOptions topologyManagerScope
        """,
        "graceful shutdown of the node": """
            shutdownGracePeriod shutdownGracePeriodByPodPriority shutdownGracePeriodCriticalPods
        """,
        "kernel settings": "protectKernelDefaults",
        "network of a node without API server": "podCIDR",
        "volume plugins": "volumePluginDir",
        "tracing": "tracing",
        "verbosity by file, streams of the log": "logging.options logging.vmodule",
    }.items()
}
"""Fields that nothing is done with so far, by the capability that they wait for."""

OPTIONS_ACTED_ON = _names(
    """
    bootstrap_kubeconfig cert_dir cloud_provider config config_dir exit_on_lock_contention
    experimental_allocatable_ignore_eviction hollow hostname_override kubeconfig lock_file
    maximum_dead_containers maximum_dead_containers_per_container
    minimum_container_ttl_duration node_ip node_labels root_dir seccomp_default version
    """
)
"""Attributes of `NodeOptions`."""

OPTIONS_NOT_YET: Mapping[str, frozenset[str]] = {
    "credential providers": frozenset(
        {"image_credential_provider_bin_dir", "image_credential_provider_config"}
    ),
    "volume plugins": frozenset({"experimental_mounter_path"}),
    "reserved cgroups": frozenset({"runtime_cgroups"}),
    "statistics": frozenset({"cadvisor"}),
}
"""The other attributes, by the capability that they wait for."""
