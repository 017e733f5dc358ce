"""A real control plane of our own, from start to leaving no trace.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler run out of one folder, on loopback
but for an API server that machines are to reach, with authorities of their own; nodes are
authorized by Node and RBAC with NodeRestriction, and may join by a bootstrap token as those of
kubeadm do. The API server can be stopped and started on its port while etcd keeps the data. All
programs are in the process group of a keeper that kills them when this process is gone, however it
went. Methods block until what they promise is true, or raise LabError at their deadline; in a trio
test run them in a thread.
"""

import base64
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lab import LabError, control_plane_programs
from lab.cluster_api import ClusterApi, RefusedError
from lab.control_plane_programs import CONTROL_PLANE, NEWEST
from lab.go_programs import Programs
from lab.pki import Authority, KeyPair, SigningKey
from lab.ports import LOOPBACK, free_ports
from lab.processes import last_words, run, wait_until
from lab.started import Started

START_DEADLINE_SECONDS = 180
STOP_DEADLINE_SECONDS = 15
KUBECTL_DEADLINE_SECONDS = 120

# What the service `kubernetes` leads to. The API refuses loopback there; no pod reaches loopback
# of the host anyway, and this address (RFC 5737) is nobody's.
ADVERTISED = "203.0.113.1"
SERVICES = "10.96.0.0/16"
SERVICE_OF_THE_API = "10.96.0.1"
ISSUER = "https://kubernetes.default.svc.cluster.local"
SERVER_NAMES = (
    "localhost",
    LOOPBACK,
    ADVERTISED,
    SERVICE_OF_THE_API,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
ADMINISTRATORS = "system:masters"
NODES = "system:nodes"
BOOTSTRAPPERS = "system:bootstrappers:kubeadm:default-node-token"
BOOTSTRAP_TOKEN_ID, BOOTSTRAP_TOKEN_SECRET = "lab000", "0123456789abcdef"
BOOTSTRAP_TOKEN = f"{BOOTSTRAP_TOKEN_ID}.{BOOTSTRAP_TOKEN_SECRET}"
# Who may do what with certificate requests, as `kubeadm init` grants it: role by group.
BOOTSTRAP_GRANTS = (
    ("system:node-bootstrapper", BOOTSTRAPPERS),
    ("system:certificates.k8s.io:certificatesigningrequests:nodeclient", BOOTSTRAPPERS),
    ("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", NODES),
)

# Ends with its standard input, that is with the process that holds the other end; then it kills
# its process group, itself included.
KEEPER = "read nothing; kill -KILL 0"


class ControlPlane(Started):
    """One control plane; a context manager that starts and stops it.

    `version` is `1.36` or `1.34`; `folder` holds everything and may exist; `address` is the one on
    which the API server listens; `server_flags` are further flags of kube-apiserver, such as
    `--runtime-config=...`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        version: str = NEWEST,
        address: str = LOOPBACK,
        server_flags: tuple[str, ...] = (),
        signing_duration: str = "8760h",
    ) -> None:
        self.folder = folder.absolute()
        self.wish = version
        self._address = address
        self.authority = Authority("lab-ca")
        self.port = 0
        self._server_flags = server_flags
        self._signing_duration = signing_duration
        self._etcd_authority = Authority("lab-etcd-ca")
        self._programs: Programs | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._etcd_ports: list[int] = []
        self._clients = ExitStack()
        self._admin: ClusterApi | None = None

    @property
    def endpoint(self) -> str:
        """Where the API server listens: `ADDRESS:PORT`."""
        return f"{self._address}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.endpoint}"

    @property
    def version(self) -> str:
        """The version of Kubernetes in full, such as `v1.36.3`; known once started."""
        return self._tools.version

    @property
    def api(self) -> ClusterApi:
        """The API as an administrator sees it; known once started."""
        if self._admin is None:
            raise LabError("the control plane was not started")
        return self._admin

    def start(self) -> None:
        """Start from nothing: the API is ready, service accounts are made, bootstrap works.

        Takes about five seconds, and minutes more if the programs must be built first; then
        UnavailableError where they cannot be. LabError has the tails of the logs.
        """
        self._programs = control_plane_programs.find(self.wish)
        try:
            self._prepare()
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            self._launch("etcd", self._etcd_flags())
            self.start_api_server()
            self._grant_bootstrap()
            self._wait_for_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything; logs stay in the folder. Safe to repeat."""
        self._clients.close()
        self._admin = None
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self._end(name, signal.SIGKILL if name == "etcd" else signal.SIGTERM)
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait(STOP_DEADLINE_SECONDS)
            self._keeper = None

    def stop_api_server(self) -> None:
        """Take the API server away: connections are refused from now on."""
        self._end("kube-apiserver", signal.SIGKILL)

    def start_api_server(self) -> None:
        """Bring the API server back, on the port that it had; ready when this returns.

        Controllers and scheduler begin anew: where they elect a leader, they end when they cannot
        renew that. Those that go on may see nothing for a minute, since their watches wait.
        """
        self._launch("kube-apiserver", self._api_server_flags())
        wait_until(
            self._is_ready,
            deadline_seconds=START_DEADLINE_SECONDS,
            else_say=lambda: f"the API server is not ready: {self.last_words()}",
        )
        for name, flags in (
            ("kube-controller-manager", self._controller_manager_flags()),
            ("kube-scheduler", self._scheduler_flags()),
        ):
            self._end(name, signal.SIGKILL)
            self._launch(name, flags)

    @contextmanager
    def controllers_paused(self) -> Iterator[None]:
        """Let the controller manager do nothing until the end of the block, then catch up."""
        process = self._processes["kube-controller-manager"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        """Run kubectl as administrator and return what it says; LabError if it fails.

        `stdin` is for `-f -`: text, or an object.
        """
        given = stdin if isinstance(stdin, str) else json.dumps(stdin)
        return run(
            self.kubectl_command(*words),
            stdin=given,
            called=f"kubectl {' '.join(words)}",
            deadline_seconds=KUBECTL_DEADLINE_SECONDS,
        )

    def kubectl_command(self, *words: str) -> list[str]:
        """The command line of kubectl as administrator, for who runs it himself."""
        options = ("--kubeconfig", str(self.folder / "admin.conf"))
        cache = ("--cache-dir", str(self.folder / "kubectl"))
        return [str(self._tools["kubectl"]), *options, *cache, *words]

    def client(self, identity: KeyPair | None = None, *, token: str = "") -> ClusterApi:
        """A client for somebody else; it is closed at the latest when the control plane stops."""
        client = ClusterApi(self.url, self.authority.certificate, identity=identity, token=token)
        self._clients.callback(client.close)
        return client

    def node_identity(self, node: str) -> KeyPair:
        """What the node of this name is known by: `system:node:NAME` in `system:nodes`."""
        return self.authority.issue(f"system:node:{node}", groups=(NODES,))

    def node_kubeconfig(self, node: str) -> Path:
        """Write a kubeconfig with a fresh certificate for the node of this name."""
        return self._write_kubeconfig(f"node-{node}", self.node_identity(node))

    def bootstrap_kubeconfig(self) -> Path:
        """Write a kubeconfig with the bootstrap token, for `--bootstrap-kubeconfig`."""
        return self._write_user("bootstrap", {"token": BOOTSTRAP_TOKEN})

    def log(self, name: str) -> Path:
        """The log of one of the programs."""
        return self.folder / f"{name}.log"

    def last_words(self, lines: int = 5) -> str:
        """The ends of all logs, for the message of a failure."""
        logs = ((name, self.log(name)) for name in CONTROL_PLANE)
        return "\n".join(
            f"{name}: {last_words(path.read_text(errors='replace'), lines)}"
            for name, path in logs
            if path.exists()
        )

    @property
    def _tools(self) -> Programs:
        if self._programs is None:
            raise LabError("the control plane was not started")
        return self._programs

    @property
    def _secrets(self) -> Path:
        return self.folder / "pki"

    def _prepare(self) -> None:
        """Write keys, certificates and kubeconfigs, and pick the ports."""
        self._secrets.mkdir(parents=True, exist_ok=True)
        self._secrets.chmod(0o700)
        self.port, *self._etcd_ports = free_ports(3)
        ca, etcd_ca = self.authority, self._etcd_authority
        ca.pair.write(self._secrets, "ca")
        etcd_ca.pair.write(self._secrets, "etcd-ca")
        signing = SigningKey.generate()
        (self._secrets / "tokens.pub").write_bytes(signing.public)
        (self._secrets / "tokens.key").touch(mode=0o600)
        (self._secrets / "tokens.key").write_bytes(signing.private)
        pairs = {
            "apiserver": ca.issue("kube-apiserver", hosts={*SERVER_NAMES, self._address}),
            "kubelet-client": ca.issue("kube-apiserver-kubelet-client", groups=(ADMINISTRATORS,)),
            "etcd": etcd_ca.issue("etcd", hosts=("localhost", LOOPBACK)),
            "etcd-client": etcd_ca.issue("kube-apiserver-etcd-client"),
        }
        for name, pair in pairs.items():
            pair.write(self._secrets, name)
        admin = ca.issue("lab-admin", groups=(ADMINISTRATORS,))
        self._write_kubeconfig("admin", admin)
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._write_kubeconfig(name, ca.issue(f"system:{name}"))
        self._admin = self.client(admin)

    def _write_kubeconfig(self, name: str, pair: KeyPair) -> Path:
        credentials = {
            "client-certificate-data": base64.b64encode(pair.certificate).decode(),
            "client-key-data": base64.b64encode(pair.key).decode(),
        }
        return self._write_user(name, credentials)

    def _write_user(self, name: str, credentials: Mapping[str, str]) -> Path:
        trusted = base64.b64encode(self.authority.certificate).decode()
        cluster = {"server": self.url, "certificate-authority-data": trusted}
        path = self.folder / f"{name}.conf"
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "lab", "cluster": cluster}],
                    "users": [{"name": name, "user": credentials}],
                    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
                    "current-context": "lab",
                }
            )
        )
        return path

    def _launch(self, name: str, flags: Mapping[str, object]) -> None:
        assert self._keeper is not None
        words = [f"--{flag}={value}" for flag, value in flags.items()]
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._tools[name], *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                process_group=self._keeper.pid,
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        self._all_must_run()
        return self.api.healthy()

    def _all_must_run(self) -> None:
        """Raise LabError if a program ended by itself: waiting for it is in vain."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                words = last_words(self.log(name).read_text(errors="replace"), 10)
                raise LabError(f"{name} ended: {words}")

    def _wait_for_controllers(self) -> None:
        """Wait for the account without which no pod can be made, the controllers' first work."""

        def has_account() -> bool:
            self._all_must_run()
            try:
                self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
            except RefusedError:
                return False
            return True

        wait_until(
            has_account,
            deadline_seconds=START_DEADLINE_SECONDS,
            else_say=lambda: f"the controller manager does nothing: {self.last_words()}",
        )

    def _grant_bootstrap(self) -> None:
        """Make the bootstrap token, and let its group and the nodes ask for certificates."""
        token = {
            "token-id": BOOTSTRAP_TOKEN_ID,
            "token-secret": BOOTSTRAP_TOKEN_SECRET,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": BOOTSTRAPPERS,
        }
        self.api.create(
            "/api/v1/namespaces/kube-system/secrets",
            {
                "metadata": {"name": f"bootstrap-token-{BOOTSTRAP_TOKEN_ID}"},
                "type": "bootstrap.kubernetes.io/token",
                "stringData": token,
            },
        )
        group = "rbac.authorization.k8s.io"
        for number, (role, grantee) in enumerate(BOOTSTRAP_GRANTS):
            self.api.create(
                f"/apis/{group}/v1/clusterrolebindings",
                {
                    "metadata": {"name": f"lab-bootstrap-{number}"},
                    "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                    "subjects": [{"apiGroup": group, "kind": "Group", "name": grantee}],
                },
            )

    def _etcd_flags(self) -> Mapping[str, object]:
        clients, peers = (f"https://{LOOPBACK}:{port}" for port in self._etcd_ports)
        identity = {"cert-file": self._pki("etcd.crt"), "key-file": self._pki("etcd.key")}
        trust = {"client-cert-auth": "true", "trusted-ca-file": self._pki("etcd-ca.crt")}
        return {
            "name": "lab",
            "data-dir": self.folder / "etcd",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"lab={peers}",
            **identity,
            **trust,
            **{f"peer-{flag}": value for flag, value in (identity | trust).items()},
            # Nothing here is to outlive the machine.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _api_server_flags(self) -> Mapping[str, object]:
        more = (flag.removeprefix("--").partition("=") for flag in self._server_flags)
        return {
            "bind-address": self._address,
            "secure-port": self.port,
            "advertise-address": ADVERTISED,
            "etcd-servers": f"https://{LOOPBACK}:{self._etcd_ports[0]}",
            "etcd-cafile": self._pki("etcd-ca.crt"),
            "etcd-certfile": self._pki("etcd-client.crt"),
            "etcd-keyfile": self._pki("etcd-client.key"),
            "client-ca-file": self._pki("ca.crt"),
            "tls-cert-file": self._pki("apiserver.crt"),
            "tls-private-key-file": self._pki("apiserver.key"),
            "kubelet-certificate-authority": self._pki("ca.crt"),
            "kubelet-client-certificate": self._pki("kubelet-client.crt"),
            "kubelet-client-key": self._pki("kubelet-client.key"),
            "kubelet-preferred-address-types": "InternalIP,Hostname",
            "service-account-issuer": ISSUER,
            "service-account-key-file": self._pki("tokens.pub"),
            "service-account-signing-key-file": self._pki("tokens.key"),
            "service-cluster-ip-range": SERVICES,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "enable-bootstrap-token-auth": "true",
            "allow-privileged": "true",
            **{flag: value for flag, _, value in more},
        }

    def _controller_manager_flags(self) -> Mapping[str, object]:
        return {
            **self._as_client("kube-controller-manager"),
            "controllers": "*,bootstrapsigner,tokencleaner",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self._pki("tokens.key"),
            "root-ca-file": self._pki("ca.crt"),
            "cluster-signing-cert-file": self._pki("ca.crt"),
            "cluster-signing-key-file": self._pki("ca.key"),
            "cluster-signing-duration": self._signing_duration,
            "service-cluster-ip-range": SERVICES,
            "node-monitor-period": "2s",
            "node-monitor-grace-period": "40s",
        }

    def _scheduler_flags(self) -> Mapping[str, object]:
        return self._as_client("kube-scheduler")

    def _as_client(self, name: str) -> Mapping[str, object]:
        """Flags of one who only talks to the API; there is no second of it to elect against."""
        return {
            "kubeconfig": self.folder / f"{name}.conf",
            "leader-elect": "false",
            "secure-port": 0,
            "kube-api-qps": 200,
            "kube-api-burst": 400,
        }

    def _pki(self, name: str) -> Path:
        return self._secrets / name
