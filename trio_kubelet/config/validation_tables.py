"""Rules of the configuration that are tables: ranges of numbers, words, the shapes of names."""

import re

import attrs
from attrs import frozen

from trio_kubelet.config.codec import api_field_of
from trio_kubelet.config.flag_table import CONFIGURATION_FLAGS
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.k8s.image_reference import InvalidReferenceError, name_alone, parse_reference


@frozen
class Bounds:
    """The range of a number. `words` end the sentence that names the field and its value."""

    attribute: str
    lowest: int
    highest: int | None
    words: str

    @property
    def name(self) -> str:
        """The field's name in the API, with its flag."""
        return _field_and_flag(self.attribute)


@frozen
class AllowedValues:
    """A field that takes one of a few words. An empty one stands for the default."""

    attribute: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The field's name in the API, with its flag."""
        return _field_and_flag(self.attribute)


def _field_and_flag(attribute: str) -> str:
    name = api_field_of(attrs.fields_dict(KubeletConfiguration)[attribute]).name
    flags = (f" (--{flag.name})" for flag in CONFIGURATION_FLAGS if flag.field == name)
    return name + next(flags, "")


_NOT_NEGATIVE = "must not be a negative number"
_PERCENT = "must be between 0 and 100, inclusive"
_BIT = "must be between 0 and 31, inclusive"

BOUNDS = (
    Bounds("event_burst", 0, None, _NOT_NEGATIVE),
    Bounds("event_record_qps", 0, None, _NOT_NEGATIVE),
    Bounds("healthz_port", 0, 65535, "must be between 1 and 65535, inclusive"),
    Bounds("image_gc_high_threshold_percent", 0, 100, _PERCENT),
    Bounds("image_gc_low_threshold_percent", 0, 100, _PERCENT),
    Bounds("iptables_drop_bit", 0, 31, _BIT),
    Bounds("iptables_masquerade_bit", 0, 31, _BIT),
    Bounds("kube_api_burst", 0, None, _NOT_NEGATIVE),
    Bounds("kube_api_qps", 0, None, _NOT_NEGATIVE),
    Bounds("node_status_max_images", -1, None, "must be -1 or greater"),
    Bounds("max_open_files", 0, None, _NOT_NEGATIVE),
    Bounds("max_pods", 0, None, _NOT_NEGATIVE),
    Bounds("oom_score_adj", -1000, 1000, "must be between -1000 and 1000, inclusive"),
    Bounds("pods_per_core", 0, None, _NOT_NEGATIVE),
    Bounds("port", 1, 65535, "must be between 1 and 65535, inclusive"),
    Bounds("read_only_port", 0, 65535, "must be between 0 and 65535, inclusive"),
    Bounds("registry_burst", 0, None, _NOT_NEGATIVE),
    Bounds("registry_pull_qps", 0, None, _NOT_NEGATIVE),
    Bounds("max_parallel_image_pulls", 1, None, "must be a positive number"),
)

CHOICES = (
    AllowedValues(
        "topology_manager_policy", ("none", "best-effort", "restricted", "single-numa-node")
    ),
    AllowedValues("topology_manager_scope", ("container", "pod")),
    AllowedValues("hairpin_mode", ("none", "hairpin-veth", "promiscuous-bridge")),
    AllowedValues("cgroup_driver", ("cgroupfs", "systemd")),
    AllowedValues("cpu_manager_policy", ("none", "static")),
    AllowedValues("memory_manager_policy", ("None", "Static")),
    AllowedValues("memory_reservation_policy", ("None", "TieredReservation")),
    AllowedValues("config_map_and_secret_change_detection_strategy", ("Get", "Cache", "Watch")),
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

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def label_key_problem(key: str) -> str:
    """The problem of a label's key, empty if there is none."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return f'prefix "{prefix}" must be a DNS subdomain'
    if not _NAME.fullmatch(name):
        return (
            f'name "{name}" must have 1 to 63 letters, digits, dashes, underscores and dots, '
            "with a letter or digit at both ends"
        )
    return ""


def label_value_problem(value: str) -> str:
    """The problem of a label's value, empty if there is none."""
    if value and not _NAME.fullmatch(value):
        return (
            f'value "{value}" must be empty or have up to 63 letters, digits, dashes, underscores '
            "and dots, with a letter or digit at both ends"
        )
    return ""


def node_label_problem(key: str, value: str) -> str:
    """The problem of a label that the node is to register with, empty if there is none."""
    if wrong := label_key_problem(key) or label_value_problem(value):
        return f"invalid node labels: '{key}={value}' - {wrong}"
    namespace = key.partition("/")[0] if "/" in key else ""
    if (
        not re.fullmatch(r"(.*\.)?(kubernetes\.io|k8s\.io)", namespace)
        or key in NODE_LABELS
        or any(f".{namespace}".endswith(f".{allowed}") for allowed in NODE_LABEL_NAMESPACES)
    ):
        return ""
    return (
        f"unknown 'kubernetes.io' or 'k8s.io' label specified with --node-labels: {key}; "
        f"it must begin with one of {', '.join(NODE_LABEL_NAMESPACES)} or be one of "
        f"{', '.join(sorted(NODE_LABELS))}"
    )


def image_pattern_problem(pattern: str) -> str:
    """The problem of an entry of preloadedImagesVerificationAllowlist, empty if there is none."""
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    name = pattern[:-1] if pattern.endswith("/*") else pattern
    if not name:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in name:
        return (
            f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
        )
    if name == "/":
        return "at least registry hostname is required"
    if name != pattern:
        return ""
    try:
        parse_reference(name)
    except InvalidReferenceError as error:
        return f"failed to parse as an image name: {error}"
    if name != name_alone(name):
        return f"neither tag nor digest is accepted in an image reference: {pattern}"
    return ""
