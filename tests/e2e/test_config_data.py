"""Secrets, config maps and tokens reach containers as environment and as files, and stay true."""

import base64
import json

from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from tests.e2e.cluster import (
    Namespace,
    container,
    is_over,
    is_ready,
    shell,
    until_term,
    waiting,
)
from tests.e2e.local import AGENT

# What a container of `reader` prints is kept here by its image's shell; the limit is 4096 bytes.
TERMINATION_LOG = "/dev/termination-log"

# The agent needs a second, the Go kubelet up to a minute and a half.
FOLLOWS_SECONDS = 120.0 if AGENT is GoKubelet else 5.0


def said(pod: Json, name: str = "c") -> str:
    """What a container that ended wrote as its termination message."""
    message: str = container(pod, name)["state"]["terminated"]["message"]
    return message


def teller(script: str, **fields: object) -> Json:
    """A container whose termination message is what a script prints."""
    return shell("c", f"{{ {script}; }} >{TERMINATION_LOG}", **fields)


def mounted(*paths: tuple[str, str]) -> Json:
    """The field `volumeMounts` for volumes by name and path."""
    return {"volumeMounts": [{"name": name, "mountPath": path} for name, path in paths]}


def tell(namespace: Namespace, container: Json, **spec: object) -> str:
    """Run a pod of one `teller` to its end; returns what it said."""
    namespace.add("tells", container, restartPolicy="Never", **spec)
    return said(namespace.wait("tells", is_over))


def test_values_of_secrets_and_config_maps_become_environment(namespace: Namespace) -> None:
    namespace.create("Secret", "login", {"stringData": {"password": "open sesame"}})
    namespace.create("ConfigMap", "settings", {"data": {"colour": "red", "size": "9"}})
    answer = tell(
        namespace,
        teller(
            'echo "$PASSWORD|$CONF_colour|$CONF_size|$BOTH|$OPTIONAL|"',
            env=[
                {
                    "name": "PASSWORD",
                    "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}},
                },
                {"name": "BOTH", "value": "$(PASSWORD)/$(CONF_colour)/$(NOBODY)"},
                {
                    "name": "OPTIONAL",
                    "valueFrom": {
                        "configMapKeyRef": {"name": "absent", "key": "k", "optional": True}
                    },
                },
            ],
            envFrom=[{"prefix": "CONF_", "configMapRef": {"name": "settings"}}],
        ),
    )
    assert answer.strip() == "open sesame|red|9|open sesame/red/$(NOBODY)||"


def test_a_pod_learns_about_itself_from_its_environment(namespace: Namespace) -> None:
    fields = {"NAME": "metadata.name", "NODE": "spec.nodeName", "IP": "status.podIP"}
    env: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    resource = {"resource": "limits.memory", "divisor": "1Mi"}
    env.append({"name": "MEMORY", "valueFrom": {"resourceFieldRef": resource}})
    answer = tell(
        namespace,
        teller('echo "$NAME $NODE $IP $MEMORY"', env=env, resources={"limits": {"memory": "32Mi"}}),
    )
    pod = namespace.pod("tells")
    wanted = ["tells", namespace.node, pod["status"]["podIP"], "32"]
    assert answer.split() == wanted


def test_services_of_the_namespace_are_in_the_environment(namespace: Namespace) -> None:
    service = {"spec": {"selector": {"app": "x"}, "ports": [{"port": 80}]}}
    made = namespace.create("Service", "back-end", service)
    answer = tell(namespace, teller('echo "$BACK_END_SERVICE_HOST $KUBERNETES_SERVICE_HOST"'))
    assert answer.split()[0] == made["spec"]["clusterIP"]
    assert answer.split()[1].startswith("10.96.")


def test_volumes_hold_secrets_and_config_maps_as_files(namespace: Namespace) -> None:
    namespace.create("Secret", "login", {"data": {"raw": base64.b64encode(b"\x00x").decode()}})
    namespace.create("ConfigMap", "settings", {"data": {"a": "1", "b": "2"}})
    items = [{"key": "b", "path": "deep/b.conf", "mode": 0o440}]
    answer = tell(
        namespace,
        teller(
            "stat -L -c %s:%a /secret/raw; stat -L -c %a /conf/deep/b.conf; "
            "cat /conf/deep/b.conf; echo; ls /conf; stat -f -c %T /secret",
            **mounted(("secret", "/secret"), ("conf", "/conf")),
        ),
        volumes=[
            {"name": "secret", "secret": {"secretName": "login", "defaultMode": 0o400}},
            {"name": "conf", "configMap": {"name": "settings", "items": items}},
        ],
    )
    assert answer.split() == ["2:400", "440", "2", "deep", "tmpfs"]


