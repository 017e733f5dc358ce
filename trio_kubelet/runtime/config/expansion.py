"""`$(VAR)` in commands, arguments, environment values and sub-paths.

`$$` stands for one `$`, so that `$$(VAR)` is the text `$(VAR)`. There is no other escape, no
nesting, and a lone `$` is a `$`. (API: Container.command, EnvVar.value, VolumeMount.subPathExpr)

A value that refers to one before it twice is twice as long, and forty of them are a terabyte: the
size of a result is known before it is built, and one that is too large is not built.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from attrs import frozen

MAX_BYTES = 6 << 20
"""The most that Linux passes to a process, whatever its stack limit; 2 MiB with the usual one.

Of arguments and variables together, with a NUL and a pointer for each (execve(2), ARG_MAX).
"""
PATH_MAX_BYTES = 4096
"""No path that is longer can be opened (limits.h)."""
STRING_OVERHEAD_BYTES = 9
SHOWN_CHARACTERS = 1024

_DOLLAR = re.compile(r"\$(?:\$|\(([^)]*)\))")
_ESCAPE = re.compile(r"\$\$")


@frozen
class TooLargeError(Exception):
    """An expanded text would have more bytes than it may."""


def expand(text: str, resolve: Callable[[str], str | None], most_bytes: int = MAX_BYTES) -> str:
    """The text with its references replaced; one that `resolve` answers with None stays.

    Raises TooLargeError before anything larger than `most_bytes` is made.
    """
    pieces: list[str] = []
    end = size = 0

    def add(piece: str) -> None:
        nonlocal size
        size += byte_size(piece)
        if size > most_bytes:
            raise TooLargeError
        pieces.append(piece)

    for match in _dollars(text):
        value = "$" if match.lastindex is None else resolve(match[1])
        if value is None:
            continue
        add(text[end : match.start()])
        add(value)
        end = match.end()
    add(text[end:])
    return "".join(pieces)


def _dollars(text: str) -> Iterator[re.Match[str]]:
    """All references and escapes of a text.

    Behind the last `)` nothing is a reference, and nobody looks for the end of one: each `$(`
    there would be read to the end of the text, by an expression that holds the interpreter's lock.
    """
    closed = text.rfind(")") + 1
    yield from _DOLLAR.finditer(text, 0, closed)
    yield from _ESCAPE.finditer(text, closed)


def expand_all(
    texts: Iterable[str], environment: Mapping[str, str], most_bytes: int = MAX_BYTES
) -> list[str]:
    """A command or its arguments, expanded from the container's environment.

    Raises TooLargeError where all of them together would have more than `most_bytes`.
    """
    expanded: list[str] = []
    for text in texts:
        expanded.append(expand(text, environment.get, most_bytes))
        most_bytes -= byte_size(expanded[-1]) + STRING_OVERHEAD_BYTES
    if most_bytes < 0:
        raise TooLargeError
    return expanded


def expand_strictly(text: str, environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The expanded text, and the sorted names that are unknown or empty.

    A path must not silently lose a part, so for `subPathExpr` a missing value is an error.
    Raises TooLargeError for one that no path can be.
    """
    missing = set()

    def resolve(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            missing.add(name)
        return value

    expanded = expand(text, resolve, PATH_MAX_BYTES)
    return expanded, tuple(sorted(missing))


def shown_command(command: Iterable[str]) -> str:
    """A command for a message; a very long one is cut."""
    return " ".join(word[:SHOWN_CHARACTERS] for word in islice(command, SHOWN_CHARACTERS))[
        :SHOWN_CHARACTERS
    ]


def byte_size(text: str) -> int:
    """The bytes of a text as a process sees it."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
