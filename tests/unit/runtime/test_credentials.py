"""Credentials: what the files say, and which image they are for."""

import base64
import json
import threading
from pathlib import Path

import pytest
import structlog
import trio
from attrs import evolve

from tests.turns import making_test_data
from trio_kubelet.k8s import LocalObjectReference, ObjectMeta, Pod, PodSpec, Secret
from trio_kubelet.references import PullSecrets
from trio_kubelet.references.object_references import pull_secrets as pull_secrets_of
from trio_kubelet.runtime.images import credentials
from trio_kubelet.runtime.images.credentials import (
    MAX_LOGINS,
    Keyring,
    PodKeyrings,
    RegistryCredentials,
    credential_files,
    joined,
    matches,
    parse_keyring,
    read_keyring,
    secret_keyring,
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("key", "repository", "expected"),
    [
        ("registry.test", "registry.test/a", True),
        ("registry.test:5000", "registry.test/a", False),
        ("registry.test:5000", "registry.test:5000/a", True),
        ("https://registry.test/v2/", "registry.test/a", True),
        ("registry.test/team", "registry.test/team/a", True),
        ("registry.test/team", "registry.test/teams/a", True),
        ("registry.test/team/", "registry.test/teams/a", False),
        ("https://registry.test/v2/team", "registry.test/team/a", True),
        ("registry.test/v2team", "registry.test/v2team/a", True),
        ("registry.test/v2team", "registry.test/team/a", False),
        ("registry.test/v1beta", "registry.test/beta/a", False),
        ("registry.test/v1/v2/team", "registry.test/team/a", False),
        ("registry.test/v2", "registry.test/a", False),
        ("*.example.com", "eu.example.com/a", True),
        ("*.example.com", "a.eu.example.com/a", False),
        ("https://index.docker.io/v1/", "docker.io/library/busybox", True),
        ("docker.io", "docker.io/library/busybox", True),
        ("docker.io", "quay.io/library/busybox", False),
        ("eu-[1-3].*.example.com", "eu-2.shop.example.com/a", True),
        ("eu-[1-3].*.example.com", "eu-4.shop.example.com/a", False),
        ("*.example.com:5000", "eu.example.com:5000/a", True),
        ("*.example.com", "eu.example.com:5000/a", False),
        ("*", f"{'a' * 63}/a", True),
        ("*", f"{'a' * 64}/a", False),
    ],
)
def test_which_images_an_entry_is_for(key: str, repository: str, expected: bool) -> None:
    assert matches(key, repository) == expected


def test_the_most_exact_entry_comes_first() -> None:
    broad, exact = RegistryCredentials(username="broad"), RegistryCredentials(username="exact")
    keyring = Keyring({"registry.test": broad, "registry.test/team": exact})
    assert keyring.lookup("registry.test/team/a:1") == (exact, broad)
    assert keyring.lookup("registry.test/other/a:1") == (broad,)
    assert keyring.lookup("Not An Image") == ()


@pytest.mark.parametrize("wrap", [True, False])
def test_both_formats_are_read(wrap: bool) -> None:
    auths = {"registry.test": {"auth": encoded("me:a:b")}, "empty.test": {}}
    keyring = parse_keyring(json.dumps({"auths": auths} if wrap else auths))
    assert keyring.entries == (
        ("registry.test", RegistryCredentials(username="me", password="a:b")),
    )


@pytest.mark.parametrize(
    ("key", "is_kept"),
    [
        ("*" * 63, True),
        ("*" * 64, False),
        (".".join(["*" * 63] * 4), True),
        (".".join(["*" * 63] * 4) + ".*", False),
        ("registry.test:5000/" + "a" * 4077, True),
        ("registry.test:5000/" + "a" * 4078, False),
        ("https://[", False),
    ],
)
def test_registries_that_no_image_can_have_are_left_out(key: str, is_kept: bool) -> None:
    """One comparison of a pattern with a name, each as long as an object, held all threads."""
    entries = parse_keyring(json.dumps({key: {"username": "me"}})).entries
    assert [key for key, _ in entries] == [key] * is_kept


