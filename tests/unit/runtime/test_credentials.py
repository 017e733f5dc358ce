"""Credentials: what the files say, and which image they are for."""

import base64
import json
from pathlib import Path

import pytest

from trio_kubelet.k8s import ObjectMeta, Secret
from trio_kubelet.runtime.images.credentials import (
    Keyring,
    RegistryCredentials,
    credential_files,
    keyring_of,
    matches,
    parse_keyring,
    read_keyring,
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
        ("registry.test/team", "registry.test/teams/a", False),
        ("*.example.com", "eu.example.com/a", True),
        ("*.example.com", "a.eu.example.com/a", False),
        ("https://index.docker.io/v1/", "docker.io/library/busybox", True),
        ("docker.io", "docker.io/library/busybox", True),
        ("docker.io", "quay.io/library/busybox", False),
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
    keyring = keyring_of([pull_secret("s", {"registry.test": login("me")}, old=old)])
    (found,) = keyring.lookup("registry.test/a:1")
    assert (found.username, found.password) == ("me", "secret")


def test_several_secrets_may_be_for_one_registry_and_the_most_exact_is_first() -> None:
    keyring = keyring_of(
        [
            pull_secret("one", {"registry.test": login("first")}),
            pull_secret("two", {"registry.test/team": login("exact")}, old=True),
            pull_secret("three", {"registry.test": login("second")}),
            pull_secret("again", {"https://registry.test/v2/": login("second")}),
        ]
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
    assert len(keyring_of([broken, opaque, good]).entries) == 1
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
