import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trio_kubelet.k8s.client import KubeconfigError, read_kubeconfig
from trio_kubelet.k8s.client.kubeconfig import CredentialSource, Kubeconfig, parse_kubeconfig

PATH = Path("/etc/kubernetes/kubelet.conf")
SERVER = {"server": "https://10.0.0.1:6443"}
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}


def document(
    user: Mapping[str, object] | None = None, cluster: Mapping[str, object] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "contexts": [
            {"name": "prod", "context": {"cluster": "east", "user": "node", "namespace": "web"}},
            {"name": "test", "context": {"cluster": "west"}},
        ],
        "clusters": [
            {"name": "east", "cluster": {**SERVER, **(cluster or {})}},
            {"name": "west", "cluster": {"server": "http://10.0.0.2:8080"}},
        ],
        "users": [{"name": "node", "user": dict(user or {})}],
    }


def read(data: Mapping[str, object], context: str = "") -> Kubeconfig:
    return parse_kubeconfig(yaml.safe_dump(dict(data)), PATH, context)


def test_the_current_context_counts_unless_another_is_named() -> None:
    assert read(document()).cluster.server == "https://10.0.0.1:6443"
    assert read(document()).namespace == "web"
    assert read(document(), "test").cluster.server == "http://10.0.0.2:8080"


def test_relative_paths_start_at_the_file() -> None:
    files = {"client-certificate": "pki/node.pem", "client-key": "/keys/node.pem"}
    config = read(document(files, {"certificate-authority": "ca.crt"}))
    assert config.user.client_certificate == CredentialSource(path=PATH.parent / "pki/node.pem")
    assert config.user.client_key == CredentialSource(path=Path("/keys/node.pem"))
    assert config.cluster.certificate_authority == CredentialSource(path=PATH.parent / "ca.crt")
    assert read(document({"tokenFile": "token"})).user.token_file == PATH.parent / "token"


def test_what_stands_in_the_file_comes_before_files() -> None:
    data = base64.b64encode(b"PEM").decode()
    authority = {"certificate-authority": "ca.crt", "certificate-authority-data": data}
    assert read(document({}, authority)).cluster.certificate_authority == CredentialSource(b"PEM")


def test_a_plugin_is_read_with_all_that_it_needs() -> None:
    plugin = {
        **EXEC,
        "command": "./bin/login",
        "args": ["--node"],
        "env": [{"name": "REGION", "value": "east"}],
        "installHint": "ask Ann",
        "provideClusterInfo": True,
    }
    told = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    config = read(document({"exec": plugin}, {"extensions": told}))
    assert config.user.exec is not None
    assert config.user.exec.command == "/etc/kubernetes/bin/login"
    assert config.user.exec.args == ("--node",)
    assert config.user.exec.env == {"REGION": "east"}
    assert config.user.exec.provide_cluster_info
    assert config.cluster.exec_config == {"audience": "a"}


def test_acting_as_somebody_else_becomes_headers() -> None:
    user = {"token": "t", "as": "ann", "as-groups": ["a", "b"], "as-user-extra": {"why": ["x"]}}
    assert read(document(user)).user.impersonate == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-why", "x"),
    )


def without(name: str) -> dict[str, Any]:
    data = document()
    del data[name]
    return data


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "no current context": (without("current-context"), "current-context: is empty"),
    "no such context": (without("contexts"), "there is no context 'prod' in contexts"),
    "no such cluster": (without("clusters"), "context 'prod': there is no cluster 'east'"),
    "no such user": (without("users"), "context 'prod': there is no user 'node' in users"),
    "no server": (document({}, {"server": ""}), "cluster 'east': server: is missing"),
    "server is no URL": (document({}, {"server": "ftp://x"}), "server: 'ftp://x' is not an URL"),
    "authority is not base64": (
        document({}, {"certificate-authority-data": "%"}),
        "context 'prod': cluster 'east': certificate-authority-data: is not base64",
    ),
    "insecure with authority": (
        document({}, {"certificate-authority": "ca", "insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify: contradicts",
    ),
    "proxy by SOCKS": (document({}, {"proxy-url": "socks5://x"}), "proxy-url: only"),
    "certificate without key": (
        document({"client-certificate": "c"}),
        "user 'node': client-key: is missing",
    ),
    "token is a number": (document({"token": 1234}), "user 'node': token: must be a text"),
    "two ways to say who": (document({"token": "t", "username": "u"}), "username: there is a"),
    "auth-provider": (document({"auth-provider": {"name": "gcp"}}), "use an exec plugin"),
    "plugin of an old version": (
        document({"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
        "exec: apiVersion: 'client.authentication.k8s.io/v1alpha1' is not supported",
    ),
    "plugin without command": (document({"exec": {**EXEC, "command": ""}}), "exec: command: is"),
    "plugin that asks somebody": (
        document({"exec": {**EXEC, "interactiveMode": "Always"}}),
        "interactiveMode: Always",
    ),
    "contexts are no list": ({**document(), "contexts": "all"}, "contexts: must be a list"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_names_file_context_and_field(case: str) -> None:
    data, expected = ERRORS[case]
    with pytest.raises(KubeconfigError) as caught:
        read(data)
    assert str(caught.value).startswith(f"{PATH}: ")
    assert expected in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="cannot be read"):
        read_kubeconfig(tmp_path / "kubeconfig")


@pytest.mark.parametrize("text", ["[", "just words", "", "- a\n- b"])
def test_a_file_of_something_else_is_an_error(text: str) -> None:
    with pytest.raises(KubeconfigError):
        parse_kubeconfig(text, PATH)


@pytest.mark.parametrize("show", [repr, str])
def test_secrets_are_not_shown(show: Callable[[object], str]) -> None:
    user = {"token": "hidden-token", "client-key": "k", "client-certificate": "c"}
    assert "hidden-token" not in show(read(document(user)))
    named = {"username": "u", "password": "hidden-password"}
    assert "hidden-password" not in show(read(document(named)))
