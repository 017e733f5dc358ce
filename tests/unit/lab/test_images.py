import hashlib
import io
import json
import tarfile
from pathlib import Path

from lab.images import File, Image


def web() -> Image:
    files = {"www/index.html": File(0o644, b"hello"), "bin/sh": File(0o777, target="/bin/busybox")}
    return Image("localhost/lab/test:1", (files,), command=("httpd",), user="1000")


def read_layout(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as layout:
        return {
            entry.name: file.read()
            for entry in layout
            if (file := layout.extractfile(entry)) is not None
        }


def test_the_same_image_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first = web().write(tmp_path / "1.tar").read_bytes()
    second = web().write(tmp_path / "2.tar").read_bytes()
    assert first == second


def test_a_layout_holds_what_its_manifest_refers_to(tmp_path: Path) -> None:
    files = read_layout(web().write(tmp_path / "image.tar"))
    index = json.loads(files["index.json"])
    (described,) = index["manifests"]
    manifest = json.loads(files["blobs/" + described["digest"].replace(":", "/")])
    for part in (manifest["config"], *manifest["layers"]):
        content = files["blobs/" + part["digest"].replace(":", "/")]
        assert part["size"] == len(content)
        assert part["digest"] == "sha256:" + hashlib.sha256(content).hexdigest()
    assert described["annotations"]["io.containerd.image.name"] == "localhost/lab/test:1"


def test_the_config_says_what_a_container_runs_as(tmp_path: Path) -> None:
    files = read_layout(web().write(tmp_path / "image.tar"))
    config = json.loads(files["blobs/" + web().config_digest.replace(":", "/")])
    assert config["config"]["Cmd"] == ["httpd"]
    assert config["config"]["User"] == "1000"
    assert "Entrypoint" not in config["config"]


def test_layer_entries_carry_no_time_and_follow_their_folders() -> None:
    layer = io.BytesIO(web().blobs()[0].content)
    with tarfile.open(fileobj=layer) as archive:
        entries = archive.getmembers()
    assert [entry.name for entry in entries] == ["bin", "bin/sh", "www", "www/index.html"]
    assert {entry.mtime for entry in entries} == {0}
    assert {(entry.uid, entry.gid) for entry in entries} == {(0, 0)}


def test_a_mark_changes_the_digests_and_a_name_does_not() -> None:
    renamed, marked = web().named("localhost/lab/other:1"), web().marked("2")
    assert (renamed.digest, renamed.config_digest) == (web().digest, web().config_digest)
    assert marked.digest != web().digest
    assert marked.config_digest != web().config_digest
    assert marked.digest == web().marked("2").digest
