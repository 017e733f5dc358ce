"""Patterns for one part of a registry's host, such as `*` or `eu-[a-c]?`, as Go's `filepath.Match`.

`*` is any text, `?` any character, `[a-c]` one of these, `[^a-c]` any other; a backslash takes the
next character as it is. `fnmatch` is no help: it keeps compiled patterns, of any length, by the
ten thousand, and one match of a regular expression holds up all threads until it is through.
"""

from collections.abc import Iterator, Sequence

from attrs import field, frozen


class _MalformedPatternError(ValueError):
    """A class or an escape that does not end. Such a pattern matches nothing."""


@frozen
class _CharacterClass:
    """Characters from one to another, or all but those; `?` is all but none."""

    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = field(default=False, kw_only=True)

    def has(self, character: str) -> bool:
        found = any(first <= character <= last for first, last in self.ranges)
        return found is not self.is_negated


_ANY = _CharacterClass(is_negated=True)
_Chunk = Sequence[_CharacterClass]


def part_matches(pattern: str, part: str) -> bool:
    """True if a pattern is for all of a part. The time is at most the product of their lengths."""
    try:
        first, *others = _chunks(pattern)
    except _MalformedPatternError:
        return False
    if not others:
        return len(first) == len(part) and _stands_at(first, part, 0)
    *middle, last = others
    at, end = len(first), len(part) - len(last)
    if at > end or not _stands_at(first, part, 0) or not _stands_at(last, part, end):
        return False
    # The first place for each is the best one: it leaves the most to those that follow.
    for chunk in middle:
        places = range(at, end - len(chunk) + 1)
        place = next((each for each in places if _stands_at(chunk, part, each)), None)
        if place is None:
            return False
        at = place + len(chunk)
    return True


def _stands_at(chunk: _Chunk, part: str, place: int) -> bool:
    characters = part[place : place + len(chunk)]
    return len(characters) == len(chunk) and all(
        each.has(character) for each, character in zip(chunk, characters, strict=True)
    )


def _chunks(pattern: str) -> list[_Chunk]:
    """Read the parts of a pattern between its asterisks. Raises _MalformedPatternError."""
    chunks: list[list[_CharacterClass]] = [[]]
    characters = iter(pattern)
    for character in characters:
        match character:
            case "*":
                chunks.append([])
            case "?":
                chunks[-1].append(_ANY)
            case "[":
                chunks[-1].append(_character_class(characters))
            case _:
                one = _escaped(character, characters)
                chunks[-1].append(_CharacterClass(((one, one),)))
    return [*chunks]


def _character_class(characters: Iterator[str]) -> _CharacterClass:
    """Read a class to its bracket; the opening one has been read."""
    character = _next(characters)
    is_negated = character == "^"
    if is_negated:
        character = _next(characters)
    ranges: list[tuple[str, str]] = []
    while character != "]" or not ranges:
        if character in "]-":
            raise _MalformedPatternError
        first = last = _escaped(character, characters)
        character = _next(characters)
        if character == "-":
            character = _next(characters)
            if character in "]-":
                raise _MalformedPatternError
            last = _escaped(character, characters)
            character = _next(characters)
        ranges.append((first, last))
    return _CharacterClass(tuple(ranges), is_negated=is_negated)


def _escaped(character: str, characters: Iterator[str]) -> str:
    return _next(characters) if character == "\\" else character


def _next(characters: Iterator[str]) -> str:
    following = next(characters, None)
    if following is None:
        raise _MalformedPatternError
    return following
