"""The order of two versions of an object."""

import re

from trio_kubelet.k8s.meta import ObjectMeta

_NUMBER = re.compile(r"\d{1,39}", re.ASCII)
"""As many digits as 128 bits may have."""


def is_newer(version: ObjectMeta, known: ObjectMeta) -> bool:
    """True if `version` is younger than `known`, of the same object or of others of its kind.

    Resource versions are numbers that grow (KEP-5504); where they are none, any other one than
    the known one counts as younger.
    """
    new, old = version_number(version.resource_version), version_number(known.resource_version)
    if new >= 0 and old >= 0:
        return new > old
    return version.resource_version != known.resource_version


def version_number(resource_version: str) -> int:
    """Return the version as a number, by which versions are ordered; -1 for what is none."""
    return int(resource_version) if _NUMBER.fullmatch(resource_version) else -1
