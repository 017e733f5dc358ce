"""The configuration of image credential providers: files, folders, programs, and what is wrong."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.config.credential_providers import (
    CredentialProviders,
    load_credential_providers,
)
from trio_kubelet.config.settings import ConfigurationError, load

V1, V1BETA1 = "kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1"
PROVIDER = {
    "name": "ecr",
    "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "matchImages": ["*.dkr.ecr.*.amazonaws.com"],
    "defaultCacheDuration": "12h",
}
TOKENS = {
    "serviceAccountTokenAudience": "sts",
    "cacheType": "Token",
    "requireServiceAccount": True,
    "requiredServiceAccountAnnotationKeys": ["a.test/role"],
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ecr", "gcr"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def write(path: Path, *providers: dict[str, Any], version: str = V1) -> Path:
    document = {"kind": "CredentialProviderConfig", "apiVersion": version, "providers": providers}
    path.write_text(json.dumps(document))
    return path


def problems(config: Path | str, programs: Path | str, *, takes_tokens: bool = True) -> list[str]:
    _, found = load_credential_providers(str(config), str(programs), takes_tokens=takes_tokens)
    return list(found)


def test_without_the_flags_there_are_no_providers() -> None:
    found = load_credential_providers("", "", takes_tokens=True)
    assert found == (CredentialProviders(), ())


@pytest.mark.parametrize("version", [V1, V1BETA1, "kubelet.config.k8s.io/v1alpha1"])
def test_a_file_has_providers(tmp_path: Path, programs: Path, version: str) -> None:
    path = write(tmp_path / "config.json", PROVIDER, version=version)
    found, wrong = load_credential_providers(str(path), str(programs), takes_tokens=True)
    assert wrong == ()
    assert [each.name for each in found.providers] == ["ecr"]
    data = path.read_bytes()
    expected = hashlib.sha256(len(data).to_bytes(8, "big") + data).hexdigest()
    assert found.hash == f"sha256:{expected}"


def test_the_files_of_a_folder_are_read_in_the_order_of_their_names(
    tmp_path: Path, programs: Path
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    write(folder / "2.yml", PROVIDER)
    write(folder / "1.json", {**PROVIDER, "name": "gcr"})
    (folder / "0.conf").write_text("not ours")
    (folder / "3.yaml").mkdir()
    found, wrong = load_credential_providers(str(folder), str(programs), takes_tokens=True)
    assert wrong == ()
    assert [each.name for each in found.providers] == ["gcr", "ecr"]


PATTERNS = {
    **dict.fromkeys(("foo.io", "*.foo.io", "*.*.io/x*", "foo.io:5000", "foo.io:", "é.io"), True),
    **dict.fromkeys(("foo.io/a b", "http://foo.io", "foo.io/%41", "[::1]:5000", "a@foo.io"), True),
    **dict.fromkeys(("*.foo.io:*", "foo.io:80a", "foo.io:80:90", "foo bar", "a\\b", "{x}"), False),
    **dict.fromkeys(("foo^.io", "a|b", "a`b", "foo[ab].io", "[a-z].io", "%41.io"), False),
    **dict.fromkeys(("foo.io/%zz", "foo.io/\x01", "foo.io\x7f", "", "/x", ":80"), False),
}
"""Patterns, and whether Go's net/url reads them, behind a scheme, as a URL with a host."""


