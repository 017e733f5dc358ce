from collections.abc import Mapping

import pytest

from tests.unit.sources.manifest_texts import manifest, reader
from trio_kubelet.k8s import Pod
from trio_kubelet.sources import Source
from trio_kubelet.sources.manifests import (
    MAX_MANIFEST_BYTES,
    Adopt,
    Manifest,
    ManifestPod,
    ResolvedManifests,
)
from trio_kubelet.sources.static_pods import is_manifest_uid

GO_UID = "0123456789abcdef0123456789abcdef"
NOTHING: Mapping[str, tuple[ManifestPod, ...]] = {}


def adopt_nothing(pod: Pod, source: Source) -> str | None:
    return None


def adopt_all(pod: Pod, source: Source) -> str | None:
    return GO_UID


def read(text: str, origin: str = "/m/a.yaml") -> Manifest:
    return reader().read(origin, text.encode())


def resolve(
    *manifests: Manifest,
    kept: Mapping[str, tuple[ManifestPod, ...]] = NOTHING,
    adopt: Adopt = adopt_nothing,
    kept_by_earlier_run: bool = False,
) -> ResolvedManifests:
    return reader().resolve(manifests, kept, adopt, kept_by_earlier_run=kept_by_earlier_run)


def names(resolved: ResolvedManifests) -> list[str]:
    return [each.metadata.name for each in resolved.pods]


def uid(resolved: ResolvedManifests) -> str:
    (pod,) = resolved.pods
    return pod.metadata.uid


def test_one_manifest_may_hold_many_pods() -> None:
    several = read("---\n".join((manifest("a"), "\n", manifest("b"))))
    assert names(resolve(several)) == ["a-node-1", "b-node-1"]
    listed = read(
        '{"kind": "PodList", "items": [{"metadata": {"name": "a"}, "spec": '
        '{"containers": [{"name": "c", "image": "i"}]}}]}'
    )
    assert names(resolve(listed)) == ["a-node-1"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "there is no pod in it"),
        (b"\n# only a comment\n", "there is no pod in it"),
        (b"\xff\xfe\x00", "not UTF-8 text: byte 0 cannot be read"),
        (b"a: [", "line 2, column 1: while parsing a flow node did not find expected node content"),
        (b'{"kind": "PodList", "items": [3]}', "items[0]: Invalid value: 3: must be a pod"),
        (b"#" * (MAX_MANIFEST_BYTES + 1), "is larger than 10 MiB"),
    ],
)
def test_what_cannot_be_read_is_said(data: bytes, problem: str) -> None:
    manifest_read = reader().read("/m/a.yaml", data)
    assert manifest_read.problems == (problem,)
    assert manifest_read.pods == ()


def test_an_empty_list_is_no_mistake() -> None:
    empty = read('{"kind": "PodList", "items": []}')
    assert (empty.pods, empty.problems) == ((), ())


def test_a_bad_document_does_not_hide_its_neighbours() -> None:
    both = read("---\n".join((manifest("a"), manifest("b", image='""'), manifest("c"))))
    assert both.problems == ("document 2: spec.containers[0].image: Required value",)
    assert names(resolve(both)) == ["a-node-1", "c-node-1"]


def test_a_bug_is_a_problem_of_the_manifest_that_brings_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> Pod:
        raise RuntimeError("boom")

    monkeypatch.setattr("trio_kubelet.sources.manifests.checked_pod", fails)
    assert read(manifest()).problems == ("cannot be judged: RuntimeError: boom",)


