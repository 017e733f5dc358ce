"""What a configuration must fulfil: each rule once broken, once kept, and all at once."""

from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.eviction import SIGNALS
from trio_kubelet.config.gates import resolve
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.config.parts import (
    CrashLoopBackOffConfig,
    FormatOptions,
    KubeletAuthorization,
    LoggingConfiguration,
    MemoryReservation,
    MemorySwapConfiguration,
    OutputRoutingOptions,
    RegistrationTaint,
    ShutdownGracePeriodByPodPriority,
    TracingConfiguration,
    UserNamespaces,
    VModuleItem,
)
from trio_kubelet.config.validation import validate
from trio_kubelet.config.validation_tables import BOUNDS, CHOICES
from trio_kubelet.k8s.quantity import Quantity

SECOND = timedelta(seconds=1)


def problems(gates: Any = None, **changes: Any) -> tuple[str, ...]:
    configuration = evolve(KubeletConfiguration(), **changes)
    return validate(configuration, NodeOptions(), resolve(gates or {}).gates)


def option_problems(**changes: Any) -> tuple[str, ...]:
    options = evolve(NodeOptions(), **changes)
    return validate(KubeletConfiguration(), options, resolve({}).gates)


def test_the_default_configuration_is_valid() -> None:
    assert problems() == ()


@pytest.mark.parametrize("bounds", BOUNDS, ids=lambda bounds: bounds.attribute)
def test_numbers_stay_within_their_bounds(bounds: Any) -> None:
    def found(value: int) -> bool:
        line = f"invalid configuration: {bounds.name} {value} {bounds.words}"
        return line in problems(**{bounds.attribute: value})

    assert not found(bounds.lowest)
    assert found(bounds.lowest - 1)
    if bounds.highest is not None:
        assert not found(bounds.highest)
        assert found(bounds.highest + 1)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.attribute)
