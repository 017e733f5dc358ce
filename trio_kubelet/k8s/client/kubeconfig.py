"""The kubeconfig file: which server to talk to, and as whom.

Only one context counts: the current one, or one that is named. What it needs is read and checked
here, as values; nothing is fetched yet. Certificates, keys and tokens may stand in the file or in
files of their own, whose relative paths start at the kubeconfig's folder. Errors name the file,
the context and the field.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

from trio_kubelet.k8s.documents import DocumentError, load_documents

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used; the text says where and why."""


@frozen(repr=False)
class CredentialSource:
    """A certificate, a key or a token: given in place, or by a file that may change."""

    data: bytes = b""
    path: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.data) or self.path is not None


@frozen
class KubeconfigCluster:
    """A server, and how it proves who it is."""

    server: str
    certificate_authority: CredentialSource = CredentialSource()
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""
    exec_config: Any = None
    """The cluster's facts for the exec plugin, if it is to have any."""


@frozen
class ExecConfig:
    """A program that prints credentials (client.authentication.k8s.io)."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(factory=dict, repr=False)
    install_hint: str = ""
    provide_cluster_info: bool = False


@frozen
class KubeconfigUser:
    """The client's credentials; a token's file comes before a token."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    client_certificate: CredentialSource = CredentialSource()
    client_key: CredentialSource = CredentialSource()
    username: str = ""
    password: str = field(default="", repr=False)
    exec: ExecConfig | None = None
    impersonate: tuple[tuple[str, str], ...] = ()
    """Headers that ask to act as somebody else."""


@frozen
class Kubeconfig:
    """One context of a kubeconfig file."""

    path: Path
    context: str
    cluster: KubeconfigCluster
    user: KubeconfigUser
    namespace: str = ""


