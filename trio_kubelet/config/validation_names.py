"""The shape of label keys and values, as the API server demands it."""

import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def label_key_problem(key: str) -> str:
    """What is wrong with a label's key, empty if nothing is."""
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
    """What is wrong with a label's value, empty if nothing is."""
    if value and not _NAME.fullmatch(value):
        return (
            f'value "{value}" must be empty or have up to 63 letters, digits, dashes, underscores '
            "and dots, with a letter or digit at both ends"
        )
    return ""
