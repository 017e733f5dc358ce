"""Rules of the configuration that are tables: ranges of numbers, words that a field may hold."""

from attrs import frozen


@frozen
class Bounds:
    """The range of a number. `words` end the sentence that names the field and its value."""

    attribute: str
    name: str
    lowest: int
    highest: int | None
    words: str


_NOT_NEGATIVE = "must not be a negative number"
_PERCENT = "must be between 0 and 100, inclusive"
_BIT = "must be between 0 and 31, inclusive"

BOUNDS = (
    Bounds("event_burst", "eventBurst (--event-burst)", 0, None, _NOT_NEGATIVE),
    Bounds("event_record_qps", "eventRecordQPS (--event-qps)", 0, None, _NOT_NEGATIVE),
    Bounds(
        "healthz_port",
        "healthzPort (--healthz-port)",
        0,
        65535,
        "must be between 1 and 65535, inclusive",
    ),
    Bounds(
        "image_gc_high_threshold_percent",
        "imageGCHighThresholdPercent (--image-gc-high-threshold)",
        0,
        100,
        _PERCENT,
    ),
    Bounds(
        "image_gc_low_threshold_percent",
        "imageGCLowThresholdPercent (--image-gc-low-threshold)",
        0,
        100,
        _PERCENT,
    ),
    Bounds("iptables_drop_bit", "iptablesDropBit (--iptables-drop-bit)", 0, 31, _BIT),
    Bounds(
        "iptables_masquerade_bit", "iptablesMasqueradeBit (--iptables-masquerade-bit)", 0, 31, _BIT
    ),
    Bounds("kube_api_burst", "kubeAPIBurst (--kube-api-burst)", 0, None, _NOT_NEGATIVE),
    Bounds("kube_api_qps", "kubeAPIQPS (--kube-api-qps)", 0, None, _NOT_NEGATIVE),
    Bounds(
        "node_status_max_images",
        "nodeStatusMaxImages (--node-status-max-images)",
        -1,
        None,
        "must be -1 or greater",
    ),
    Bounds("max_open_files", "maxOpenFiles (--max-open-files)", 0, None, _NOT_NEGATIVE),
    Bounds("max_pods", "maxPods (--max-pods)", 0, None, _NOT_NEGATIVE),
    Bounds(
        "oom_score_adj",
        "oomScoreAdj (--oom-score-adj)",
        -1000,
        1000,
        "must be between -1000 and 1000, inclusive",
    ),
    Bounds("pods_per_core", "podsPerCore (--pods-per-core)", 0, None, _NOT_NEGATIVE),
    Bounds("port", "port (--port)", 1, 65535, "must be between 1 and 65535, inclusive"),
    Bounds(
        "read_only_port",
        "readOnlyPort (--read-only-port)",
        0,
        65535,
        "must be between 0 and 65535, inclusive",
    ),
    Bounds("registry_burst", "registryBurst (--registry-burst)", 0, None, _NOT_NEGATIVE),
    Bounds("registry_pull_qps", "registryPullQPS (--registry-qps)", 0, None, _NOT_NEGATIVE),
    Bounds(
        "max_parallel_image_pulls", "maxParallelImagePulls", 1, None, "must be a positive number"
    ),
)


@frozen
class AllowedValues:
    """A field that takes one of a few words. An empty one stands for the default."""

    attribute: str
    name: str
    values: tuple[str, ...]


CHOICES = (
    AllowedValues(
        "topology_manager_policy",
        "topologyManagerPolicy (--topology-manager-policy)",
        ("none", "best-effort", "restricted", "single-numa-node"),
    ),
    AllowedValues(
        "topology_manager_scope",
        "topologyManagerScope (--topology-manager-scope)",
        ("container", "pod"),
    ),
    AllowedValues(
        "hairpin_mode",
        "hairpinMode (--hairpin-mode)",
        ("none", "hairpin-veth", "promiscuous-bridge"),
    ),
    AllowedValues("cgroup_driver", "cgroupDriver (--cgroup-driver)", ("cgroupfs", "systemd")),
    AllowedValues(
        "cpu_manager_policy", "cpuManagerPolicy (--cpu-manager-policy)", ("none", "static")
    ),
    AllowedValues(
        "memory_manager_policy",
        "memoryManagerPolicy (--memory-manager-policy)",
        ("None", "Static"),
    ),
    AllowedValues(
        "memory_reservation_policy", "memoryReservationPolicy", ("None", "TieredReservation")
    ),
    AllowedValues(
        "config_map_and_secret_change_detection_strategy",
        "configMapAndSecretChangeDetectionStrategy",
        ("Get", "Cache", "Watch"),
    ),
)

ENFORCEMENTS = (
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
)

NODE_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
NODE_LABEL_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
"""The labels of Kubernetes that a kubelet may set on its own node."""
