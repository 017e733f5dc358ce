"""Fields of the pod and amounts of its resources as files of a volume.

The rules are those of environment variables, and two more: labels and annotations may be asked
for as a whole, and are then lines of `key="value"`, sorted, with the value quoted as Go does it.
"""

from collections.abc import Mapping

from trio_kubelet.errors import aggregated
from trio_kubelet.k8s import Container, DownwardAPIVolumeFile, Pod, Quantity
from trio_kubelet.runtime.config.config_error import ConfigError
from trio_kubelet.runtime.config.field_refs import PodAddresses, pod_field, resource_field
from trio_kubelet.volumes.payload import PayloadBuilder, VolumeFile

_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}
_LONGEST_SHORT_ESCAPE = 0x7F
_LONGEST_ESCAPE = 0xFFFF


def add_downward_files(
    files: PayloadBuilder,
    pod: Pod,
    items: tuple[DownwardAPIVolumeFile, ...],
    default_mode: int,
    allocatable: Mapping[str, Quantity],
) -> None:
    """Add the files of a downward API volume. Raises ValueError, of all items at once."""
    problems: list[str] = []
    made: dict[str, bytes] = {}
    """By field; one may be asked for again and again."""
    for item in items:
        field = item.field_ref.field_path if item.field_ref is not None else ""
        try:
            if not field or field not in made:
                text = _text(pod, item, allocatable)
                made[field] = text.encode("utf-8", "surrogateescape")
        except ConfigError as error:
            problems.append(error.message)
            continue
        mode = default_mode if item.mode is None else item.mode
        files.add(item.path, VolumeFile(content=made[field], mode=mode))
    if problems:
        raise ValueError(aggregated(problems))


def _text(pod: Pod, item: DownwardAPIVolumeFile, allocatable: Mapping[str, Quantity]) -> str:
    if item.field_ref is not None:
        path = item.field_ref.field_path
        if path == "metadata.labels":
            return map_text(pod.metadata.labels)
        if path == "metadata.annotations":
            return map_text(pod.metadata.annotations)
        return pod_field(pod, path, PodAddresses())
    if item.resource_field_ref is not None:
        return resource_field(pod, Container(), item.resource_field_ref, allocatable)
    return ""


def map_text(values: Mapping[str, str]) -> str:
    """Return labels or annotations as lines of `key="value"`."""
    return "\n".join(f"{key}={go_quoted(value)}" for key, value in sorted(values.items()))


def go_quoted(text: str) -> str:
    """Return a text as Go's `%q` writes it."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code <= _LONGEST_SHORT_ESCAPE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _LONGEST_ESCAPE else f"\\U{code:08x}"
