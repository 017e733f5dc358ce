"""Lines without an end: what all readers of logs hold of them together."""

import pytest

from trio_kubelet.logs.lines import MAX_LINE_BYTES, LogLines
from trio_kubelet.logs.options import LogOptions
from trio_kubelet.logs.partial_lines import MAX_HELD_BYTES, PartialLines

HEAD = b"2026-01-01T00:00:01.5Z stdout F "
ENDLESS = HEAD + b"x" * (MAX_LINE_BYTES // 2)


class Readers:
    """Readers of logs, and all that they hold."""

    def __init__(self) -> None:
        self.partial, self.all = PartialLines(), list[LogLines]()

    def begin(self, namespace: str, data: bytes = ENDLESS) -> LogLines:
        """Have one more reader, who reads this."""
        lines = LogLines(LogOptions())
        self.all.append(lines)
        self.read(lines, namespace, data)
        return lines

    def read(self, lines: LogLines, namespace: str, data: bytes) -> bytes:
        with self.partial.reading(lines, namespace):
            return lines.feed(data)

    @property
    def held_bytes(self) -> int:
        return sum(lines.partial_bytes for lines in self.all)


@pytest.mark.parametrize("namespaces", [1, 2, 7])
def test_hundreds_of_readers_hold_no_more_than_there_is_room_for(namespaces: int) -> None:
    readers = Readers()
    for number in range(300):
        readers.begin(f"hostile-{number % namespaces}")
    assert MAX_HELD_BYTES // 2 < readers.held_bytes <= MAX_HELD_BYTES


def test_the_lines_of_a_namespace_that_holds_little_stay_and_are_sent_whole() -> None:
    readers = Readers()
    good = readers.begin("good", HEAD + b"half of")
    for _ in range(300):
        readers.begin("hostile")
    assert readers.read(good, "good", b" a line\n") == b"half of a line\n"


def test_a_line_that_was_left_out_is_so_up_to_its_end() -> None:
    readers = Readers()
    first = readers.begin("hostile", ENDLESS + b"x")
    for _ in range(300):
        readers.begin("hostile")
    assert not first.partial_bytes
    assert readers.read(first, "hostile", b"rest\n" + HEAD + b"next\n") == b"next\n"


def test_who_has_gone_holds_nothing() -> None:
    readers = Readers()
    for _ in range(300):
        readers.partial.forget(readers.begin("gone"))
    for _ in range(MAX_HELD_BYTES // len(ENDLESS)):
        assert readers.begin("good").partial_bytes
