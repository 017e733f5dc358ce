"""Ranges of ids for pods: which there are, who has which, and what is kept of it."""

import json
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.node_facts import node_facts
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    ObjectMeta,
    Pod,
    PodSpec,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime import user_namespaces
from trio_kubelet.runtime.config.sandbox_config import sandbox_config
from trio_kubelet.runtime.config.security import IdMapping, SecurityFacts
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.user_namespaces import (
    IdPool,
    PodIdRanges,
    check_support,
    id_pool,
    mapping_of,
    parsed,
    printed,
    subordinate_ids,
)

LENGTH = 65536
READ_SUBORDINATE_IDS = user_namespaces.read_subordinate_ids


def asking(uid: str, *, host_users: bool | None = False) -> Pod:
    spec = PodSpec(host_users=host_users)
    return Pod(metadata=ObjectMeta(name="p", namespace="n", uid=uid), spec=spec)


@pytest.mark.parametrize(
    ("subordinate", "ids_per_pod", "expected"),
    [
        (None, LENGTH, IdPool(first=LENGTH, length=2**32 - LENGTH)),
        (
            None,
            2 * LENGTH,
            IdPool(first=2 * LENGTH, length=2**32 - 2 * LENGTH, ids_per_pod=2 * LENGTH),
        ),
        ((LENGTH, 110 * LENGTH), LENGTH, IdPool(first=LENGTH, length=110 * LENGTH)),
        (
            (100000, 110 * LENGTH),
            LENGTH,
            "kubelet user assigned ID 100000 is not a multiple of 65536",
        ),
        ((0, 110 * LENGTH), LENGTH, "kubelet user assigned ID 0 must be greater or equal to 65536"),
        ((LENGTH, LENGTH + 1), LENGTH, "length 65537 is not a multiple of 65536"),
        ((LENGTH, 109 * LENGTH), LENGTH, "IDs are not enough to support 110 pods"),
    ],
)
def test_the_pool_of_a_node(
    subordinate: tuple[int, int] | None, ids_per_pod: int, expected: IdPool | str
) -> None:
    if isinstance(expected, IdPool):
        assert id_pool(subordinate, ids_per_pod=ids_per_pod, max_pods=110) == expected
        return
    with pytest.raises(ValueError, match=expected):
        id_pool(subordinate, ids_per_pod=ids_per_pod, max_pods=110)


def test_no_range_has_the_id_that_is_none() -> None:
    starts = id_pool(None, ids_per_pod=LENGTH, max_pods=110).starts()
    assert (starts[0], starts[-1]) == (LENGTH, 2**32 - 2 * LENGTH)


@pytest.mark.parametrize(
    ("users", "groups", "expected"),
    [
        ("0: kubelet 65536 2147483648\n", None, (65536, 2147483648)),
        ("0: kubelet 65536 2147483648\n", "0: kubelet 65536 65536\n", "mismatched subuids"),
        ("", None, "one line"),
        ("0: kubelet 1 2\n1: kubelet 3 4\n", None, "one line"),
        ("0: kubelet -1 2\n", None, "one line"),
        ("0: kubelet ٣ 2\n", None, "one line"),
    ],
)
def test_what_getsubids_says(
    users: str, groups: str | None, expected: tuple[int, int] | str
) -> None:
    groups = users if groups is None else groups
    if isinstance(expected, tuple):
        assert subordinate_ids(users, groups) == expected
        return
    with pytest.raises(ValueError, match=expected):
        subordinate_ids(users, groups)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('echo "0: $2$1 65536 131072" | sed s/-g//', (65536, 131072)),
        ("echo nonsense", "error parsing 'nonsense"),
        ("exit 3", 'additional ids for user "kubelet": .* exit status 3'),
    ],
)
async def test_getsubids_is_asked_for_users_and_for_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: tuple[int, int] | str
) -> None:
    program = tmp_path / "getsubids"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(user_namespaces, "_user_exists", lambda: True)
    limiter = trio.CapacityLimiter(1)
    if isinstance(expected, tuple):
        assert await READ_SUBORDINATE_IDS(limiter) == expected
        return
    with pytest.raises(ValueError, match=expected):
        await READ_SUBORDINATE_IDS(limiter)


async def test_without_a_user_kubelet_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_namespaces, "_user_exists", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _name: "/nowhere")
    assert await READ_SUBORDINATE_IDS(trio.CapacityLimiter(1)) is None


