"""No bytes in a manifest stop the source, and none hide the pod of another file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sources.manifest_texts import NODE, manifest, reader
from trio_kubelet.k8s import Pod
from trio_kubelet.sources import ManifestContext, watch_manifest_files
from trio_kubelet.sources.manifests import Manifest, ResolvedManifests, adopt_running
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal

FULL = """\
apiVersion: v1
kind: Pod
metadata:
  name: full
  namespace: kube-system
  labels: {app: full, tier: "1"}
  annotations: {note: "x: y"}
spec:
  hostPID: true
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 10
  securityContext: {runAsUser: 0, fsGroup: 5, sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]}
  initContainers:
  - {name: i, image: "busybox:1", command: [sh, -c, "true"], restartPolicy: Always}
  containers:
  - name: c
    image: registry.example.com:5000/a/b@sha256:DIGEST
    args: ["--x=$(A)", 'z']
    env: [{name: A, value: "2"}, {name: B, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP, name: web}]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1", memory: 1.5Gi}}
    livenessProbe: {httpGet: {path: /, port: web}, periodSeconds: 5}
    volumeMounts: [{name: v, mountPath: /v, subPath: s}, {name: h, mountPath: /h}]
  volumes:
  - {name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: h, hostPath: {path: /etc, type: Directory}}
""".replace("DIGEST", "0123456789abcdef" * 4)

WORDS = (
    *("-", ":", "{", "}", "[", "]", "&", "*", "!", "|", ">", "'", '"', "#", "%", "@", "`", ","),
    *("?", "~", "---", "...", "null", "0x1F", "1e999", "-1", "9" * 20, ".nan", "<<", "*a", "&a"),
    *("!!binary", "!!python/object:os.system", "yes", "\t", "\0", "\x85", "\ufeff", "\U0001f600"),
    *("name:", "spec:", "kind:"),
)

insertions = st.tuples(
    st.integers(0, len(FULL)), st.integers(0, 40), st.sampled_from(WORDS) | st.text(max_size=5)
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid manifest, cut and patched at a few places."""
    text = FULL
    for place, length, word in draw(st.lists(insertions, min_size=1, max_size=4)):
        text = text[:place] + word + text[place + length :]
    return text.encode("utf-8", "surrogatepass")


@st.composite
def typed_wrong(draw: st.DrawFn) -> bytes:
    """A valid manifest in which lines lost their values or got others."""
    values = st.sampled_from(["", " 3", " []", " {}", " x", " null", " true", " [1]", " {a: b}"])
    lines = FULL.splitlines()
    for number in draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=3)):
        key, colon, _ = lines[number].partition(":")
        lines[number] = key + colon + draw(values)
    return "\n".join(lines).encode()


manifests = st.binary(max_size=200) | mutated() | typed_wrong()


def run(*files: Manifest) -> ResolvedManifests:
    return reader().resolve(files, {}, lambda pod, source: None)


GOOD = reader().read("/m/good.yaml", manifest("good").encode())


def test_the_manifest_that_is_mutated_is_good() -> None:
    assert reader().read("/m/full.yaml", FULL.encode()).problems == ()


@given(manifests)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_pods_or_problems_and_hide_nobody(data: bytes) -> None:
    fuzzed = reader().read("/m/fuzzed.yaml", data)
    assert not any("cannot be judged" in problem for problem in fuzzed.problems)
    for order in ((fuzzed, GOOD), (GOOD, fuzzed)):
        resolved = run(*order)
        assert "good-node-1" in {pod.metadata.name for pod in resolved.pods}
        shown = len(fuzzed.pods) + 1
        assert len(resolved.pods) == shown or resolved.problems


BOMBS: dict[str, Callable[[], str]] = {
    "aliases": lambda: (
        "a: &a [x]\n"
        + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n"
            for n in range(20)
        )
    ),
    "depth": lambda: "[" * 100_000,
    "maps": lambda: "{a: " * 100_000,
    "json": lambda: '{"a":' * 100_000,
    "itself": lambda: "a: &a {b: *a}",
    "digits": lambda: manifest(spec="terminationGracePeriodSeconds: " + "9" * 5000),
    "key": lambda: "? " * 1000,
    "merge": lambda: "a: &a {<<: *a}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_manifest_made_to_harm_is_refused_like_any_other(bomb: str) -> None:
    read = reader().read("/m/bomb.yaml", BOMBS[bomb]().encode())
    assert read.pods == ()
    assert len(read.problems) == 1
    assert len(read.problems[0]) < 1000


def bad_manifests() -> dict[str, str]:
    """200 files that are each wrong in one way, and what must be said of them."""
    wrong = {
        "image: busybox": ('image: ""', "spec.containers[0].image: Required value"),
        "name: c": ("name: C_", 'spec.containers[0].name: Invalid value: "C_"'),
        "kind: Pod": ("kind: Prod", 'kind: Invalid value: "Prod": must be Pod'),
        "apiVersion: v1": ("apiVersion: v2", 'apiVersion: Invalid value: "v2": must be v1'),
        "containers:": ("container:", "spec.containers: Required value"),
        "- name: c": (
            "- name: c\n    ports: [{containerPort: 70000}]",
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000",
        ),
        "spec:": ("spec:\n  restartPolicy: Now", 'spec.restartPolicy: Unsupported value: "Now"'),
        "  name: bad": ("  name: bad\n  uid: ../up", 'metadata.uid: Invalid value: "../up"'),
    }
    files = {}
    for number in range(200):
        old, (new, said) = list(wrong.items())[number % len(wrong)]
        text = manifest("bad")
        files[f"bad-{number:03}.yaml"] = text.replace(old, new, 1) + f"# {said}"
    return files


async def test_two_hundred_bad_manifests_are_each_told_with_file_and_field(tmp_path: Path) -> None:
    folder, files = tmp_path / "manifests", bad_manifests()
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "good.yaml").write_text(manifest("good"))
    (folder / "random").write_bytes(os.urandom(4096))
    journal = Journal(SystemClock())
    send, receive = trio.open_memory_channel[tuple[Pod, ...]](10)
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await watch_manifest_files(
                folder,
                send.send,
                ManifestContext(
                    node_name=NODE,
                    kept_folder=tmp_path / "static-pods",
                    adopt=lambda: adopt_running(()),
                    journal=journal,
                ),
            )

        nursery.start_soon(watch)
        with trio.fail_after(60):
            (pod,) = await receive.receive()
            while len(list(journal.entries())) < len(files) + 1:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert pod.metadata.name == "good-node-1"
    told = {Path(entry.key).name: entry.cause for entry in journal.entries()}
    for name, text in files.items():
        assert text.rpartition("# ")[2] in told[name]
    assert "random" in told
