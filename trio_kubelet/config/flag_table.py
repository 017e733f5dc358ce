"""Every flag of the kubelet of Kubernetes 1.36, and what it sets.

A flag sets a field of the configuration (`field`, a path of wire names), or an attribute of
`NodeOptions` (`option`), or it tunes the statistics collector that is built into the Go kubelet
and only read here. Names, types and deprecations are those of the Go kubelet, so that its
command lines go on working.
"""

from attrs import frozen

from trio_kubelet.config import flag_values as values
from trio_kubelet.config.flag_values import FlagKind


@frozen
class Flag:
    """One flag. `default` is shown by `--help` where neither field nor option has one."""

    name: str
    kind: FlagKind
    field: str = ""
    option: str = ""
    deprecated: bool = False
    default: str = ""
    help: str = ""


def _sets(name: str, kind: FlagKind, field: str, *, deprecated: bool = True) -> Flag:
    return Flag(name, kind, field=field, deprecated=deprecated, help=f"Sets {field}.")


def _option(name: str, kind: FlagKind, help_text: str, *, deprecated: bool = False) -> Flag:
    return Flag(name, kind, option=name.replace("-", "_"), deprecated=deprecated, help=help_text)


def _collector(name: str, kind: FlagKind, default: str = "", *, deprecated: bool = True) -> Flag:
    return Flag(name, kind, default=default, deprecated=deprecated)


