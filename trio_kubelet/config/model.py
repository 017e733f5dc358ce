"""`KubeletConfiguration`, v1beta1, and the options of this one node, as the agent reads them.

One attribute for each field of the API, in the API's order, under its name in snake case; every
default is the effective one, so that `KubeletConfiguration()` is the configuration of a kubelet
whose file says nothing. Durations are `timedelta`; maps and lists are never None; quantities and
thresholds are the text that was given. The value is what holds after file, drop-ins and flags:
who reads it need not know where a setting came from. `NodeOptions` are flags that never stand in
the shared file.
"""

# ruff: noqa: RUF009 - option(), nullable() and part() declare attrs fields

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from attrs import field, frozen

from trio_kubelet import DEFAULT_ROOT
from trio_kubelet.config.codec import (
    INT64,
    WITHOUT_EFFECT,
    Support,
    never,
    nullable,
    option,
    part,
    seconds,
)
from trio_kubelet.config.parts import (
    CrashLoopBackOffConfig,
    KubeletAuthentication,
    KubeletAuthorization,
    LoggingConfiguration,
    MemoryReservation,
    MemorySwapConfiguration,
    RegistrationTaint,
    ShutdownGracePeriodByPodPriority,
    TracingConfiguration,
    UserNamespaces,
)
from trio_kubelet.config.tls_names import OLD_VERSIONS, only_curve

API_VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"

DEFAULT_EVICTION_HARD: Mapping[str, str] = {
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
}