def test_a_file_has_the_form_of_the_go_kubelet() -> None:
    mapping = IdMapping(host_id=131072, length=LENGTH)
    text = printed(mapping)
    ids = '[{"hostId":131072,"containerId":0,"length":65536}]'
    assert text == f'{{"uidMappings":{ids},"gidMappings":{ids}}}'
    assert parsed(text) == mapping


IDS = {"hostId": 131072, "containerId": 0, "length": 65536}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"uidMappings": [IDS]},
        {"uidMappings": [IDS], "gidMappings": [IDS, IDS]},
        {"uidMappings": [IDS], "gidMappings": [IDS | {"hostId": 65536}]},
        *(
            {"uidMappings": [IDS | wrong], "gidMappings": [IDS | wrong]}
            for wrong in (
                {"hostId": 0},
                {"hostId": 2**32 - 1},
                {"hostId": "131072"},
                {"hostId": True},
                {"containerId": 1},
                {"length": 0},
                {"length": 2**32},
            )
        ),
    ],
)
def test_a_file_that_no_kubelet_wrote_is_an_error(document: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what is wrong about it, each says
        parsed(json.dumps(document))


def test_a_file_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 100_000)


def handler(name: str, *, able: bool) -> NodeRuntimeHandler:
    return NodeRuntimeHandler(name=name, features=NodeRuntimeHandlerFeatures(user_namespaces=able))


@pytest.mark.parametrize(
    ("handlers", "used", "problem"),
    [
        ((), "", "runtime does not support user namespaces"),
        ((handler("", able=True),), "", ""),
        ((handler("", able=False),), "", 'RuntimeClass handler "" does not support'),
        ((handler("", able=True), handler("old", able=False)), "old", 'RuntimeClass handler "old"'),
        ((handler("", able=True),), "other", 'the handler "other" is not known'),
    ],
)
def test_a_runtime_must_have_user_namespaces(
    handlers: tuple[NodeRuntimeHandler, ...], used: str, problem: str
) -> None:
    features = RuntimeFeatures(handlers=handlers)
    check_support(asking("u", host_users=None), features, used)
    if not problem:
        check_support(asking("u"), features, used)
        return
    with pytest.raises(ConfigError) as error:
        check_support(asking("u"), features, used)
    assert problem in error.value.message


def test_a_container_gets_the_range_of_its_sandbox() -> None:
    node, mapping = node_facts(), IdMapping(host_id=131072, length=LENGTH)
    for pod, given in ((asking("u"), mapping), (asking("u", host_users=None), None)):
        facts = SecurityFacts(user_namespace=given)
        made = sandbox_config(pod, node, attempt=0, dns=cri.DnsConfig(), security=facts)
        assert mapping_of(made) == given


async def started(root: Path, *uids: str) -> PodIdRanges:
    return await PodIdRanges.open(root, uids, ids_per_pod=LENGTH, max_pods=110)


