"""What the cache of packages asks apt for, with an apt that is told what to answer."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import LabError, packages
from lab.packages import ASK_AGAIN_SECONDS, Distribution, Packages


class Apt:
    """Answers as apt and dpkg do: `stale` lists lead to a version that the mirror has dropped."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.works = True
        self.stale = False
        self.version = "1.6.20-1"

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: object = None,
        cwd: Path | None = None,
        deadline_seconds: float = 60,
    ) -> str:
        words = [str(word) for word in argv if not str(word).startswith("--")]
        self.calls.append(" ".join(words[:2]))
        if words[0] == "dpkg":
            Path(words[3]).mkdir()
            return ""
        if not self.works:
            raise LabError("apt-get: no network")
        if words[1] == "update":
            self.stale = False
        if words[1] == "download":
            if self.stale:
                raise LabError("apt-get: 404 Not Found")
            assert cwd is not None
            (cwd / f"{words[2]}_{self.version}_amd64.deb").touch()
        return f"containerd | {self.version} | mirror" if words[1] == "madison" else ""


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> Apt:
    apt = Apt()
    source = packages.AptSource(("http://mirror.example/debian",), ("bookworm",), ("main",))
    monkeypatch.setattr(packages, "run", apt.run)
    monkeypatch.setattr(packages, "system_sources", lambda: (source,))
    monkeypatch.setattr(
        Distribution, "of_this_system", classmethod(lambda _: Distribution("debian", "bookworm"))
    )
    return apt


@pytest.fixture
def cache(apt: Apt, tmp_path: Path) -> Packages:
    return Packages(tmp_path / "cache")


def let_a_week_pass(cache: Packages) -> None:
    for file in cache.cache.rglob("*"):
        past = file.stat().st_mtime - ASK_AGAIN_SECONDS - 1
        os.utime(file, (past, past))


def test_a_package_is_fetched_once_a_week(apt: Apt, cache: Packages) -> None:
    first = cache.unpacked("containerd")
    assert first.name == "containerd_1.6.20-1_amd64"
    assert apt.calls == ["apt-get update", "apt-get download", "dpkg -x"]
    assert cache.unpacked("containerd") == first
    assert len(apt.calls) == 3
    let_a_week_pass(cache)
    apt.version = "1.6.21-1"
    assert cache.unpacked("containerd").name == "containerd_1.6.21-1_amd64"


def test_what_is_unpacked_serves_on_when_apt_fails(apt: Apt, cache: Packages) -> None:
    first = cache.unpacked("containerd")
    let_a_week_pass(cache)
    apt.works = False
    assert cache.unpacked("containerd") == first


def test_without_anything_unpacked_a_failure_of_apt_is_told(apt: Apt, cache: Packages) -> None:
    apt.works = False
    with pytest.raises(LabError, match="no network"):
        cache.unpacked("containerd")


def test_lists_are_asked_for_anew_when_the_mirror_dropped_the_version(
    apt: Apt, cache: Packages
) -> None:
    cache.version("containerd")
    apt.stale = True
    apt.calls.clear()
    cache.unpacked("containerd")
    assert apt.calls == ["apt-get download", "apt-get update", "apt-get download", "dpkg -x"]


def test_another_suite_is_verified_with_the_keys_of_the_own_one(apt: Apt, cache: Packages) -> None:
    cache.unpacked("containerd", "forky")
    sources = (cache.cache / "apt" / "forky" / "suite.sources").read_text()
    assert "Suites: forky" in sources
    keyring = "unpacked/debian-archive-keyring_1.6.20-1_amd64/usr/share/keyrings"
    assert f"Signed-By: {cache.cache}/{keyring}" in sources


def test_the_version_is_remembered_too(apt: Apt, cache: Packages) -> None:
    assert cache.version("containerd") == "1.6.20-1"
    apt.works = False
    assert cache.version("containerd") == "1.6.20-1"
