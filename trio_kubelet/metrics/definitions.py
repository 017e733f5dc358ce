"""The metrics that are counted: names, labels and bounds of the Go kubelet, in one place.

Counters are named without their `_total`. What has no such ending there is a gauge for the
library, and shown as the counter that it is (`SHOWN_AS`).
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RUNTIME_SECONDS = tuple(0.005 * 2.5**power for power in range(14))
START_SECONDS = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600),
    *(900, 1200, 1800, 2700, 3600),
)
STATUS_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0)
RESIZE_MILLISECONDS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)
API_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
TOPOLOGY_MILLISECONDS = tuple(0.05 * 2**power for power in range(15))
VOLUME_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
TURN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HOUR, DAY = 3600, 86_400
CERTIFICATE_SECONDS = (
    *(60, HOUR, 4 * HOUR, DAY, 7 * DAY),
    *(30 * DAY, 90 * DAY, 180 * DAY, 360 * DAY, 4 * 360 * DAY),
)
CONTAINERS = tuple(2**power for power in range(5))

SHOWN_AS = {
    "kubelet_evented_pleg_connection_success_count": "counter",
    "kubelet_evented_pleg_connection_error_count": "counter",
    "kubelet_evictions": "counter",
    "kubelet_container_aligned_compute_resources_count": "counter",
    "kubelet_container_aligned_compute_resources_failure_count": "counter",
    "resource_manager_container_assignments": "counter",
    **{
        f"kubelet_pod_resources_endpoint_{what}_{kind}": "counter"
        for what in ("requests", "errors")
        for kind in ("list", "get", "get_allocatable")
    },
}


def static_label(*, static: bool) -> str:
    """The Go kubelet's words for static pods and others."""
    return "true" if static else ""


def rotation_ages(registry: CollectorRegistry) -> Histogram:
    """The ages of serving certificates that were replaced; only nodes that have them show it."""
    return Histogram(
        "kubelet_certificate_manager_server_rotation_seconds",
        "How old certificates of the port were when they were replaced.",
        buckets=CERTIFICATE_SECONDS,
        registry=registry,
    )


class SpanCounts:
    """Spans of traces; only nodes that have a collector show them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._dropped = Counter(
            "trio_kubelet_trace_spans_dropped",
            "Spans that the collector did not get: there were too many, or it was away.",
            registry=registry,
        )

    def dropped(self, count: int) -> None:
        """Some spans were lost."""
        self._dropped.inc(count)


class CredentialProviderCounts:
    """Runs of image credential providers; only nodes that have some show them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._errors = Counter(
            "kubelet_credential_provider_plugin_errors",
            "Runs of image credential providers that failed.",
            ["plugin_name"],
            registry=registry,
        )
        self._seconds = Histogram(
            "kubelet_credential_provider_plugin_duration",
            "How long runs of image credential providers took.",
            ["plugin_name"],
            buckets=SECONDS,
            registry=registry,
        )
        self._configuration = Gauge(
            "kubelet_credential_provider_config_info",
            "The configuration of image credential providers, by a hash over its files.",
            ["hash"],
            registry=registry,
        )

    def configured(self, content_hash: str) -> None:
        """A configuration is in force, in place of the one before."""
        self._configuration.clear()
        self._configuration.labels(content_hash).set(1)

    def plugin_ran(self, name: str, seconds: float, has_failed: bool) -> None:
        """A provider was asked, well or not."""
        self._seconds.labels(name).observe(seconds)
        if has_failed:
            self._errors.labels(name).inc()


