"""`$(VAR)` in commands, arguments, environment values and sub-paths.

`$$` stands for one `$`, so that `$$(VAR)` is the text `$(VAR)`. There is no other escape, no
nesting, and a lone `$` is a `$`. (API: Container.command, EnvVar.value, VolumeMount.subPathExpr)
"""

import re
from collections.abc import Callable, Mapping

_DOLLAR = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, resolve: Callable[[str], str | None]) -> str:
    """The text with its references replaced; one that `resolve` answers with None stays."""

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        value = resolve(name)
        return match[0] if value is None else value

    return _DOLLAR.sub(replacement, text)


def expand_all(texts: tuple[str, ...], environment: Mapping[str, str]) -> list[str]:
    """A command or its arguments, expanded from the container's environment."""
    return [expand(text, environment.get) for text in texts]


def expand_strictly(text: str, environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The expanded text, and the sorted names that are unknown or empty.

    A path must not silently lose a part, so for `subPathExpr` a missing value is an error.
    """
    missing = set()

    def resolve(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            missing.add(name)
        return value

    expanded = expand(text, resolve)
    return expanded, tuple(sorted(missing))
