"""The files that a container needs around it: hosts file, log folder, termination message.

Everything here blocks, is short, and runs in a thread; one call makes all that one container
needs, because each hop to a thread costs as much as the work.
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.node_facts import NodeFacts

_LOG_FILE = re.compile(r"(\d{1,9})\.log(?:\..*)?", re.ASCII)
_MESSAGE_FILE = re.compile(r"[0-9a-f]{8}")
_LOG_FOLDER_PARTS = 3
TERMINATION_MESSAGE_LIMIT_BYTES = 4096
LOG_TAIL_LIMIT_BYTES = 2048
LOG_TAIL_LIMIT_LINES = 80
_LOG_WINDOW_BYTES = 16 * 1024
"""The part of a log that is looked at: the limit above, prefixes, and a line that is cut off."""


@frozen(kw_only=True)
class ContainerFiles:
    """The files of one incarnation. `logged_restarts`: the next count by the log folder."""

    termination_message_file: str
    logged_restarts: int


def make_pod_log_directory(pod: Pod, node: NodeFacts) -> None:
    """Make the folder of a pod's logs, which must be there before its sandbox is."""
    Path(names.pod_log_directory(pod, node.configuration.pod_logs_dir)).mkdir(
        mode=0o755, parents=True, exist_ok=True
    )


def make_container_files(
    pod: Pod,
    container: Container,
    node: NodeFacts,
    etc_hosts: str,
    needed_message_files: Collection[str] = (),
) -> ContainerFiles:
    """Make the hosts file, the log folder and the file for the termination message.

    An empty `etc_hosts` leaves the hosts file alone. Files for the messages of incarnations that
    are gone go, too: `needed_message_files` are those of all that the runtime has. Raises OSError.
    """
    uid = pod.metadata.uid
    if etc_hosts:
        write_hosts_file(Path(names.etc_hosts_path(node.settings.options.root_dir, uid)), etc_hosts)
    logs = Path(names.container_log_directory(pod, container.name, node.configuration.pod_logs_dir))
    logs.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = Path(names.container_directory(node.settings.options.root_dir, uid, container.name))
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    _remove_message_files(directory, needed_message_files)
    message_file = names.termination_message_file(
        node.settings.options.root_dir, uid, container.name, secrets.randbits(32)
    )
    os.close(os.open(message_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    Path(message_file).chmod(0o666)
    return ContainerFiles(
        termination_message_file=message_file,
        logged_restarts=next_restart_count(entry.name for entry in os.scandir(logs)),
    )


def write_hosts_file(path: Path, text: str) -> None:
    """Replace a hosts file, which keeps its inode as long as its text is the same: it is mounted.

    Containers may have written anything into it, of any length. Surrogates that stand for bytes
    become these again. Raises OSError.
    """
    data = text.encode(errors="surrogateescape")
    if _read_end(str(path), len(data) + 1) != (data, True):
        write_whole(path, data, mode=0o644, folder_mode=0o750)


def _remove_message_files(directory: Path, needed: Collection[str]) -> None:
    """Remove what is there but for `needed`; what cannot be removed is in nobody's way.

    They are known by their names: a runtime may tell of the folder by another path.
    """
    names_needed = {Path(file).name for file in needed}
    for file in tuple(directory.iterdir()):
        if _MESSAGE_FILE.fullmatch(file.name) and file.name not in names_needed:
            with suppress(OSError):
                file.unlink()


def next_restart_count(log_files: Iterable[str]) -> int:
    """The restart count after those of which there are logs: `2.log` is followed by 3."""
    counts = [count for name in log_files if (count := log_count(name)) is not None]
    return max(counts, default=-1) + 1


def log_count(file_name: str) -> int | None:
    """The restart count in the name of a log, rotated or not; None if it is no log."""
    match = _LOG_FILE.fullmatch(file_name)
    return int(match[1]) if match else None


def link_container_log(
    pod: Pod, container_name: str, container_id: str, restart_count: int, node: NodeFacts
) -> None:
    """Link a container's log to where log collectors look for it. Raises OSError."""
    directory = node.container_logs_directory
    target = Path(
        names.pod_log_directory(pod, node.configuration.pod_logs_dir),
        names.container_log_path(container_name, restart_count),
    )
    link = Path(names.container_log_symlink(pod, container_name, container_id, directory))
    link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def read_termination_message(path: str) -> str:
    """The text at a container's termination message path, at most 4 KiB; empty if there is none.

    The file belongs to the container: a link is not followed, a pipe not waited for.
    """
    data, _ = _read_end(path, TERMINATION_MESSAGE_LIMIT_BYTES)
    return data.decode(errors="replace")


def read_log_tail(path: str) -> str:
    """The end of a container's log, without the runtime's prefixes: at most 80 lines and 2 KiB.

    The stand-in for a termination message where terminationMessagePolicy is
    FallbackToLogsOnError.
    """
    data, is_whole = _read_end(path, _LOG_WINDOW_BYTES)
    lines = data.split(b"\n")[:-1]
    if not is_whole:
        del lines[:1]
    text = b"".join(_logged_text(line) for line in lines[-LOG_TAIL_LIMIT_LINES:])
    return text[-LOG_TAIL_LIMIT_BYTES:].decode(errors="replace")


def _logged_text(line: bytes) -> bytes:
    """The text of one line as CRI wants logs: `<time> <stream> <tags> <text>`.

    The tag P marks a part of a line that goes on in the next one.
    """
    _, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    tags, _, text = rest.partition(b" ")
    return text if tags.split(b":")[0] == b"P" else text + b"\n"


def _read_end(path: str, limit_bytes: int) -> tuple[bytes, bool]:
    """The end of a regular file, and whether that is all of it; nothing if it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError):  # ValueError: a zero byte in what the runtime calls a path
        return b"", True
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return b"", True
        start = max(0, facts.st_size - limit_bytes)
        return os.pread(descriptor, limit_bytes, start), start == 0
    except OSError:
        return b"", True
    finally:
        os.close(descriptor)


def pods_with_logs(node: NodeFacts) -> tuple[tuple[str, str, str], ...]:
    """Namespace, name and UID of each pod that has a log folder."""
    try:
        entries = [entry.name for entry in os.scandir(node.configuration.pod_logs_dir)]
    except FileNotFoundError:
        return ()
    parts = (name.split("_") for name in entries)
    return tuple(
        (p[0], p[1], p[2]) for p in parts if len(p) == _LOG_FOLDER_PARTS and is_path_part(p[2])
    )


def remove_pod_logs(uid: str, node: NodeFacts) -> None:
    """Remove a pod's log folder, and the links that led into it. Raises OSError."""
    for namespace, name, owner in pods_with_logs(node):
        if owner != uid:
            continue
        folder = Path(node.configuration.pod_logs_dir, names.pod_log_folder(namespace, name, owner))
        _remove_links_into(folder, Path(node.container_logs_directory), f"{name}_{namespace}_")
        shutil.rmtree(folder)


def _remove_links_into(folder: Path, links: Path, prefix: str) -> None:
    inside = f"{folder}/"
    try:
        entries = [entry for entry in os.scandir(links) if entry.name.startswith(prefix)]
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_symlink() and str(Path(entry.path).readlink()).startswith(inside):
            Path(entry.path).unlink(missing_ok=True)
