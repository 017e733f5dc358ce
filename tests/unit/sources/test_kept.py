import json
import stat
from pathlib import Path

import pytest

from tests.unit.sources.manifest_texts import kept, manifest, reader
from trio_kubelet.sources import Source
from trio_kubelet.sources.manifest_source import Records

GO_UID = "0123456789abcdef0123456789abcdef"


def records(*texts: str) -> Records:
    manifests = [reader().read(f"/m/{n}", text.encode()) for n, text in enumerate(texts)]
    return reader().resolve(manifests, {}, lambda pod, source: GO_UID).kept


def test_what_was_saved_is_loaded_with_its_uids(tmp_path: Path) -> None:
    saved = records(manifest("a"), manifest("b"))
    kept(tmp_path / "static-pods").save({}, saved)
    assert kept(tmp_path / "static-pods").load() == saved


def test_nothing_was_saved_yet(tmp_path: Path) -> None:
    assert kept(tmp_path / "absent").load() == {}


def test_secrets_in_manifests_are_for_root_alone(tmp_path: Path) -> None:
    kept(tmp_path / "static-pods").save({}, records(manifest()))
    (file,) = (tmp_path / "static-pods").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_record_goes_with_its_manifest(tmp_path: Path) -> None:
    saved = records(manifest("a"), manifest("b"))
    kept(tmp_path).save({}, saved)
    kept(tmp_path).save(saved, {"/m/1": saved["/m/1"]})
    assert kept(tmp_path).load() == {"/m/1": saved["/m/1"]}
    kept(tmp_path).save({"/m/1": saved["/m/1"]}, {"/m/1": ()})
    assert list(tmp_path.iterdir()) == []


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    saved = records(manifest())
    kept(tmp_path).save({}, saved)
    (file,) = tmp_path.iterdir()
    before = file.stat().st_ino
    kept(tmp_path).save(saved, saved)
    assert file.stat().st_ino == before


@pytest.mark.parametrize("content", ["", "[]", '{"origin": "x"}', '{"origin": "x", "pods": [{}]}'])
def test_a_record_that_is_broken_does_not_hide_the_others(tmp_path: Path, content: str) -> None:
    saved = records(manifest())
    kept(tmp_path).save({}, saved)
    (tmp_path / "file-0.json").write_text(content)
    assert kept(tmp_path).load() == saved


def test_sources_keep_their_own_records(tmp_path: Path) -> None:
    kept(tmp_path).save({}, records(manifest()))
    assert kept(tmp_path, Source.HTTP).load() == {}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        '{"origin": 7, "pods": []}',
        '{"origin": {}, "pods": []}',
        '{"origin": "/m/0", "pods": ["x"]}',
        '{"origin": "/m/0", "pods": [{"uid": "../up", "document": {}}]}',
        '{"origin": "\\ud800", "pods": []}',
        '{"a":' * 2000,
        '{"origin": "/m/of-another-file", "pods": []}',
    ],
)
def test_a_record_of_any_form_hides_no_other(tmp_path: Path, text: str) -> None:
    saved = records(manifest("a"))
    kept(tmp_path).save({}, saved)
    (tmp_path / "file-0.json").write_text(text)
    assert kept(tmp_path).load() == saved


def test_a_uid_that_names_no_folder_is_not_kept(tmp_path: Path) -> None:
    kept(tmp_path).save({}, records(manifest("a")))
    (file,) = tmp_path.iterdir()
    record = json.loads(file.read_bytes())
    record["pods"][0]["uid"] = "../up"
    file.write_text(json.dumps(record))
    assert kept(tmp_path).load() == {}
