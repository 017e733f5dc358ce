"""Debian packages, unpacked into a cache folder instead of installed.

apt itself fetches and verifies them, from an apt root of our own for each suite (sources, lists,
state), so that neither the system's package lists nor its installed packages change and no
maintainer script runs. The mirror is the one in the system's apt sources. Suites newer or older
than the system's are taken from that mirror too, with the archive keys of the system's suite.
What was unpacked stays in the cache by name and version; apt is asked again after a week.
"""

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from lab import LabError, UnavailableError
from lab.locks import locked
from lab.processes import run

ASK_AGAIN_SECONDS = 7 * 24 * 3600
APT_DEADLINE_SECONDS = 600

KEYRINGS = {
    "debian": ("debian-archive-keyring", "usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": ("ubuntu-keyring", "usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}

# System-wide hooks of `apt-get update` (desktop catalogues and the like) are not for our lists.
APT_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "{root}/suite.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{root}/state";
Dir::State::lists "{root}/lists";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
APT::Sandbox::User "root";
APT::Default-Release "";
Acquire::Languages "none";
Acquire::Retries "3";
"""


def default_cache() -> Path:
    """Where unpacked packages are kept for this user."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"], "trio-kubelet-lab")
    if os.geteuid() == 0:
        return Path("/var/cache/trio-kubelet-lab")
    return Path.home() / ".cache" / "trio-kubelet-lab"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Which system this is, as /etc/os-release says: `debian` `bookworm`."""

    id: str
    codename: str

    @classmethod
    def of_this_system(cls) -> "Distribution":
        try:
            return cls.parse(Path("/etc/os-release").read_text())
        except OSError as error:
            raise LabError(f"cannot tell which system this is: {error}") from error

    @classmethod
    def parse(cls, text: str) -> "Distribution":
        pairs = (line.partition("=") for line in text.splitlines())
        fields = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
        return cls(id=fields.get("ID", ""), codename=fields.get("VERSION_CODENAME", ""))


@dataclass(frozen=True, slots=True)
class AptSource:
    """One entry of apt's sources: binary packages of some suites at one or more mirrors."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""

    def stanza(self) -> str:
        """Return the entry in apt's deb822 form, for package lists alone."""
        signed_by = f"Signed-By: {self.signed_by}\n" if self.signed_by else ""
        return (
            "Types: deb\n"
            f"URIs: {' '.join(self.uris)}\n"
            f"Suites: {' '.join(self.suites)}\n"
            f"Components: {' '.join(self.components)}\n"
            f"{signed_by}"
            "Targets: Packages\n"
        )

    def lines(self) -> tuple[str, ...]:
        """Return the entry in apt's older form, a line for each suite at each mirror."""
        signed_by = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return tuple(
            f"deb {signed_by}{uri} {suite} {' '.join(self.components)}"
            for uri in self.uris
            for suite in self.suites
        )


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Find the enabled binary entries of a `.sources` file."""
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and name:
                fields[name] += "\n" + line
                continue
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        yield AptSource(
            uris=tuple(fields.get("uris", "").split()),
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            signed_by=fields.get("signed-by", ""),
        )


def parse_one_line(text: str) -> Iterator[AptSource]:
    """Find the binary entries of a `.list` file: `deb [options] uri suite component...`."""
    for line in text.splitlines():
        found = re.match(r"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s#]+)*)", line.strip())
        if found is None:
            continue
        options = dict(
            option.partition("=")[::2] for option in (found[1] or "").split() if "=" in option
        )
        yield AptSource(
            uris=(found[2],),
            suites=(found[3],),
            components=tuple(found[4].split()),
            signed_by=options.get("signed-by", ""),
        )


def system_sources(folder: Path = Path("/etc/apt")) -> tuple[AptSource, ...]:
    """All entries of the system's apt sources."""
    found: list[AptSource] = []
    for file in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))):
        if not file.is_file():
            continue
        parse = parse_deb822 if file.suffix == ".sources" else parse_one_line
        found.extend(parse(file.read_text(errors="replace")))
    return tuple(found)


def sources_of_own_suite(sources: Iterable[AptSource], codename: str) -> tuple[AptSource, ...]:
    """Keep the entries of the system's own suite, its updates and its security fixes."""
    wanted = {codename, f"{codename}-updates", f"{codename}-security"}
    kept = (
        replace(source, suites=tuple(suite for suite in source.suites if suite in wanted))
        for source in sources
        if source.components
    )
    return tuple(source for source in kept if source.suites)


def source_of_other_suite(
    sources: Iterable[AptSource], codename: str, suite: str, keyring: Path
) -> AptSource:
    """Another suite of the distribution at the mirror that serves the system's own."""
    for source in sources:
        if codename in source.suites and source.components:
            return replace(source, suites=(suite,), signed_by=str(keyring))
    raise LabError(f"the system's apt sources name no mirror for {codename}")