def read_kubeconfig(path: Path, context: str = "") -> Kubeconfig:
    """Read one context of a file, the current one by default; raises KubeconfigError.

    Blocks for as long as reading a small file takes.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path}: cannot be read: {error}") from None
    return parse_kubeconfig(text, path, context)


def parse_kubeconfig(text: str, path: Path, context: str = "") -> Kubeconfig:
    """Make a context of the text of a kubeconfig that lies at `path`; raises KubeconfigError."""
    try:
        documents = load_documents(text.encode(), doubled=[])
    except DocumentError as error:
        raise KubeconfigError(f"{path}: is not YAML: {error}") from None
    whole = _Part(documents[0] if documents else {}, str(path), path.parent)
    name = context or whole.text("current-context")
    if not name:
        raise KubeconfigError(f"{path}: current-context: is empty, so it is not clear whom to ask")
    chosen = whole.named("contexts", name, "context").within(f"{path}: context {name!r}")
    cluster_name = chosen.required("cluster")
    user_name = chosen.text("user")
    cluster = whole.named("clusters", cluster_name, "cluster", f"context {name!r}: ")
    user = _Part({}, str(path), path.parent)
    if user_name:
        user = whole.named("users", user_name, "user", f"context {name!r}: ")
    where = f"{path}: context {name!r}"
    return Kubeconfig(
        path=path,
        context=name,
        cluster=_cluster(cluster.within(f"{where}: cluster {cluster_name!r}")),
        user=_user(user.within(f"{where}: user {user_name!r}")),
        namespace=chosen.text("namespace"),
    )


def _cluster(part: "_Part") -> KubeconfigCluster:
    server = part.required("server")
    if "//" not in server:
        server = f"http://{server}"
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise part.error("server", f"{server!r} is not an URL such as https://10.0.0.1:6443")
    authority = part.material("certificate-authority")
    insecure = part.truth("insecure-skip-tls-verify")
    if insecure and authority:
        raise part.error("insecure-skip-tls-verify", "contradicts the certificate authority")
    proxy = part.text("proxy-url")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise part.error("proxy-url", "only proxies of http:// and https:// are supported")
    extensions = part.value("extensions", list) or []
    return KubeconfigCluster(
        server=server,
        certificate_authority=authority,
        tls_server_name=part.text("tls-server-name"),
        insecure_skip_tls_verify=insecure,
        proxy_url=proxy,
        exec_config=next(
            (
                extension.get("extension")
                for extension in extensions
                if isinstance(extension, dict) and extension.get("name") == _EXEC_EXTENSION
            ),
            None,
        ),
    )


def _user(part: "_Part") -> KubeconfigUser:
    certificate, key = part.material("client-certificate"), part.material("client-key")
    if bool(certificate) is not bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise part.error(missing, "is missing: a certificate and its key go together")
    token, token_file = part.text("token"), part.path("tokenFile")
    username = part.text("username")
    if username and (token or token_file):
        raise part.error("username", "there is a token, too: only one of both can be used")
    if part.value("auth-provider", dict):
        raise part.error("auth-provider", "is not supported any more; use an exec plugin")
    return KubeconfigUser(
        token=token,
        token_file=token_file,
        client_certificate=certificate,
        client_key=key,
        username=username,
        password=part.text("password"),
        exec=_exec(part),
        impersonate=_impersonate(part),
    )


def _exec(user: "_Part") -> ExecConfig | None:
    if not user.value("exec", dict):
        return None
    part = user.part("exec")
    version = part.required("apiVersion")
    if version not in EXEC_API_VERSIONS:
        known = " or ".join(EXEC_API_VERSIONS)
        raise part.error("apiVersion", f"{version!r} is not supported; {known} is")
    mode = part.text("interactiveMode") or "IfAvailable"
    if mode not in _INTERACTIVE_MODES:
        raise part.error("interactiveMode", f"{mode!r} is none of {', '.join(_INTERACTIVE_MODES)}")
    if mode == "Always":
        raise part.error("interactiveMode", "Always: there is nobody to ask on a node")
    command = part.required("command")
    if "/" in command:
        command = str(part.folder / command)
    return ExecConfig(
        api_version=version,
        command=command,
        args=part.texts("args"),
        env={one.required("name"): one.text("value") for one in part.parts("env")},
        install_hint=part.text("installHint"),
        provide_cluster_info=part.truth("provideClusterInfo"),
    )


def _impersonate(part: "_Part") -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", part.text("as")), ("Impersonate-Uid", part.text("as-uid"))]
    headers += [("Impersonate-Group", group) for group in part.texts("as-groups")]
    extra = part.part("as-user-extra")
    for name in extra.data:
        headers += [(f"Impersonate-Extra-{name}", value) for value in extra.texts(name)]
    return tuple((name, value) for name, value in headers if value)


@frozen
class _Part:
    """A part of the document, and the words that tell where it is."""

    data: Any
    where: str
    folder: Path

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.data, dict):
            raise KubeconfigError(f"{self.where}: must be an object")

    def within(self, where: str) -> "_Part":
        return _Part(self.data, where, self.folder)

    def error(self, name: str, why: str) -> KubeconfigError:
        return KubeconfigError(f"{self.where}: {name}: {why}")

    def value(self, name: str, type_: type) -> Any:
        value = self.data.get(name)
        if value is not None and not isinstance(value, type_):
            words = {str: "a text", bool: "true or false", list: "a list", dict: "an object"}
            raise self.error(name, f"must be {words[type_]}")
        return value

    def text(self, name: str) -> str:
        return self.value(name, str) or ""

    def truth(self, name: str) -> bool:
        return bool(self.value(name, bool))

    def required(self, name: str) -> str:
        text = self.text(name)
        if not text:
            raise self.error(name, "is missing")
        return text

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.value(name, list) or []
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "must be a list of texts")
        return tuple(values)

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return self.folder / text if text else None

    def material(self, name: str) -> CredentialSource:
        """Read `name` and `name-data`, of which the latter counts."""
        encoded = self.text(f"{name}-data")
        if not encoded:
            return CredentialSource(path=self.path(name))
        try:
            return CredentialSource(base64.b64decode("".join(encoded.split()), validate=True))
        except binascii.Error as error:
            raise self.error(f"{name}-data", f"is not base64: {error}") from None

    def part(self, name: str) -> "_Part":
        return _Part(self.value(name, dict) or {}, f"{self.where}: {name}", self.folder)

    def parts(self, name: str) -> tuple["_Part", ...]:
        items = self.value(name, list) or []
        return tuple(
            _Part(item, f"{self.where}: {name}[{number}]", self.folder)
            for number, item in enumerate(items)
        )

    def named(self, names: str, name: str, inner: str, asker: str = "") -> "_Part":
        """Return the first of the named things that has this name."""
        for one in self.parts(names):
            if one.text("name") == name:
                return one.part(inner)
        raise KubeconfigError(f"{self.where}: {asker}there is no {inner} {name!r} in {names}")