CONFIGURATION_FLAGS = (
    _sets("address", values.IP, "address"),
    _sets("allowed-unsafe-sysctls", values.STRINGS, "allowedUnsafeSysctls"),
    _sets("anonymous-auth", values.BOOL, "authentication.anonymous.enabled"),
    _sets("authentication-token-webhook", values.BOOL, "authentication.webhook.enabled"),
    _sets(
        "authentication-token-webhook-cache-ttl", values.DURATION, "authentication.webhook.cacheTTL"
    ),
    _sets("authorization-mode", values.STRING, "authorization.mode"),
    _sets(
        "authorization-webhook-cache-authorized-ttl",
        values.DURATION,
        "authorization.webhook.cacheAuthorizedTTL",
    ),
    _sets(
        "authorization-webhook-cache-unauthorized-ttl",
        values.DURATION,
        "authorization.webhook.cacheUnauthorizedTTL",
    ),
    _sets("cgroup-driver", values.STRING, "cgroupDriver"),
    _sets("cgroup-root", values.STRING, "cgroupRoot"),
    _sets("cgroups-per-qos", values.BOOL, "cgroupsPerQOS"),
    _sets("client-ca-file", values.STRING, "authentication.x509.clientCAFile"),
    _sets("cluster-dns", values.STRINGS, "clusterDNS"),
    _sets("cluster-domain", values.STRING, "clusterDomain"),
    _sets("container-log-max-files", values.INT32_KIND, "containerLogMaxFiles"),
    _sets("container-log-max-size", values.STRING, "containerLogMaxSize"),
    _sets("container-runtime-endpoint", values.STRING, "containerRuntimeEndpoint"),
    _sets("contention-profiling", values.BOOL, "enableContentionProfiling"),
    _sets("cpu-cfs-quota", values.BOOL, "cpuCFSQuota"),
    _sets("cpu-cfs-quota-period", values.DURATION, "cpuCFSQuotaPeriod"),
    _sets("cpu-manager-policy", values.STRING, "cpuManagerPolicy"),
    _sets("cpu-manager-policy-options", values.ONE_PAIR, "cpuManagerPolicyOptions"),
    _sets("cpu-manager-reconcile-period", values.DURATION, "cpuManagerReconcilePeriod"),
    _sets("enable-controller-attach-detach", values.BOOL, "enableControllerAttachDetach"),
    _sets("enable-debugging-handlers", values.BOOL, "enableDebuggingHandlers"),
    _sets("enable-server", values.BOOL, "enableServer"),
    _sets("enforce-node-allocatable", values.STRINGS, "enforceNodeAllocatable"),
    _sets("event-burst", values.INT32_KIND, "eventBurst"),
    _sets("event-qps", values.INT32_KIND, "eventRecordQPS"),
    _sets("eviction-hard", values.THRESHOLDS, "evictionHard"),
    _sets("eviction-max-pod-grace-period", values.INT32_KIND, "evictionMaxPodGracePeriod"),
    _sets("eviction-minimum-reclaim", values.PAIRS, "evictionMinimumReclaim"),
    _sets(
        "eviction-pressure-transition-period", values.DURATION, "evictionPressureTransitionPeriod"
    ),
    _sets("eviction-soft", values.THRESHOLDS, "evictionSoft"),
    _sets("eviction-soft-grace-period", values.PAIRS, "evictionSoftGracePeriod"),
    _sets("fail-cgroupv1", values.BOOL, "failCgroupV1", deprecated=False),
    _sets("fail-swap-on", values.BOOL, "failSwapOn"),
    _sets("feature-gates", values.GATES, "featureGates", deprecated=False),
    _sets("file-check-frequency", values.DURATION, "fileCheckFrequency"),
    _sets("hairpin-mode", values.STRING, "hairpinMode"),
    _sets("healthz-bind-address", values.IP, "healthzBindAddress"),
    _sets("healthz-port", values.INT32_KIND, "healthzPort"),
    _sets("http-check-frequency", values.DURATION, "httpCheckFrequency"),
    _sets("image-gc-high-threshold", values.INT32_KIND, "imageGCHighThresholdPercent"),
    _sets("image-gc-low-threshold", values.INT32_KIND, "imageGCLowThresholdPercent"),
    _sets("image-service-endpoint", values.STRING, "imageServiceEndpoint"),
    _sets("kernel-memcg-notification", values.BOOL, "kernelMemcgNotification"),
    _sets("kube-api-burst", values.INT32_KIND, "kubeAPIBurst"),
    _sets("kube-api-content-type", values.STRING, "contentType"),
    _sets("kube-api-qps", values.INT32_KIND, "kubeAPIQPS"),
    _sets("kube-reserved", values.PAIRS, "kubeReserved"),
    _sets("kube-reserved-cgroup", values.STRING, "kubeReservedCgroup"),
    _sets("kubelet-cgroups", values.STRING, "kubeletCgroups"),
    _sets("local-storage-capacity-isolation", values.BOOL, "localStorageCapacityIsolation"),
    _sets("log-flush-frequency", values.DURATION, "logging.flushFrequency", deprecated=False),
    _sets("log-json-info-buffer-size", values.QUANTITY, "logging.options.json.infoBufferSize"),
    _sets("log-json-split-stream", values.BOOL, "logging.options.json.splitStream"),
    _sets("log-text-info-buffer-size", values.QUANTITY, "logging.options.text.infoBufferSize"),
    _sets("log-text-split-stream", values.BOOL, "logging.options.text.splitStream"),
    _sets("logging-format", values.STRING, "logging.format"),
    _sets("make-iptables-util-chains", values.BOOL, "makeIPTablesUtilChains"),
    _sets("manifest-url", values.STRING, "staticPodURL"),
    _sets("manifest-url-header", values.HEADERS, "staticPodURLHeader"),
    _sets("max-open-files", values.INT64_KIND, "maxOpenFiles"),
    _sets("max-pods", values.INT32_KIND, "maxPods"),
    _sets("memory-manager-policy", values.STRING, "memoryManagerPolicy"),
    _sets("minimum-image-ttl-duration", values.DURATION, "imageMinimumGCAge"),
    _sets("node-status-max-images", values.INT32_KIND, "nodeStatusMaxImages"),
    _sets("node-status-update-frequency", values.DURATION, "nodeStatusUpdateFrequency"),
    _sets("oom-score-adj", values.INT32_KIND, "oomScoreAdj"),
    _sets("pod-cidr", values.STRING, "podCIDR"),
    _sets("pod-manifest-path", values.STRING, "staticPodPath"),
    _sets("pod-max-pids", values.INT64_KIND, "podPidsLimit"),
    _sets("pods-per-core", values.INT32_KIND, "podsPerCore"),
    _sets("port", values.INT32_KIND, "port"),
    _sets("protect-kernel-defaults", values.BOOL, "protectKernelDefaults"),
    _sets("provider-id", values.STRING, "providerID", deprecated=False),
    _sets("qos-reserved", values.PAIRS, "qosReserved"),
    _sets("read-only-port", values.INT32_KIND, "readOnlyPort"),
    _sets("register-node", values.BOOL, "registerNode"),
    _sets("register-with-taints", values.TAINTS, "registerWithTaints"),
    _sets("registry-burst", values.INT32_KIND, "registryBurst"),
    _sets("registry-qps", values.INT32_KIND, "registryPullQPS"),
    _sets("reserved-cpus", values.STRING, "reservedSystemCPUs"),
    _sets("reserved-memory", values.RESERVED_MEMORY, "reservedMemory"),
    _sets("resolv-conf", values.STRING, "resolvConf"),
    _sets("rotate-certificates", values.BOOL, "rotateCertificates"),
    _sets("rotate-server-certificates", values.BOOL, "serverTLSBootstrap"),
    _sets("runonce", values.BOOL, "runOnce"),
    _sets("runtime-request-timeout", values.DURATION, "runtimeRequestTimeout"),
    _sets("serialize-image-pulls", values.BOOL, "serializeImagePulls"),
    _sets("streaming-connection-idle-timeout", values.DURATION, "streamingConnectionIdleTimeout"),
    _sets("sync-frequency", values.DURATION, "syncFrequency"),
    _sets("system-cgroups", values.STRING, "systemCgroups"),
    _sets("system-reserved", values.PAIRS, "systemReserved"),
    _sets("system-reserved-cgroup", values.STRING, "systemReservedCgroup"),
    _sets("tls-cert-file", values.STRING, "tlsCertFile"),
    _sets("tls-cipher-suites", values.STRINGS, "tlsCipherSuites", deprecated=False),
    _sets("tls-min-version", values.STRING, "tlsMinVersion"),
    _sets("tls-private-key-file", values.STRING, "tlsPrivateKeyFile"),
    _sets("topology-manager-policy", values.STRING, "topologyManagerPolicy"),
    _sets("topology-manager-policy-options", values.ONE_PAIR, "topologyManagerPolicyOptions"),
    _sets("topology-manager-scope", values.STRING, "topologyManagerScope"),
    _sets("v", values.LEVEL, "logging.verbosity", deprecated=False),
    _sets("vmodule", values.VMODULE, "logging.vmodule", deprecated=False),
    _sets("volume-plugin-dir", values.STRING, "volumePluginDir"),
    _sets("volume-stats-agg-period", values.DURATION, "volumeStatsAggPeriod"),
)
"""Flags for fields of `KubeletConfiguration`; most are deprecated in favour of the file."""

