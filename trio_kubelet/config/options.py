"""Settings of this one node, which are flags and never stand in the shared file."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from attrs import field, frozen

from trio_kubelet import DEFAULT_ROOT
from trio_kubelet.config.fields import Support


def _waiting(capability: str) -> Any:
    """A text that nothing is done with, because the agent lacks `capability`."""
    return field(default="", metadata={Support: Support(waits_for=capability)})


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
    image_credential_provider_bin_dir: str = _waiting("credential providers")
    image_credential_provider_config: str = _waiting("credential providers")
    runtime_cgroups: str = _waiting("reserved cgroups")
    seccomp_default: bool = False
    """Adds to the configuration's `seccompDefault`; it cannot switch that off."""
    experimental_allocatable_ignore_eviction: bool = False
    experimental_mounter_path: str = _waiting("volume plugins")
    version: str = ""
    """A Kubernetes version to report instead of the agent's own (`--version=v1.35.0`)."""
    cadvisor: Mapping[str, Any] = field(
        factory=dict, metadata={Support: Support(waits_for="statistics")}
    )
    """Given flags that tune the statistics collector of the Go kubelet, by name."""
    hollow: bool = False
    """Run on the hollow runtime, in process: pods without a kernel. An option of this agent."""
