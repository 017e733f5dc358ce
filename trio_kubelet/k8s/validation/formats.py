"""The forms that names and other texts must have.

Each function returns what is wrong with a value, in the API's words; an empty list means that
nothing is. Lengths are in bytes.
"""

import ipaddress
import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_UNDERSCORE_LABEL = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_UNDERSCORE_SUBDOMAIN = rf"{_UNDERSCORE_LABEL}(\.{_UNDERSCORE_LABEL})*"
_NAME_PART = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_CONFIG_KEY = r"[-._a-zA-Z0-9]+"
_HEADER_NAME = r"[-A-Za-z0-9]+"
_SYSCTL_SEGMENT = r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = rf"({_SYSCTL_SEGMENT}[\./])*{_SYSCTL_SEGMENT}"

LONGEST_LABEL = 63
LONGEST_SUBDOMAIN = 253
LONGEST_PORT_NAME = 15
LONGEST_SYSCTL = 253
LARGEST_ID = 2**32 - 1

_ENDS = "and must start and end with an alphanumeric character"
_LABEL_RULE = (
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ENDS}"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters,"
    f" '-' or '.', {_ENDS}"
)
_UNDERSCORE_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters,"
    f" '_', '-' or '.', {_ENDS}"
)
_NAME_PART_RULE = f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters,"
    f" '-', '_' or '.', {_ENDS}"
)


def dns_label(value: str) -> list[str]:
    """Check a label of a DNS name (RFC 1123), as names of containers and volumes are."""
    problems = _length(value, LONGEST_LABEL)
    if _matches(_LABEL, value):
        return problems
    if _matches(_SUBDOMAIN, value):
        return [*problems, "must not contain dots"]
    return [*problems, _mismatch(_LABEL_RULE, _LABEL, "my-name", "123-abc")]


def dns_subdomain(value: str) -> list[str]:
    """Check a DNS name (RFC 1123), as names of pods and most other objects are."""
    problems = _length(value, LONGEST_SUBDOMAIN)
    if not _matches(_SUBDOMAIN, value):
        problems.append(_mismatch(_SUBDOMAIN_RULE, _SUBDOMAIN, "example.com"))
    return problems


def dns_search_path(value: str) -> list[str]:
    """Check a search path of a resolver: a lone dot, or a DNS name with underscores."""
    if value == ".":
        return []
    value = value.removesuffix(".")
    problems = _length(value, LONGEST_SUBDOMAIN)
    if not _matches(_UNDERSCORE_SUBDOMAIN, value):
        problems.append(_mismatch(_UNDERSCORE_RULE, _UNDERSCORE_SUBDOMAIN, "example.com"))
    return problems


def qualified_name(value: str) -> list[str]:
    """Check a name with an optional DNS prefix, as keys of labels and annotations are."""
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        rule = f"a valid label key {_NAME_PART_RULE}"
        return [
            _mismatch(rule, _NAME_PART, "MyName", "my.name", "123-abc")
            + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {problem}" for problem in dns_subdomain(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    problems += [f"name part {problem}" for problem in _length(name, LONGEST_LABEL)]
    if not _matches(_NAME_PART, name):
        rule = f"name part {_NAME_PART_RULE}"
        problems.append(_mismatch(rule, _NAME_PART, "MyName", "my.name", "123-abc"))
    return problems


def label_value(value: str) -> list[str]:
    """Check the value of a label."""
    problems = _length(value, LONGEST_LABEL)
    if not _matches(_LABEL_VALUE, value):
        examples = ("MyValue", "my_value", "12345")
        problems.append(_mismatch(_LABEL_VALUE_RULE, _LABEL_VALUE, *examples))
    return problems


def port_number(value: int) -> list[str]:
    """Check a port."""
    return in_range(value, 1, 65535)


def port_name(value: str) -> list[str]:
    """Check the name of a port, an IANA service name in lower case."""
    problems = _length(value, LONGEST_PORT_NAME)
    if not re.fullmatch(r"[-a-z0-9]+", value):
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", value):
        problems.append("must contain at least one letter (a-z)")
    if "--" in value:
        problems.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        problems.append("must not begin or end with a hyphen")
    return problems


def variable_name(value: str) -> list[str]:
    """Check the name of an environment variable."""
    if all(" " <= character <= "~" and character != "=" for character in value):
        return []
    return [
        "a valid environment variable name must consist only of printable ASCII characters"
        " other than '='"
    ]


def config_key(value: str) -> list[str]:
    """Check a key of a config map or secret."""
    problems = _length(value, LONGEST_SUBDOMAIN)
    if not _matches(_CONFIG_KEY, value):
        rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        problems.append(_mismatch(rule, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    if value == ".":
        problems.append("must not be '.'")
    elif value == "..":
        problems.append("must not be '..'")
    elif value.startswith(".."):
        problems.append("must not start with '..'")
    return problems


def header_name(value: str) -> list[str]:
    """Check the name of an HTTP header."""
    if _matches(_HEADER_NAME, value):
        return []
    rule = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return [_mismatch(rule, _HEADER_NAME, "X-Header-Name")]


def ip_address(value: str) -> list[str]:
    """Check an IP address, version 4 or 6, without a zone."""
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        address = None
    if address is None or "%" in value:
        return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
    return []


def sysctl_name(value: str) -> list[str]:
    """Check the name of a kernel parameter, with dots or slashes."""
    if len(value) <= LONGEST_SYSCTL and _matches(_SYSCTL, value):
        return []
    return [f"must have at most {LONGEST_SYSCTL} characters and match regex ^{_SYSCTL}$"]


def user_or_group(value: int) -> list[str]:
    """Check a UID or GID."""
    return in_range(value, 0, LARGEST_ID)


def in_range(value: int, lowest: int, highest: int) -> list[str]:
    """Check a number against its bounds."""
    if lowest <= value <= highest:
        return []
    return [f"must be between {lowest} and {highest}, inclusive"]


def not_negative(value: int) -> list[str]:
    """Check a number that may be zero."""
    return [] if value >= 0 else ["must be greater than or equal to 0"]


def path_without_backsteps(value: str) -> list[str]:
    """Check a path that must not climb."""
    return ["must not contain '..'"] if ".." in value.split("/") else []


def relative_path(value: str) -> list[str]:
    """Check a path below some folder."""
    problems = ["must be a relative path"] if value.startswith("/") else []
    return problems + path_without_backsteps(value)


def file_path(value: str) -> list[str]:
    """Check a path below a folder whose names with two dots in front are the node's own."""
    problems = relative_path(value)
    if value.startswith("..") and not value.startswith("../"):
        problems.append("must not start with '..'")
    return problems


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(pattern, value) is not None


def _length(value: str, limit: int) -> list[str]:
    if len(value.encode()) <= limit:
        return []
    return [f"must be no more than {limit} bytes"]


def _mismatch(rule: str, pattern: str, *examples: str) -> str:
    named = ", or ".join(f"'{example}'" for example in examples)
    return f"{rule} (e.g. {named}, regex used for validation is '{pattern}')"
