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
    Flag(
        "bootstrap-kubeconfig",
        values.STRING,
        option="bootstrap_kubeconfig",
        help="Kubeconfig to ask for a client certificate with, until --kubeconfig exists.",
    ),
    Flag(
        "cert-dir",
        values.STRING,
        option="cert_dir",
        help="Folder for the certificates that the agent makes or is given.",
    ),
    Flag(
        "cloud-provider",
        values.STRING,
        option="cloud_provider",
        help='Empty, or "external" where a cloud controller names and taints the node.',
    ),
    Flag(
        "config",
        values.STRING,
        option="config",
        help="File with a KubeletConfiguration, YAML or JSON.",
    ),
    Flag(
        "config-dir",
        values.STRING,
        option="config_dir",
        help="Folder with drop-ins (*.conf), merged over --config in order of their names.",
    ),
    Flag(
        "exit-on-lock-contention",
        values.BOOL,
        option="exit_on_lock_contention",
        help="Exit when another process wants the lock file.",
    ),
    Flag(
        "experimental-allocatable-ignore-eviction",
        values.BOOL,
        option="experimental_allocatable_ignore_eviction",
        deprecated=True,
        help="Leave the hard eviction thresholds out of the node allocatable.",
    ),
    Flag(
        "experimental-mounter-path",
        values.STRING,
        option="experimental_mounter_path",
        deprecated=True,
        help="Path of a mounter binary.",
    ),
    Flag("help", values.BOOL, option="help", help="Print this and exit."),
    Flag(
        "hostname-override",
        values.STRING,
        option="hostname_override",
        help="Name of the node, instead of the host name.",
    ),
    Flag(
        "image-credential-provider-bin-dir",
        values.STRING,
        option="image_credential_provider_bin_dir",
        help="Folder of the image credential provider binaries.",
    ),
    Flag(
        "image-credential-provider-config",
        values.STRING,
        option="image_credential_provider_config",
        help="File with a CredentialProviderConfig.",
    ),
    Flag(
        "kubeconfig",
        values.STRING,
        option="kubeconfig",
        help="Kubeconfig for the API server; without it the node stands alone.",
    ),
    Flag("lock-file", values.STRING, option="lock_file", help="File to hold a lock on."),
    Flag(
        "maximum-dead-containers",
        values.INT32_KIND,
        option="maximum_dead_containers",
        deprecated=True,
        help="Dead containers to keep on the node; negative: no limit.",
    ),
    Flag(
        "maximum-dead-containers-per-container",
        values.INT32_KIND,
        option="maximum_dead_containers_per_container",
        deprecated=True,
        help="Dead instances to keep of each container.",
    ),
    Flag(
        "minimum-container-ttl-duration",
        values.DURATION,
        option="minimum_container_ttl_duration",
        deprecated=True,
        help="Age before which a dead container is not removed.",
    ),
    Flag(
        "node-ip",
        values.STRING,
        option="node_ip",
        help="Address of the node, or one of each family with a comma between.",
    ),
    Flag(
        "node-labels", values.LABELS, option="node_labels", help="Labels to register the node with."
    ),
    Flag("root-dir", values.STRING, option="root_dir", help="Folder for the agent's files."),
    Flag(
        "runtime-cgroups",
        values.STRING,
        option="runtime_cgroups",
        help="Cgroup of the container runtime.",
    ),
    Flag(
        "seccomp-default",
        values.SECCOMP_DEFAULT,
        option="seccomp_default",
        help="Use RuntimeDefault as the seccomp profile of containers that name none.",
    ),
    Flag(
        "version",
        values.VERSION,
        option="version",
        help="Print the version and exit; with a version like v1.35.0, report that one instead.",
    ),
)
"""Flags for this node alone."""

COLLECTOR_FLAGS = (
    Flag("application-metrics-count-limit", values.INT64_KIND, deprecated=True, default="100"),
    Flag("boot-id-file", values.STRING, deprecated=True, default="/proc/sys/kernel/random/boot_id"),
    Flag(
        "container-hints",
        values.STRING,
        deprecated=True,
        default="/etc/cadvisor/container_hints.json",
    ),
    Flag("containerd", values.STRING, deprecated=True, default="/run/containerd/containerd.sock"),
    Flag("containerd-namespace", values.STRING, deprecated=True, default="k8s.io"),
    Flag("enable-load-reader", values.BOOL, deprecated=True),
    Flag("event-storage-age-limit", values.STRING, deprecated=True, default="default=0"),
    Flag("event-storage-event-limit", values.STRING, deprecated=True, default="default=0"),
    Flag("global-housekeeping-interval", values.DURATION, deprecated=True, default="1m0s"),
    Flag("housekeeping-interval", values.DURATION, default="10s"),
    Flag("log-cadvisor-usage", values.BOOL, deprecated=True),
    Flag(
        "machine-id-file",
        values.STRING,
        deprecated=True,
        default="/etc/machine-id,/var/lib/dbus/machine-id",
    ),
    Flag("max-housekeeping-interval", values.DURATION, default="15s"),
    Flag("storage-driver-buffer-duration", values.DURATION, deprecated=True, default="1m0s"),
    Flag("storage-driver-db", values.STRING, deprecated=True, default="cadvisor"),
    Flag("storage-driver-host", values.STRING, deprecated=True, default="localhost:8086"),
    Flag("storage-driver-password", values.STRING, deprecated=True, default="root"),
    Flag("storage-driver-secure", values.BOOL, deprecated=True),
    Flag("storage-driver-table", values.STRING, deprecated=True, default="stats"),
    Flag("storage-driver-user", values.STRING, deprecated=True, default="root"),
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
    Flag(
        "hollow",
        values.BOOL,
        option="hollow",
        help="Run pods on the hollow runtime, in process and without a kernel (not in Kubernetes).",
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
