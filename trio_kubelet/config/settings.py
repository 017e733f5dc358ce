"""From a command line to the settings that the agent starts with.

Flags are read, then the files they name; the flags are laid over the files, the gates resolved,
and the whole is checked. `examine` tells everything that is wrong, for who wants to know it;
`load` raises where something of it stops the agent.

The main file is read first and gets its defaults; the drop-ins are then merged over the result,
in the order of their names, key by key (RFC 7396: null takes a key away). What the Go kubelet
reads past for v1beta1 (fields that the API does not have, keys that stand twice in the main file)
is kept apart from the problems: a node must survive a configuration that was written for a newer
release, and who checks a file wants to know.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from trio_kubelet.config.codec import Decoded, decode, parse_duration, to_wire
from trio_kubelet.config.credential_providers import (
    CredentialProviders,
    load_credential_providers,
)
from trio_kubelet.config.flags import deprecation_warning, lay_over, parse_flags
from trio_kubelet.config.gates import FeatureGates, resolve
from trio_kubelet.config.model import (
    API_VERSION,
    DEFAULT_EVICTION_HARD,
    KIND,
    KubeletConfiguration,
    NodeOptions,
)
from trio_kubelet.config.parts import CrashLoopBackOffConfig
from trio_kubelet.config.support import not_acted_on
from trio_kubelet.config.validation import validate
from trio_kubelet.k8s.documents import DocumentError, load_documents
from trio_kubelet.kernel.bounded_files import read_bounded

DROP_IN_SUFFIX = ".conf"
MAX_FILE_BYTES = 1 << 20
"""Of one file with configuration."""

PATH_FIELDS = (
    ("staticPodPath",),
    ("authentication", "x509", "clientCAFile"),
    ("tlsCertFile",),
    ("tlsPrivateKeyFile",),
    ("resolvConf",),
    ("volumePluginDir",),
)
"""Fields whose relative paths count from the folder of the file that they stand in."""

WRONG_FLAG = "failed to parse kubelet flag"
"""The beginning of a problem of the command line itself."""


class ConfigurationError(Exception):
    """The configuration cannot be used. `problems` has one line for everything that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@frozen(kw_only=True)
class Settings:
    """All that the agent is told: the shared configuration, this node's options, the gates.

    `warnings` are one line each, meant for the log at start.
    """

    configuration: KubeletConfiguration = field(factory=KubeletConfiguration)
    options: NodeOptions = field(factory=NodeOptions)
    gates: FeatureGates = field(factory=FeatureGates)
    credential_providers: CredentialProviders = field(factory=CredentialProviders)
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class Examination:
    """The settings that a command line and its files give, and all problems of them.

    An agent does not start with `problems`. It does start with `oddities`, as the Go kubelet
    does, and warns of them; they are what a strict reader of the files would refuse.
    """

    settings: Settings
    problems: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()


def load(arguments: Sequence[str]) -> Settings:
    """The settings that the flags in `arguments` give, with the files that they name.

    Reads files, blocking. Raises ConfigurationError with all that is wrong.
    """
    examination = examine(arguments)
    if examination.problems:
        raise ConfigurationError(examination.problems)
    return examination.settings


def examine(arguments: Sequence[str]) -> Examination:
    """All that is to be said about a command line and the files that it names. Blocks.

    Rules that look at several fields are asked as well where another field is wrong, which then
    has its default; but not where a file could not be parsed at all.
    """
    command_line = parse_flags(tuple(arguments))
    options = command_line.options
    loaded = load_files(
        Path(options.config) if options.config else None,
        Path(options.config_dir) if options.config_dir else None,
        command_line.feature_gates,
    )
    configuration = lay_over(loaded.configuration, command_line)
    resolution = resolve(configuration.feature_gates)
    invalid = validate(configuration, options, resolution.gates) if loaded.is_whole else ()
    providers, wrong_providers = load_credential_providers(
        options.image_credential_provider_config,
        options.image_credential_provider_bin_dir,
        takes_tokens=resolution.gates["KubeletServiceAccountTokenForCredentialProviders"],
    )
    set_fields = {name for name, value in loaded.content.items() if value is not None}
    set_fields |= command_line.fields.keys()
    warnings = (
        deprecation_warning(command_line),
        *loaded.warnings,
        *resolution.warnings,
        _not_acted_on_warning(configuration, options, set_fields),
    )
    return Examination(
        settings=Settings(
            configuration=configuration,
            options=options,
            gates=resolution.gates,
            credential_providers=providers,
            warnings=tuple(filter(None, warnings)),
        ),
        problems=(
            *(f"{WRONG_FLAG}: {problem}" for problem in command_line.problems),
            *loaded.problems,
            *resolution.problems,
            *invalid,
            *wrong_providers,
        ),
        oddities=tuple(f"{path}: {odd}" for path, odds in loaded.oddities.items() for odd in odds),
    )


