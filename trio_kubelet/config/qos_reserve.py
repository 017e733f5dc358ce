"""`qosReserved`: the share of requests that pods of lower QoS classes may not use."""

from collections.abc import Iterator

from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.model import KubeletConfiguration

_FIELD = "qosReserved (--qos-reserved)"


def validate_qos_reserve(configuration: KubeletConfiguration, _: FeatureGates) -> Iterator[str]:
    """Yield what is wrong with the field, one line each."""
    for resource, share in configuration.qos_reserved.items():
        if resource != "memory":
            yield f'{_FIELD} failed to parse: cannot reserve "{resource}" resource'
        elif percentage(share) is None:
            yield (
                f'{_FIELD} failed to parse percentage "{share}" for "{resource}" resource: '
                "it must be a whole number from 0% to 100%"
            )


def percentage(text: str) -> int | None:
    """The number in a text such as `50%`; None for what is no percentage of at most 100."""
    digits = text.removesuffix("%")
    if digits == text or not (digits.isascii() and digits.isdigit() and len(digits) <= 3):
        return None
    return int(digits) if int(digits) <= 100 else None
