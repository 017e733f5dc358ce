from typing import Any

import pytest

from tests.unit.sources.manifest_texts import manifest
from trio_kubelet.k8s import Pod, Toleration
from trio_kubelet.k8s.documents import load_documents
from trio_kubelet.sources import Source
from trio_kubelet.sources.static_pods import (
    InvalidManifest,
    checked_pod,
    is_manifest_uid,
    manifest_uid,
    with_uid,
)

TOLERATES_ALL = Toleration(operator="Exists", effect="NoExecute")


def document(text: str) -> dict[str, Any]:
    (loaded,) = load_documents(text.encode())
    return loaded


def static_pod(text: str, source: Source = Source.FILE, node: str = "node-1") -> Pod:
    return checked_pod(document(text), source, node)


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidManifest) as caught:
        static_pod(text)
    return list(caught.value.problems)


def test_a_static_pod_is_named_after_its_node_and_bound_to_it() -> None:
    pod = static_pod(manifest("web"))
    assert (pod.metadata.name, pod.metadata.namespace) == ("web-node-1", "default")
    assert pod.spec.node_name == "node-1"
    assert pod.status.phase == "Pending"
    assert static_pod(manifest(more="namespace: mine")).metadata.namespace == "mine"


def test_what_is_not_said_is_filled_in_as_the_api_server_would() -> None:
    spec = static_pod(manifest()).spec
    assert (spec.restart_policy, spec.dns_policy) == ("Always", "ClusterFirst")
    assert spec.containers[0].image_pull_policy == "Always"


def test_pods_from_files_tolerate_every_taint_that_would_stop_them() -> None:
    assert static_pod(manifest()).spec.tolerations == (TOLERATES_ALL,)
    given = manifest(spec="tolerations: [{operator: Exists, effect: NoExecute}]")
    assert static_pod(given).spec.tolerations == (TOLERATES_ALL,)
    assert static_pod(manifest(), Source.HTTP).spec.tolerations == ()


def test_marks_that_only_an_agent_may_set_are_taken_off() -> None:
    given = manifest(
        more="""annotations:
    kubernetes.io/config.mirror: x
    kubernetes.io/config.source: api
    mine: kept
  deletionTimestamp: 2026-01-01T00:00:00Z
  deletionGracePeriodSeconds: 3
"""
    )
    pod = static_pod(given + "status: {qosClass: Guaranteed, phase: Running}\n")
    assert pod.metadata.annotations == {"mine": "kept"}
    assert pod.metadata.deletion_timestamp is None
    assert pod.metadata.deletion_grace_period_seconds is None
    assert pod.status.qos_class == ""


def test_the_uid_is_also_the_hash() -> None:
    pod = with_uid(static_pod(manifest()), "u-1")
    assert pod.metadata.uid == "u-1"
    assert pod.metadata.annotations["kubernetes.io/config.hash"] == "u-1"


def uid(text: str, source: Source = Source.FILE, origin: str = "/m", node: str = "n") -> str:
    return manifest_uid(document(text), source, origin, node)


def test_the_uid_of_a_manifest_depends_on_what_it_says_and_where() -> None:
    one = uid(manifest())
    assert one == uid("# a comment\n" + manifest())
    others = {
        uid(manifest(image="other")),
        uid(manifest(), Source.HTTP),
        uid(manifest(), origin="/n"),
        uid(manifest(), node="other"),
    }
    assert len({one, *others}) == 5


def test_the_uid_never_changes_between_versions_of_the_agent() -> None:
    assert uid(manifest()) == "89d31ca3-2b22-8655-b421-89b9e80d3e26"


def test_uids_of_our_making_can_be_told_from_others() -> None:
    assert is_manifest_uid(uid(manifest()))
    assert not is_manifest_uid("0123456789abcdef0123456789abcdef")
    assert not is_manifest_uid("3f2b9a52-74ad-4f0b-9a1c-5b6d7e8f9012")


@pytest.mark.parametrize("given", ["../x", "a/b", ".", "..", "a_b", "-a", "a" * 129, "a b"])
def test_a_uid_that_could_not_name_folders_and_slices_is_refused(given: str) -> None:
    (problem,) = problems_of(manifest(more=f'uid: "{given}"'))
    assert problem.startswith(f'metadata.uid: Invalid value: "{given}": must consist of')


def test_every_problem_is_named_with_its_field() -> None:
    assert problems_of(manifest(spec="restartPolicy: Sometimes", image='""')) == [
        'spec.restartPolicy: Unsupported value: "Sometimes": '
        'supported values: "Always", "Never", "OnFailure"',
        "spec.containers[0].image: Required value",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Deployment", 'kind: Invalid value: "Deployment": must be Pod'),
        ("kind: Pod\napiVersion: v2", 'apiVersion: Invalid value: "v2": must be v1'),
        ("x: 1", "kind: Invalid value: null: must be Pod"),
        (
            "kind: Pod\napiVersion: v1\nspec: {containers: 3}",
            "spec.containers: Invalid value: 3: must be a list",
        ),
    ],
)
def test_what_is_no_pod_is_refused(text: str, problem: str) -> None:
    assert problem in problems_of(text)


def test_a_pod_needs_a_name() -> None:
    text = manifest().replace("name: web", "labels: {}")
    assert "metadata.name: Required value: name is needed for the pod" in problems_of(text)


REFERENCES = {
    "serviceAccountName: a": ("spec.serviceAccountName", "serviceaccounts"),
    "imagePullSecrets: [{name: a}]": ("spec.imagePullSecrets", "secrets"),
    "resourceClaims: [{name: a, resourceClaimName: b}]": (
        "spec.resourceClaims",
        "resourceclaims",
    ),
    "volumes: [{name: v, secret: {secretName: s}}]": ("spec.volumes[0].secret", "secrets"),
    "volumes: [{name: v, configMap: {name: s}}]": ("spec.volumes[0].configMap", "configmaps"),
    "volumes: [{name: v, csi: {driver: d.io}}]": (
        "spec.volumes[0].csi",
        "csidrivers (via CSI volumes)",
    ),
    "volumes: [{name: v, persistentVolumeClaim: {claimName: s}}]": (
        "spec.volumes[0].persistentVolumeClaim",
        "persistentvolumeclaims",
    ),
    "volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]": (
        "spec.volumes[0].projected.sources[0].serviceAccountToken",
        "serviceaccounts",
    ),
    "initContainers: [{name: i, image: i, envFrom: [{secretRef: {name: s}}]}]": (
        "spec.initContainers[0].envFrom[0].secretRef",
        "secrets",
    ),
    "initContainers: [{name: i, image: i, env: [{name: E, valueFrom: {configMapKeyRef: "
    "{name: s, key: k}}}]}]": (
        "spec.initContainers[0].env[0].valueFrom.configMapKeyRef",
        "configmaps",
    ),
}


@pytest.mark.parametrize("spec", REFERENCES)
def test_static_pods_may_not_reference_objects_of_the_api(spec: str) -> None:
    path, resource = REFERENCES[spec]
    expected = f"{path}: Forbidden: static pods may not reference {resource}"
    assert expected in problems_of(manifest(spec=spec))


def test_volumes_that_need_no_api_are_fine() -> None:
    static_pod(
        manifest(
            spec="""volumes:
  - {name: a, emptyDir: {}}
  - {name: b, hostPath: {path: /}}
  - {name: c, downwardAPI: {items: []}}
  - {name: d, projected: {sources: [{downwardAPI: {}}]}}
"""
        )
    )