def test_an_endless_name_of_an_image_has_no_credentials() -> None:
    keyring = Keyring({"registry.test": RegistryCredentials(username="me")})
    assert keyring.lookup("registry.test/" + "a" * 4082)
    assert not keyring.lookup("registry.test/" + "a" * 4083)


def test_secrets_are_not_in_what_is_printed() -> None:
    assert "secret" not in repr(RegistryCredentials(username="me", password="secret"))


def test_the_first_file_counts_and_a_bad_one_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = credential_files(str(tmp_path / "root"), str(tmp_path / "home"))
    assert read_keyring(files).entries == ()
    (tmp_path / "root").mkdir()
    files[0].write_text('{"auths": {"registry.test": {"auth": "c2VjcmV0"}}}')
    assert read_keyring(files).entries == ()
    assert "secret" not in capsys.readouterr().out
    files[0].write_text(json.dumps({"auths": {"registry.test": {"auth": encoded("me:x")}}}))
    assert [key for key, _ in read_keyring(files).entries] == ["registry.test"]


def pull_secret(name: str, auths: object, *, old: bool = False) -> Secret:
    kind, key = ("dockercfg", ".dockercfg") if old else ("dockerconfigjson", ".dockerconfigjson")
    document = auths if old else {"auths": auths}
    return Secret(
        metadata=ObjectMeta(name=name, namespace="shop"),
        type=f"kubernetes.io/{kind}",
        data={key: json.dumps(document).encode()},
    )


def login(user: str) -> dict[str, str]:
    return {"auth": encoded(f"{user}:secret")}


@pytest.mark.parametrize("old", [True, False])
def test_pull_secrets_of_both_types_are_understood(old: bool) -> None:
    keyring = joined(
        map(secret_keyring, [pull_secret("s", {"registry.test": login("me")}, old=old)])
    )
    (found,) = keyring.lookup("registry.test/a:1")
    assert (found.username, found.password) == ("me", "secret")


def test_several_secrets_may_be_for_one_registry_and_the_most_exact_is_first() -> None:
    keyring = joined(
        map(
            secret_keyring,
            [
                pull_secret("one", {"registry.test": login("first")}),
                pull_secret("two", {"registry.test/team": login("exact")}, old=True),
                pull_secret("three", {"registry.test": login("second")}),
                pull_secret("again", {"https://registry.test/v2/": login("second")}),
            ],
        )
    )
    users = [each.username for each in keyring.lookup("registry.test/team/a")]
    assert users == ["exact", "first", "second", "second"]


def test_a_secret_that_is_no_pull_secret_is_left_out_and_not_quoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = ".dockerconfigjson"
    broken = Secret(
        metadata=ObjectMeta(name="broken", namespace="shop"),
        type="kubernetes.io/dockerconfigjson",
        data={key: b'{"auths": hunter2'},
    )
    opaque = Secret(type="Opaque", data={key: b"{}"})
    good = pull_secret("good", {"registry.test": login("me")})
    assert len(joined(map(secret_keyring, [broken, opaque, good])).entries) == 1
    said = capsys.readouterr().out
    assert "shop/broken" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "\udcff", "7"])