class Packages:
    """Unpacked packages of this machine's distribution, by suite.

    UnavailableError on one without Debian's packages. All methods block: on the network, and on
    another process that fills the same cache.
    """

    def __init__(
        self, cache: Path | None = None, *, installed: Path = Path("/var/lib/dpkg/info")
    ) -> None:
        self.cache = cache or default_cache()
        self._installed = installed
        self.distribution = Distribution.of_this_system()
        if self.distribution.id not in KEYRINGS:
            name = self.distribution.id or "this system"
            raise UnavailableError(
                f"packages can be unpacked on Debian and Ubuntu only, not on {name}"
            )

    def unpacked(self, name: str, suite: str = "") -> Path:
        """Return the root folder of the package's files, from `suite` or the system's own suite.

        LabError if apt cannot fetch it and the cache has none.
        """
        suite = suite or self.distribution.codename
        with self.locked():
            answer = self.cache / "answers" / suite / f"{name}.json"
            known = _remembered(answer)
            if known is not None and _is_young(answer):
                return known
            try:
                fresh = self._fetch(name, suite)
            except LabError:
                if known is None:
                    raise
                return known
            answer.parent.mkdir(parents=True, exist_ok=True)
            answer.write_text(json.dumps({"folder": str(fresh)}))
            return fresh

    def version(self, name: str, suite: str = "") -> str:
        """Return the version that `suite` has of the package, or "" if it has none."""
        suite = suite or self.distribution.codename
        answer = self.cache / "answers" / suite / f"{name}.version"
        with self.locked():
            if _is_young(answer):
                return answer.read_text()
            shown = self._apt("apt-cache", self._apt_root(suite), "madison", name)
            rows = (line.split("|") for line in shown.splitlines())
            version = next((row[1].strip() for row in rows if len(row) == 3), "")
            answer.parent.mkdir(parents=True, exist_ok=True)
            answer.write_text(version)
        return version

    def is_installed(self, name: str) -> bool:
        """Whether the system has the package itself, so that it need not be unpacked."""
        return (self._installed / f"{name}.list").exists()

    def sources(self, suite: str) -> tuple[AptSource, ...]:
        """Return apt's sources of a suite, for programs that make a system of it."""
        with self.locked():
            return self._sources(suite)

    def _fetch(self, name: str, suite: str) -> Path:
        try:
            return self._download(name, self._apt_root(suite))
        except LabError:
            # Mirrors drop a version as soon as the next one is out: ask for the lists anew.
            (self.cache / "apt" / suite / "updated").unlink(missing_ok=True)
            return self._download(name, self._apt_root(suite))

    def _download(self, name: str, root: Path) -> Path:
        with tempfile.TemporaryDirectory(dir=self.cache) as scratch:
            self._apt("apt-get", root, "download", "--quiet", name, cwd=Path(scratch))
            archives = sorted(Path(scratch).glob("*.deb"))
            if len(archives) != 1:
                raise LabError(f"apt fetched {len(archives)} files for {name}, not one")
            archive = archives[0]
            folder = self.cache / "unpacked" / archive.stem.replace("%3a", ".")
            if folder.is_dir():
                return folder
            folder.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(scratch, "files")
            run(["dpkg", "-x", archive, fresh], deadline_seconds=APT_DEADLINE_SECONDS)
            shutil.move(fresh, folder)
        return folder

    def _apt_root(self, suite: str) -> Path:
        """Make an apt root whose lists are young enough; LabError if they cannot be had."""
        root = self.cache / "apt" / suite
        stamp = root / "updated"
        if _is_young(stamp):
            return root
        for folder in ("state", "lists/partial", "cache/archives/partial"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "status").touch()
        (root / "suite.sources").write_text("\n".join(s.stanza() for s in self._sources(suite)))
        (root / "apt.conf").write_text(APT_CONFIGURATION.format(root=root))
        self._apt("apt-get", root, "update", "--quiet", "--error-on=any")
        stamp.touch()
        return root

    def _sources(self, suite: str) -> tuple[AptSource, ...]:
        configured = system_sources()
        codename = self.distribution.codename
        if suite == codename:
            own = sources_of_own_suite(configured, codename)
            if not own:
                raise LabError(f"the system's apt sources name no mirror for {codename}")
            return own
        package, path = KEYRINGS[self.distribution.id]
        keyring = self._fetch(package, codename) / path
        return (source_of_other_suite(configured, codename, suite, keyring),)

    def _apt(self, program: str, root: Path, *words: str, cwd: Path | None = None) -> str:
        return run(
            [program, f"--config-file={root / 'apt.conf'}", *words],
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            cwd=cwd,
            deadline_seconds=APT_DEADLINE_SECONDS,
        )

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from changing the cache; not to be held twice."""
        return locked(self.cache / "lock")


def _is_young(file: Path) -> bool:
    """Whether what the file says was asked within the last week."""
    try:
        return time.time() - file.stat().st_mtime < ASK_AGAIN_SECONDS
    except OSError:
        return False


def _remembered(answer: Path) -> Path | None:
    try:
        folder = Path(json.loads(answer.read_text())["folder"])
    except (OSError, ValueError, KeyError):
        return None
    return folder if folder.is_dir() else None
