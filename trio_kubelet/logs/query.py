"""Questions about the node's logs: the query of `/logs/`, read and checked; pure.

Names, limits and words are those of the Go kubelet's node log query (KEP-2258).
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from attrs import field, frozen

from trio_kubelet.errors import aggregated
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.k8s.time import Time
from trio_kubelet.server.messages import RequestError, Values

OPTIONS = ("query", "sinceTime", "untilTime", "boot", "tailLines", "pattern")
MAX_SERVICES = 4
MAX_TAIL_LINES = 100_000
MAX_PATTERN_CHARACTERS = 1024
"""A longer one is none that somebody typed."""

_SERVICE = re.compile(r"[a-zA-Z0-9_.\-]+")
_DIGITS = 10


@frozen(kw_only=True)
class LogQuery:
    """The logs that are asked for, and the lines of them.

    Either `file`, a path below the folder of logs, or `services`.
    """

    services: tuple[str, ...] = ()
    file: str = ""
    since: datetime | None = None
    until: datetime | None = None
    boot: int | None = None
    tail_lines: int | None = None
    pattern: str = ""

    @property
    def has_options(self) -> bool:
        """True if more is asked for than whose log it is."""
        rest = (self.since, self.until, self.boot, self.tail_lines)
        return bool(self.pattern) or any(each is not None for each in rest)


@frozen
class _Problems:
    found: list[str] = field(factory=list)

    def add(self, name: str, words: str) -> None:
        self.found.append(f"{name}: {words}")

    def refuse(self, status: int) -> None:
        """Raise RequestError if there is one."""
        if self.found:
            raise RequestError(status, aggregated(self.found))


def is_query(query: Values) -> bool:
    """True if logs are asked for by a query, and not by a path."""
    return any(name in query for name in OPTIONS)


def log_query(query: Values) -> LogQuery:
    """Read a query. Raises RequestError: 400 for what cannot be read, 406 for what cannot be."""
    problems = _Problems()
    names = query.all("query")
    if names and not any(name.strip() for name in names):
        problems.add("query", f"Invalid value: {dumps(list(names)).decode()}: may not be empty")
    since, until = (_time(query, name, problems) for name in ("sinceTime", "untilTime"))
    boot, tail_lines = (_integer(query, name, problems) for name in ("boot", "tailLines"))
    problems.refuse(400)
    files = tuple(name for name in names if "/" in name or "\\" in name)
    asked = LogQuery(
        services=tuple(name for name in names if name and name not in files),
        file=files[0] if files else "",
        since=since,
        until=until,
        boot=boot,
        tail_lines=tail_lines,
        pattern=query.first("pattern"),
    )
    for name, words in _contradictions(asked, files, query):
        problems.add(name, words)
    problems.refuse(406)
    return asked


def _contradictions(
    asked: LogQuery, files: tuple[str, ...], query: Values
) -> Iterator[tuple[str, str]]:
    if asked.has_options and not (asked.services or files):
        yield "query", "Required value: cannot be empty with options"
    if (asked.services and files) or len(files) > 1:
        shown = ", ".join(f"[{name}]" for name in (*files, *asked.services))
        yield "query", f'Invalid value: "{shown}": cannot specify a file and service'
    elif files and asked.has_options:
        yield "query", f'Invalid value: ["{files[0]}"]: cannot specify file with options'
    if len(asked.services) > MAX_SERVICES:
        yield "query", f"Too many: {len(asked.services)}: must have at most {MAX_SERVICES} items"
    for service in asked.services:
        if not _SERVICE.fullmatch(service):
            shown = dumps(service).decode()
            yield "query", f"Invalid value: {shown}: input contains unsupported characters"
    if asked.since is not None and asked.until is not None and asked.until < asked.since:
        shown = query.first("untilTime")
        yield "untilTime", f'Invalid value: "{shown}": must be after `sinceTime`'
    if asked.boot is not None and asked.boot > 0:
        yield "boot", f"Invalid value: {asked.boot}: must be less than 1"
    if asked.tail_lines is not None and not 0 <= asked.tail_lines <= MAX_TAIL_LINES:
        bounds = f"must be between 0 and {MAX_TAIL_LINES}, inclusive"
        yield "tailLines", f"Invalid value: {asked.tail_lines}: {bounds}"
    if why := _no_pattern(asked.pattern):
        yield "pattern", f"Invalid value: {dumps(asked.pattern).decode()}: {why}"


def _no_pattern(pattern: str) -> str:
    """Why text is no regular expression, empty if it is one."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"must have at most {MAX_PATTERN_CHARACTERS} characters"
    if "\0" in pattern:
        return "must not contain a null character"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"error parsing regexp: {error}"
    return ""


def _time(query: Values, name: str, problems: _Problems) -> datetime | None:
    text = query.first(name)
    if not text:
        return None
    try:
        return datetime.fromtimestamp(Time.parse(text).ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError):
        problems.add(name, f"Invalid value: {dumps(text).decode()}: invalid time format")
    return None


def _integer(query: Values, name: str, problems: _Problems) -> int | None:
    text = query.first(name)
    if not text:
        return None
    digits = text[1:] if text[0] in "+-" else text
    if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS:
        return int(text)
    shown = dumps(text).decode()
    problems.add(name, f"Invalid value: {shown}: strconv.Atoi: parsing {shown}: invalid syntax")
    return None


def journal_arguments(query: LogQuery, units: tuple[str, ...]) -> tuple[str, ...]:
    """The command line of `journalctl` for these units, word by word."""
    arguments = ["--utc", "--no-pager", "--output=short-precise"]
    if query.since is not None:
        arguments.append(f"--since={query.since:%Y-%m-%d %H:%M:%S}")
    if query.until is not None:
        arguments.append(f"--until={query.until:%Y-%m-%d %H:%M:%S}")
    if query.tail_lines is not None:
        arguments += ["--pager-end", f"--lines={query.tail_lines}"]
    arguments += [f"--unit={unit}" for unit in units]
    if query.pattern:
        arguments.append(f"--grep={query.pattern}")
    if query.boot is not None:
        arguments.append(f"--boot={query.boot}")
    return tuple(arguments)
