"""The shape of label keys and values, as the API server demands it, and of patterns of images."""

import re

from trio_kubelet.k8s.image_reference import InvalidReferenceError, name_alone, parse_reference

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
