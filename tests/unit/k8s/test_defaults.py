"""What is filled in where a manifest is silent."""

from typing import Any

import pytest
import yaml

from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.defaults import with_defaults


def defaulted(spec: str) -> dict[str, Any]:
    """The spec, as written in YAML, with its defaults."""
    pod = decode(Pod, {"spec": yaml.safe_load(spec)})
    result: dict[str, Any] = encode(with_defaults(pod))["spec"]
    return result


def test_the_defaults_of_a_spec() -> None:
    assert defaulted("containers: [{name: a, image: b}]") == {
        "containers": [
            {
                "name": "a",
                "image": "b",
                "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_containers_of_all_kinds_get_defaults(kind: str) -> None:
    (container,) = defaulted(f"{kind}: [{{name: a, image: 'b:1', ports: [{{containerPort: 1}}]}}]")[
        kind
    ]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["ports"] == [{"containerPort": 1, "protocol": "TCP"}]
    assert container["terminationMessagePolicy"] == "File"


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("registry.example.com:5000/a/b", "Always"),
        ("registry.example.com:5000/a/b:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("registry.example.com:5000/a/b:1", "IfNotPresent"),
        ("busybox@sha256:abcd", "IfNotPresent"),
        ("busybox:latest@sha256:abcd", "Always"),
        ("busybox:1.36@sha256:abcd", "IfNotPresent"),
    ],
)
def test_images_whose_tag_moves_are_always_pulled(image: str, policy: str) -> None:
    spec = defaulted(f"containers: [{{name: a, image: '{image}'}}]")
    assert spec["containers"][0]["imagePullPolicy"] == policy


def test_a_service_account_is_known_under_both_names() -> None:
    for name in ("serviceAccount", "serviceAccountName"):
        spec = defaulted(f"{name}: builder")
        assert (spec["serviceAccount"], spec["serviceAccountName"]) == ("builder", "builder")
    spec = defaulted("{serviceAccount: old, serviceAccountName: new}")
    assert (spec["serviceAccount"], spec["serviceAccountName"]) == ("new", "new")


def test_ports_are_host_ports_in_the_network_of_the_node() -> None:
    ports = "{image: b, ports: [{containerPort: 1}, {containerPort: 2, hostPort: 3}]}"
    spec = defaulted(f"{{hostNetwork: true, containers: [{ports}], initContainers: [{ports}]}}")
    for kind in ("containers", "initContainers"):
        assert [port["hostPort"] for port in spec[kind][0]["ports"]] == [1, 3]


def test_requests_come_from_limits() -> None:
    spec = defaulted(
        """
        containers:
        - resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1}}
        initContainers:
        - resources: {limits: {cpu: 2}}
        ephemeralContainers:
        - resources: {limits: {cpu: 2}}
        """
    )
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert spec["initContainers"][0]["resources"]["requests"] == {"cpu": "2"}
    assert "requests" not in spec["ephemeralContainers"][0]["resources"]


def test_amounts_are_rounded_up_to_thousandths() -> None:
    spec = defaulted(
        """
        overhead: {cpu: 1u}
        containers: [{resources: {requests: {cpu: 1.2345, memory: 1Gi}}}]
        """
    )
    assert spec["overhead"] == {"cpu": "1m"}
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1235m", "memory": "1Gi"}


@pytest.mark.parametrize("name", ["livenessProbe", "readinessProbe", "startupProbe"])
def test_a_probe_has_its_numbers_and_its_action_completed(name: str) -> None:
    spec = defaulted(f"containers: [{{{name}: {{httpGet: {{port: 80}}, periodSeconds: 0}}}}]")
    assert spec["containers"][0][name] == {
        "failureThreshold": 3,
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "periodSeconds": 10,
        "successThreshold": 1,
        "timeoutSeconds": 1,
    }


def test_grpc_probes_ask_for_the_server_as_a_whole() -> None:
    spec = defaulted("containers: [{livenessProbe: {grpc: {port: 80}}}]")
    assert spec["containers"][0]["livenessProbe"]["grpc"] == {"port": 80, "service": ""}


def test_hooks_have_their_actions_completed() -> None:
    hook = "{httpGet: {port: a, path: /x}}"
    spec = defaulted(f"containers: [{{lifecycle: {{preStop: {hook}, postStart: {hook}}}}}]")
    lifecycle = spec["containers"][0]["lifecycle"]
    for name in ("preStop", "postStart"):
        assert lifecycle[name]["httpGet"] == {"path": "/x", "port": "a", "scheme": "HTTP"}


def test_fields_of_the_pod_are_those_of_v1() -> None:
    reference = "fieldRef: {fieldPath: metadata.name}"
    items = f"{{items: [{{path: a, {reference}}}]}}"
    spec = defaulted(
        f"""
        containers: [{{env: [{{name: a, valueFrom: {{{reference}}}}}]}}]
        volumes:
        - downwardAPI: {items}
        - projected: {{sources: [{{downwardAPI: {items}}}]}}
        """
    )
    downward, projected = spec["volumes"]
    for source in (
        spec["containers"][0]["env"][0]["valueFrom"],
        downward["downwardAPI"]["items"][0],
        projected["projected"]["sources"][0]["downwardAPI"]["items"][0],
    ):
        assert source["fieldRef"] == {"apiVersion": "v1", "fieldPath": "metadata.name"}


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ("{name: a}", {"name": "a", "emptyDir": {}}),
        ("{hostPath: {path: /a}}", {"hostPath": {"path": "/a", "type": ""}}),
        ("{configMap: {name: a}}", {"configMap": {"name": "a", "defaultMode": 420}}),
        ("{secret: {defaultMode: 0}}", {"secret": {"defaultMode": 0}}),
        ("{downwardAPI: {}}", {"downwardAPI": {"defaultMode": 420}}),
        (
            "{projected: {sources: [{serviceAccountToken: {path: a}}]}}",
            {
                "projected": {
                    "defaultMode": 420,
                    "sources": [{"serviceAccountToken": {"path": "a", "expirationSeconds": 3600}}],
                }
            },
        ),
        (
            "{image: {reference: a}}",
            {"image": {"reference": "a", "pullPolicy": "Always"}},
        ),
        (
            "{ephemeral: {volumeClaimTemplate: {spec: {resources: {requests: {storage: 1u}}}}}}",
            {
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "resources": {"requests": {"storage": "1m"}},
                            "volumeMode": "Filesystem",
                        }
                    }
                }
            },
        ),
        (
            "{rbd: {monitors: [a], image: b}}",
            {
                "rbd": {
                    "monitors": ["a"],
                    "image": "b",
                    "pool": "rbd",
                    "user": "admin",
                    "keyring": "/etc/ceph/keyring",
                }
            },
        ),
    ],
)
def test_volumes_get_the_defaults_of_their_source(volume: str, expected: dict[str, Any]) -> None:
    (filled,) = defaulted(f"volumes: [{volume}]")["volumes"]
    assert filled == {"name": "", **expected}


