"""Passwords in the database of iscsiadm, which takes settings otherwise by its arguments alone.

Everybody on the node may read the arguments of a program. So user names and passwords (CHAP) are
written into the records that iscsiadm has made, which only root may read. Everything blocks.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from trio_kubelet.kernel.whole_files import write_whole

DATABASES = (Path("/var/lib/iscsi"), Path("/etc/iscsi"))
"""The folders in which open-iscsi has its records: today, and of older releases."""

_SETTING = re.compile(r"([\w.\[\]]+) = ")
_END = "# END RECORD"
_SAFE_PART = re.compile(r"[\w.:%-]+")


class ISCSIDatabaseError(Exception):
    """A record of iscsiadm is not where it is looked for; the text says where that is."""


@frozen
class ISCSIDatabase:
    """The records of iscsiadm below some folders."""

    folders: Sequence[Path] = DATABASES

    def set_node(self, target: str, port: str, interface: str, values: Mapping[str, str]) -> None:
        """Write settings into a target's records for an interface.

        It has one for each of the addresses that it has told of; the port is that of the portal.
        Raises ISCSIDatabaseError, OSError.
        """
        names = f"{_part(target)}/*,{_part(port)}"
        self._set((f"nodes/{names},*/{_part(interface)}", f"nodes/{names}"), values)

    def set_discovery(self, address: str, port: str, values: Mapping[str, str]) -> None:
        """Write settings into the record of a portal that is asked for its targets.

        Raises ISCSIDatabaseError, OSError.
        """
        self._set((f"send_targets/{_part(address)},{_part(port)}/st_config",), values)

    def _set(self, patterns: Sequence[str], values: Mapping[str, str]) -> None:
        for folder in self.folders:
            for pattern in patterns:
                records = [each for each in folder.glob(pattern) if each.is_file()]
                for record in records:
                    write_whole(record, _with(record.read_text(), values).encode())
                if records:
                    return
        looked = ", ".join(f"{folder}/{pattern}" for folder in self.folders for pattern in patterns)
        raise ISCSIDatabaseError(f"iscsiadm has made no record where one is expected: {looked}")


def _with(record: str, values: Mapping[str, str]) -> str:
    """Return the text of a record with settings exchanged or added."""
    lines = [each for each in record.splitlines() if _name(each) not in values]
    at = lines.index(_END) if _END in lines else len(lines)
    lines[at:at] = [f"{name} = {value}" for name, value in values.items()]
    return "".join(f"{each}\n" for each in lines)


def _name(line: str) -> str:
    found = _SETTING.match(line)
    return "" if found is None else found[1]


def _part(text: str) -> str:
    """Return a part of a path that is no pattern. Raises ISCSIDatabaseError for another one."""
    if not _SAFE_PART.fullmatch(text) or text in (".", ".."):
        raise ISCSIDatabaseError(f"{text!r} cannot name a record of iscsiadm")
    return text