def _not_acted_on_warning(
    configuration: KubeletConfiguration, options: NodeOptions, set_fields: Collection[str]
) -> str:
    names = not_acted_on(configuration, options, set_fields)
    if not names:
        return ""
    return f"settings that this agent does not act on: {', '.join(names)}"


@frozen(kw_only=True)
class LoadedConfiguration:
    """A configuration with its defaults, and everything that was found wrong on the way to it.

    `problems` stop an agent; where there are any, the fields concerned have their defaults.
    `oddities` are what a strict reader refuses and a node lives with, by file, each in the words
    of such a reader. `content` is what the files say, merged, without defaults.
    """

    configuration: KubeletConfiguration = field(factory=KubeletConfiguration)
    problems: tuple[str, ...] = ()
    oddities: Mapping[Path, tuple[str, ...]] = field(factory=dict)
    notes: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(factory=dict)
    is_whole: bool = True
    """True if every file could be parsed: else what it says is missing from the configuration."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about files that are used all the same."""
        lenient = "using lenient decoding as strict decoding failed"
        odd = (f"{path}: {lenient}: {', '.join(odd)}" for path, odd in self.oddities.items())
        return (*odd, *self.notes)


def load_files(
    file: Path | None, drop_in_folder: Path | None, gates: Mapping[str, bool]
) -> LoadedConfiguration:
    """The configuration that the file and the drop-ins give; either may be absent.

    `gates` are the feature gates from the command line: some defaults depend on them. Blocks on
    file reads. Raises nothing: what cannot be read is a problem.
    """
    findings = _Findings()
    base = findings.main_file(file) if file else {}
    drop_ins = findings.drop_ins(drop_in_folder) if drop_in_folder else []
    decoded = with_defaults(base, gates)
    if drop_ins:
        merged: Any = to_wire(decoded.value)
        for overlay in drop_ins:
            merged = merge_patch(merged, overlay)
        decoded = with_defaults(merged, gates)
    return LoadedConfiguration(
        configuration=decoded.value,
        problems=tuple(findings.problems),
        oddities=findings.oddities,
        notes=tuple(findings.notes),
        content=reduce(merge_patch, drop_ins, base),
        is_whole=findings.is_whole,
    )


class _Findings:
    """Reads the files one by one and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.oddities: dict[Path, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self.is_whole = True

    def main_file(self, path: Path) -> dict[str, Any]:
        """The content of the main file; nothing if it cannot be parsed."""
        content, oddities = self._content(path)
        self._note_oddities(path, oddities)
        return content

    def drop_ins(self, folder: Path) -> list[dict[str, Any]]:
        """The content of each drop-in, in their order, without those that cannot be parsed."""
        overlays = []
        for path in self._files(folder):
            if path.suffix != DROP_IN_SUFFIX:
                self.notes.append(
                    f"{path}: ignored, because only *{DROP_IN_SUFFIX} files are drop-ins"
                )
                continue
            content, oddities = self._content(path)
            # A drop-in overrides: which of two equal keys was meant is not for the agent to guess.
            self.problems += [f"{path}: {oddity}" for oddity in oddities]
            overlays.append(content)
        return overlays

    def _content(self, path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The content of a file, and what is odd about its text; its fields are checked here."""
        parsed = self._parsed(path)
        if parsed is None:
            self.is_whole = False
            return {}, ()
        content, oddities = parsed
        version, kind = content.pop("apiVersion", None), content.pop("kind", None)
        if (version, kind) != (API_VERSION, KIND):
            found = f"found apiVersion {version or 'none'} and kind {kind or 'none'}"
            needed = f"it must begin with apiVersion: {API_VERSION} and kind: {KIND}"
            self.problems.append(f"{path}: {needed}; {found}")
        if kind not in (None, KIND):
            return {}, ()
        decoded = decode(KubeletConfiguration, content)
        self.problems += [f"{path}: {problem}" for problem in decoded.problems]
        self._note_oddities(path, tuple(f'unknown field "{name}"' for name in decoded.unknown))
        return _with_absolute_paths(content, path.parent), oddities

    def _parsed(self, path: Path) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """The object in a file, and what is odd about its text."""
        doubled: list[str] = []
        try:
            documents = load_documents(read_bounded(path, MAX_FILE_BYTES), doubled)
        except OSError as error:
            reason = f"failed to read kubelet config file: {error.strerror}"
            self.problems.append(f"{path}: {reason}")
            return None
        except DocumentError as error:
            self.problems.append(f"{path}: failed to decode: {error}")
            return None
        if not documents:
            self.problems.append(f"{path}: failed to decode: it is empty")
            return None
        oddities = [f'key "{key}" already set in map' for key in doubled]
        if len(documents) > 1:
            oddities.append("only the first YAML document is read")
        return documents[0], tuple(oddities)

    def _note_oddities(self, path: Path, oddities: tuple[str, ...]) -> None:
        if oddities:
            self.oddities[path] = (*oddities, *self.oddities.get(path, ()))

    def _files(self, folder: Path) -> Iterator[Path]:
        """Every file below `folder` in the order of its path, folder by folder."""
        try:
            entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
            folders = {each for each in entries if each.is_dir() and not each.is_symlink()}
        except OSError as error:
            reason = f"failed to read the kubelet drop-in directory: {error.strerror}"
            self.problems.append(f"{folder}: {reason}")
            self.is_whole = False
            return
        for entry in entries:
            if entry in folders:
                yield from self._files(entry)
            else:
                yield entry


