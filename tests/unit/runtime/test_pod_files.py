"""The small files of pods: what containers do to theirs does not disturb the agent."""

import os
from pathlib import Path

import pytest

from tests.node_facts import configured, node_facts
from trio_kubelet.k8s import Container, ObjectMeta, Pod
from trio_kubelet.runtime.pod_files import (
    make_container_files,
    next_restart_count,
    pods_with_logs,
    read_log_tail,
    read_termination_message,
    write_hosts_file,
)

POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"))


def test_a_file_with_the_same_text_keeps_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    write_hosts_file(path, "127.0.0.1 localhost\n")
    inode = path.stat().st_ino
    write_hosts_file(path, "127.0.0.1 localhost\n")
    assert path.stat().st_ino == inode


def test_a_hosts_file_that_a_container_filled_with_other_bytes_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.write_bytes(b"10.0.0.1 m\xfcnchen\n")
    write_hosts_file(path, "127.0.0.1 localhost\n")
    assert path.read_text() == "127.0.0.1 localhost\n"


def test_a_hosts_file_that_a_container_made_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(1 << 43)
    write_hosts_file(path, "127.0.0.1 localhost\n")
    assert path.read_text() == "127.0.0.1 localhost\n"


def test_files_for_messages_go_with_the_incarnations_that_had_them(tmp_path: Path) -> None:
    node = configured(node_facts(tmp_path / "kubelet"), pod_logs_dir=str(tmp_path / "logs"))

    def make(*needed: str) -> str:
        files = make_container_files(POD, Container(name="c"), node, "", needed)
        return files.termination_message_file

    first = make()
    folder = Path(first).parent
    (folder / "somebody-elses").touch()
    second = make(first)
    assert {str(path) for path in folder.glob("????????")} == {first, second}
    third = make(second)
    assert {str(path) for path in folder.glob("????????")} == {second, third}
    assert (folder / "somebody-elses").exists()


@pytest.mark.parametrize("path", ["a\0b", "/a\0", "\ud800"])
def test_what_is_no_path_has_no_message(path: str) -> None:
    assert read_termination_message(path) == ""
    assert read_log_tail(path) == ""


def test_bytes_of_a_hosts_file_that_are_no_text_are_written_as_they_are(tmp_path: Path) -> None:
    hosts, data = tmp_path / "hosts", b"127.0.0.1 a\xff\r\n"
    write_hosts_file(hosts, data.decode(errors="surrogateescape"))
    assert hosts.read_bytes() == data


@pytest.mark.parametrize("name", ["99999999999.log", "x.log", "\u0663.log", "-1.log"])
def test_a_log_whose_number_no_runtime_gives_does_not_count(name: str) -> None:
    assert next_restart_count(["2.log", name]) == 3


def test_log_folders_of_no_pod_are_left_alone(tmp_path: Path) -> None:
    for name in (b"ns_pod_uid-1", b"ns_pod_\xff", b"ns_pod_a b", b"x"):
        (tmp_path / os.fsdecode(name)).mkdir()
    node = configured(node_facts(), pod_logs_dir=str(tmp_path))
    assert pods_with_logs(node) == (("ns", "pod", "uid-1"),)
