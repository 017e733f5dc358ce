"""From `--config` and `--config-dir` to a `KubeletConfiguration`.

The file is read first and gets its defaults; the drop-ins are then merged over the result, in
the order of their names, key by key (RFC 7396: null takes a key away). A field that the API does
not have is a warning, not an error, as in the Go kubelet for v1beta1: nodes must survive a
configuration that was written for a newer release. Wrong types are errors, all reported at once.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from trio_kubelet.config.codec import Decoded, decode, to_wire
from trio_kubelet.config.document import Document, DocumentError, parse
from trio_kubelet.config.durations import parse_duration
from trio_kubelet.config.gates import resolve
from trio_kubelet.config.model import API_VERSION, DEFAULT_EVICTION_HARD, KIND, KubeletConfiguration
from trio_kubelet.config.parts import CrashLoopBackOffConfig

DROP_IN_SUFFIX = ".conf"

PATH_FIELDS = (
    ("staticPodPath",),
    ("authentication", "x509", "clientCAFile"),
    ("tlsCertFile",),
    ("tlsPrivateKeyFile",),
    ("resolvConf",),
    ("volumePluginDir",),
)
"""Fields whose relative paths count from the folder of the file that they stand in."""


class ConfigurationError(Exception):
    """The configuration cannot be used. `problems` has one line for everything that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@frozen
class Loaded:
    """A configuration with its defaults, and what is to be said about the files."""

    configuration: KubeletConfiguration
    warnings: tuple[str, ...] = ()


def load_files(file: Path | None, drop_in_folder: Path | None, gates: Mapping[str, bool]) -> Loaded:
    """The configuration that the file and the drop-ins give; either may be absent.

    `gates` are the feature gates from the command line: some defaults depend on them. Blocks on
    file reads. Raises ConfigurationError.
    """
    loaded = _load_file(file, gates) if file else Loaded(with_defaults({}, gates).value)
    if drop_in_folder is None:
        return loaded
    merged = to_wire(loaded.configuration)
    warnings = list(loaded.warnings)
    for path in _drop_ins(drop_in_folder):
        if path.suffix != DROP_IN_SUFFIX:
            warnings.append(f"{path}: ignored, because only *{DROP_IN_SUFFIX} files are drop-ins")
            continue
        document = _read(path)
        _refuse_oddities(path, document)
        overlay = _with_absolute_paths(document.content, path.parent)
        decoded = decode(KubeletConfiguration, overlay)
        _refuse_problems(path, decoded)
        warnings += _unknown_fields(path, decoded)
        merged = merge_patch(merged, overlay)
    return Loaded(with_defaults(merged, gates).value, tuple(warnings))


def with_defaults(
    content: Mapping[str, Any], gates: Mapping[str, bool]
) -> Decoded[KubeletConfiguration]:
    """`content` decoded, with the defaults that depend on what else is set."""
    decoded = decode(KubeletConfiguration, content)
    if decoded.problems:
        return decoded
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


def _load_file(path: Path, gates: Mapping[str, bool]) -> Loaded:
    document = _read(path)
    decoded = with_defaults(_with_absolute_paths(document.content, path.parent), gates)
    _refuse_problems(path, decoded)
    oddities = tuple(f"{path}: {oddity}" for oddity in document.oddities)
    return Loaded(decoded.value, oddities + _unknown_fields(path, decoded))


def _read(path: Path) -> Document:
    """The content of a configuration file, without apiVersion and kind, which are checked."""
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"failed to read kubelet config file: {error.strerror}"
        raise ConfigurationError((f"{path}: {reason}",)) from None
    except (UnicodeDecodeError, DocumentError) as error:
        raise ConfigurationError((f"{path}: failed to decode: {error}",)) from None
    content = dict(document.content)
    version, kind = content.pop("apiVersion", None), content.pop("kind", None)
    if (version, kind) != (API_VERSION, KIND):
        found = f"found apiVersion {version or 'none'} and kind {kind or 'none'}"
        needed = f"it must begin with apiVersion: {API_VERSION} and kind: {KIND}"
        raise ConfigurationError((f"{path}: {needed}; {found}",))
    return evolve(document, content=content)


def _refuse_oddities(path: Path, document: Document) -> None:
    # A drop-in overrides: which of two equal keys was meant is not for the agent to guess.
    if document.oddities:
        raise ConfigurationError(tuple(f"{path}: {oddity}" for oddity in document.oddities))


def _refuse_problems(path: Path, decoded: Decoded[KubeletConfiguration]) -> None:
    if decoded.problems:
        raise ConfigurationError(tuple(f"{path}: {problem}" for problem in decoded.problems))


def _unknown_fields(path: Path, decoded: Decoded[KubeletConfiguration]) -> tuple[str, ...]:
    if not decoded.unknown:
        return ()
    return (f"{path}: unknown fields are ignored: {', '.join(decoded.unknown)}",)


def _drop_ins(folder: Path) -> Iterator[Path]:
    """Every file below `folder` in the order of its path, folder by folder."""
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        reason = f"failed to read the kubelet drop-in directory: {error.strerror}"
        raise ConfigurationError((f"{folder}: {reason}",)) from None
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            yield from _drop_ins(entry)
        else:
            yield entry


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
        raw = content.get(name)
        return raw is None or (isinstance(raw, str) and (not raw or not parse_duration(raw)))

    enabled = resolve({**gates, **configuration.feature_gates}).gates.enabled
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
    if not verification and not enabled("KubeletEnsureSecretPulledImages"):
        changes["image_pull_credentials_verification_policy"] = ""
    back_off = content.get("crashLoopBackOff") or {}
    if not back_off.get("maxContainerRestartPeriod") and not enabled("KubeletCrashLoopBackOffMax"):
        changes["crash_loop_back_off"] = CrashLoopBackOffConfig(max_container_restart_period=None)
    return evolve(configuration, **changes)