@pytest.mark.parametrize(("pattern", "is_url"), PATTERNS.items())
def test_a_pattern_for_images_is_a_url_without_its_scheme(
    tmp_path: Path, programs: Path, pattern: str, *, is_url: bool
) -> None:
    path = write(tmp_path / "config.json", {**PROVIDER, "matchImages": ["good.io", pattern]})
    wrong = [] if is_url else ["match image is invalid"]
    assert [each.rpartition(": ")[2] for each in problems(path, programs)] == wrong


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a/b"}, "provider name cannot contain '/'"),
        ({"name": "a b"}, "provider name cannot contain spaces"),
        ({"name": "."}, "provider name cannot be '.'"),
        ({"name": ".."}, "provider name cannot be '..'"),
        ({"name": ""}, "provider name cannot be empty"),
        ({"apiVersion": ""}, "providers[0].apiVersion: Required value"),
        ({"apiVersion": "v2"}, 'providers[0].apiVersion: Unsupported value: "v2"'),
        ({"matchImages": []}, "at least 1 item in matchImages is required"),
        ({"matchImages": ["[x"]}, "match image is invalid"),
        ({"defaultCacheDuration": None}, "providers[0].defaultCacheDuration: Required value"),
        ({"defaultCacheDuration": "-1s"}, "must be greater than or equal to 0"),
        ({"defaultCacheDuration": 5}, "must be a duration"),
        ({"unknown": 1}, 'unknown field "providers[0].unknown"'),
        ({"tokenAttributes": {}}, "serviceAccountTokenAudience: Required value"),
        ({"tokenAttributes": {**TOKENS, "cacheType": ""}}, "cacheType is required to be set"),
        ({"tokenAttributes": {**TOKENS, "cacheType": "Pod"}}, 'Unsupported value: "Pod"'),
        (
            {"tokenAttributes": {**TOKENS, "requireServiceAccount": False}},
            "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys",
        ),
        (
            {
                "tokenAttributes": {
                    **TOKENS,
                    "optionalServiceAccountAnnotationKeys": ["a.test/role"],
                }
            },
            "annotation keys cannot be both required and optional",
        ),
        (
            {"tokenAttributes": {**TOKENS, "optionalServiceAccountAnnotationKeys": ["b", "b"]}},
            'optionalServiceAccountAnnotationKeys: Duplicate value: "b"',
        ),
        (
            {"tokenAttributes": {**TOKENS, "optionalServiceAccountAnnotationKeys": ["-"]}},
            'optionalServiceAccountAnnotationKeys: Invalid value: "-"',
        ),
        (
            {
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1",
                "tokenAttributes": TOKENS,
            },
            "tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1",
        ),
        ({"name": "missing"}, "did not exist"),
        ({"name": "a" * 256}, "aaa: File name too long"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, programs: Path, changes: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "config.json", {**PROVIDER, **changes})
    assert words in "\n".join(problems(path, programs))


def test_a_file_has_one_document(tmp_path: Path, programs: Path) -> None:
    path = write(tmp_path / "config.yaml", PROVIDER)
    path.write_text(f"---\n{path.read_text()}\n---\n{path.read_text()}")
    assert "must have one document" in "\n".join(problems(path, programs))


def test_tokens_need_version_1_and_the_gate(tmp_path: Path, programs: Path) -> None:
    with_tokens = {**PROVIDER, "tokenAttributes": TOKENS}
    path = write(tmp_path / "config.json", with_tokens)
    assert problems(path, programs) == []
    [refused] = problems(path, programs, takes_tokens=False)
    assert "tokenAttributes is not supported when" in refused
    write(path, with_tokens, version=V1BETA1)
    [unknown] = problems(path, programs)
    assert 'unknown field "providers[0].tokenAttributes"' in unknown


def test_a_name_is_for_one_provider(tmp_path: Path, programs: Path) -> None:
    path = write(tmp_path / "config.json", PROVIDER, PROVIDER)
    assert problems(path, programs) == ['providers[1].name: Duplicate value: "ecr"']


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be CredentialProviderConfig"),
        ("kind: Pod", "must be CredentialProviderConfig"),
        ("{", "error decoding config"),
        (f"apiVersion: {V1}\nkind: CredentialProviderConfig\n", "at least 1 item in plugins"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, programs: Path, text: str, words: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert words in "\n".join(problems(path, programs))


def test_files_and_folders_that_are_not_there_are_refused(tmp_path: Path, programs: Path) -> None:
    path = write(tmp_path / "config.json", PROVIDER)
    assert problems(path, "") == ["plugin binary directory  did not exist"]
    assert problems("", programs) == ["credential provider config path is empty"]
    assert "unable to read file" in problems(tmp_path / "none", programs)[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no configuration files found" in problems(empty, programs)[0]
    (programs / "ecr").chmod(0o644)
    assert "permission denied" in problems(path, programs)[0]


def test_an_agent_does_not_start_with_providers_that_are_wrong(
    tmp_path: Path, programs: Path
) -> None:
    path = write(tmp_path / "config.json", {**PROVIDER, "matchImages": []})
    flags = ["--image-credential-provider-bin-dir", str(programs)]
    with pytest.raises(ConfigurationError, match="at least 1 item in matchImages"):
        load([*flags, "--image-credential-provider-config", str(path)])
    write(path, PROVIDER)
    settings = load([*flags, f"--image-credential-provider-config={path}"])
    assert [each.name for each in settings.credential_providers.providers] == ["ecr"]
    assert not any("credential" in warning for warning in settings.warnings)
