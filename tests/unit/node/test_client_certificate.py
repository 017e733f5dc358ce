"""The node's key, its request, and the files they are kept in."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.unit.node.authority import NOW, ODD_CERTIFICATES, YEAR, Authority, edited
from trio_kubelet.node.certificates import (
    CertificateNames,
    CertificateStore,
    is_certificate_of,
    is_request_of,
    key_pem,
    key_usages,
    new_key,
    read_key,
    read_pair,
    request_name,
    signing_request,
    write_private,
)

AUTHORITY = Authority()
KEY = new_key()
NODE = CertificateNames("node-1")
# The name is what Go makes of the key and the node "node-1" by the Go kubelet's rules.
KNOWN_KEY = b"""-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIAlHd6DMbmm8kKXCUNBoCt+UygdYHnmw7+ArF28BG9rAoAoGCCqGSM49
AwEHoUQDQgAEdpEMAQVaf8U1KTU/fbC+W4dmA7Ib2Lhzo5KnYrrbVsDuN76vJGai
iBDnBaZhSktSuHf2s4FwFQurvIUv4ZQ4ZQ==
-----END EC PRIVATE KEY-----
"""
KNOWN_NAME = "node-csr-5UkYuH-8bYHyNhm64K6iVxDYXP6Esen0atHnsuU8d3o"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_request_is_for_the_user_of_the_node_in_the_group_of_nodes() -> None:
    request = x509.load_pem_x509_csr(signing_request(KEY, NODE))
    assert request.subject.rfc4514_string() == "CN=system:node:node-1,O=system:nodes"
    assert request.is_signature_valid


def test_the_name_of_a_request_is_the_one_that_the_go_kubelet_would_give_it() -> None:
    key = read_key(KNOWN_KEY)
    assert request_name(key, "node-1", key_usages(key)) == KNOWN_NAME


def test_the_name_of_a_request_depends_on_key_node_and_usages_only() -> None:
    usages = key_usages(KEY)
    name = request_name(KEY, "node-1", usages)
    assert name == request_name(KEY, "node-1", usages)
    others = {
        request_name(new_key(), "node-1", usages),
        request_name(KEY, "node-2", usages),
        request_name(KEY, "node-1", usages[:1]),
    }
    assert len(others - {name}) == 3


def test_an_elliptic_key_enciphers_no_keys() -> None:
    assert isinstance(KEY, ec.EllipticCurvePrivateKey)
    assert key_usages(KEY) == ("digital signature", "client auth")
    old = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert key_usages(old) == ("digital signature", "client auth", "key encipherment")


def test_a_request_is_known_by_key_and_node_though_each_is_signed_anew() -> None:
    request = signing_request(KEY, NODE)
    assert request != signing_request(KEY, NODE)
    assert is_request_of(request, KEY, "node-1")
    assert not is_request_of(request, KEY, "node-2")
    assert not is_request_of(request, new_key(), "node-1")
    assert not is_request_of(b"nonsense", KEY, "node-1")


def test_a_certificate_is_good_for_its_key_until_it_expires() -> None:
    chain = AUTHORITY.sign(signing_request(KEY, NODE))
    assert is_certificate_of(chain, KEY, NOW)
    assert not is_certificate_of(chain, KEY, NOW + 2 * YEAR)
    assert not is_certificate_of(chain, new_key(), NOW)
    assert not is_certificate_of(b"nonsense", KEY, NOW)


def test_a_pair_is_kept_under_its_time_and_found_by_the_link(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path / "pki")
    store.write(AUTHORITY.sign(signing_request(KEY, NODE)), KEY, NOW)
    file = tmp_path / "pki" / "kubelet-client-2026-03-01-12-00-00.pem"
    assert store.current_path == tmp_path / "pki" / "kubelet-client-current.pem"
    assert store.current_path.is_symlink()
    assert store.current_path.resolve() == file.resolve()
    assert mode(file) == 0o600
    pair = read_pair(file.read_bytes())
    assert key_pem(pair.key) == key_pem(KEY)


def test_a_renewed_pair_replaces_the_link_and_leaves_the_old_file(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path)
    second = new_key()
    for number, key in enumerate((KEY, second)):
        chain = AUTHORITY.sign(signing_request(key, NODE))
        store.write(chain, key, NOW + timedelta(days=number))
    current = store.current()
    assert current is not None
    assert key_pem(current.key) == key_pem(second)
    assert names(tmp_path) == [
        "kubelet-client-2026-03-01-12-00-00.pem",
        "kubelet-client-2026-03-02-12-00-00.pem",
        "kubelet-client-current.pem",
    ]


@pytest.mark.filterwarnings("ignore:Attribute's length must be")
def test_a_node_may_have_the_longest_name_that_an_object_has(tmp_path: Path) -> None:
    longest = CertificateNames("n" * 253)
    request = signing_request(KEY, longest)
    assert is_request_of(request, KEY, longest.node_name)
    pair = CertificateStore(tmp_path).write(AUTHORITY.sign(request), KEY, NOW)
    assert longest.are_in(pair.chain[0])


@pytest.mark.parametrize("odd", ODD_CERTIFICATES)
def test_a_certificate_that_cannot_be_read_in_full_is_not_taken(tmp_path: Path, odd: str) -> None:
    store = CertificateStore(tmp_path)
    chain = AUTHORITY.sign(signing_request(KEY, CertificateNames("node-1", ("node-1",))))
    damaged = edited(chain, *ODD_CERTIFICATES[odd])
    with pytest.raises(ValueError):  # noqa: PT011 - OpenSSL's words differ
        store.write(damaged, KEY, NOW)
    assert not is_certificate_of(damaged, KEY, NOW)
    store.current_path.write_bytes(damaged + key_pem(KEY))
    assert store.current() is None


def test_a_certificate_for_another_key_is_not_taken(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path)
    with pytest.raises(ValueError, match="for another key"):
        store.write(AUTHORITY.sign(signing_request(new_key(), NODE)), KEY, NOW)
    assert store.current() is None


def test_a_file_in_the_place_of_the_link_is_not_overwritten(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path)
    store.current_path.write_text("precious")
    with pytest.raises(FileExistsError, match="symbolic link"):
        store.write(AUTHORITY.sign(signing_request(KEY, NODE)), KEY, NOW)
    assert store.current_path.read_text() == "precious"


def test_the_key_of_an_unanswered_request_is_used_again(tmp_path: Path) -> None:
    first = CertificateStore(tmp_path).key_to_ask_with()
    again = CertificateStore(tmp_path).key_to_ask_with()
    assert key_pem(again) == key_pem(first)
    assert mode(tmp_path / "kubelet-client.key.tmp") == 0o600


def test_the_key_of_the_request_goes_when_there_is_a_certificate(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path)
    key = store.key_to_ask_with()
    store.write(AUTHORITY.sign(signing_request(key, NODE)), key, NOW)
    assert not (tmp_path / "kubelet-client.key.tmp").exists()
    assert key_pem(store.key_to_ask_with()) == key_pem(key)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN EC PRIVATE KEY-----\nAAAA"])
def test_a_key_that_cannot_be_read_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kubelet-client.key.tmp").write_bytes(content)
    key = CertificateStore(tmp_path).key_to_ask_with()
    assert (tmp_path / "kubelet-client.key.tmp").read_bytes() == key_pem(key)


def test_a_file_is_written_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_private(path, b"one")
    path.chmod(0o644)
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert mode(path) == 0o600
    assert names(path.parent) == ["file"]
