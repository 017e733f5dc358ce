"""The rules that a configuration must fulfil, and the words in which it is refused.

Each rule is a generator over the configuration and the gates that yields one line for each thing
that is wrong; `validate` runs them all, so that a person mends a file in one go. The wording is
the Go kubelet's where it has the rule. Rules about the host (cgroup version, swap) are not here:
this is checked on machines that are not the node, too.
"""

import ipaddress
import os
from collections.abc import Callable, Iterator
from datetime import timedelta

from trio_kubelet import KUBERNETES_VERSION
from trio_kubelet.config.codec import format_duration
from trio_kubelet.config.cpu_policy import validate_cpu_manager
from trio_kubelet.config.eviction import validate_eviction
from trio_kubelet.config.flag_values import TAINT_EFFECTS
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.qos_reserve import validate_qos_reserve
from trio_kubelet.config.tls_names import VERSIONS, unknown_ciphers
from trio_kubelet.config.topology_policy import validate_topology_manager
from trio_kubelet.config.trace_endpoint import trace_endpoint
from trio_kubelet.config.validation_tables import (
    BOUNDS,
    CHOICES,
    ENFORCEMENTS,
    image_pattern_problem,
    label_key_problem,
    label_value_problem,
    node_label_problem,
)
from trio_kubelet.k8s.quantity import Quantity

Problems = Iterator[str]
Rule = Callable[[KubeletConfiguration, FeatureGates], Problems]

NOT_SET = timedelta()
SECOND = timedelta(seconds=1)
LOG_FORMATS = ("text", "json")
TRACE_SCHEMES = ("dns", "unix", "unix-abstract")
MILLION = 1_000_000
_CPU_DIGITS = 9
_RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")


def validate(
    configuration: KubeletConfiguration, options: NodeOptions, gates: FeatureGates
) -> tuple[str, ...]:
    """Everything that is wrong, one line each; empty if the configuration can be used."""
    problems = [
        *(problem for rule in RULES for problem in rule(configuration, gates)),
        *validate_eviction(configuration),
    ]
    return (*(f"invalid configuration: {problem}" for problem in problems), *_options(options))


def _bounds(configuration: KubeletConfiguration, _: FeatureGates) -> Problems:
    for bounds in BOUNDS:
        value = getattr(configuration, bounds.attribute)
        if value is None:
            continue
        if value < bounds.lowest or (bounds.highest is not None and value > bounds.highest):
            yield f"{bounds.name} {value} {bounds.words}"
    if configuration.node_lease_duration_seconds <= 0:
        yield "nodeLeaseDurationSeconds must be greater than 0"
    if configuration.container_log_max_workers < 1:
        yield "containerLogMaxWorkers must be greater than or equal to 1"
    if configuration.container_log_max_files <= 1:
        yield "containerLogMaxFiles must be greater than 1"
    factor = configuration.memory_throttling_factor
    if factor is not None and not 0 < factor <= 1:
        yield (
            f"memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0"
        )