def with_defaults(
    content: Mapping[str, Any], gates: Mapping[str, bool]
) -> Decoded[KubeletConfiguration]:
    """`content` decoded, with the defaults that depend on what else is set.

    Where `content` has problems, the fields concerned are taken for absent.
    """
    decoded = decode(KubeletConfiguration, content)
    return evolve(decoded, value=_dynamic_defaults(decoded.value, content, gates))


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` laid over it (RFC 7396); neither is changed."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _with_absolute_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    for *parents, name in PATH_FIELDS:
        patch: Any = content
        for parent in parents:
            patch = patch.get(parent) if isinstance(patch, Mapping) else None
        path = patch.get(name) if isinstance(patch, Mapping) else None
        if not isinstance(path, str) or not path or Path(path).is_absolute():
            continue
        patch = os.path.normpath(folder.absolute() / path)
        for key in (name, *reversed(parents)):
            patch = {key: patch}
        content = merge_patch(content, patch)
    return content


def _dynamic_defaults(
    configuration: KubeletConfiguration, content: Mapping[str, Any], gates: Mapping[str, bool]
) -> KubeletConfiguration:
    def absent(name: str) -> bool:
        decoded = decode(KubeletConfiguration, {name: content.get(name)})
        return content.get(name) is None or bool(decoded.problems) or _is_zero(content[name])

    gates_in_force = resolve({**gates, **configuration.feature_gates}).gates
    changes: dict[str, Any] = {}
    if absent("nodeStatusReportFrequency") and not absent("nodeStatusUpdateFrequency"):
        changes["node_status_report_frequency"] = configuration.node_status_update_frequency
    if absent("serializeImagePulls") and (configuration.max_parallel_image_pulls or 0) > 1:
        changes["serialize_image_pulls"] = False
    if configuration.pod_pids_limit < 0:
        changes["pod_pids_limit"] = -1
    if configuration.merge_default_eviction_settings:
        changes["eviction_hard"] = {**DEFAULT_EVICTION_HARD, **configuration.eviction_hard}
    verification = content.get("imagePullCredentialsVerificationPolicy")
    if not verification and not gates_in_force["KubeletEnsureSecretPulledImages"]:
        changes["image_pull_credentials_verification_policy"] = ""
    back_off = content.get("crashLoopBackOff")
    longest = isinstance(back_off, Mapping) and back_off.get("maxContainerRestartPeriod")
    if not longest and not gates_in_force["KubeletCrashLoopBackOffMax"]:
        changes["crash_loop_back_off"] = CrashLoopBackOffConfig(max_container_restart_period=None)
    return evolve(configuration, **changes)


def _is_zero(raw: Any) -> bool:
    return isinstance(raw, str) and (not raw or not parse_duration(raw))