def test_words_are_of_those_that_are_known(choice: Any) -> None:
    for value in choice.values:
        assert not any(
            choice.name in line
            for line in problems({"MemoryQoS": True}, **{choice.attribute: value})
        )
    (problem,) = problems(**{choice.attribute: "sometimes"})
    assert problem.startswith(f'invalid configuration: {choice.name} "sometimes" must be one of: [')


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"node_lease_duration_seconds": 0}, "nodeLeaseDurationSeconds must be greater than 0"),
    ({"container_log_max_workers": 0}, "containerLogMaxWorkers must be greater than or equal to 1"),
    ({"container_log_max_files": 1}, "containerLogMaxFiles must be greater than 1"),
    ({"memory_throttling_factor": 0.0}, "memoryThrottlingFactor 0.0 must be greater than 0"),
    (
        {"authorization": KubeletAuthorization(mode="RBAC")},
        'authorization.mode (--authorization-mode) "RBAC"',
    ),
    (
        {"memory_swap": MemorySwapConfiguration(swap_behavior="Full")},
        'memorySwap.swapBehavior "Full"',
    ),
    ({"memory_reservation_policy": "TieredReservation"}, "requires MemoryQoS feature gate"),
    ({"image_gc_low_threshold_percent": 85}, "85 must be less than imageGCHighThresholdPercent"),
    ({"image_minimum_gc_age": -SECOND}, "imageMinimumGCAge -1s must not be negative"),
    ({"image_maximum_gc_age": -SECOND}, "imageMaximumGCAge -1s must not be negative"),
    (
        {"image_maximum_gc_age": 120 * SECOND},
        "imageMaximumGCAge 2m0s must be greater than imageMinimumGCAge 2m0s",
    ),
    ({"max_parallel_image_pulls": 5}, "cannot be larger than 1 unless SerializeImagePulls"),
    (
        {"image_pull_credentials_verification_policy": "Ask"},
        'imagePullCredentialsVerificationPolicy "Ask"',
    ),
    *(
        (
            {
                "image_pull_credentials_verification_policy": "NeverVerifyAllowlistedImages",
                "preloaded_images_verification_allowlist": ("registry.test/*", pattern),
            },
            f"invalid image pattern in preloadedImagesVerificationAllowlist: {problem}",
        )
        for pattern, problem in (
            (" a/b", "leading/trailing spaces are not allowed"),
            ("", "the supplied pattern is too short"),
            ("*", "not a valid wildcard pattern"),
            ("a*/*", "not a valid wildcard pattern"),
            ("/*", "at least registry hostname is required"),
            ("A/b c", "failed to parse as an image name: invalid reference format"),
            ("a/b:1", "neither tag nor digest is accepted in an image reference"),
        )
    ),
    (
        {"preloaded_images_verification_allowlist": ("a/b",)},
        "can't set preloadedImagesVerificationAllowlist",
    ),
    ({"enforce_node_allocatable": ("pods", "pods")}, 'duplicated enforcements "pods"'),
    ({"enforce_node_allocatable": ("nodes",)}, '"nodes" must be one of'),
    ({"enforce_node_allocatable": ("none", "pods")}, 'when "none" is specified'),
    (
        {"enforce_node_allocatable": ("kube-reserved",)},
        "kubeReservedCgroup (--kube-reserved-cgroup) must be specified",
    ),
    (
        {
            "enforce_node_allocatable": ("system-reserved", "system-reserved-compressible"),
            "system_reserved_cgroup": "/s",
        },
        'both "system-reserved" and "system-reserved-compressible"',
    ),
    ({"cgroups_per_qos": False}, "cgroupsPerQOS (--cgroups-per-qos) must be set to true"),
    ({"reserved_system_cpus": "3-1"}, "unable to parse reservedSystemCPUs (--reserved-cpus) 3-1"),
    ({"reserved_system_cpus": "\u00b2-\u00b3"}, "unable to parse reservedSystemCPUs"),
    ({"reserved_system_cpus": "1" * 5000 + "-2"}, "unable to parse reservedSystemCPUs"),
    ({"reserved_system_cpus": "0", "kube_reserved_cgroup": "/k"}, "can't use reservedSystemCPUs"),
    ({"system_cgroups": "/system"}, "cgroupRoot (--cgroup-root) was not specified"),
    ({"system_reserved": {"cpu": "some"}}, 'systemReserved (--system-reserved) cpu "some"'),
    ({"kube_reserved": {"cpu": "-1"}}, 'kubeReserved (--kube-reserved) cpu "-1"'),
    (
        {"system_reserved": {"hugepages-2Mi": "4Mi"}},
        "systemReserved (--system-reserved) value failed to parse: "
        'cannot reserve "hugepages-2Mi" resource',
    ),
    ({"container_log_max_size": "big"}, '"big" must be a quantity'),
    *(
        (
            {"eviction_hard": {"memory.available": value}},
            f'evictionHard (--eviction-hard) memory.available "{value}" must be a quantity '
            "greater than 0 or a percentage of at most 100%",
        )
        for value in ("10 %", "some", "-5%", "100.5%", "150%", "9" * 400 + "%", "0", "-1Gi", "")
    ),
    (
        {
            "eviction_soft": {"nodefs.available": "150%"},
            "eviction_soft_grace_period": {"nodefs.available": "1m"},
        },
        'evictionSoft (--eviction-soft) nodefs.available "150%" must be a quantity greater than 0',
    ),
    *(
        (
            {"eviction_minimum_reclaim": {"memory.available": value}},
            f'evictionMinimumReclaim (--eviction-minimum-reclaim) memory.available "{value}" '
            "must be a quantity that is not negative or a percentage greater than 0%",
        )
        for value in ("some", "-5%", "0%", "0.0%", "9" * 400 + "%", "-1Gi", "")
    ),
    (
        {"eviction_soft": {"memory.available": "1Gi"}},
        "grace period must be specified for the soft eviction threshold memory.available",
    ),
    *(
        (
            {"eviction_soft_grace_period": {"memory.available": period}},
            f'memory.available "{period}" must be a duration that is not negative',
        )
        for period in ("5", "-1m")
    ),
    *(
        ({attribute: {"memory.free": value}}, f"{name}: unsupported eviction signal memory.free, ")
        for attribute, name, value in (
            ("eviction_hard", "evictionHard (--eviction-hard)", "0%"),
            ("eviction_soft", "evictionSoft (--eviction-soft)", "1Gi"),
            (
                "eviction_soft_grace_period",
                "evictionSoftGracePeriod (--eviction-soft-grace-period)",
                "1m",
            ),
            (
                "eviction_minimum_reclaim",
                "evictionMinimumReclaim (--eviction-minimum-reclaim)",
                "1Gi",
            ),
        )
    ),
    (
        {"reserved_memory": (MemoryReservation(limits={"cpu": Quantity("1")}),)},
        'the limit type "cpu" for NUMA node 0 is not supported',
    ),
    (
        {"reserved_memory": (MemoryReservation(limits={"memory": Quantity("0")}),)},
        "reserved memory may not be zero",
    ),
    (
        {"reserved_memory": (MemoryReservation(limits={"memory": Quantity("1")}),) * 2},
        "has a duplicate value for NUMA node 0",
    ),
    (
        {"cpu_cfs_quota_period": 2 * SECOND},
        "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec",
    ),
    ({"container_log_monitor_interval": SECOND}, "greater than or equal to 3s"),
    (
        {"crash_loop_back_off": CrashLoopBackOffConfig(max_container_restart_period=SECOND / 2)},
        "(got: 0.5 seconds) must be set between 1s and 300s",
    ),
    (
        {"shutdown_grace_period_critical_pods": SECOND},
        "shutdownGracePeriodCriticalPods 1s must be <= shutdownGracePeriod 0s",
    ),
    (
        {"shutdown_grace_period": SECOND / 2},
        "shutdownGracePeriod 500ms must be either zero or otherwise >= 1 sec",
    ),
    (
        {
            "shutdown_grace_period_by_pod_priority": (
                ShutdownGracePeriodByPodPriority(priority=7, shutdown_grace_period_seconds=-5),
            ),
        },
        "shutdownGracePeriodSeconds -5 of priority 7 must be >= 0",
    ),
    (
        {
            "shutdown_grace_period": 30 * SECOND,
            "shutdown_grace_period_by_pod_priority": (ShutdownGracePeriodByPodPriority(),),
        },
        "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod",
    ),
    (
        {"cluster_dns": ("dns.local",)},
        'clusterDNS (--cluster-dns) "dns.local" is not a valid IP address',
    ),
    ({"healthz_bind_address": "localhost"}, '"localhost" is not a valid IP address'),
    (
        {"enable_system_log_query": True, "enable_system_log_handler": False},
        "enableSystemLogHandler is required",
    ),
    ({"show_hidden_metrics_for_version": "1.30"}, "must be omitted or have the value '1.35'"),
    ({"run_once": True}, "Runonce mode has been deprecated and should not be set"),
    ({"container_runtime_endpoint": ""}, "the containerRuntimeEndpoint was not specified or empty"),
    ({"container_runtime_endpoint": "tcp://127.0.0.1:3735"}, "must be a unix socket"),
    ({"pod_logs_dir": "logs"}, 'pod logs path "logs" must be absolute path'),
    ({"pod_logs_dir": "/var/../logs"}, "must be normalized"),
    ({"pod_logs_dir": "/größe"}, "must contain ASCII characters only"),
    ({"user_namespaces": UserNamespaces(ids_per_pod=1000)}, "must be a multiple of 65536"),
    (
        {"register_with_taints": (RegistrationTaint(key="a b", effect="NoSchedule"),)},
        "invalid taint: a b=:NoSchedule",
    ),
    (
        {
            "register_with_taints": (
                RegistrationTaint(key="a", effect="NoSchedule", time_added="2026-01-01T00:00:00Z"),
            )
        },
        "taint.TimeAdded is not nil",
    ),
    (
        {"logging": LoggingConfiguration(format="xml")},
        'logging.format: Invalid value: "xml": Unsupported log format',
    ),
    (
        {"logging": LoggingConfiguration(format="json", vmodule=(VModuleItem(file_pattern="a"),))},
        "Only supported for text log format",
    ),
    (
        {"logging": LoggingConfiguration(vmodule=(VModuleItem(),))},
        "logging.vmodule[0]: Required value",
    ),
    (
        {
            "logging": LoggingConfiguration(
                options=FormatOptions(json=OutputRoutingOptions(split_stream=True))
            )
        },
        "logging.options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
    ),
    (
        {"tracing": TracingConfiguration(sampling_rate_per_million=2_000_000)},
        "tracing.samplingRatePerMillion",
    ),
    ({"tracing": TracingConfiguration(endpoint="http://collector")}, "unsupported scheme: http"),
]