class TestUid:
    def test_it_is_the_manifests_own_if_it_has_one(self) -> None:
        given = read(manifest(more="uid: mine"))
        assert uid(resolve(given, adopt=adopt_all)) == "mine"

    def test_else_that_of_a_running_sandbox_which_fits(self) -> None:
        assert uid(resolve(read(manifest()), adopt=adopt_all)) == GO_UID

    def test_else_a_hash_of_the_manifest(self) -> None:
        hashed = uid(resolve(read(manifest())))
        assert is_manifest_uid(hashed)
        assert uid(resolve(read(manifest(image="other")))) != hashed

    def test_a_sandbox_of_another_text_of_the_manifest_is_not_taken_over(self) -> None:
        before = uid(resolve(read(manifest(spec="hostname: old"))))
        after = uid(resolve(read(manifest()), adopt=lambda pod, source: before))
        assert after == uid(resolve(read(manifest())))

    def test_an_adopted_uid_stays_while_the_manifest_does(self) -> None:
        first = resolve(read(manifest()), adopt=adopt_all)
        again = resolve(read(manifest()), kept=first.kept, adopt=adopt_nothing)
        assert uid(again) == GO_UID

    def test_an_adopted_uid_ends_with_a_change_of_the_manifest(self) -> None:
        first = resolve(read(manifest()), adopt=adopt_all)
        edited = read(manifest(spec="hostname: new"))
        assert is_manifest_uid(uid(resolve(edited, kept=first.kept, adopt=adopt_all)))

    @pytest.mark.parametrize("spec", ["hostname: old", "hostname: new"])
    def test_what_another_kubelet_runs_since_the_last_run_counts_for_more_than_what_was_kept(
        self, spec: str
    ) -> None:
        before = resolve(read(manifest(spec="hostname: old")))
        now = read(manifest(spec=spec))
        after = resolve(now, kept=before.kept, adopt=adopt_all, kept_by_earlier_run=True)
        assert uid(after) == GO_UID

    def test_so_does_the_pod_of_another_kubelet_whose_manifest_has_become_bad(self) -> None:
        before = resolve(read(manifest()))
        bad = read("a: [")
        after = resolve(bad, kept=before.kept, adopt=adopt_all, kept_by_earlier_run=True)
        assert uid(after) == GO_UID

    def test_a_pod_that_an_earlier_run_adopted_ends_with_a_change_since(self) -> None:
        before = resolve(read(manifest()), adopt=adopt_all)
        edited = read(manifest(spec="hostname: new"))
        after = resolve(edited, kept=before.kept, adopt=adopt_all, kept_by_earlier_run=True)
        assert is_manifest_uid(uid(after))

    def test_a_text_that_was_kept_keeps_its_uid_if_no_other_kubelet_ran_it(self) -> None:
        before = resolve(read(manifest()))
        kept_uid = uid(before)
        again = resolve(
            read(manifest()),
            kept=before.kept,
            adopt=lambda pod, source: kept_uid,
            kept_by_earlier_run=True,
        )
        assert uid(again) == kept_uid


class TestWhatWasGood:
    def test_a_pod_goes_on_when_its_manifest_becomes_bad(self) -> None:
        good = resolve(read(manifest()))
        bad = resolve(read("a: ["), kept=good.kept)
        assert bad.pods == good.pods
        assert bad.kept == good.kept
        assert set(bad.problems) == {"/m/a.yaml"}

    def test_only_the_pods_that_are_bad_stay_as_they_were(self) -> None:
        good = resolve(read("---\n".join((manifest("a"), manifest("b")))))
        changed = read("---\n".join((manifest("a", image="new"), manifest("b", image='""'))))
        mixed = resolve(changed, kept=good.kept)
        assert {p.metadata.name: p.spec.containers[0].image for p in mixed.pods} == {
            "a-node-1": "new",
            "b-node-1": "busybox",
        }

    def test_a_mended_manifest_counts_as_it_is(self) -> None:
        good = resolve(read(manifest("a")))
        bad = resolve(read("a: ["), kept=good.kept)
        mended = resolve(read(manifest("b")), kept=bad.kept)
        assert names(mended) == ["b-node-1"]

    def test_a_manifest_that_is_gone_takes_its_pod_with_it(self) -> None:
        good = resolve(read(manifest()))
        gone = resolve(kept=good.kept)
        assert (gone.pods, gone.kept) == ((), {})


class TestDuplicates:
    def test_the_first_manifest_wins_and_the_other_is_named(self) -> None:
        one, other = read(manifest(), "/m/a"), read(manifest(image="x"), "/m/b")
        resolved = resolve(one, other)
        assert resolved.pods[0].spec.containers[0].image == "busybox"
        assert len(resolved.pods) == 1
        assert resolved.problems == {
            "/m/b": ('metadata.name: Duplicate value: "default/web-node-1": already used in /m/a',)
        }

    def test_the_other_takes_over_when_the_first_is_gone(self) -> None:
        one, other = read(manifest(), "/m/a"), read(manifest(image="x"), "/m/b")
        resolved = resolve(other, kept=resolve(one, other).kept)
        assert resolved.pods[0].spec.containers[0].image == "x"
        assert not resolved.problems

    def test_one_uid_cannot_be_two_pods(self) -> None:
        one = read(manifest("a", more="uid: u"), "/m/a")
        other = read(manifest("b", more="uid: u"), "/m/b")
        assert names(resolve(one, other)) == ["a-node-1"]

    def test_names_in_different_namespaces_are_different(self) -> None:
        one, other = read(manifest(), "/m/a"), read(manifest(more="namespace: x"), "/m/b")
        assert len(resolve(one, other).pods) == 2