def _choices(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    for choice in CHOICES:
        yield from _one_of(choice.name, getattr(configuration, choice.attribute), choice.values)
    yield from _one_of(
        "authorization.mode (--authorization-mode)",
        configuration.authorization.mode,
        ("AlwaysAllow", "Webhook"),
    )
    if gates["NodeSwap"]:
        yield from _one_of(
            "memorySwap.swapBehavior",
            configuration.memory_swap.swap_behavior,
            ("", "LimitedSwap", "NoSwap"),
        )
    policy = configuration.memory_reservation_policy
    if policy == "TieredReservation" and not gates["MemoryQoS"]:
        yield f'memoryReservationPolicy "{policy}" requires MemoryQoS feature gate to be enabled'


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> Problems:
    if value not in allowed:
        quoted = " ".join(f'"{word}"' for word in allowed)
        yield f'{name} "{value}" must be one of: [{quoted}]'


def _images(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    low = configuration.image_gc_low_threshold_percent
    high = configuration.image_gc_high_threshold_percent
    if low >= high:
        yield (
            f"imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than "
            f"imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
        )
    youngest, oldest = configuration.image_minimum_gc_age, configuration.image_maximum_gc_age
    if youngest < NOT_SET:
        yield f"imageMinimumGCAge {format_duration(youngest)} must not be negative"
    if oldest < NOT_SET:
        yield f"imageMaximumGCAge {format_duration(oldest)} must not be negative"
    if NOT_SET < oldest <= youngest:
        yield (
            f"imageMaximumGCAge {format_duration(oldest)} must be greater than "
            f"imageMinimumGCAge {format_duration(youngest)}"
        )
    if configuration.serialize_image_pulls and (configuration.max_parallel_image_pulls or 0) > 1:
        yield (
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls "
            "(--serialize-image-pulls) is set to false"
        )
    yield from _image_verification(configuration, gates)


def _image_verification(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    policy = configuration.image_pull_credentials_verification_policy
    allowlist = configuration.preloaded_images_verification_allowlist
    if not gates["KubeletEnsureSecretPulledImages"]:
        if policy or allowlist:
            yield (
                "imagePullCredentialsVerificationPolicy and preloadedImagesVerificationAllowlist "
                "must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"
            )
        return
    yield from _one_of(
        "imagePullCredentialsVerificationPolicy",
        policy,
        (
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ),
    )
    if allowlist and policy != "NeverVerifyAllowlistedImages":
        yield (
            "can't set preloadedImagesVerificationAllowlist if "
            'imagePullCredentialsVerificationPolicy is not "NeverVerifyAllowlistedImages"'
        )
        return
    for pattern in allowlist:
        if problem := image_pattern_problem(pattern):
            yield f"invalid image pattern in preloadedImagesVerificationAllowlist: {problem}"


def _node_allocatable(configuration: KubeletConfiguration, _: FeatureGates) -> Problems:
    flag = "enforceNodeAllocatable (--enforce-node-allocatable)"
    levels = configuration.enforce_node_allocatable
    for level in ("system-reserved", "kube-reserved"):
        if level in levels and f"{level}-compressible" in levels:
            yield (
                f'both "{level}" and "{level}-compressible" cannot be specified together in {flag}'
            )
    if "none" in levels and len(levels) > 1:
        yield f'{flag} may not contain additional enforcements when "none" is specified'
    for index, level in enumerate(levels):
        if level in levels[:index]:
            yield f'duplicated enforcements "{level}" in {flag}'
        elif level not in ENFORCEMENTS:
            yield from _one_of(flag, level, ENFORCEMENTS)
        elif level != "none" and not configuration.cgroups_per_qos:
            yield (
                f"cgroupsPerQOS (--cgroups-per-qos) must be set to true when "
                f'"{level}" contained in {flag}'
            )
    reserved = (
        ("system-reserved", "systemReservedCgroup", configuration.system_reserved_cgroup),
        ("kube-reserved", "kubeReservedCgroup", configuration.kube_reserved_cgroup),
    )
    for prefix, name, cgroup in reserved:
        if not cgroup and any(level.startswith(prefix) for level in levels):
            yield (
                f"{name} (--{prefix}-cgroup) must be specified when {prefix} is included in {flag}"
            )
    if configuration.reserved_system_cpus:
        yield from _reserved_cpus(configuration)
    if configuration.system_cgroups and not configuration.cgroup_root:
        yield (
            "systemCgroups (--system-cgroups) was specified and "
            "cgroupRoot (--cgroup-root) was not specified"
        )


def _reserved_cpus(configuration: KubeletConfiguration) -> Problems:
    cpus = configuration.reserved_system_cpus
    if configuration.system_reserved_cgroup or configuration.kube_reserved_cgroup:
        yield (
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup "
            "(--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
        )
    for item in cpus.split(","):
        first, dash, last = item.partition("-")
        if not (_is_cpu(first) and (not dash or (_is_cpu(last) and int(first) <= int(last)))):
            yield f"unable to parse reservedSystemCPUs (--reserved-cpus) {cpus}: {item}"


def _is_cpu(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _CPU_DIGITS


def _amounts(configuration: KubeletConfiguration, _: FeatureGates) -> Problems:
    reservations = (
        ("systemReserved (--system-reserved)", configuration.system_reserved),
        ("kubeReserved (--kube-reserved)", configuration.kube_reserved),
    )
    for name, resources in reservations:
        for resource, amount in resources.items():
            if resource not in _RESERVABLE:
                yield f'{name} value failed to parse: cannot reserve "{resource}" resource'
            if (_parsed_quantity(amount) or Quantity("-1")) < Quantity("0"):
                yield f'{name} {resource} "{amount}" must be a quantity, and not negative'
    if not _parsed_quantity(configuration.container_log_max_size):
        yield (
            f"containerLogMaxSize (--container-log-max-size) "
            f'"{configuration.container_log_max_size}" must be a quantity greater than 0'
        )
    yield from _reserved_memory(configuration)


def _reserved_memory(configuration: KubeletConfiguration) -> Problems:
    seen = set()
    for reservation in configuration.reserved_memory:
        node = reservation.numa_node
        for resource, amount in reservation.limits.items():
            if resource != "memory" and not resource.startswith("hugepages-"):
                yield (
                    f'the limit type "{resource}" for NUMA node {node} is not supported, '
                    "only [memory hugepages-<HugePageSize>] is accepted"
                )
            if not amount:
                yield (
                    f"reserved memory may not be zero for NUMA node {node} and "
                    f'resource "{resource}"'
                )
            if (node, resource) in seen:
                yield (
                    f"the reserved memory has a duplicate value for NUMA node {node} and "
                    f'resource "{resource}"'
                )
            seen.add((node, resource))


def _durations(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    period = configuration.cpu_cfs_quota_period
    if not timedelta(milliseconds=1) <= period <= SECOND:
        yield (
            f"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {format_duration(period)} "
            "must be between 1ms and 1sec, inclusive"
        )
    if configuration.container_log_monitor_interval < 3 * SECOND:
        yield (
            "containerLogMonitorInterval must be a positive time duration "
            "greater than or equal to 3s"
        )
    cap = configuration.crash_loop_back_off.max_container_restart_period
    allowed = gates["KubeletCrashLoopBackOffMax"]
    if cap is not None and not allowed:
        yield (
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, "
            "CrashLoopBackOff.MaxContainerRestartPeriod must not be set"
        )
    elif cap is not None and not SECOND <= cap <= 300 * SECOND:
        yield (
            f"CrashLoopBackOff.MaxContainerRestartPeriod (got: {cap.total_seconds():g} seconds) "
            "must be set between 1s and 300s"
        )
    yield from _shutdown(configuration, gates)


def _shutdown(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    total = configuration.shutdown_grace_period
    critical = configuration.shutdown_grace_period_critical_pods
    by_priority = configuration.shutdown_grace_period_by_pod_priority
    if not gates["GracefulNodeShutdown"]:
        if total > NOT_SET or critical > NOT_SET:
            yield (
                "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires "
                "feature gate GracefulNodeShutdown"
            )
    elif critical > total:
        yield (
            f"shutdownGracePeriodCriticalPods {format_duration(critical)} must be <= "
            f"shutdownGracePeriod {format_duration(total)}"
        )
    periods = {"shutdownGracePeriod": total, "shutdownGracePeriodCriticalPods": critical}
    for name, period in periods.items():
        if period < NOT_SET or NOT_SET < period < SECOND:
            yield f"{name} {format_duration(period)} must be either zero or otherwise >= 1 sec"
    for each in by_priority:
        if each.shutdown_grace_period_seconds < 0:
            yield (
                "shutdownGracePeriodByPodPriority: shutdownGracePeriodSeconds "
                f"{each.shutdown_grace_period_seconds} of priority {each.priority} must be >= 0"
            )
    if by_priority and not gates["GracefulNodeShutdownBasedOnPodPriority"]:
        yield (
            "Specifying shutdownGracePeriodByPodPriority requires feature gate "
            "GracefulNodeShutdownBasedOnPodPriority"
        )
    elif by_priority and (total > NOT_SET or critical > NOT_SET):
        yield (
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod "
            "at the same time"
        )


def _server(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    for name, address in (
        ("address (--address)", configuration.address),
        ("healthzBindAddress (--healthz-bind-address)", configuration.healthz_bind_address),
        *(("clusterDNS (--cluster-dns)", address) for address in configuration.cluster_dns),
    ):
        if not _is_address(address):
            yield f'{name} "{address}" is not a valid IP address'
    if bool(configuration.tls_cert_file) != bool(configuration.tls_private_key_file):
        yield "tlsCertFile and tlsPrivateKeyFile must be set together, or neither of them"
    yield from _one_of(
        "tlsMinVersion (--tls-min-version)", configuration.tls_min_version, tuple(VERSIONS)
    )
    for name in unknown_ciphers(configuration.tls_cipher_suites):
        yield f'tlsCipherSuites (--tls-cipher-suites) "{name}" is no suite that can be used'
    if configuration.server_tls_bootstrap and not gates["RotateKubeletServerCertificate"]:
        yield "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate"
    if configuration.enable_system_log_query and not gates["NodeLogQuery"]:
        yield "NodeLogQuery feature gate is required for enableSystemLogQuery"
    if configuration.enable_system_log_query and not configuration.enable_system_log_handler:
        yield "enableSystemLogHandler is required for enableSystemLogQuery"
    shown = configuration.show_hidden_metrics_for_version
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    previous = f"{major}.{int(minor) - 1}"
    if shown and shown != previous:
        yield (
            f"showHiddenMetricsForVersion must be omitted or have the value '{previous}'. "
            "Only the previous minor version is allowed"
        )


def _runtime(configuration: KubeletConfiguration, _: FeatureGates) -> Problems:
    if configuration.run_once:
        yield "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"
    endpoints = (
        (
            "containerRuntimeEndpoint (--container-runtime-endpoint)",
            configuration.container_runtime_endpoint,
        ),
        ("imageServiceEndpoint (--image-service-endpoint)", configuration.image_service_endpoint),
    )
    if not configuration.container_runtime_endpoint:
        yield "the containerRuntimeEndpoint was not specified or empty"
    for name, endpoint in endpoints:
        if endpoint and not endpoint.removeprefix("unix://").startswith("/"):
            yield f'{name} "{endpoint}" must be a unix socket: unix:///path/to/socket'
    logs = configuration.pod_logs_dir
    if not logs.startswith("/"):
        yield f'pod logs path "{logs}" must be absolute path'
    elif os.path.normpath(logs) != logs:
        yield f'pod logs path "{logs}" must be normalized'
    if not logs.isascii():
        yield f'pod logs path "{logs}" must contain ASCII characters only'
    namespaces = configuration.user_namespaces
    length = namespaces.ids_per_pod if namespaces else None
    if length is not None and (length % 65536 or not 0 < length < 2**32):
        yield f"userNamespaces.idsPerPod {length} must be a multiple of 65536, and less than 1<<32"


def _taints(configuration: KubeletConfiguration, _: FeatureGates) -> Problems:
    for taint in configuration.register_with_taints:
        wrong = label_key_problem(taint.key) or label_value_problem(taint.value)
        if wrong or (taint.effect and taint.effect not in TAINT_EFFECTS):
            yield f"invalid taint: {taint.key}={taint.value}:{taint.effect}"
        if taint.time_added is not None:
            yield "taint.TimeAdded is not nil"


def _logging(configuration: KubeletConfiguration, gates: FeatureGates) -> Problems:
    logging = configuration.logging
    if logging.format not in LOG_FORMATS:
        yield f'logging.format: Invalid value: "{logging.format}": Unsupported log format'
    if logging.verbosity < 0:
        yield f"logging.verbosity: Invalid value: {logging.verbosity}: must not be negative"
    if logging.vmodule and logging.format != "text":
        yield "logging.vmodule: Forbidden: Only supported for text log format"
    for index, item in enumerate(logging.vmodule):
        path = f"logging.vmodule[{index}]"
        if not item.file_pattern:
            yield f"{path}: Required value: File pattern must not be empty"
        if set(item.file_pattern) & set("=,"):
            yield f"{path}: Invalid value: File pattern must not contain equal sign or comma"
    if gates["LoggingAlphaOptions"]:
        return
    for name, routing in (("text", logging.options.text), ("json", logging.options.json)):
        path = f"logging.options.{name}"
        if routing.split_stream:
            yield f"{path}.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"
        if routing.info_buffer_size:
            yield f"{path}.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"


def _tracing(configuration: KubeletConfiguration, _: FeatureGates) -> Problems:
    tracing = configuration.tracing
    if tracing is None:
        return
    rate = tracing.sampling_rate_per_million
    if rate is not None and not 0 <= rate <= MILLION:
        yield (
            f"tracing.samplingRatePerMillion: Invalid value: {rate}: "
            "sampling rate must be positive, and less than or equal to one million"
        )
    endpoint = tracing.endpoint or ""
    scheme = endpoint.partition("://")[0] if "//" in endpoint else "dns"
    if scheme not in TRACE_SCHEMES:
        yield (
            f'tracing.endpoint: Invalid value: "{endpoint}": unsupported scheme: {scheme}. '
            "Options are none, dns, unix, or unix-abstract"
        )
        return
    try:
        trace_endpoint(endpoint)
    except ValueError as error:
        yield f'tracing.endpoint: Invalid value: "{endpoint}": {error}'


def _options(options: NodeOptions) -> Problems:
    if options.exit_on_lock_contention and not options.lock_file:
        yield "cannot exit on lock file contention: no lock file specified, set --lock-file"
    for key, value in options.node_labels.items():
        if wrong := node_label_problem(key, value):
            yield wrong
    addresses = [address for address in options.node_ip.split(",") if options.node_ip]
    if len(addresses) > 2 or not all(_is_address(address.strip()) for address in addresses):
        yield f'bad --node-ip "{options.node_ip}": one IP address, or one of each family'


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


RULES: tuple[Rule, ...] = (
    _bounds,
    _choices,
    _images,
    _node_allocatable,
    validate_qos_reserve,
    validate_cpu_manager,
    validate_topology_manager,
    _amounts,
    _durations,
    _server,
    _runtime,
    _taints,
    _logging,
    _tracing,
)


def _parsed_quantity(text: str) -> Quantity | None:
    try:
        return Quantity(text)
    except ValueError:
        return None
