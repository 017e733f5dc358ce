"""Bad manifests are reported with file and field, and disturb nobody."""

import json
from collections.abc import Iterator

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.processes import alive, wait_until
from tests.integration.bad_manifests import BadManifest, bad_manifests
from tests.integration.pods import Node, container_ids, status_of, until_term

BAD = {f"bad-{number:03}.yaml": each for number, each in enumerate(bad_manifests())}


def reports(node: Node, event: str = "Rejected") -> dict[str, str]:
    """File name → what the journal says of it, the last entry of each."""
    entries: list[Json] = node.agent.ask("/debug/journal")["entries"]
    prefix = f"{node.agent.manifests}/"
    return {
        entry["key"].removeprefix(prefix): entry["cause"]
        for entry in entries
        if entry["kind"] == "manifest" and entry["event"] == event
    }


def wait_for_report(node: Node, name: str, event: str = "Rejected") -> str:
    """Wait until a file was reported; what was said."""
    wait_until(
        lambda: name in reports(node, event),
        deadline_seconds=60,
        else_say=lambda: f"{name} is not reported; {node.agent.last_words()}",
    )
    return reports(node, event)[name]


@pytest.fixture(scope="module")
def among_bad_ones(node: Node) -> Iterator[dict[str, Json]]:
    """Two pods: one that ran before the bad manifests came, one that came with them."""
    before = node.run(pod_manifest("before", until_term("c")))
    for number, (name, bad) in enumerate(BAD.items()):
        (node.agent.manifests / name).write_bytes(bad.text)
        if number == len(BAD) // 2:
            node.add(pod_manifest("between", until_term("c")))
    between = node.wait("between", is_running)
    wait_until(
        lambda: len(reports(node)) == len(BAD),
        deadline_seconds=60,
        else_say=lambda: f"{len(reports(node))} reports; {node.agent.last_words()}",
    )
    yield {"before": before, "between": between}
    for name in BAD:
        (node.agent.manifests / name).unlink()
    node.remove("before", "between")


def test_there_are_two_hundred() -> None:
    assert len(BAD) == 200


def test_bad_manifests_disturb_neither_pods_nor_the_agent(
    node: Node, among_bad_ones: dict[str, Json]
) -> None:
    assert alive(node.agent.pid)
    assert len(node.agent.pods()) == len(among_bad_ones)
    for name, pod in among_bad_ones.items():
        now = node.pod(name)
        assert is_running(now)
        assert container_ids(now) == container_ids(pod)
        assert status_of(now, "c")["restartCount"] == 0


def test_each_is_reported_with_its_file_and_field(
    node: Node, among_bad_ones: dict[str, Json]
) -> None:
    found = reports(node)
    assert {name: found[name] for name, bad in BAD.items() if not _fits(bad, found[name])} == {}
    log = node.agent.log.read_text()
    assert [name for name in BAD if f"file={node.agent.manifests}/{name}" not in log] == []


def _fits(bad: BadManifest, report: str) -> bool:
    return bool(report) and bad.words in report


def test_a_pod_whose_manifest_becomes_bad_goes_on_even_after_a_restart(node: Node) -> None:
    manifest = pod_manifest("goes-on", until_term("c"))
    before = node.run(manifest)
    node.agent.write("goes-on.json", '{"apiVersion": "v1", "kind": "Pod", "spec": {')
    wait_for_report(node, "goes-on.json")
    assert container_ids(node.pod("goes-on")) == container_ids(before)
    node.agent.stop()
    node.agent.start()
    after = node.wait("goes-on", is_running)
    wait_for_report(node, "goes-on.json")
    assert container_ids(after) == container_ids(before)
    node.add(manifest)
    wait_for_report(node, "goes-on.json", "Mended")
    assert container_ids(node.wait("goes-on", is_running)) == container_ids(before)
    assert status_of(node.pod("goes-on"), "c")["restartCount"] == 0
    node.remove("goes-on")
    node.wait_gone("goes-on")


def test_of_two_manifests_for_one_pod_the_first_file_wins(node: Node) -> None:
    manifest = pod_manifest("twice", until_term("c"))
    node.agent.write("a-twice.json", manifest)
    before = node.wait("twice", is_running)
    node.agent.write("b-twice.json", {**manifest, "spec": {**manifest["spec"], "hostname": "b"}})
    said = wait_for_report(node, "b-twice.json")
    assert said.startswith("metadata.name: Duplicate value")
    assert "a-twice.json" in said
    assert container_ids(node.pod("twice")) == container_ids(before)
    node.agent.remove("b-twice.json")
    node.agent.remove("a-twice.json")


def test_one_bad_document_does_not_hide_its_neighbours(node: Node) -> None:
    good = pod_manifest("good-document", until_term("c"))
    bad = pod_manifest("bad-document", {"name": "c"})
    node.agent.write("documents.yaml", f"---\n{json.dumps(good)}\n---\n{json.dumps(bad)}\n")
    node.wait("good-document", is_running)
    said = wait_for_report(node, "documents.yaml")
    assert said == "document 2: spec.containers[0].image: Required value"
    node.agent.remove("documents.yaml")


def test_a_manifest_that_is_mended_becomes_a_pod(node: Node) -> None:
    node.agent.write("mended.json", pod_manifest("mended", {"name": "c"}))
    wait_for_report(node, "mended.json")
    node.run(pod_manifest("mended", until_term("c")))
    wait_for_report(node, "mended.json", "Mended")
    node.remove("mended")
