"""Rules for the parts that all Kubernetes programs share: logging and tracing."""

from collections.abc import Iterator

from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.parts import LoggingConfiguration, TracingConfiguration

LOG_FORMATS = ("text", "json")
TRACE_SCHEMES = ("dns", "unix", "unix-abstract")
MILLION = 1_000_000


def validate_logging(logging: LoggingConfiguration, gates: FeatureGates) -> Iterator[str]:
    """The problems of `logging`, one line each."""
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
    if gates.enabled("LoggingAlphaOptions"):
        return
    for name, routing in (("text", logging.options.text), ("json", logging.options.json)):
        path = f"logging.options.{name}"
        if routing.split_stream:
            yield f"{path}.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"
        if routing.info_buffer_size:
            yield f"{path}.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"


def validate_tracing(tracing: TracingConfiguration) -> Iterator[str]:
    """The problems of `tracing`, one line each."""
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