@pytest.fixture(autouse=True)
def no_subordinate_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on most nodes, whatever this one has."""
    give(monkeypatch, None)


def give(monkeypatch: pytest.MonkeyPatch, ids: tuple[int, int] | None) -> None:
    async def read(_limiter: trio.CapacityLimiter) -> tuple[int, int] | None:
        return ids

    monkeypatch.setattr(user_namespaces, "read_subordinate_ids", read)


async def test_a_pod_keeps_its_range_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    ranges = await started(tmp_path)
    assert await ranges.mapping(asking("none", host_users=None)) is None
    first, second = [await ranges.mapping(asking(uid)) for uid in ("a", "b")]
    assert first == IdMapping(host_id=LENGTH, length=LENGTH)
    assert second == IdMapping(host_id=2 * LENGTH, length=LENGTH)
    assert await ranges.mapping(asking("a")) == first
    file = tmp_path / "pods" / "a" / "userns"
    assert parsed(file.read_text()) == first
    assert file.stat().st_mode & 0o777 == 0o600
    later = await started(tmp_path, "a", "b", "gone")
    third = await later.mapping(asking("c"))
    assert third == IdMapping(host_id=3 * LENGTH, length=LENGTH)
    assert [await later.mapping(asking(uid)) for uid in ("b", "a")] == [second, first]
    later.release("a")
    assert await later.mapping(asking("d")) == first


async def test_ranges_of_other_lengths_and_places_are_nobody_elses(tmp_path: Path) -> None:
    ranges = await started(tmp_path)
    for uid, mapping in {
        "wide": IdMapping(host_id=LENGTH, length=3 * LENGTH),
        "outside": IdMapping(host_id=5 * LENGTH + 7, length=10),
    }.items():
        (tmp_path / "pods" / uid).mkdir(parents=True)
        (tmp_path / "pods" / uid / "userns").write_text(printed(mapping))
        assert await ranges.mapping(asking(uid)) == mapping
    given = [await ranges.mapping(asking(uid)) for uid in ("x", "y")]
    assert [each.host_id for each in given if each] == [4 * LENGTH, 6 * LENGTH]


@pytest.mark.parametrize("content", ["", "{", '{"uidMappings":[]}', "\0" * 100])
async def test_of_a_damaged_file_the_runtime_knows_what_the_pod_was_given(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "pods" / "bad" / "userns"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    has = IdMapping(host_id=LENGTH, length=LENGTH)
    answers: list[IdMapping | RpcError | None] = [RpcError(Code.UNAVAILABLE, "away"), has]

    async def ask(uid: str) -> IdMapping | None:
        assert uid == "bad"
        await trio.lowlevel.checkpoint()
        answer = answers.pop(0)
        if isinstance(answer, RpcError):
            raise answer
        return answer

    ranges = await PodIdRanges.open(tmp_path, ("bad",), ids_per_pod=LENGTH, max_pods=110, ask=ask)
    with pytest.raises(ConfigError, match=r"bad/userns is damaged, .* not known yet: .*away"):
        await ranges.mapping(asking("good"))
    assert await ranges.mapping(asking("good")) == IdMapping(host_id=2 * LENGTH, length=LENGTH)
    assert await ranges.mapping(asking("bad")) == has
    assert parsed(file.read_text()) == has


async def test_a_damaged_file_of_a_pod_without_a_sandbox_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "pods" / "bad").mkdir(parents=True)
    (tmp_path / "pods" / "bad" / "userns").write_text("{")
    ranges = await started(tmp_path, "bad")
    given = [await ranges.mapping(asking(uid)) for uid in ("good", "bad")]
    assert [each.host_id for each in given if each] == [LENGTH, 2 * LENGTH]


async def test_where_ids_cannot_be_used_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, (5, 10))
    ranges = await started(tmp_path)
    problem = "kubelet user assigned ID 5 is not a multiple of 65536"
    assert ranges.refusal(asking("a"), RuntimeFeatures()).endswith(f", {problem}")
    with pytest.raises(ConfigError, match=problem):
        await ranges.mapping(asking("a"))


async def test_a_range_that_was_not_kept_as_its_pod_was_cancelled_is_kept_later(
    tmp_path: Path,
) -> None:
    ranges = await started(tmp_path)
    with trio.CancelScope() as scope:
        scope.cancel()
        await ranges.mapping(asking("a"))
    assert scope.cancelled_caught
    mapping = await ranges.mapping(asking("a"))
    assert parsed((tmp_path / "pods" / "a" / "userns").read_text()) == mapping


async def test_when_all_ranges_are_taken_a_pod_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, (LENGTH, LENGTH))
    ranges = await PodIdRanges.open(tmp_path, (), ids_per_pod=LENGTH, max_pods=1)
    assert await ranges.mapping(asking("a")) is not None
    with pytest.raises(ConfigError, match="could not find an empty slot"):
        await ranges.mapping(asking("b"))
    ranges.release("a")
    assert await ranges.mapping(evolve(asking("b"))) is not None


async def test_admission_is_told_why_a_pod_cannot_have_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = RuntimeFeatures(handlers=(handler("", able=True),))
    classed = evolve(asking("a"), spec=PodSpec(host_users=False, runtime_class_name="old"))
    ranges = await started(tmp_path)
    assert ranges.refusal(asking("a"), able) == ""
    assert "does not support" in ranges.refusal(asking("a"), RuntimeFeatures())
    unable = RuntimeFeatures(handlers=(handler("", able=False),))
    assert "does not support" in ranges.refusal(asking("a"), unable)
    assert ranges.refusal(classed, unable) == ""  # its handler is not known yet
    give(monkeypatch, (100_000, LENGTH))
    nowhere = await started(tmp_path)
    assert "can't set `spec.hostUsers: false`, kubelet user" in nowhere.refusal(classed, able)
