"""A manifest that changes: what has to be replaced is, and nothing else.

A pod with a UID of its own stays the same pod, and containers are compared one by one (by name
and image, as in the Go kubelet). Without one, another text is another pod.
"""

from pathlib import Path

from lab.agent import Json, is_running, pod_manifest
from lab.images import BUSYBOX, SLEEPER
from lab.processes import wait_until
from tests.integration.pods import (
    Node,
    container_ids,
    full_name,
    host_folder,
    mount,
    shell,
    status_of,
    until_term,
)

UID = "6f1d4b1e-0000-4000-8000-0000000000aa"
NOTES = "trap 'echo ends >> /shared/notes; exit 0' TERM; echo begins >> /shared/notes; "
"""What it notes it notes a moment after it runs; from its first line on it hears of its end."""


def with_uid(manifest: Json, uid: str, **labels: str) -> Json:
    metadata = {**manifest["metadata"], "uid": uid, "labels": labels}
    return {**manifest, "metadata": metadata}


def staying(image: str = BUSYBOX) -> Json:
    return {**until_term("changes"), "image": image}


def wait_for_notes(folder: Path, *lines: str) -> None:
    """Wait until the containers have noted this, and nothing else."""

    def notes() -> list[str]:
        path = folder / "notes"
        return path.read_text().split() if path.exists() else []

    wait_until(
        lambda: notes() == list(lines), deadline_seconds=60, else_say=lambda: f"notes: {notes()}"
    )


def test_of_a_pod_with_a_uid_only_the_changed_container_restarts(node: Node) -> None:
    uid = UID.replace("aa", "01")
    before = node.run(with_uid(pod_manifest("one-of-two", until_term("same"), staying()), uid))
    assert before["metadata"]["uid"] == uid
    node.add(with_uid(pod_manifest("one-of-two", until_term("same"), staying(SLEEPER)), uid))
    after = node.wait(
        "one-of-two",
        lambda pod: is_running(pod) and status_of(pod, "changes")["image"] == SLEEPER,
    )
    assert container_ids(after)["same"] == container_ids(before)["same"]
    assert status_of(after, "same")["restartCount"] == 0
    assert container_ids(after)["changes"] != container_ids(before)["changes"]
    assert status_of(after, "changes")["restartCount"] == 1
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert ("Killing", "Container changes definition changed, will be restarted") in (
        node.events("one-of-two")
    )
    node.remove("one-of-two")


def test_other_labels_of_a_pod_with_a_uid_restart_nothing(node: Node) -> None:
    uid = UID.replace("aa", "02")
    manifest = pod_manifest("labels", until_term("c"))
    before = node.run(with_uid(manifest, uid, tier="front"))
    node.add(with_uid(manifest, uid, tier="back"))
    after = node.wait("labels", lambda pod: pod["metadata"]["labels"] == {"tier": "back"})
    # The next sync has come and gone when another container's restart is through.
    assert container_ids(after) == container_ids(before)
    node.run(pod_manifest("after-labels", until_term("c")))
    after = node.wait("labels", is_running)
    assert container_ids(after) == container_ids(before)
    assert status_of(after, "c")["restartCount"] == 0
    node.remove("labels", "after-labels")


def test_without_a_uid_a_changed_manifest_is_another_pod_and_others_are_left_alone(
    node: Node, tmp_path: Path
) -> None:
    other = node.run(pod_manifest("other", until_term("c")))
    note = shell("c", NOTES + "sleep 1000000 & wait", volumeMounts=[mount("/shared")])
    before = node.run(pod_manifest("replaced", note, **host_folder(tmp_path)))
    wait_for_notes(tmp_path, "begins")
    node.add(pod_manifest("replaced", note, **host_folder(tmp_path), hostname="another"))
    after = node.wait(
        "replaced",
        lambda pod: pod["metadata"]["uid"] != before["metadata"]["uid"] and is_running(pod),
    )
    assert container_ids(after) != container_ids(before)
    assert status_of(after, "c")["restartCount"] == 0
    wait_for_notes(tmp_path, "begins", "ends", "begins")
    assert container_ids(node.pod("other")) == container_ids(other)
    assert status_of(node.pod("other"), "c")["restartCount"] == 0
    node.remove("other", "replaced")


def test_a_manifest_that_goes_and_comes_back_is_a_new_incarnation(
    node: Node, tmp_path: Path
) -> None:
    script = NOTES + "sleep 1000000 & wait; sleep 1"
    manifest = pod_manifest(
        "comes-back",
        shell("c", script, volumeMounts=[mount("/shared")]),
        **host_folder(tmp_path),
    )
    before = node.run(manifest)
    wait_for_notes(tmp_path, "begins")
    node.remove("comes-back")
    node.agent.wait_for(
        lambda pods: ("Killing", "Stopping container c") in node.events("comes-back")
    )
    after = node.wait_for_incarnation(manifest, before)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert status_of(after, "c")["restartCount"] == 1
    wait_for_notes(tmp_path, "begins", "ends", "begins")
    node.remove("comes-back")


def test_a_file_that_is_written_again_as_it_was_restarts_nothing(node: Node) -> None:
    manifest = pod_manifest("rewritten", until_term("c"))
    before = node.run(manifest)
    node.add(manifest)
    node.run(pod_manifest("after-rewritten", until_term("c")))
    assert container_ids(node.pod("rewritten")) == container_ids(before)
    node.remove("rewritten", "after-rewritten")


def test_a_file_with_another_name_is_another_pod_that_waits_for_the_first(
    node: Node, tmp_path: Path
) -> None:
    script = NOTES + "sleep 1000000 & wait"
    manifest = pod_manifest(
        "renamed", shell("c", script, volumeMounts=[mount("/shared")]), **host_folder(tmp_path)
    )
    before = node.run(manifest)
    wait_for_notes(tmp_path, "begins")
    (node.agent.manifests / "renamed.json").rename(node.agent.manifests / "new-name.json")
    pods = node.agent.wait_for(
        lambda pods: (
            full_name("renamed") in pods
            and pods[full_name("renamed")]["metadata"]["uid"] != before["metadata"]["uid"]
            and is_running(pods[full_name("renamed")])
        )
    )
    assert len([name for name in pods if name.startswith("renamed")]) == 1
    wait_for_notes(tmp_path, "begins", "ends", "begins")
    (node.agent.manifests / "new-name.json").unlink()