def test_requests_of_the_pod_come_from_its_containers_then_from_its_limits() -> None:
    spec = defaulted(
        """
        resources: {limits: {cpu: 4, memory: 4Gi}}
        initContainers:
        - {restartPolicy: Always, resources: {requests: {cpu: 100m}}}
        - {resources: {requests: {cpu: 2}}}
        containers:
        - {resources: {requests: {cpu: 500m}}}
        - {resources: {requests: {cpu: 500m}}}
        """
    )
    assert spec["resources"]["requests"] == {"cpu": "2100m", "memory": "4Gi"}


def test_limits_of_the_pod_on_huge_pages_come_from_its_containers() -> None:
    spec = defaulted(
        """
        resources: {requests: {cpu: 1}}
        containers: [{resources: {limits: {hugepages-2Mi: 4Mi}}}]
        """
    )
    assert spec["resources"]["limits"] == {"hugepages-2Mi": "4Mi"}
    assert spec["resources"]["requests"] == {"cpu": "1", "hugepages-2Mi": "4Mi"}


def test_a_pod_without_resources_of_its_own_stays_without() -> None:
    spec = defaulted("containers: [{resources: {limits: {cpu: 1}}}]")
    assert "resources" not in spec


def test_an_amount_keeps_its_notation_when_it_is_rounded() -> None:
    spec = yaml.safe_load("containers: [{resources: {requests: {memory: 1025.0001Ki}}}]")
    pod = with_defaults(decode(Pod, {"spec": spec}))
    resources = pod.spec.containers[0].resources
    assert resources is not None
    assert resources.requests["memory"] == Quantity("1049600103m")
