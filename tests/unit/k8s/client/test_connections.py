"""The clients of a kubeconfig against a real socket with TLS."""

import gc
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from httpcore._backends.trio import TrioBackend

from tests.unit.k8s.client.tls_server import NODE, Proxy, Seen, TlsServer
from trio_kubelet.k8s.client import ApiError, open_api_clients
from trio_kubelet.k8s.client.client import USER_AGENT
from trio_kubelet.k8s.kinds import NODES

UNAUTHORIZED = (401, {"kind": "Status", "code": 401, "reason": "Unauthorized"})
TOKEN = {"token": "t"}
Answer = tuple[int, Mapping[str, object]] | None


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> TlsServer:
    return TlsServer(tmp_path)


async def failure(client: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await client.get(NODES, "n1")
    return caught.value


async def test_a_client_certificate_says_who_asks(server: TlsServer) -> None:
    server.client_files("system:node:n1")
    async with server.running():
        files = {"client-certificate": "client.crt", "client-key": "client.key"}
        async with open_api_clients(server.kubeconfig(files)) as clients:
            node = await clients.main.get(NODES, "n1")
    assert node.metadata.name == "n1"
    [seen] = server.seen
    assert seen.certificate == "system:node:n1"
    assert seen.headers["user-agent"] == USER_AGENT
    assert "authorization" not in seen.headers


async def test_each_client_has_connections_of_its_own(server: TlsServer) -> None:
    async with server.running(), open_api_clients(server.kubeconfig(TOKEN)) as clients:
        for _ in range(2):
            for client in (clients.main, clients.heartbeat, clients.events):
                await client.get(NODES, "n1")
    assert [seen.connection for seen in server.seen] == [1, 2, 3, 1, 2, 3]
    assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer t"}


async def test_a_certificate_that_was_replaced_is_used_by_new_connections(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.k8s.client.identity.RE_READ_SECONDS", 0.0)
    server.client_files("old")
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    async with server.running(), open_api_clients(server.kubeconfig(files)) as clients:
        await clients.main.get(NODES, "n1")
        server.client_files("new")
        await clients.main.get(NODES, "n1")
        await server.until(lambda: server.open_connections == {2})
    assert [seen.certificate for seen in server.seen] == ["old", "new"]


async def test_a_refusal_makes_the_client_look_for_a_new_certificate_at_once(
    server: TlsServer,
) -> None:
    def answer(seen: Seen) -> Answer:
        if seen.certificate == "old":
            server.client_files("new")
            return UNAUTHORIZED
        return 200, NODE

    server.answer = answer
    server.client_files("old")
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    async with server.running(), open_api_clients(server.kubeconfig(files)) as clients:
        await clients.main.get(NODES, "n1")
    assert [seen.certificate for seen in server.seen] == ["old", "new"]


async def test_a_token_file_is_read_again_after_a_refusal(server: TlsServer) -> None:
    token = server.folder / "token"
    token.write_text("first\n")

    def answer(seen: Seen) -> Answer:
        if seen.headers["authorization"] == "Bearer first":
            token.write_text("second\n")
            return UNAUTHORIZED
        return 200, NODE

    server.answer = answer
    path_of = server.kubeconfig
    async with server.running(), open_api_clients(path_of({"tokenFile": "token"})) as clients:
        await clients.main.get(NODES, "n1")
    assert [seen.headers["authorization"] for seen in server.seen] == [
        "Bearer first",
        "Bearer second",
    ]


async def test_a_refusal_is_an_error_when_there_are_no_other_credentials(
    server: TlsServer,
) -> None:
    server.answer = lambda seen: UNAUTHORIZED
    async with server.running(), open_api_clients(server.kubeconfig(TOKEN)) as clients:
        assert (await failure(clients.main)).reason == "Unauthorized"
    assert len(server.seen) == 1


async def test_a_server_of_another_authority_is_not_trusted(server: TlsServer) -> None:
    async with server.running():
        path = server.kubeconfig(TOKEN, {"certificate-authority": "ca2.crt"})
        TlsServer(server.folder).authority.cert_pem.write_to_path(server.folder / "ca2.crt")
        async with open_api_clients(path) as clients:
            error = await failure(clients.main)
    assert error.is_unreachable
    assert "certificate verify failed" in error.message
    assert not server.seen


async def test_a_server_may_be_known_by_another_name(server: TlsServer) -> None:
    server.names = ("kubernetes.test",)
    async with server.running():
        async with open_api_clients(server.kubeconfig(TOKEN)) as clients:
            assert "certificate" in (await failure(clients.main)).message
        path = server.kubeconfig(TOKEN, {"tls-server-name": "kubernetes.test"})
        async with open_api_clients(path) as clients:
            await clients.main.get(NODES, "n1")


async def test_a_proxy_is_asked_for_a_tunnel_and_the_server_for_its_name(
    server: TlsServer,
) -> None:
    server.names = ("kubernetes.test",)
    async with server.running(), Proxy().running() as proxy:
        cluster = {
            "proxy-url": f"http://127.0.0.1:{proxy.port}",
            "tls-server-name": "kubernetes.test",
        }
        async with open_api_clients(server.kubeconfig(TOKEN, cluster)) as clients:
            await clients.main.get(NODES, "n1")
        assert proxy.targets == [f"127.0.0.1:{server.port}"]


async def test_the_server_need_not_prove_itself_if_nobody_asks(server: TlsServer) -> None:
    async with server.running():
        insecure = {"certificate-authority": None, "insecure-skip-tls-verify": True}
        async with open_api_clients(server.kubeconfig(TOKEN, insecure)) as clients:
            await clients.main.get(NODES, "n1")


PLUGIN = """
import json, os, pathlib
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
runs = pathlib.Path(os.environ["FOLDER"], "runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
assert info["spec"]["cluster"]["server"].startswith("https://127.0.0.1")
print(json.dumps({
    "apiVersion": info["apiVersion"],
    "kind": "ExecCredential",
    "status": {"token": f"token-{len(runs.read_text())}"},
}))
"""


def plugin(folder: Path, **more: object) -> dict[str, object]:
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
        "command": sys.executable,
        "args": ["-c", PLUGIN],
        "env": [{"name": "FOLDER", "value": str(folder)}],
        "provideClusterInfo": True,
        **more,
    }


async def test_a_plugin_is_run_once_and_again_after_a_refusal(server: TlsServer) -> None:
    server.answer = lambda seen: UNAUTHORIZED if len(server.seen) == 3 else (200, NODE)
    async with server.running():
        path = server.kubeconfig({"exec": plugin(server.folder)})
        async with open_api_clients(path) as clients:
            for _ in range(3):
                await clients.main.get(NODES, "n1")
    tokens = [seen.headers["authorization"] for seen in server.seen]
    assert tokens == ["Bearer token-1"] * 3 + ["Bearer token-2"]


EXPIRING = """
import json, os, pathlib
runs = pathlib.Path(os.environ["FOLDER"], "runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
count = len(runs.read_text())
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1beta1",
    "kind": "ExecCredential",
    "status": {
        "token": f"token-{count}",
        "expirationTimestamp": f"{2000 + 500 * (count - 1)}-01-01T00:00:00Z",
    },
}))
"""


async def test_a_plugin_is_run_again_when_what_it_printed_has_expired(server: TlsServer) -> None:
    async with server.running():
        version = "client.authentication.k8s.io/v1beta1"
        expiring = plugin(server.folder, args=["-c", EXPIRING], apiVersion=version)
        async with open_api_clients(server.kubeconfig({"exec": expiring})) as clients:
            for _ in range(3):
                await clients.main.get(NODES, "n1")
    tokens = [seen.headers["authorization"].removeprefix("Bearer ") for seen in server.seen]
    assert tokens[0] in ("token-1", "token-2")
    assert tokens[1:] == ["token-2", "token-2"]


async def test_a_plugin_may_print_a_certificate(server: TlsServer) -> None:
    server.client_files("printed")
    script = (
        "import json, os, pathlib; read = lambda name: "
        "pathlib.Path(os.environ['FOLDER'], name).read_text(); "
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', "
        "'kind': 'ExecCredential', 'status': {'clientCertificateData': read('client.crt'), "
        "'clientKeyData': read('client.key')}}))"
    )
    async with server.running():
        printing = plugin(server.folder, args=["-c", script])
        async with open_api_clients(server.kubeconfig({"exec": printing})) as clients:
            await clients.main.get(NODES, "n1")
    assert [seen.certificate for seen in server.seen] == ["printed"]


async def test_a_plugin_that_fails_says_why_and_how_to_get_it(server: TlsServer) -> None:
    async with server.running():
        broken = plugin(server.folder, args=["-c", "import sys; sys.exit('no luck')"])
        async with open_api_clients(server.kubeconfig({"exec": broken})) as clients:
            error = await failure(clients.main)
            assert error.is_unreachable
            assert "exit code 1: no luck" in error.message
        missing = plugin(server.folder, command="no-such-plugin", installHint="get it there")
        async with open_api_clients(server.kubeconfig({"exec": missing})) as clients:
            assert "get it there" in (await failure(clients.main)).message
    assert not server.seen


async def test_without_a_thread_to_look_a_name_up_the_server_is_unreachable(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"server": "https://api.test:6443"}
    async with open_api_clients(server.kubeconfig(TOKEN, named)) as clients:
        no_thread_for(socket.getaddrinfo, monkeypatch)
        error = await failure(clients.main)
    assert error.is_unreachable
    assert error.message == "GET /api/v1/nodes/n1: can't start new thread"


async def test_a_plugin_for_which_no_thread_can_be_started_says_so(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = plugin(server.folder)
    async with open_api_clients(server.kubeconfig({"exec": printing})) as clients:
        no_thread_for(subprocess.Popen, monkeypatch)
        error = await failure(clients.main)
    assert error.is_unreachable
    assert "cannot be run: can't start new thread" in error.message


def no_thread_for(work: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have threads for all but one kind of work."""
    run_sync: Any = trio.to_thread.run_sync

    async def run_other(asked: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(asked, "func", asked) is work:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("can't start new thread")
        return await run_sync(asked, *arguments, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_other)


async def test_a_plugin_that_fails_after_a_refusal_says_why(server: TlsServer) -> None:
    server.answer = lambda _: UNAUTHORIZED
    once = f"{PLUGIN}\nassert len(runs.read_text()) == 1, 'no luck'"
    async with server.running():
        path = server.kubeconfig({"exec": plugin(server.folder, args=["-c", once])})
        async with open_api_clients(path) as clients:
            error = await failure(clients.main)
    assert error.is_unreachable
    assert "no luck" in error.message
    assert len(server.seen) == 1


async def test_a_connection_that_the_server_closed_does_not_fail_a_reading(
    server: TlsServer,
) -> None:
    server.answer = lambda seen: None if len(server.seen) == 2 else (200, NODE)
    async with server.running(), open_api_clients(server.kubeconfig(TOKEN)) as clients:
        await clients.main.get(NODES, "n1")
        await clients.main.get(NODES, "n1")
    assert [seen.connection for seen in server.seen] == [1, 1, 2]


async def test_a_dead_peer_is_found_by_the_sockets_themselves(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[Any] = []
    connect = TrioBackend.connect_tcp

    async def connect_tcp(self: Any, *args: Any, **options: Any) -> Any:
        streams.append(await connect(self, *args, **options))
        return streams[-1]

    monkeypatch.setattr(TrioBackend, "connect_tcp", connect_tcp)
    async with server.running(), open_api_clients(server.kubeconfig(TOKEN)) as clients:
        await clients.main.get(NODES, "n1")
        made = streams[0].get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        interval = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        limit = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
    assert idle < limit
    assert limit + interval < 45


async def test_nobody_at_the_address_is_told_in_plain_words(server: TlsServer) -> None:
    async with server.running():
        path = server.kubeconfig(TOKEN)
    async with open_api_clients(path) as clients:
        error = await failure(clients.main)
    assert error.is_unreachable
    assert "Connection refused" in error.message


async def test_a_server_that_accepts_and_says_nothing_leaves_no_socket_open(
    server: TlsServer,
) -> None:
    [silent] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server.port = silent.socket.getsockname()[1]
    async with silent, open_api_clients(server.kubeconfig(TOKEN)) as clients:
        with pytest.raises(ApiError) as caught:
            await clients.heartbeat.get(NODES, "n1", deadline_seconds=0.5)
    assert caught.value.is_unreachable
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(leak.message) for leak in leaks if leak.category is ResourceWarning] == []


async def test_files_that_cannot_be_read_any_more_stay_in_force(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.k8s.client.identity.RE_READ_SECONDS", 0.0)
    (server.folder / "token").write_text("t")
    async with server.running():
        async with open_api_clients(server.kubeconfig({"tokenFile": "token"})) as clients:
            await clients.main.get(NODES, "n1")
            (server.folder / "token").unlink()
            await clients.main.get(NODES, "n1")
        async with open_api_clients(server.kubeconfig({"tokenFile": "token"})) as clients:
            assert "token cannot be read" in (await failure(clients.main)).message
    assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer t"}