class Counts:
    """All that is counted, by what it is about."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=SECONDS)
        runtime = partial(Histogram, registry=self.registry, buckets=RUNTIME_SECONDS)
        start = partial(Histogram, registry=self.registry, buckets=START_SECONDS)

        operation = ["operation_type"]
        self.operations = counter("kubelet_runtime_operations", "Calls to the runtime.", operation)
        self.operation_errors = counter(
            "kubelet_runtime_operations_errors", "Calls to the runtime that failed.", operation
        )
        self.operation_seconds = runtime(
            "kubelet_runtime_operations_duration_seconds", "How long calls took.", operation
        )
        handler = ["runtime_handler"]
        self.sandbox_seconds = seconds(
            "kubelet_run_podsandbox_duration_seconds", "How long sandboxes took.", handler
        )
        self.sandbox_errors = counter(
            "kubelet_run_podsandbox_errors", "Sandboxes that were not made.", handler
        )
        self.started_pods = counter("kubelet_started_pods", "Sandboxes that were asked for.")
        self.started_pod_errors = counter(
            "kubelet_started_pods_errors", "Sandboxes that were not made."
        )
        self.started_user_namespaced_pods = counter(
            "kubelet_started_user_namespaced_pods",
            "Sandboxes with a user namespace that were asked for.",
        )
        self.started_user_namespaced_pod_errors = counter(
            "kubelet_started_user_namespaced_pods_errors",
            "Sandboxes with a user namespace that were not made.",
        )
        self.started_containers = counter(
            "kubelet_started_containers", "Containers that were asked for.", ["container_type"]
        )
        self.started_container_errors = counter(
            "kubelet_started_containers_errors",
            "Containers that were not made or not started.",
            ["container_type", "code"],
        )
        self.terminated_containers = counter(
            "kubelet_terminated_containers",
            "Containers that ended.",
            ["container_type", "exit_code", "reason"],
        )
        self.pod_start = start(
            "kubelet_pod_start_duration_seconds", "From seeing a pod until all of it runs."
        )
        self.pod_start_total = start(
            "kubelet_pod_start_total_duration_seconds", "From a pod's creation until all runs."
        )
        self.pod_start_sli = start(
            "kubelet_pod_start_sli_duration_seconds",
            "From a pod's creation until all of it runs, without pulls of images.",
        )
        self.first_pod_start_sli = gauge(
            "kubelet_first_network_pod_start_sli_duration_seconds",
            "The same for the first pod that is not on the host's network.",
        )
        self.image_requests = counter(
            "kubelet_image_manager_ensure_image_requests",
            "Images that containers were to have.",
            ["present_locally", "pull_policy", "pull_required"],
        )
        self.image_access_checks = counter(
            "kubelet_imagemanager_image_mustpull_checks",
            "Images whose use by a pod was checked.",
            ["result"],
        )
        self.collected_images = counter(
            "kubelet_image_garbage_collected",
            "Images that were removed, by what for: space, or age.",
            ["reason"],
        )
        resource = ["resource_name"]
        self.device_plugin_registrations = counter(
            "kubelet_device_plugin_registration", "Calls of device plugins to register.", resource
        )
        self.device_allocation_seconds = seconds(
            "kubelet_device_plugin_alloc_duration_seconds", "How long Allocate took.", resource
        )
        self.claim_operation_seconds = seconds(
            "dra_operations_duration_seconds",
            "How long it took to prepare or unprepare the claims of a pod.",
            ["is_error", "operation_name"],
        )
        self.claims_in_use = gauge(
            "dra_resource_claims_in_use", "Claims that pods use, by driver.", ["driver_name"]
        )
        endpoint, version = "kubelet_pod_resources_endpoint", ["server_api_version"]
        self.pod_resources_requests = counter(
            f"{endpoint}_requests", "Calls at the pod resources socket.", version
        )
        kinds = ("list", "get", "get_allocatable")
        self.pod_resources_requests_by_kind = {
            kind: gauge(f"{endpoint}_requests_{kind}", f"Calls of the kind {kind}.", version)
            for kind in kinds
        }
        self.pod_resources_errors_by_kind = {
            kind: gauge(f"{endpoint}_errors_{kind}", f"Failed calls of the kind {kind}.", version)
            for kind in kinds
        }
        self.pod_events_dropped = counter(
            "kubelet_pod_watch_events_dropped",
            "Events of pods that clients of the pods socket did not take in time.",
        )
        signal = ["eviction_signal"]
        self.evictions = gauge("kubelet_evictions", "Pods that were evicted.", signal)
        self.eviction_stats_age = seconds(
            "kubelet_eviction_stats_age_seconds",
            "From the measurement of what is short until a pod was chosen for it.",
            signal,
        )
        self.work_seconds = seconds(
            "kubelet_pod_worker_duration_seconds", "How long work for a pod took.", operation
        )
        self.work_began_after = seconds(
            "kubelet_pod_worker_start_duration_seconds", "From seeing a pod to the first work."
        )
        self.containers_per_pod = Histogram(
            "kubelet_containers_per_pod_count",
            "Containers of pods.",
            buckets=CONTAINERS,
            registry=self.registry,
        )
        self.relist_seconds = seconds(
            "kubelet_pleg_relist_duration_seconds", "How long looking at everything took."
        )
        self.relist_interval = seconds(
            "kubelet_pleg_relist_interval_seconds", "From one such look to the next."
        )
        self.event_streams = gauge(
            "kubelet_evented_pleg_connection_success_count", "Event streams that were opened."
        )
        self.event_stream_errors = gauge(
            "kubelet_evented_pleg_connection_error_count", "Event streams that ended."
        )
        self.event_seconds = seconds(
            "kubelet_evented_pleg_connection_latency_seconds",
            "How late events of the runtime are.",
        )
        self.cgroup_seconds = seconds(
            "kubelet_cgroup_manager_duration_seconds",
            "How long cgroups took to be made, changed and removed.",
            operation,
        )
        self.status_sync_seconds = Histogram(
            "kubelet_pod_status_sync_duration_seconds",
            "From a change of a pod's status until the API showed the newest.",
            buckets=STATUS_SECONDS,
            registry=self.registry,
        )
        self.requested_resizes = counter(
            "kubelet_container_requested_resizes",
            "Requests and limits of containers that specs changed.",
            ["operation", "requirement", "resource"],
        )
        self.infeasible_resizes = counter(
            "kubelet_pod_infeasible_resizes", "Resizes that were refused.", ["reason_detail"]
        )
        self.deferred_accepted_resizes = counter(
            "kubelet_pod_deferred_accepted_resizes",
            "Resizes that were put off and then granted, by what was the occasion.",
            ["retry_trigger"],
        )
        self.resize_milliseconds = Histogram(
            "kubelet_pod_resize_duration_milliseconds",
            "How long a try to resize a pod took.",
            ["success"],
            buckets=RESIZE_MILLISECONDS,
            registry=self.registry,
        )
        self.cpu_pinnings = counter(
            "kubelet_cpu_manager_pinning_requests", "Containers that were to have CPUs alone."
        )
        self.cpu_pinning_errors = counter(
            "kubelet_cpu_manager_pinning_errors", "Containers that could not have CPUs alone."
        )
        self.memory_pinnings = counter(
            "kubelet_memory_manager_pinning_requests",
            "Containers that were to have memory of certain NUMA nodes.",
        )
        self.memory_pinning_errors = counter(
            "kubelet_memory_manager_pinning_errors", "Containers that could not have that memory."
        )
        self.aligned = gauge(
            "kubelet_container_aligned_compute_resources_count",
            "Containers and pods whose CPUs are inside of a boundary.",
            ["boundary", "scope"],
        )
        self.not_aligned = gauge(
            "kubelet_container_aligned_compute_resources_failure_count",
            "Containers and pods whose CPUs could not be inside of a boundary.",
            ["boundary", "scope"],
        )
        self.manager_allocations = counter(
            "resource_manager_allocations",
            "Containers that were assigned CPUs or memory of the node, or of their pod.",
            ["resource_name", "source"],
        )
        self.manager_errors = counter(
            "resource_manager_allocation_errors",
            "Assignments that failed, by who was to give the resource.",
            ["resource_name", "source"],
        )
        self.manager_assignments = gauge(
            "resource_manager_container_assignments",
            "Containers by what they were assigned.",
            ["assignment_type", "resource_name"],
        )
        self.topology_admissions = counter(
            "kubelet_topology_manager_admission_requests", "New pods whose topology was looked at."
        )
        self.topology_refusals = counter(
            "kubelet_topology_manager_admission_errors", "Pods that the topology was in the way of."
        )
        self.topology_milliseconds = Histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "How long giving a new pod its part of the machine took.",
            buckets=TOPOLOGY_MILLISECONDS,
            registry=self.registry,
        )
        self.orphaned_pods = counter(
            "kubelet_orphaned_runtime_pods", "Pods in the runtime that nobody wanted."
        )
        self.restarted_pods = counter(
            "kubelet_restarted_pods", "Pods whose UID came back before they were gone.", ["static"]
        )
        self.rejections = counter(
            "kubelet_admission_rejections", "Pods that were rejected.", ["reason"]
        )
        self.http_fallbacks = counter(
            "kubelet_lifecycle_handler_http_fallbacks",
            "Hooks over HTTPS that were answered in plain HTTP.",
        )
        self.cut_short_sleeps = counter(
            "kubelet_sleep_action_terminated_early", "Sleeps of hooks that were cut short."
        )
        self.volume_seconds = seconds(
            "kubelet_volume_metric_collection_duration_seconds",
            "How long counting the files of a volume took.",
            ["metric_source"],
        )
        storage = partial(Histogram, registry=self.registry, buckets=VOLUME_SECONDS)
        self.volume_operation_seconds = storage(
            "storage_operation_duration_seconds",
            "How long operations on volumes took.",
            ["migrated", "operation_name", "status", "volume_plugin"],
        )
        self.volume_total_seconds = storage(
            "volume_operation_total_seconds",
            "From the first try to mount a volume until it was mounted.",
            ["operation_name", "plugin_name"],
        )
        self.csi_seconds = storage(
            "csi_operations_seconds",
            "How long calls to CSI drivers took.",
            ["driver_name", "grpc_status_code", "method_name", "migrated"],
        )
        self.found_volumes = counter(
            "reconstruct_volume_operations",
            "Volumes of pods that were on the disk when the agent started.",
        )
        self.unreadable_volumes = counter(
            "reconstruct_volume_operations_errors",
            "Those of them whose records cannot be read.",
        )
        self.image_volumes = counter(
            "kubelet_image_volume_requested",
            "Images that the runtime was to mount into containers as volumes.",
        )
        self.mounted_image_volumes = counter(
            "kubelet_image_volume_mounted_succeed", "Those of them in containers that were made."
        )
        self.unmounted_image_volumes = counter(
            "kubelet_image_volume_mounted_errors", "Those of them in containers that were not."
        )
        startup = "kubelet_node_startup"
        self.startup_seconds = gauge(
            f"{startup}_duration_seconds", "From the machine's boot until its new node was ready."
        )
        self.startup_pre_kubelet_seconds = gauge(
            f"{startup}_pre_kubelet_duration_seconds", "From the boot to the agent's start."
        )
        self.startup_pre_registration_seconds = gauge(
            f"{startup}_pre_registration_duration_seconds",
            "From the agent's start until it first tried to register its node.",
        )
        self.startup_registration_seconds = gauge(
            f"{startup}_registration_duration_seconds", "From then until the node was there."
        )
        self.startup_post_registration_seconds = gauge(
            f"{startup}_post_registration_duration_seconds", "From then until it was ready."
        )
        self.api_requests = counter(
            "rest_client_requests", "Requests to the API server.", ["code", "host", "method"]
        )
        self.api_seconds = Histogram(
            "rest_client_request_duration_seconds",
            "How long the API server took to answer.",
            ["host", "verb"],
            buckets=API_SECONDS,
            registry=self.registry,
        )
        request = ["long_running", "method", "path", "server_type"]
        self.http_requests = counter("kubelet_http_requests", "Requests to the node.", request)
        self.http_seconds = seconds(
            "kubelet_http_requests_duration_seconds", "How long the node took to answer.", request
        )
        self.http_inflight = gauge(
            "kubelet_http_inflight_requests", "Requests that are being answered.", request
        )
        self.long_turns = Histogram(
            "trio_kubelet_event_loop_turn_seconds",
            "CPU time of turns of tasks that held the event loop for more than 50 ms.",
            buckets=TURN_SECONDS,
            registry=self.registry,
        )
        self.websockets = counter(
            "kubelet_websocket_streaming_requests", "Streams over WebSocket.", ["subresource"]
        )


class ProbeCounts:
    """The counts of probes, on a page of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["probe_type", "container", "pod", "namespace"]
        self.runs = Counter(
            "prober_probe",
            "Probes that were run.",
            [*labels, "result", "pod_uid"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "prober_probe_duration_seconds",
            "How long probes took.",
            labels,
            buckets=SECONDS,
            registry=self.registry,
        )
