"""A machine that was off until its certificate had expired, and the signer of a real cluster."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from attrs import frozen

from lab.control_plane import NODES
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_ready, until_term
from tests.e2e.local import LocalCluster

DEADLINE_SECONDS = 120
PAST = -timedelta(minutes=1)
BOOTSTRAP_USER = "system:bootstrap:lab000"


@frozen
class Credentials:
    """The files of an agent that got its certificate by a bootstrap token."""

    cluster: LocalCluster
    folder: Path

    @property
    def bootstrap(self) -> Path:
        return self.folder / "bootstrap.conf"

    @property
    def current(self) -> Path:
        """The link to the certificate that is in use."""
        return self.folder / "pki/kubelet-client-current.pem"

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            *("--bootstrap-kubeconfig", str(self.bootstrap)),
            *("--kubeconfig", str(self.folder / "kubelet.conf")),
            *("--cert-dir", str(self.folder / "pki")),
        )

    def give_token(self) -> None:
        """Put a bootstrap kubeconfig in place, whose token is good."""
        good = self.cluster.control_plane.bootstrap_kubeconfig()
        self.bootstrap.write_bytes(good.read_bytes())

    def let_token_expire(self) -> None:
        """Make the token of the bootstrap kubeconfig one that the API server does not know."""
        config = yaml.safe_load(self.bootstrap.read_text())
        config["users"][0]["user"]["token"] = "gone00.0123456789abcdef"
        self.bootstrap.write_text(yaml.safe_dump(config))

    def let_certificate_expire(self) -> None:
        """Put one of the same authority in its place that was good until a minute ago."""
        user = f"system:node:{self.cluster.node}"
        authority = self.cluster.control_plane.authority
        expired = authority.issue(user, groups=(NODES,), life=PAST)
        self.current.resolve().write_bytes(expired.certificate + expired.key)

    def requests(self) -> int:
        """How many certificates were requested by a bootstrap token."""
        path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
        listed = self.cluster.api.get(path)["items"]
        return [each["spec"]["username"] for each in listed].count(BOOTSTRAP_USER)


@pytest.fixture(params=[True, False], ids=["rotated", "not rotated"])
def rotates(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def credentials(
    local_cluster: LocalCluster, tmp_path: Path, *, rotates: bool
) -> Iterator[Credentials]:
    """The credentials of the node's agent, which runs with them."""
    credentials = Credentials(local_cluster, tmp_path)
    credentials.give_token()
    local_cluster.restart_agent(*credentials.flags, rotateCertificates=rotates)
    wait_until(
        credentials.current.exists,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=local_cluster.last_words,
    )
    local_cluster.wait_node_ready()
    yield credentials
    local_cluster.restart_agent()


def test_it_asks_with_its_bootstrap_token_again_and_its_pods_run_on(
    local_cluster: LocalCluster, namespace: Namespace, credentials: Credentials
) -> None:
    namespace.run("stays", until_term("c"))
    running = local_cluster.running_containers(namespace.name)
    asked = credentials.requests()
    local_cluster.stop_agent()
    credentials.let_certificate_expire()
    expired = credentials.current.resolve()
    local_cluster.start_agent()
    namespace.run("comes", until_term("c"))
    assert credentials.requests() == asked + 1
    assert credentials.current.resolve() != expired
    stays = namespace.pod("stays")
    assert is_ready(stays)
    assert stays["status"]["containerStatuses"][0]["restartCount"] == 0
    assert running.items() <= local_cluster.running_containers(namespace.name).items()


@pytest.mark.parametrize(
    ("rotates", "has_token"),
    [(True, False), (False, False), (False, True)],
    ids=["rotated, no file", "not rotated, no file", "not rotated, token gone"],
    indirect=["rotates"],
)
def test_without_a_good_token_it_ends_and_says_what_to_bring(
    local_cluster: LocalCluster,
    namespace: Namespace,
    credentials: Credentials,
    *,
    has_token: bool,
) -> None:
    """With `rotateCertificates` a token that is refused is tried for five minutes."""
    namespace.run("stays", until_term("c"))
    running = local_cluster.running_containers(namespace.name)
    local_cluster.stop_agent()
    credentials.let_certificate_expire()
    if has_token:
        credentials.let_token_expire()
    else:
        credentials.bootstrap.unlink()
    agent = local_cluster.agent
    agent.launch()
    assert agent.wait_for_end() == 1
    said = agent.last_words()
    assert str(credentials.bootstrap) in said
    assert ("a bootstrap token may have expired" if has_token else "No such file") in said
    credentials.give_token()
    agent.launch()
    namespace.run("comes", until_term("c"))
    stays = namespace.pod("stays")
    assert stays["status"]["containerStatuses"][0]["restartCount"] == 0
    assert running.items() <= local_cluster.running_containers(namespace.name).items()