@frozen(kw_only=True)
class KubeletConfiguration:
    """The settings of the agent that a cluster's nodes may share.

    Kubernetes' reference documentation describes each field; the tables under `tests/facts/` list
    them all. Settings of this one node are in `NodeOptions`.
    """

    # Where pods come from, and how often that is looked at
    enable_server: bool = nullable("enableServer", True)
    static_pod_path: str = option("staticPodPath", "")
    pod_logs_dir: str = option("podLogsDir", "/var/log/pods")
    sync_frequency: timedelta = option("syncFrequency", seconds(60))
    file_check_frequency: timedelta = option("fileCheckFrequency", seconds(20))
    http_check_frequency: timedelta = option("httpCheckFrequency", seconds(20))
    static_pod_url: str = option("staticPodURL", "")
    static_pod_url_header: Mapping[str, tuple[str, ...]] = option("staticPodURLHeader", {})

    # The server
    address: str = option("address", "0.0.0.0")
    port: int = option("port", 10250)
    read_only_port: int = option("readOnlyPort", 0)
    tls_cert_file: str = option("tlsCertFile", "")
    tls_private_key_file: str = option("tlsPrivateKeyFile", "")
    tls_cipher_suites: tuple[str, ...] = option("tlsCipherSuites", ())
    tls_curve_preferences: tuple[int, ...] = option(
        "tlsCurvePreferences",
        (),
        never(
            "one of the curves 23, 24, 25 and 29 is the only one that is used; Python before 3.15 "
            "cannot hold OpenSSL to several, or to one with ML-KEM: then all of OpenSSL's own are",
            suffices=lambda curves: bool(only_curve(curves)),
        ),
    )
    tls_min_version: str = option(
        "tlsMinVersion",
        "",
        never(
            "TLS below 1.2 is not spoken, whatever it allows: it is broken, and no client needs it",
            suffices=lambda version: version not in OLD_VERSIONS,
        ),
    )
    rotate_certificates: bool = option("rotateCertificates", False)
    server_tls_bootstrap: bool = option("serverTLSBootstrap", False)
    authentication: KubeletAuthentication = part("authentication", KubeletAuthentication)
    authorization: KubeletAuthorization = part("authorization", KubeletAuthorization)

    # Images and events: rates; who may use an image that is already here
    registry_pull_qps: int = nullable("registryPullQPS", 5)
    registry_burst: int = option("registryBurst", 10)
    image_pull_credentials_verification_policy: str = option(
        "imagePullCredentialsVerificationPolicy", "NeverVerifyPreloadedImages"
    )
    preloaded_images_verification_allowlist: tuple[str, ...] = option(
        "preloadedImagesVerificationAllowlist", ()
    )
    event_record_qps: int = nullable("eventRecordQPS", 50)
    event_burst: int = option("eventBurst", 100)

    # Debugging and health
    enable_debugging_handlers: bool = nullable("enableDebuggingHandlers", True)
    enable_contention_profiling: bool = option(
        "enableContentionProfiling",
        False,
        never(
            "it measures waits for the locks of Go; here one thread runs all tasks, and the "
            "journal of the agent names the task that held it up (`LongTurn`)"
        ),
    )
    healthz_port: int = nullable("healthzPort", 10248)
    healthz_bind_address: str = option("healthzBindAddress", "127.0.0.1")
    oom_score_adj: int = nullable("oomScoreAdj", -999)

    # DNS of the pods
    cluster_domain: str = option("clusterDomain", "")
    cluster_dns: tuple[str, ...] = option("clusterDNS", ())
    streaming_connection_idle_timeout: timedelta = option(
        "streamingConnectionIdleTimeout", seconds(14400)
    )

    # The node object
    node_status_update_frequency: timedelta = option("nodeStatusUpdateFrequency", seconds(10))
    node_status_report_frequency: timedelta = option("nodeStatusReportFrequency", seconds(300))
    node_lease_duration_seconds: int = option("nodeLeaseDurationSeconds", 40)

    # Garbage collection of images
    image_minimum_gc_age: timedelta = option("imageMinimumGCAge", seconds(120))
    image_maximum_gc_age: timedelta = option("imageMaximumGCAge", seconds(0))
    image_gc_high_threshold_percent: int = nullable("imageGCHighThresholdPercent", 85)
    image_gc_low_threshold_percent: int = nullable("imageGCLowThresholdPercent", 80)
    volume_stats_agg_period: timedelta = option("volumeStatsAggPeriod", seconds(60))

    # Cgroups
    kubelet_cgroups: str = option("kubeletCgroups", "")
    system_cgroups: str = option("systemCgroups", "")
    cgroup_root: str = option("cgroupRoot", "")
    cgroups_per_qos: bool = nullable("cgroupsPerQOS", True)
    cgroup_driver: str = option("cgroupDriver", "cgroupfs")

    # CPU, memory and topology managers
    cpu_manager_policy: str = option("cpuManagerPolicy", "none")
    single_process_oom_kill: bool | None = nullable("singleProcessOOMKill")
    cpu_manager_policy_options: Mapping[str, str] = option("cpuManagerPolicyOptions", {})
    cpu_manager_reconcile_period: timedelta = option("cpuManagerReconcilePeriod", seconds(10))
    memory_manager_policy: str = option("memoryManagerPolicy", "None")
    topology_manager_policy: str = option("topologyManagerPolicy", "none")
    topology_manager_scope: str = option("topologyManagerScope", "container")
    topology_manager_policy_options: Mapping[str, str] = option("topologyManagerPolicyOptions", {})
    qos_reserved: Mapping[str, str] = option("qosReserved", {})

    # The runtime and the pods
    runtime_request_timeout: timedelta = option("runtimeRequestTimeout", seconds(120))
    hairpin_mode: str = option("hairpinMode", "promiscuous-bridge", WITHOUT_EFFECT)
    max_pods: int = option("maxPods", 110)
    pod_cidr: str = option("podCIDR", "")
    pod_pids_limit: int = nullable("podPidsLimit", -1, bits=INT64)
    resolv_conf: str = nullable("resolvConf", "/etc/resolv.conf")
    run_once: bool = option("runOnce", False)
    cpu_cfs_quota: bool = nullable("cpuCFSQuota", True)
    cpu_cfs_quota_period: timedelta = nullable("cpuCFSQuotaPeriod", seconds(0.1))

    # Limits of the process, the API client
    node_status_max_images: int = nullable("nodeStatusMaxImages", 50)
    max_open_files: int = option("maxOpenFiles", 1_000_000, bits=INT64)
    content_type: str = option(
        "contentType",
        "application/vnd.kubernetes.protobuf",
        Support(
            acts_as_with="application/json",
            reason="the agent reads no protobuf of API objects, and every API server has JSON",
        ),
    )
    kube_api_qps: int = nullable("kubeAPIQPS", 50)
    kube_api_burst: int = option("kubeAPIBurst", 100)

    # Image pulls
    serialize_image_pulls: bool = nullable("serializeImagePulls", True)
    max_parallel_image_pulls: int | None = nullable("maxParallelImagePulls")

    # Eviction
    eviction_hard: Mapping[str, str] = option("evictionHard", DEFAULT_EVICTION_HARD)
    eviction_soft: Mapping[str, str] = option("evictionSoft", {})
    eviction_soft_grace_period: Mapping[str, str] = option("evictionSoftGracePeriod", {})
    eviction_pressure_transition_period: timedelta = option(
        "evictionPressureTransitionPeriod", seconds(300)
    )
    eviction_max_pod_grace_period: int = option("evictionMaxPodGracePeriod", 0)
    eviction_minimum_reclaim: Mapping[str, str] = option("evictionMinimumReclaim", {})
    merge_default_eviction_settings: bool = nullable("mergeDefaultEvictionSettings", False)

    # Kernel and volumes
    pods_per_core: int = option("podsPerCore", 0)
    enable_controller_attach_detach: bool = nullable("enableControllerAttachDetach", True)
    protect_kernel_defaults: bool = option("protectKernelDefaults", False)
    make_iptables_util_chains: bool = nullable("makeIPTablesUtilChains", True)
    iptables_masquerade_bit: int = nullable("iptablesMasqueradeBit", 14, WITHOUT_EFFECT)
    iptables_drop_bit: int = nullable("iptablesDropBit", 15, WITHOUT_EFFECT)

    # Feature gates and swap
    feature_gates: Mapping[str, bool] = option("featureGates", {})
    fail_swap_on: bool = nullable("failSwapOn", True)
    memory_swap: MemorySwapConfiguration = part("memorySwap", MemorySwapConfiguration)

    # The containers' logs
    container_log_max_size: str = option("containerLogMaxSize", "10Mi")
    container_log_max_files: int = nullable("containerLogMaxFiles", 5)
    container_log_max_workers: int = nullable("containerLogMaxWorkers", 1)
    container_log_monitor_interval: timedelta = nullable("containerLogMonitorInterval", seconds(10))
    config_map_and_secret_change_detection_strategy: str = option(
        "configMapAndSecretChangeDetectionStrategy", "Watch"
    )

    # Node allocatable
    system_reserved: Mapping[str, str] = option("systemReserved", {})
    kube_reserved: Mapping[str, str] = option("kubeReserved", {})
    reserved_system_cpus: str = option("reservedSystemCPUs", "")
    show_hidden_metrics_for_version: str = option(
        "showHiddenMetricsForVersion", "", never("no metric of the agent is hidden")
    )
    system_reserved_cgroup: str = option("systemReservedCgroup", "")
    kube_reserved_cgroup: str = option("kubeReservedCgroup", "")
    enforce_node_allocatable: tuple[str, ...] = option("enforceNodeAllocatable", ("pods",))
    allowed_unsafe_sysctls: tuple[str, ...] = option("allowedUnsafeSysctls", ())

    # Plugins, identity, logging
    volume_plugin_dir: str = option(
        "volumePluginDir", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    )
    provider_id: str = option("providerID", "")
    kernel_memcg_notification: bool = option(
        "kernelMemcgNotification",
        False,
        Support(
            acts_as_with=True,
            reason="the kernel's word that memory runs short costs nothing while it is silent",
        ),
    )
    logging: LoggingConfiguration = part("logging", LoggingConfiguration)
    enable_system_log_handler: bool = nullable("enableSystemLogHandler", True)
    enable_system_log_query: bool = nullable("enableSystemLogQuery", False)

    # Graceful shutdown of the node
    shutdown_grace_period: timedelta = option("shutdownGracePeriod", seconds(0))
    shutdown_grace_period_critical_pods: timedelta = option(
        "shutdownGracePeriodCriticalPods", seconds(0)
    )
    shutdown_grace_period_by_pod_priority: tuple[ShutdownGracePeriodByPodPriority, ...] = option(
        "shutdownGracePeriodByPodPriority", ()
    )

    # Restarts; memory; seccomp
    crash_loop_back_off: CrashLoopBackOffConfig = part("crashLoopBackOff", CrashLoopBackOffConfig)
    reserved_memory: tuple[MemoryReservation, ...] = option("reservedMemory", ())
    enable_profiling_handler: bool = nullable("enableProfilingHandler", True)
    enable_debug_flags_handler: bool = nullable("enableDebugFlagsHandler", True)
    seccomp_default: bool = nullable("seccompDefault", False)
    memory_throttling_factor: float | None = nullable("memoryThrottlingFactor", 0.9)
    memory_reservation_policy: str = option("memoryReservationPolicy", "None")

    # Registration, tracing, the runtime endpoints
    register_with_taints: tuple[RegistrationTaint, ...] = option("registerWithTaints", ())
    register_node: bool = nullable("registerNode", True)
    tracing: TracingConfiguration | None = nullable("tracing")
    local_storage_capacity_isolation: bool = nullable("localStorageCapacityIsolation", True)
    container_runtime_endpoint: str = option(
        "containerRuntimeEndpoint", "unix:///run/containerd/containerd.sock", always=True
    )
    image_service_endpoint: str = option("imageServiceEndpoint", "")
    fail_cgroup_v1: bool = nullable("failCgroupV1", True)
    user_namespaces: UserNamespaces | None = nullable("userNamespaces")