OPTION_FLAGS = (
    _option(
        "boot-id-file",
        values.STRING,
        "Files, with commas between, of which the first that is there tells the id of this boot.",
        deprecated=True,
    ),
    _option(
        "bootstrap-kubeconfig",
        values.STRING,
        "Kubeconfig to ask for a client certificate with, until --kubeconfig exists.",
    ),
    _option(
        "cert-dir", values.STRING, "Folder for the certificates that the agent makes or is given."
    ),
    _option(
        "cloud-provider",
        values.STRING,
        'Empty, or "external" where a cloud controller names and taints the node.',
    ),
    _option("config", values.STRING, "File with a KubeletConfiguration, YAML or JSON."),
    _option(
        "config-dir",
        values.STRING,
        "Folder with drop-ins (*.conf), merged over --config in order of their names.",
    ),
    _option(
        "exit-on-lock-contention", values.BOOL, "Exit when another process wants the lock file."
    ),
    _option(
        "experimental-allocatable-ignore-eviction",
        values.BOOL,
        "Leave the hard eviction thresholds out of the node allocatable.",
        deprecated=True,
    ),
    _option(
        "experimental-mounter-path", values.STRING, "Path of a mounter binary.", deprecated=True
    ),
    _option("help", values.BOOL, "Print this and exit."),
    _option("hostname-override", values.STRING, "Name of the node, instead of the host name."),
    _option(
        "image-credential-provider-bin-dir",
        values.STRING,
        "Folder of the image credential provider binaries.",
    ),
    _option(
        "image-credential-provider-config",
        values.STRING,
        "File or folder of files with a CredentialProviderConfig.",
    ),
    _option(
        "kubeconfig",
        values.STRING,
        "Kubeconfig for the API server; without it the node stands alone.",
    ),
    _option("lock-file", values.STRING, "File to hold a lock on."),
    _option(
        "machine-id-file",
        values.STRING,
        "Files, with commas between, of which the first that is there tells the machine's id.",
        deprecated=True,
    ),
    _option(
        "maximum-dead-containers",
        values.INT32_KIND,
        "Dead containers to keep on the node; negative: no limit.",
        deprecated=True,
    ),
    _option(
        "maximum-dead-containers-per-container",
        values.INT32_KIND,
        "Dead instances to keep of each container.",
        deprecated=True,
    ),
    _option(
        "minimum-container-ttl-duration",
        values.DURATION,
        "Age before which a dead container is not removed.",
        deprecated=True,
    ),
    _option(
        "node-ip", values.STRING, "Address of the node, or one of each family with a comma between."
    ),
    _option("node-labels", values.LABELS, "Labels to register the node with."),
    _option("root-dir", values.STRING, "Folder for the agent's files."),
    _option("runtime-cgroups", values.STRING, "Cgroup of the container runtime."),
    _option(
        "seccomp-default",
        values.SECCOMP_DEFAULT,
        "Use RuntimeDefault as the seccomp profile of containers that name none.",
    ),
    _option(
        "version",
        values.VERSION,
        "Print the version and exit; with a version like v1.35.0, report that one instead.",
    ),
)
"""Flags for this node alone."""

