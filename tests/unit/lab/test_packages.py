import dataclasses
from pathlib import Path

import pytest

from lab import LabError
from lab.packages import (
    AptSource,
    Distribution,
    parse_deb822,
    parse_one_line,
    source_of_other_suite,
    sources_of_own_suite,
    system_sources,
)

DEB822 = """\
Types: deb deb-src
# a comment between fields
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://off.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # the rest is a comment
deb [arch=amd64 signed-by=/etc/apt/keyrings/x.gpg] http://other.example/x bookworm main
deb-src http://mirror.example/debian bookworm main
deb http://flat.example/x ./
"""


def test_deb822_entries_keep_mirror_suites_and_keys() -> None:
    main, security = parse_deb822(DEB822)
    assert main == AptSource(
        uris=("http://mirror.example/debian",),
        suites=("bookworm", "bookworm-updates", "bookworm-backports"),
        components=("main",),
        signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
    )
    assert security.suites == ("bookworm-security",)
    assert "BEGIN PGP" in security.signed_by


def test_one_line_entries_keep_options_and_leave_comments_out() -> None:
    main, other, flat = parse_one_line(ONE_LINE)
    assert main == AptSource(("http://mirror.example/debian",), ("bookworm",), ("main", "contrib"))
    assert other.signed_by == "/etc/apt/keyrings/x.gpg"
    assert flat.components == ()


def test_a_written_stanza_is_read_back_with_its_embedded_key() -> None:
    sources = tuple(parse_deb822(DEB822))
    assert [tuple(parse_deb822(source.stanza())) for source in sources] == [(s,) for s in sources]
    assert any(source.signed_by for source in sources)


def test_system_sources_come_from_both_kinds_of_file(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert len(system_sources(tmp_path)) == 5


def test_own_suite_means_release_updates_and_security_but_no_backports() -> None:
    suites = [source.suites for source in sources_of_own_suite(parse_deb822(DEB822), "bookworm")]
    assert suites == [("bookworm", "bookworm-updates"), ("bookworm-security",)]


def test_another_suite_comes_from_the_main_mirror_with_the_given_keys() -> None:
    found = source_of_other_suite(parse_deb822(DEB822), "bookworm", "forky", Path("/keys.gpg"))
    assert found.uris == ("http://mirror.example/debian",)
    assert found.suites == ("forky",)
    assert found.signed_by == "/keys.gpg"


def test_a_system_without_a_mirror_for_its_release_is_an_error() -> None:
    with pytest.raises(LabError, match="no mirror for trixie"):
        source_of_other_suite(parse_deb822(DEB822), "trixie", "forky", Path("/keys.gpg"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('ID=debian\nVERSION_CODENAME=bookworm\nNAME="Debian"\n', ("debian", "bookworm")),
        ('ID="ubuntu"\nVERSION_CODENAME="noble"\n', ("ubuntu", "noble")),
        ("PRETTY_NAME=Something\n", ("", "")),
    ],
)
def test_os_release_names_the_distribution(text: str, expected: tuple[str, str]) -> None:
    assert dataclasses.astuple(Distribution.parse(text)) == expected