@pytest.mark.parametrize(("changes", "words"), BROKEN, ids=lambda value: str(value)[:60])
def test_a_broken_rule_is_one_line(changes: dict[str, Any], words: str) -> None:
    found = problems(**changes)
    assert len(found) == 1
    assert found[0].startswith("invalid configuration: ")
    assert words in found[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"oom_score_adj": -1000, "port": 65535, "healthz_port": 0},
        {"max_parallel_image_pulls": 5, "serialize_image_pulls": False},
        {"enforce_node_allocatable": ("none",), "cgroups_per_qos": False},
        {"enforce_node_allocatable": ()},
        {"enforce_node_allocatable": ("pods", "kube-reserved"), "kube_reserved_cgroup": "/kube"},
        {"reserved_system_cpus": "0-3,8"},
        {
            "eviction_soft": {"memory.available": "10%"},
            "eviction_soft_grace_period": {"memory.available": "1m30s"},
        },
        *({"eviction_hard": {signal: "1%"}} for signal in sorted(SIGNALS)),
        *({"eviction_hard": {"memory.available": each}} for each in ("0%", "100%", "2.5%", "1Mi")),
        *({"eviction_minimum_reclaim": {"memory.available": each}} for each in ("0", "5%", "1Mi")),
        {
            "container_runtime_endpoint": "/run/crio/crio.sock",
            "image_service_endpoint": "unix:///i.sock",
        },
        {"crash_loop_back_off": CrashLoopBackOffConfig(max_container_restart_period=20 * SECOND)},
        {"shutdown_grace_period": 30 * SECOND, "shutdown_grace_period_critical_pods": 10 * SECOND},
        {"shutdown_grace_period_by_pod_priority": (ShutdownGracePeriodByPodPriority(),)},
        {"show_hidden_metrics_for_version": "1.35"},
        {"tracing": TracingConfiguration(endpoint="localhost:4317")},
        {
            "register_with_taints": (
                RegistrationTaint(key="node.kubernetes.io/x", value="y", effect="NoExecute"),
            )
        },
    ],
    ids=str,
)
def test_a_kept_rule_says_nothing(changes: dict[str, Any]) -> None:
    assert problems(**changes) == ()