@frozen(kw_only=True)
class NodeOptions:
    """The flags of the command line that are no field of `KubeletConfiguration`.

    Named as the flags, with underscores. Paths are as given: relative ones count from the
    working directory. `node_ip` is empty, one address, or two of both families with a comma.
    """

    root_dir: str = DEFAULT_ROOT
    cert_dir: str = "/var/lib/kubelet/pki"
    config: str = ""
    config_dir: str = ""
    kubeconfig: str = ""
    bootstrap_kubeconfig: str = ""
    hostname_override: str = ""
    node_ip: str = ""
    node_labels: Mapping[str, str] = field(factory=dict)
    cloud_provider: str = ""
    lock_file: str = ""
    exit_on_lock_contention: bool = False
    maximum_dead_containers: int = -1
    """Dead containers kept on the node; negative: no limit."""
    maximum_dead_containers_per_container: int = 1
    minimum_container_ttl_duration: timedelta = timedelta()
    image_credential_provider_bin_dir: str = ""
    image_credential_provider_config: str = ""
    runtime_cgroups: str = ""
    seccomp_default: bool = False
    """Adds to the configuration's `seccompDefault`; it cannot switch that off."""
    experimental_allocatable_ignore_eviction: bool = False
    experimental_mounter_path: str = field(
        default="",
        metadata={
            Support: never(
                "the agent mounts by itself and by `mount` of the node; it is deprecated, and was "
                "for one distribution without that"
            )
        },
    )
    version: str = ""
    """A Kubernetes version to report instead of the agent's own (`--version=v1.35.0`)."""
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    machine_id_file: str = "/etc/machine-id,/var/lib/dbus/machine-id"
    """Files with a comma between; the first that can be read tells the id."""
    cadvisor: Mapping[str, Any] = field(
        factory=dict,
        metadata={
            Support: never(
                "they tune cAdvisor, which is a part of the Go kubelet; the agent reads cgroups "
                "when it is asked, keeps no history and sends none, and takes the name of "
                "the runtime's socket from the configuration"
            )
        },
    )
    """Given flags that tune the statistics collector of the Go kubelet, by name."""
    hollow: bool = False
    """Run on the hollow runtime, in process: pods without a kernel. An option of this agent."""
    eviction_mem_available: bool = False
    """Take MemAvailable of /proc/meminfo for the signal memory.available. An option of this
    agent."""
    device_plugin_wait: timedelta = timedelta(minutes=5)
    """A pod waits so long for a device plugin that has not registered. An option of this agent."""
