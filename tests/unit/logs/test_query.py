"""What is asked of the node's logs, and what is refused with which words."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.logs.query import OPTIONS, is_query, journal_arguments, log_query
from trio_kubelet.server import RequestError
from trio_kubelet.server.messages import Values
from trio_kubelet.server.request_head import ByteRange, wanted_range

DAY = "2026-11-22T00:00:00Z"
BEFORE = "2026-11-21T00:00:00Z"


def values(**query: Any) -> Values:
    return Values(
        tuple(
            (name, text)
            for name, given in query.items()
            for text in (given if isinstance(given, list) else [given])
        )
    )


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        # As seen on a Go kubelet v1.36.3.
        ({"query": ""}, 400, 'query: Invalid value: [""]: may not be empty'),
        ({"query": ["", ""]}, 400, 'query: Invalid value: ["",""]: may not be empty'),
        ({"query": " "}, 400, 'query: Invalid value: [" "]: may not be empty'),
        (
            {"query": "a", "sinceTime": "x"},
            400,
            'sinceTime: Invalid value: "x": invalid time format',
        ),
        (
            {"query": "a", "tailLines": "x", "boot": "y"},
            400,
            '[boot: Invalid value: "y": strconv.Atoi: parsing "y": invalid syntax, '
            'tailLines: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax]',
        ),
        ({"tailLines": "5"}, 406, "query: Required value: cannot be empty with options"),
        (
            {"query": "no such;"},
            406,
            'query: Invalid value: "no such;": input contains unsupported characters',
        ),
        (
            {"query": ["/a.log", "kubelet"]},
            406,
            'query: Invalid value: "[/a.log], [kubelet]": cannot specify a file and service',
        ),
        (
            {"query": "/a.log", "pattern": "x"},
            406,
            'query: Invalid value: ["/a.log"]: cannot specify file with options',
        ),
        ({"query": list("abcdef")}, 406, "query: Too many: 6: must have at most 4 items"),
        (
            {"query": "a", "sinceTime": DAY, "untilTime": BEFORE},
            406,
            f'untilTime: Invalid value: "{BEFORE}": must be after `sinceTime`',
        ),
        (
            {"query": "a", "boot": "1", "tailLines": "-1"},
            406,
            "[boot: Invalid value: 1: must be less than 1, "
            "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive]",
        ),
        (
            {"query": "a", "tailLines": "100001"},
            406,
            "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive",
        ),
        (
            {"query": "a", "pattern": "("},
            406,
            'pattern: Invalid value: "(": error parsing regexp: ',
        ),
        ({"query": "a", "pattern": "x" * 1025}, 406, "must have at most 1024 characters"),
        ({"query": "a", "boot": "9" * 30}, 400, "boot: Invalid value"),
        ({"query": "a", "sinceTime": "9999-12-31T23:59:59-23:59"}, 400, "sinceTime: Invalid value"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(
    query: dict[str, Any], status: int, words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        log_query(values(**query))
    assert refused.value.status == status
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ({}, []),
        ({"sinceTime": DAY}, ["--since=2026-11-22 00:00:00"]),
        ({"untilTime": "2026-11-22T02:00:00.5+02:00"}, ["--until=2026-11-22 00:00:00"]),
        ({"tailLines": "5"}, ["--pager-end", "--lines=5"]),
        ({"pattern": "-a b"}, ["--grep=-a b"]),
        ({"boot": "-1"}, ["--boot=-1"]),
        ({"boot": ""}, []),
    ],
)
def test_the_journal_is_asked_for_what_was_asked_for(
    query: dict[str, Any], arguments: list[str]
) -> None:
    asked = log_query(values(query="kubelet", **query))
    called = journal_arguments(asked, ("kubelet",))
    assert set(called) - {"--utc", "--no-pager", "--output=short-precise"} == {
        "--unit=kubelet",
        *arguments,
    }


@given(st.dictionaries(st.sampled_from(OPTIONS), st.text(max_size=30)))
def test_any_query_is_read_or_refused(query: dict[str, str]) -> None:
    with suppress(RequestError):
        asked = log_query(values(**query))
        assert all(word.startswith("--") for word in journal_arguments(asked, asked.services))


def test_what_is_no_option_makes_no_query() -> None:
    assert not is_query(values(foo="1"))
    assert is_query(values(tailLines=""))


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("", None),
        ("bytes=0-3", ByteRange(0, 4)),
        ("bytes=8-", ByteRange(8, 2)),
        ("bytes=8-100", ByteRange(8, 2)),
        ("bytes=-3", ByteRange(7, 3)),
        ("bytes=-100", ByteRange(0, 10)),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-3", None),
        ("bytes=" + "9" * 30 + "-", None),
    ],
)
def test_a_range_is_a_part_or_the_whole(header: str, part: ByteRange | None) -> None:
    assert wanted_range(header, 10) == part


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0"])
def test_a_part_that_there_is_not_is_refused(header: str) -> None:
    with pytest.raises(RequestError) as refused:
        wanted_range(header, 10)
    assert refused.value.status == 416