@pytest.mark.parametrize(
    ("gates", "changes", "words"),
    [
        (
            {"KubeletCrashLoopBackOffMax": False},
            {},
            "FeatureGate KubeletCrashLoopBackOffMax not enabled",
        ),
        (
            {"KubeletEnsureSecretPulledImages": False},
            {},
            "must not be set if KubeletEnsureSecretPulledImages",
        ),
        (
            {},
            {"tls_cert_file": "/tls.crt"},
            "tlsCertFile and tlsPrivateKeyFile must be set together",
        ),
        ({}, {"tls_private_key_file": "/tls.key"}, "must be set together"),
        ({}, {"tls_min_version": "TLSv1.2"}, 'tlsMinVersion (--tls-min-version) "TLSv1.2" must be'),
        ({}, {"tls_cipher_suites": ("TLS_RSA_WITH_RC4_128_SHA",)}, "is no suite that can be used"),
        (
            {"RotateKubeletServerCertificate": False},
            {"server_tls_bootstrap": True},
            "requires feature gate RotateKubeletServerCertificate",
        ),
        (
            {"NodeLogQuery": False},
            {"enable_system_log_query": True},
            "NodeLogQuery feature gate is required",
        ),
        (
            {"GracefulNodeShutdownBasedOnPodPriority": False},
            {"shutdown_grace_period_by_pod_priority": (ShutdownGracePeriodByPodPriority(),)},
            "requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            {"GracefulNodeShutdown": False, "GracefulNodeShutdownBasedOnPodPriority": False},
            {"shutdown_grace_period_by_pod_priority": (ShutdownGracePeriodByPodPriority(),)},
            "requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            {"GracefulNodeShutdown": False, "GracefulNodeShutdownBasedOnPodPriority": False},
            {"shutdown_grace_period": SECOND},
            "requires feature gate GracefulNodeShutdown",
        ),
    ],
)
def test_what_a_gate_guards_needs_the_gate(
    gates: dict[str, bool], changes: dict[str, Any], words: str
) -> None:
    (problem,) = problems(gates, **changes)
    assert words in problem