def test_files_of_a_running_pod_follow_their_config_map(namespace: Namespace) -> None:
    namespace.create("ConfigMap", "settings", {"data": {"colour": "red"}})
    watcher = until_term(
        "c",
        _once("grep -q blue /conf/colour"),
        **mounted(("conf", "/conf")),
    )
    volume = {"name": "conf", "configMap": {"name": "settings"}}
    namespace.run("follows", watcher, restartPolicy="Never", volumes=[volume])
    path = namespace.path("ConfigMap", "settings")
    namespace.api.patch(path, {"data": {"colour": "blue"}})
    pod = namespace.wait("follows", is_over, deadline_seconds=FOLLOWS_SECONDS)
    assert said(pod).strip() == "seen"


def test_files_of_a_running_pod_follow_their_secret_and_annotations(namespace: Namespace) -> None:
    namespace.create("Secret", "login", {"stringData": {"password": "old"}})
    script = _once("grep -q new /all/password && grep -q changed /all/notes")
    notes = {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}}
    sources = [{"secret": {"name": "login"}}, {"downwardAPI": {"items": [notes]}}]
    namespace.run(
        "follows",
        until_term("c", script, **mounted(("all", "/all"))),
        restartPolicy="Never",
        volumes=[{"name": "all", "projected": {"sources": sources}}],
    )
    namespace.api.patch(namespace.path("Secret", "login"), {"stringData": {"password": "new"}})
    namespace.kubectl("annotate", "pod", "follows", "note=changed")
    pod = namespace.wait("follows", is_over, deadline_seconds=FOLLOWS_SECONDS)
    assert said(pod).strip() == "seen"


def test_a_pod_has_a_token_that_the_api_knows_as_its_own(namespace: Namespace) -> None:
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    told = tell(namespace, teller(f"cat {folder}/token; echo; cat {folder}/namespace"))
    token, name = told.split()
    review = namespace.api.create(
        "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}}
    )
    user = review["status"]["user"]
    assert name == namespace.name
    assert user["username"] == f"system:serviceaccount:{namespace.name}:default"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["tells"]
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["kubernetes.io"]["node"]["name"] == namespace.node


def test_a_token_for_an_audience_is_for_that_audience(namespace: Namespace) -> None:
    source = {"serviceAccountToken": {"path": "vault", "audience": "vault"}}
    told = tell(
        namespace,
        teller("cat /tokens/vault", **mounted(("tokens", "/tokens"))),
        volumes=[{"name": "tokens", "projected": {"sources": [source]}}],
    )
    review = namespace.api.create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"spec": {"token": told.strip(), "audiences": ["vault"]}},
    )
    assert review["status"]["authenticated"] is True
    assert review["status"]["audiences"] == ["vault"]


def test_a_container_waits_for_a_config_map_that_comes_later(namespace: Namespace) -> None:
    reference = {"configMapKeyRef": {"name": "late", "key": "k"}}
    namespace.add("waits", until_term("c", env=[{"name": "K", "valueFrom": reference}]))
    pod = namespace.wait(
        "waits", lambda pod: waiting(pod).get("reason") == "CreateContainerConfigError"
    )
    assert waiting(pod)["message"] == 'configmap "late" not found'
    namespace.wait_event("waits", "Failed", 'Error: configmap "late" not found')
    namespace.create("ConfigMap", "late", {"data": {"other": ""}})
    message = f"couldn't find key k in ConfigMap {namespace.name}/late"
    namespace.wait("waits", lambda pod: waiting(pod).get("message") == message)
    namespace.api.patch(namespace.path("ConfigMap", "late"), {"data": {"k": "v"}})
    namespace.wait("waits", is_ready)


def test_a_volume_waits_for_a_secret_that_comes_later(namespace: Namespace) -> None:
    volume = {"name": "login", "secret": {"secretName": "late"}}
    namespace.add("waits", until_term("c", **mounted(("login", "/login"))), volumes=[volume])
    words = 'MountVolume.SetUp failed for volume "login" : secret "late" not found'
    namespace.wait_event("waits", "FailedMount", words)
    assert waiting(namespace.pod("waits"))["reason"] == "ContainerCreating"
    namespace.create("Secret", "late", {"stringData": {"k": "v"}})
    namespace.wait("waits", is_ready)


def _once(condition: str) -> str:
    """A script that ends its container, in the background, when a condition holds."""
    wait = f"until {condition}; do sleep 0.1; done"
    return f"{{ ({wait}; echo seen >{TERMINATION_LOG}; kill 1) & }}"
