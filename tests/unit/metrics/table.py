"""Which of the Go kubelet's metrics there are, and why the others are not.

python -m tests.unit.metrics.table >docs/metrics.md
"""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

FACTS = Path(__file__).parents[2] / "facts/kubelet-metrics-1.36.tsv"


@frozen
class Metric:
    """A metric as a scraper sees it."""

    endpoint: str
    name: str
    type: str
    labels: frozenset[str]


def table() -> tuple[Metric, ...]:
    """The metrics that a Go kubelet v1.36 was seen to have."""
    rows = [line.split("\t") for line in FACTS.read_text().splitlines()[1:]]
    return tuple(
        Metric(endpoint, name, kind, frozenset(filter(None, labels.split(","))))
        for endpoint, name, kind, labels in rows
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LEFT_OUT: Mapping[str, frozenset[str]] = {
    reason: _names(names)
    for reason, names in {
        "Nothing force-cleans volumes after a restart: what was begun is finished or undone as at "
        "any time.": """
            force_cleaned_failed_volume_operation_errors_total
            force_cleaned_failed_volume_operations_total
        """,
        "There is no sweep of orphaned pods' volumes: what is left of a pod goes as any pod does, "
        'by a task of its own (`kubelet_working_pods`, `config="runtime_only"`).': """
            kubelet_orphan_pod_cleaned_volumes kubelet_orphan_pod_cleaned_volumes_errors
        """,
        "All records of pulls are in memory; there is no cache that could be full.": """
            kubelet_imagemanager_inmemory_pulledrecords_usage_percent
            kubelet_imagemanager_inmemory_pullintents_usage_percent
        """,
        "A relist lists all pods at once; one pod alone is looked at when the runtime or its own "
        "task asks for it, and that is no relist.": """
            kubelet_pleg_pod_relist_duration_seconds
        """,
        "They describe a program in Go, or its libraries; the agent's own words are in "
        "`trio_kubelet_build_info`.": """
            cardinality_enforcement_unexpected_categorizations_total kubelet_metrics_provider
            kubernetes_build_info
        """,
        "They are those of the machine's network, not of the process.": """
            process_network_receive_bytes_total process_network_transmit_bytes_total
        """,
        "A scrape would have to look at each process of each container.": """
            container_file_descriptors container_processes container_sockets
            container_ulimits_soft
        """,
        "They are 0 in a Go kubelet, where what they need is switched off.": """
            container_cpu_load_average_10s container_cpu_load_d_average_10s
            container_health_state container_tasks_state machine_cpu_books machine_cpu_drawers
            machine_nvm_avg_power_budget_watts machine_nvm_capacity
        """,
        "How full disks are is in `/stats/summary`, for whose asking they are looked at.": """
            container_fs_inodes_free container_fs_inodes_total container_fs_limit_bytes
            container_fs_usage_bytes
        """,
    }.items()
}
"""Names of the table that no endpoint of the agent has."""

BEYOND: Mapping[str, frozenset[str]] = {
    reason: _names(names)
    for reason, names in {
        "A Go kubelet has them, too, where pods have CPU quotas, cgroups count what they read and "
        "write, or the node has cgroup v2.": """
            container_fs_reads_bytes_total container_fs_writes_bytes_total
            container_cpu_cfs_periods_total container_cpu_cfs_throttled_periods_total
            container_cpu_cfs_throttled_seconds_total container_pressure_cpu_stalled_seconds_total
            container_pressure_cpu_waiting_seconds_total
            container_pressure_io_stalled_seconds_total
            container_pressure_io_waiting_seconds_total
            container_pressure_memory_stalled_seconds_total
            container_pressure_memory_waiting_seconds_total container_spec_cpu_quota
        """,
        "A Go kubelet has them once it has evicted a pod.": """
            kubelet_eviction_stats_age_seconds kubelet_evictions
        """,
        "A Go kubelet has them where a pod mounts a claim whose volume tells of its space.": """
            kubelet_volume_stats_available_bytes kubelet_volume_stats_capacity_bytes
            kubelet_volume_stats_inodes kubelet_volume_stats_inodes_free
            kubelet_volume_stats_inodes_used kubelet_volume_stats_used_bytes
        """,
        "A Go kubelet has it once a CSI driver has registered.": """
            csi_operations_seconds
        """,
        "A Go kubelet has it once it has collected an image.": """
            kubelet_image_garbage_collected_total
        """,
        "A Go kubelet has them, too, with the feature gate MemoryQoS.": """
            kubelet_memory_qos_node_memory_low_bytes kubelet_memory_qos_node_memory_min_bytes
        """,
        "A Go kubelet has them once a pod was resized.": """
            kubelet_container_requested_resizes_total
            kubelet_pod_deferred_accepted_resizes_total kubelet_pod_infeasible_resizes_total
            kubelet_pod_pending_resizes kubelet_pod_resize_duration_milliseconds
        """,
        "A Go kubelet has them once a device plugin has registered, and allocated.": """
            kubelet_device_plugin_alloc_duration_seconds kubelet_device_plugin_registration_total
        """,
        "A Go kubelet has them once somebody has asked for pod resources.": """
            kubelet_pod_resources_endpoint_requests_total
            kubelet_pod_resources_endpoint_requests_list kubelet_pod_resources_endpoint_requests_get
            kubelet_pod_resources_endpoint_requests_get_allocatable
            kubelet_pod_resources_endpoint_errors_list kubelet_pod_resources_endpoint_errors_get
            kubelet_pod_resources_endpoint_errors_get_allocatable
        """,
        "A Go kubelet has them with `cpuManagerPolicy: static`.": """
            kubelet_container_aligned_compute_resources_count
            kubelet_container_aligned_compute_resources_failure_count
            kubelet_cpu_manager_allocation_per_numa
        """,
        "A Go kubelet has them with the feature gate PodLevelResourceManagers.": """
            resource_manager_allocations_total resource_manager_allocation_errors_total
            resource_manager_container_assignments
        """,
        "A Go kubelet has them where certificates are rotated.": """
            kubelet_certificate_manager_client_expiration_renew_errors
            kubelet_certificate_manager_client_ttl_seconds
            kubelet_certificate_manager_server_rotation_seconds
            kubelet_certificate_manager_server_ttl_seconds kubelet_server_expiration_renew_errors
        """,
        "A Go kubelet has them where image credential providers are configured.": """
            kubelet_credential_provider_config_info kubelet_credential_provider_plugin_duration
            kubelet_credential_provider_plugin_errors_total
        """,
        "The agent's own.": """
            trio_kubelet_build_info trio_kubelet_event_loop_turn_seconds
            trio_kubelet_journal_overwritten_total trio_kubelet_trace_spans_dropped_total
        """,
    }.items()
}
"""Names that the table has not."""

INTRODUCTION = """# Metrics

`/metrics`, `/metrics/cadvisor`, `/metrics/probes` and `/metrics/resource` are what a Go kubelet \
v1.36 has under these paths: names, types and labels are the same, the words about them are not. \
The format is Prometheus's text format 0.0.4, packed for who takes gzip. Rights are those of \
`nodes/metrics`.

Of {all} metrics that such a kubelet was seen to have, {there} are there.

Written by `python -m tests.unit.metrics.table`.
"""


def page() -> str:
    """The whole page."""
    names = {metric.name for metric in table()}
    missing = frozenset[str]().union(*LEFT_OUT.values())
    lines = [INTRODUCTION.format(all=len(names), there=len(names - missing)), "## Not there", ""]
    lines += ["| why | what |", "|---|---|"]
    lines += _rows(LEFT_OUT)
    lines += ["", "## Beyond the table", "", "| why | what |", "|---|---|", *_rows(BEYOND)]
    return "\n".join(lines) + "\n"


def _rows(names: Mapping[str, frozenset[str]]) -> list[str]:
    return [
        f"| {reason} | {', '.join(f'`{name}`' for name in sorted(group))} |"
        for reason, group in names.items()
    ]


if __name__ == "__main__":
    print(page(), end="")