COLLECTOR_FLAGS = (
    _collector("application-metrics-count-limit", values.INT64_KIND, "100"),
    _collector("container-hints", values.STRING, "/etc/cadvisor/container_hints.json"),
    _collector("containerd", values.STRING, "/run/containerd/containerd.sock"),
    _collector("containerd-namespace", values.STRING, "k8s.io"),
    _collector("enable-load-reader", values.BOOL),
    _collector("event-storage-age-limit", values.STRING, "default=0"),
    _collector("event-storage-event-limit", values.STRING, "default=0"),
    _collector("global-housekeeping-interval", values.DURATION, "1m0s"),
    _collector("housekeeping-interval", values.DURATION, "10s", deprecated=False),
    _collector("log-cadvisor-usage", values.BOOL),
    _collector("max-housekeeping-interval", values.DURATION, "15s", deprecated=False),
    _collector("storage-driver-buffer-duration", values.DURATION, "1m0s"),
    _collector("storage-driver-db", values.STRING, "cadvisor"),
    _collector("storage-driver-host", values.STRING, "localhost:8086"),
    _collector("storage-driver-password", values.STRING, "root"),
    _collector("storage-driver-secure", values.BOOL),
    _collector("storage-driver-table", values.STRING, "stats"),
    _collector("storage-driver-user", values.STRING, "root"),
)
"""Flags of the Go kubelet's built-in statistics collector: checked, and told of as not acted on."""

FORMER_FLAGS = (
    Flag(
        "pod-infra-container-image",
        values.STRING,
        deprecated=True,
        help="Without effect: the runtime knows its sandbox image. kubeadm 1.34 gives it.",
    ),
)
"""Flags that the Go kubelet had until 1.34, and that installers of that time write into units."""

OWN_FLAGS = (
    _option(
        "hollow",
        values.BOOL,
        "Run pods on the hollow runtime, in process and without a kernel (not in Kubernetes).",
    ),
    _option(
        "eviction-mem-available",
        values.BOOL,
        "Evict by the kernel's MemAvailable, for which page cache that can go is no used memory "
        "(not in Kubernetes).",
    ),
    _option(
        "device-plugin-wait",
        values.DURATION,
        "How long a pod waits for a device plugin that has not registered yet, after a start of "
        "the agent or of the plugin; 0 rejects it at once (not in Kubernetes).",
    ),
)
"""Flags that the Go kubelet does not have."""

FLAGS = {
    flag.name: flag
    for flag in (
        *CONFIGURATION_FLAGS,
        *OPTION_FLAGS,
        *COLLECTOR_FLAGS,
        *FORMER_FLAGS,
        *OWN_FLAGS,
    )
}
"""Every flag by its name."""

SHORTHANDS = {"h": "help", "v": "v"}
"""Flags that may be given with a single dash."""
