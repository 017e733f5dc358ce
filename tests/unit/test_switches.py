"""What each switch of the configuration, and each gate, takes off the node's port or adds to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.unit.agent.test_start import start
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.server import Request, RequestError, Response, route_requests
from trio_kubelet.server.messages import Values

Answer = tuple[int, str]
Asked = tuple[str, str]

NOT_FOUND = (404, "404 page not found\n")
NO_POD = (404, "pod does not exist")
NO_DEBUGGING = (405, "Debug endpoints are disabled.\n")
LOG = "/containerLogs/ns/p/c"
STREAM = "/containerLogs/ns/p/c?stream=Stdout"
FILE, QUERY = "/logs/no-such-file", "/logs/?query=%20"
CHECKPOINT = ("POST", "/checkpoint/ns/p/c")
VERBOSITY = ("PUT", "/debug/flags/v")
PROFILE = "/debug/pprof/nothing"

DEBUGGING = (
    *("/containerLogs", "/exec", "/attach", "/portForward", "/run", "/logs", "/debug/pprof"),
)

USUAL: Mapping[Asked, Answer] = {
    ("GET", LOG): (404, 'pod "p" does not exist'),
    ("GET", STREAM): (422, '{"message": "Invalid request."}'),
    ("POST", "/exec/ns/p/c?output=1"): NO_POD,
    ("POST", "/attach/ns/p/c?output=1"): NO_POD,
    ("POST", "/portForward/ns/p"): NO_POD,
    ("POST", "/run/ns/p/c?cmd=a"): NO_POD,
    ("GET", "/runningpods/"): (200, ""),
    ("GET", "/configz"): (200, ""),
    ("GET", "/debug/journal"): (200, ""),
    ("GET", "/statusz"): (200, ""),
    ("GET", "/flagz"): (200, ""),
    ("GET", FILE): (404, "404 page not found"),
    ("GET", QUERY): (200, ""),
    ("GET", PROFILE): (404, "Unknown profile"),
    VERBOSITY: (400, 'strconv.ParseUint: parsing "": invalid syntax\n'),
    CHECKPOINT: NO_POD,
    ("GET", "/healthz"): (200, ""),
    ("GET", "/pods"): (200, ""),
}
"""What is answered where nothing is switched; bodies of what there is are looked at elsewhere."""


async def answers(root: Path, gates: Mapping[str, bool], **fields: Any) -> Mapping[Asked, Answer]:
    """What an agent with these gates and fields answers to who is let in."""
    found: dict[Asked, Answer] = {}
    effective = FeatureGates({**FeatureGates(), **gates})
    async with start(root, gates=effective, **fields) as starting, trio.open_nursery() as nursery:
        agent = starting.agent
        handle = route_requests(agent.ports.routes(nursery))
        nursery.start_soon(agent.parts.stats.run)
        nursery.start_soon(agent.parts.writers.run)
        for method, target in USUAL:
            path, _, query = target.partition("?")
            pair = query.replace("%20", " ").partition("=")
            values = Values(((pair[0], pair[2]),) if query else ())
            try:
                response = await handle(Request(method=method, path=path, query=values))
            except RequestError as error:
                found[method, target] = (error.status, str(error))
                continue
            assert isinstance(response, Response)
            body = response.body if isinstance(response.body, bytes) else b""
            words = "" if response.status == 200 else body.decode()
            found[method, target] = (response.status, words)
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize(
    ("gates", "fields", "changed"),
    [
        ({}, {}, {}),
        (
            {},
            {"enable_debugging_handlers": False},
            {
                **{asked: NO_DEBUGGING for asked in USUAL if asked[1].startswith(DEBUGGING)},
                ("GET", "/configz"): NOT_FOUND,
                ("GET", "/debug/journal"): NOT_FOUND,
                ("GET", "/statusz"): NOT_FOUND,
                ("GET", "/flagz"): NOT_FOUND,
                VERBOSITY: NOT_FOUND,
                CHECKPOINT: NOT_FOUND,
            },
        ),
        (
            {},
            {"enable_system_log_handler": False},
            dict.fromkeys([("GET", FILE), ("GET", QUERY)], (405, "logs endpoint is disabled.\n")),
        ),
        (
            {},
            {"enable_profiling_handler": False},
            {("GET", PROFILE): (405, "profiling endpoint is disabled.\n")},
        ),
        (
            {},
            {"enable_debug_flags_handler": False},
            {VERBOSITY: (405, "flags endpoint is disabled.\n")},
        ),
        ({"ContainerCheckpoint": False}, {}, {CHECKPOINT: NOT_FOUND}),
        ({"ComponentStatusz": False}, {}, {("GET", "/statusz"): NOT_FOUND}),
        ({"ComponentFlagz": False}, {}, {("GET", "/flagz"): NOT_FOUND}),
        ({"NodeLogQuery": True}, {"enable_system_log_query": False}, {}),
        ({"NodeLogQuery": False}, {"enable_system_log_query": True}, {}),
        (
            {"NodeLogQuery": True},
            {"enable_system_log_query": True},
            {("GET", QUERY): (400, 'query: Invalid value: [" "]: may not be empty')},
        ),
        (
            {"PodLogsQuerySplitStreams": True},
            {},
            {("GET", STREAM): (404, 'pod "p" does not exist')},
        ),
    ],
)
async def test_a_switch_takes_what_it_names_and_nothing_else(
    tmp_path: Path,
    gates: Mapping[str, bool],
    fields: Mapping[str, bool],
    changed: Mapping[Asked, Answer],
) -> None:
    with trio.fail_after(60):
        found = await answers(tmp_path, gates, **fields)
    assert found == {**USUAL, **changed}
