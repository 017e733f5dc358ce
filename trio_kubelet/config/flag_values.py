"""The syntax of the flags' values, and their readers.

A `FlagKind` has the type's name as `--help` shows it and a function from the text to the value that
the configuration holds. Flags that build a list or a map may be repeated: the function gets what
the earlier occurrences gave (None the first time), so that the first one replaces what the file
said and the others add to it, as in the Go kubelet.
"""

import csv
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from trio_kubelet.config.codec import INT32, INT64, parse_duration
from trio_kubelet.config.parts import MemoryReservation, RegistrationTaint, VModuleItem
from trio_kubelet.foreign_text import boolean
from trio_kubelet.k8s.quantity import Quantity

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@frozen
class FlagKind:
    """A type of flag. `alone` is the value of a flag that was given without one."""

    type_name: str
    parse: Callable[[str, Any], Any]
    alone: str | None = None


def _boolean(text: str, _: Any = None) -> bool:
    value = boolean(text)
    if value is None:
        raise ValueError("must be true or false")
    return value


def _integer(bits: int, lowest: int | None = None) -> Callable[[str, Any], int]:
    def parse(text: str, _: Any = None) -> int:
        # A leading zero means octal, and an underscore needs a prefix: the Go way with base 0.
        digits = re.sub(r"^([-+]?)0([0-7]+)$", r"\g<1>0o\2", text)
        try:
            value = int(digits, 0)
        except ValueError:
            raise ValueError("must be an integer") from None
        least = -(2 ** (bits - 1)) if lowest is None else lowest
        if not least <= value < 2 ** (bits - 1):
            raise ValueError(f"must be between {least} and {2 ** (bits - 1) - 1}")
        return value

    return parse


def _string(text: str, _: Any = None) -> str:
    return text


def _duration(text: str, _: Any = None) -> Any:
    return parse_duration(text)


def _address(text: str, previous: Any = None) -> Any:
    if not text:
        return previous
    try:
        ipaddress.ip_address(re.sub(r"(?<![0-9a-fA-F:])0+(?=\d)", "", text))
    except ValueError:
        raise ValueError(f'"{text}" is not a valid IP address') from None
    return text


def _strings(text: str, previous: Any = None) -> tuple[str, ...]:
    try:
        row = next(csv.reader([text], strict=True), []) if text else []
    except csv.Error as error:
        raise ValueError(str(error)) from None
    return (*(previous or ()), *row)


def _quantity(text: str, _: Any = None) -> Quantity:
    return Quantity(text)


def _pairs(
    separator: str, *, split: bool = True, value_needed: bool = True
) -> Callable[[str, Any], Mapping[str, str]]:
    def parse(text: str, previous: Any = None) -> Mapping[str, str]:
        pairs = dict(previous or {})
        for pair in filter(None, text.split(",")) if split else [text]:
            key, found, value = pair.partition(separator)
            if value_needed and not found:
                raise ValueError(f"malformed pair, expect string{separator}string")
            pairs[key.strip()] = value.strip()
        return pairs

    return parse


def _gates(text: str, previous: Any = None) -> Mapping[str, bool]:
    gates = dict(previous or {})
    for pair in filter(None, text.split(",")):
        name, found, value = pair.partition("=")
        if not found:
            raise ValueError("malformed pair, expect string=bool")
        try:
            gates[name.strip()] = _boolean(value.strip())
        except ValueError as error:
            raise ValueError(f"invalid value of {name.strip()}: {value.strip()}: {error}") from None
    return gates


def _headers(text: str, previous: Any = None) -> Mapping[str, tuple[str, ...]]:
    headers = dict(previous or {})
    for pair in filter(None, text.split(",")):
        name, found, value = pair.partition(":")
        if not found:
            raise ValueError("malformed pair, expect string:string")
        headers[name.strip()] = (*headers.get(name.strip(), ()), value.strip())
    return headers


def _taints(text: str, _: Any = None) -> tuple[RegistrationTaint, ...]:
    return tuple(_taint(spec) for spec in text.split(",") if spec)


def _taint(spec: str) -> RegistrationTaint:
    rest, _, effect = spec.partition(":")
    key, _, value = rest.partition("=")
    if effect not in TAINT_EFFECTS:
        raise ValueError(f"invalid taint effect: {effect}, one of {', '.join(TAINT_EFFECTS)}")
    if not key or "=" in value:
        raise ValueError(f"invalid taint spec: {spec}, expect <key>=<value>:<effect>")
    return RegistrationTaint(key=key, value=value, effect=effect)


def _reserved_memory(text: str, previous: Any = None) -> tuple[MemoryReservation, ...]:
    node, _, reservations = text.partition(":")
    pairs = dict(pair.partition("=")[::2] for pair in reservations.split(","))
    if not re.fullmatch("[0-9]+", node) or not all(pairs.values()):
        raise ValueError("expected numaNodeID:type=quantity[,type=quantity...]")
    limits = {name: Quantity(quantity) for name, quantity in pairs.items()}
    return (*(previous or ()), MemoryReservation(numa_node=int(node), limits=limits))


def _vmodule(text: str, _: Any = None) -> tuple[VModuleItem, ...]:
    items = []
    for item in filter(None, text.split(",")):
        pattern, found, level = item.partition("=")
        if not found or not pattern or not level.isdigit():
            raise ValueError(f'"{item}" does not have the pattern=N format')
        items.append(VModuleItem(file_pattern=pattern, verbosity=int(level)))
    return tuple(items)


BOOL = FlagKind("bool", _boolean, alone="true")
INT32_KIND = FlagKind("int32", _integer(INT32))
INT64_KIND = FlagKind("int", _integer(INT64))
LEVEL = FlagKind("Level", _integer(INT32, lowest=0))
STRING = FlagKind("string", _string)
STRINGS = FlagKind("strings", _strings)
DURATION = FlagKind("duration", _duration)
IP = FlagKind("ip", _address)
QUANTITY = FlagKind("quantity", _quantity)
PAIRS = FlagKind("mapStringString", _pairs("="))
ONE_PAIR = FlagKind("mapStringString", _pairs("=", split=False))
THRESHOLDS = FlagKind("mapStringString", _pairs("<"))
LABELS = FlagKind("mapStringString", _pairs("=", value_needed=False))
GATES = FlagKind("mapStringBool", _gates)
HEADERS = FlagKind("colonSeparatedMultimapStringString", _headers)
TAINTS = FlagKind("[]v1.Taint", _taints)
RESERVED_MEMORY = FlagKind("reserved-memory", _reserved_memory)
SECCOMP_DEFAULT = FlagKind("RuntimeDefault", _boolean, alone="true")
VMODULE = FlagKind("pattern=N,...", _vmodule)
VERSION = FlagKind("version[=true]", _string, alone="true")