def test_what_is_no_keyring_is_an_error_of_one_kind(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keyring(text)


@pytest.mark.parametrize(
    "auths",
    [
        {"http://[": {"username": "u", "password": "p"}},
        {"registry.test": {"username": "\ud800", "password": "p"}},
        {"registry.test": {"username": "u", "password": "\udcff"}},
        {"registry.test": {"identitytoken": "\ud800"}},
        {"registry.test": {"username": "u", "password": "p", "email": "\ud800"}},
        {"registry.test": {"username": None, "password": None, "identitytoken": None}},
    ],
)
def test_an_entry_that_cannot_be_used_is_left_out(auths: object) -> None:
    keyring = parse_keyring(json.dumps({"auths": auths}))
    assert keyring.lookup("registry.test/a") == ()


def test_null_in_an_entry_is_as_good_as_absent() -> None:
    entry = {"username": "u", "password": "p", "auth": None, "identitytoken": None, "email": None}
    keyring = parse_keyring(json.dumps({"auths": {"registry.test": entry}}))
    assert keyring.lookup("registry.test/a") == (RegistryCredentials(username="u", password="p"),)


@pytest.mark.parametrize("auth", ["\u0663", "x", "9" * 7])
def test_credentials_that_are_no_base64_are_an_error_of_one_kind(auth: str) -> None:
    with pytest.raises(ValueError, match=r"registry\.test"):
        parse_keyring(json.dumps({"auths": {"registry.test": {"auth": auth}}}))


def test_a_file_of_any_bytes_is_no_keyring(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\0{")
    assert read_keyring([file]) == Keyring()


def large_secret(name: str, *, logins: int, version: str = "1") -> Secret:
    auths = {f"*.r{n}.test/team": login("me") for n in range(logins)}
    return evolve(
        pull_secret(name, auths),
        metadata=ObjectMeta(namespace="ns", name=name, uid=name, resource_version=version),
    )


class TestPodKeyrings:
    """Secrets of pods are anybody's: what is read of them is bounded, and read once."""

    async def test_each_version_of_a_secret_is_read_once_for_all_pods_and_containers(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[tuple[str, str]] = []

        def reading(secret: Secret) -> Keyring:
            assert threading.current_thread() is not threading.main_thread()
            read.append((secret.metadata.name, secret.metadata.resource_version))
            return secret_keyring(secret)

        monkeypatch.setattr(credentials, "secret_keyring", reading)
        secrets = [large_secret("a", logins=3), large_secret("b", logins=2)]

        async def pull_secrets(_pod: Pod) -> PullSecrets:
            await trio.lowlevel.checkpoint()
            return PullSecrets(secrets=tuple(secrets))

        keyrings = PodKeyrings(pull_secrets)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(keyrings.keyring, Pod())
        assert len((await keyrings.keyring(Pod())).entries) == 5
        assert sorted(read) == [("a", "1"), ("b", "1")]
        secrets[0] = large_secret("a", logins=1, version="2")
        assert len((await keyrings.keyring(Pod())).entries) == 3
        assert read[2:] == [("a", "2")]

    async def test_a_large_secret_holds_nobody(self) -> None:
        with making_test_data():
            secret = large_secret("large", logins=12_000)
            assert sum(map(len, secret.data.values())) > 500_000

        async def pull_secrets(_pod: Pod) -> PullSecrets:
            await trio.lowlevel.checkpoint()
            return PullSecrets(secrets=(secret,) * 20)

        with structlog.testing.capture_logs() as lines:
            assert (await PodKeyrings(pull_secrets).keyring(Pod())).entries == ()
        assert [(line["event"], line["limit"]) for line in lines] == [
            ("pull secret has too many logins, ignoring it", MAX_LOGINS)
        ]

    async def test_a_pod_has_so_many_logins_of_its_first_secrets(self) -> None:
        secrets = tuple(large_secret(f"s{n}", logins=MAX_LOGINS) for n in range(3))

        async def pull_secrets(_pod: Pod) -> PullSecrets:
            await trio.lowlevel.checkpoint()
            return PullSecrets(secrets=secrets)

        entries = (await PodKeyrings(pull_secrets).keyring(Pod())).entries
        assert entries == secret_keyring(secrets[0]).entries


def test_a_pull_secret_that_is_named_twice_is_one() -> None:
    named = tuple(LocalObjectReference(name=name) for name in ("b", "a", "b", ""))
    pod = Pod(spec=PodSpec(image_pull_secrets=named))
    assert pull_secrets_of(pod) == ("b", "a")