def test_all_that_is_wrong_is_reported_at_once() -> None:
    found = problems(max_pods=-1, port=0, run_once=True, hairpin_mode="x", cluster_dns=("a", "b"))
    assert len(found) == 6


@pytest.mark.parametrize(
    "labels",
    [
        {"example.com/rack": "7"},
        {"node.kubernetes.io/pool": "a"},
        {"eu.kubelet.kubernetes.io/x": ""},
        {"topology.kubernetes.io/zone": "a"},
        {"plain": "value_1.2-3"},
    ],
)
def test_a_node_may_give_itself_these_labels(labels: dict[str, str]) -> None:
    assert option_problems(node_labels=labels) == ()


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"node-role.kubernetes.io/master": ""}, "unknown 'kubernetes.io' or 'k8s.io' label"),
        ({"foo.k8s.io/bar": ""}, "unknown 'kubernetes.io' or 'k8s.io' label"),
        ({"a b": ""}, "invalid node labels: 'a b='"),
        ({"Bad_Prefix/name": ""}, "must be a DNS subdomain"),
        ({"name": "-x"}, 'value "-x" must be empty or'),
        ({"x" * 64: ""}, "must have 1 to 63 letters"),
    ],
)
def test_a_node_may_not_give_itself_these_labels(labels: dict[str, str], words: str) -> None:
    (problem,) = option_problems(node_labels=labels)
    assert words in problem


@pytest.mark.parametrize("node_ip", ["", "10.0.0.1", "::", "10.0.0.1,fd00::1"])
def test_node_addresses_that_can_be(node_ip: str) -> None:
    assert option_problems(node_ip=node_ip) == ()


@pytest.mark.parametrize("node_ip", ["node-1", "10.0.0.1,", "10.0.0.1,fd00::1,10.0.0.2"])
def test_node_addresses_that_cannot_be(node_ip: str) -> None:
    (problem,) = option_problems(node_ip=node_ip)
    assert "bad --node-ip" in problem


def test_to_exit_on_contention_there_must_be_a_lock_file() -> None:
    (problem,) = option_problems(exit_on_lock_contention=True)
    assert "no lock file specified" in problem
    assert option_problems(exit_on_lock_contention=True, lock_file="/run/lock") == ()
