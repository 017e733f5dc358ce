"""The small files of pods: what containers do to theirs does not disturb the agent."""

from pathlib import Path

from trio_kubelet.k8s import Container, ObjectMeta, Pod
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.pod_files import make_container_files, write_whole

POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"))


def test_a_file_with_the_same_text_keeps_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    write_whole(path, "127.0.0.1 localhost\n", mode=0o644)
    inode = path.stat().st_ino
    write_whole(path, "127.0.0.1 localhost\n", mode=0o644)
    assert path.stat().st_ino == inode


def test_a_hosts_file_that_a_container_filled_with_other_bytes_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.write_bytes(b"10.0.0.1 m\xfcnchen\n")
    write_whole(path, "127.0.0.1 localhost\n", mode=0o644)
    assert path.read_text() == "127.0.0.1 localhost\n"


def test_a_hosts_file_that_a_container_made_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(1 << 43)
    write_whole(path, "127.0.0.1 localhost\n", mode=0o644)
    assert path.read_text() == "127.0.0.1 localhost\n"


def test_files_for_messages_go_with_the_incarnations_that_had_them(tmp_path: Path) -> None:
    node = NodeFacts(
        memory_capacity_bytes=1,
        root_directory=str(tmp_path / "kubelet"),
        pod_logs_directory=str(tmp_path / "logs"),
    )

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
