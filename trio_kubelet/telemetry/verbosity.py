"""The verbosity of the log: debug entries of all modules, or only of those that `vmodule` names.

A pattern of `vmodule` is a glob for the name of a module's file without `.py` (`generator`), or for
the end of its path (`volumes/*`, `trio_kubelet/csi/drivers`). It can add to the verbosity of all,
never take away. `--v` and `/debug/flags/v` change the one, a reload both.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from trio_kubelet.config.parts import VModuleItem

DEBUG_VERBOSITY = 4
"""From this `--v` on, debug entries are written; klog's level for what developers look at."""
_LOG_LIBRARY = "structlog"


class _Verbosity:
    """The verbosity in force."""

    def __init__(self) -> None:
        self.everywhere = 0
        self.patterns: tuple[str, ...] = ()
        """The files whose debug entries are written whatever `everywhere` says."""


_in_force = _Verbosity()


def set_verbosity(verbosity: int) -> None:
    """Write debug entries of all modules from now on, or no more of them, as `--v` says."""
    _in_force.everywhere = verbosity
    _apply()


def set_vmodule(items: Sequence["VModuleItem"]) -> None:
    """Write debug entries of these files from now on, and of no others beyond `--v`."""
    verbose = (item for item in items if item.verbosity >= DEBUG_VERBOSITY)
    _in_force.patterns = tuple(item.file_pattern for item in verbose)
    _is_verbose.cache_clear()
    _apply()


def _apply() -> None:
    some = _in_force.everywhere >= DEBUG_VERBOSITY or _in_force.patterns
    level = logging.DEBUG if some else logging.INFO
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def drop_quiet_debug(_logger: Any, name: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop a debug entry that only other files than the one that made it may write.

    A processor of structlog. Raises DropEvent.
    """
    if name != "debug" or _in_force.everywhere >= DEBUG_VERBOSITY:
        return entry
    caller = calling_frame(sys._getframe(1))
    if caller is not None and _is_verbose(_module(caller)):
        return entry
    raise structlog.DropEvent


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that logs, seen from a processor: the first one above structlog."""
    while frame is not None and _module(frame).partition(".")[0] == _LOG_LIBRARY:
        frame = frame.f_back
    return frame


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


@cache
def _is_verbose(module: str) -> bool:
    path = module.split(".")
    return any(matches(pattern, path) for pattern in _in_force.patterns)


def matches(pattern: str, path: Sequence[str]) -> bool:
    """True if a pattern fits to the end of a module's path, part by part."""
    globs = pattern.split("/")
    end = path[-len(globs) :]
    return len(end) == len(globs) and all(map(fnmatchcase, end, globs))
