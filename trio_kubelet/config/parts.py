"""The parts of `KubeletConfiguration`: its fields that have fields of their own.

Each class is named as in the API (v1beta1), each default is the effective one. Durations are
`timedelta`; where the API has
a quantity in a text field (`containerLogMaxSize`), so has this.
"""

# ruff: noqa: RUF009 - option(), nullable() and part() declare attrs fields

from collections.abc import Mapping
from datetime import timedelta

from attrs import frozen

from trio_kubelet.config.codec import (
    INT64,
    WITHOUT_EFFECT,
    never,
    nullable,
    option,
    part,
    seconds,
)
from trio_kubelet.k8s.quantity import Quantity

LINES_AT_ONCE = never("lines are written as they come, so that none is lost when the agent ends")


@frozen(kw_only=True)
class KubeletX509Authentication:
    """Client certificates: which authority's are accepted (a PEM bundle)."""

    client_ca_file: str = option("clientCAFile", "")


@frozen(kw_only=True)
class KubeletWebhookAuthentication:
    """Bearer tokens: checked with the API server's TokenReview, answers kept for `cache_ttl`."""

    enabled: bool = nullable("enabled", True)
    cache_ttl: timedelta = option("cacheTTL", seconds(120))


@frozen(kw_only=True)
class KubeletAnonymousAuthentication:
    """Lets requests without credentials in, as `system:anonymous`."""

    enabled: bool = nullable("enabled", False)


@frozen(kw_only=True)
class KubeletAuthentication:
    """The ways to prove an identity to the agent's server."""

    x509: KubeletX509Authentication = part("x509", KubeletX509Authentication)
    webhook: KubeletWebhookAuthentication = part("webhook", KubeletWebhookAuthentication)
    anonymous: KubeletAnonymousAuthentication = part("anonymous", KubeletAnonymousAuthentication)


@frozen(kw_only=True)
class KubeletWebhookAuthorization:
    """The time that the API server's answers to SubjectAccessReview are kept."""

    cache_authorized_ttl: timedelta = option("cacheAuthorizedTTL", seconds(300))
    cache_unauthorized_ttl: timedelta = option("cacheUnauthorizedTTL", seconds(30))


@frozen(kw_only=True)
class KubeletAuthorization:
    """The rights of clients that are let in: `AlwaysAllow` or `Webhook`."""

    mode: str = option("mode", "Webhook")
    webhook: KubeletWebhookAuthorization = part("webhook", KubeletWebhookAuthorization)


@frozen(kw_only=True)
class MemorySwapConfiguration:
    """The use of swap by containers: `NoSwap` (also the meaning of empty) or `LimitedSwap`."""

    swap_behavior: str = option("swapBehavior", "")


@frozen(kw_only=True)
class CrashLoopBackOffConfig:
    """The cap of the back-off between restarts; None while KubeletCrashLoopBackOffMax is off."""

    max_container_restart_period: timedelta | None = nullable(
        "maxContainerRestartPeriod", seconds(300)
    )


@frozen(kw_only=True)
class ShutdownGracePeriodByPodPriority:
    """At node shutdown, pods of this priority or higher get so many seconds."""

    priority: int = option("priority", 0, always=True)
    shutdown_grace_period_seconds: int = option(
        "shutdownGracePeriodSeconds", 0, bits=INT64, always=True
    )


@frozen(kw_only=True)
class MemoryReservation:
    """Memory of one NUMA node that the memory manager keeps back: resource name to quantity."""

    numa_node: int = option("numaNode", 0, always=True)
    limits: Mapping[str, Quantity] = option("limits", {}, always=True)


@frozen(kw_only=True)
class UserNamespaces:
    """The number of user and group ids that each pod's user namespace has; None: 65536."""

    ids_per_pod: int | None = nullable("idsPerPod", bits=INT64)


@frozen(kw_only=True)
class RegistrationTaint:
    """A taint that the node registers with. `time_added` must stay empty."""

    key: str = option("key", "", always=True)
    value: str = option("value", "")
    effect: str = option("effect", "", always=True)
    time_added: str | None = nullable("timeAdded")


@frozen(kw_only=True)
class TracingConfiguration:
    """The target of traces (an OTLP gRPC endpoint), and the requests traced of a million."""

    endpoint: str | None = nullable("endpoint")
    sampling_rate_per_million: int | None = nullable("samplingRatePerMillion")


@frozen(kw_only=True)
class VModuleItem:
    """More verbosity for the modules whose file, or the end of whose path, matches a pattern."""

    file_pattern: str = option("filePattern", "", always=True)
    verbosity: int = option("verbosity", 0, always=True)


@frozen(kw_only=True)
class OutputRoutingOptions:
    """The split of debug and info entries to stdout, and the bytes of its buffer."""

    split_stream: bool = option("splitStream", False)
    info_buffer_size: Quantity = option("infoBufferSize", Quantity("0"), LINES_AT_ONCE, always=True)


@frozen(kw_only=True)
class FormatOptions:
    """Options that only one of the log formats understands."""

    text: OutputRoutingOptions = part("text", OutputRoutingOptions)
    json: OutputRoutingOptions = part("json", OutputRoutingOptions)


@frozen(kw_only=True)
class LoggingConfiguration:
    """Format (`text` or `json`) and verbosity of the log: 0 says the least, 4 and up debug."""

    format: str = option("format", "text")
    flush_frequency: timedelta = option(
        "flushFrequency", seconds(5), WITHOUT_EFFECT, nanoseconds=True
    )
    verbosity: int = option("verbosity", 0, always=True)
    vmodule: tuple[VModuleItem, ...] = option("vmodule", ())
    options: FormatOptions = part("options", FormatOptions)
