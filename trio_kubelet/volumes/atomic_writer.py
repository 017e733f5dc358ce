"""Puts a payload into a volume such that whoever reads it sees all of the old or all of the new.

    ..2026_11_21_13_00_00.123456789/   the files
    ..data                             a symlink to that folder, exchanged in one step
    <name>                             a symlink to ..data/<name>, for each first part of a path

It is the layout of the Go kubelet, so that volumes are taken over as they are. The volume may be
the work of a container by now: everything happens beneath a descriptor of it, and no symlink in
it is followed.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from trio_kubelet.volumes.payload import (
    MAX_BYTES,
    Payload,
    PayloadBuilder,
    VolumeFile,
    VolumeTooLargeError,
    digest,
)
from trio_kubelet.volumes.safe_open import open_file_beneath, open_folder_beneath, remove_tree

DATA = "..data"
_NEW_LINK = "..data_tmp"
_HIDDEN = ".."
_FOLDER_MODE = 0o755
_GROUP_FOLDER_MODE = 0o2550
"""With fsGroup: the group may look, and what is made inside belongs to it as well."""

_NANOSECONDS = 1_000_000_000


def write_payload(folder: Path, payload: Payload, *, group: int | None, now_ns: int) -> bool:
    """Make a volume hold exactly the payload; return whether anything had to be written.

    The paths of the payload have been checked. `group` owns the folders (the pod's fsGroup).
    Blocks; raises OSError, and then the volume holds all of what it held before.
    """
    with _opened(folder) as volume:
        name = data_folder(volume)
        is_new = name is None or not _holds(volume, name, payload)
        if is_new:
            name = _replace_data(folder, volume, payload, group, now_ns)
        _link_names(volume, payload, group)
        _unlink_names(volume, payload)
        leftovers = [each for each in _names(volume) if _is_data_folder(each) and each != name]
    for each in leftovers:
        remove_tree(folder / each)
    return is_new


def has_data(folder: Path) -> bool:
    """Return whether a payload was written to this volume. Blocks."""
    try:
        with _opened(folder) as volume:
            return data_folder(volume) is not None
    except OSError:
        return False


def held_digest(folder: Path) -> str | None:
    """Return the digest of the payload that a volume holds, None if it holds none whole. Blocks.

    It is that of `payload.digest`: whoever has noted what was written sees whether a loss of power
    has left less of it. What cannot have been written by `write_payload` is not read.
    """
    try:
        with _opened(folder) as volume:
            name = data_folder(volume)
            if name is None:
                return None
            with _held(open_folder_beneath(volume, name)) as data:
                payload = _read_payload(data)
            names = _children(payload)[""]
            if any(_link_target(volume, each) != f"{DATA}/{each}" for each in names):
                return None
            return digest(payload)
    except (OSError, VolumeTooLargeError):
        return None


def _read_payload(data: int) -> Payload:
    """Read all files of a folder. Raises OSError, and VolumeTooLargeError."""
    found = PayloadBuilder()
    folders = [""]
    while folders:
        inside = folders.pop()
        with _held(open_folder_beneath(data, inside)) as folder:
            names = sorted(_names(folder))
        found.expect(len(names) + len(folders))
        for name in names:
            path = f"{inside}/{name}" if inside else name
            if stat.S_ISDIR(os.stat(path, dir_fd=data, follow_symlinks=False).st_mode):
                folders.append(path)
                continue
            with _held(open_file_beneath(data, path)) as descriptor:
                mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                with open(descriptor, "rb", closefd=False) as stream:
                    found.add(path, VolumeFile(content=stream.read(MAX_BYTES + 1), mode=mode))
    return found.files


def data_folder(volume: int) -> str | None:
    """Return the name of the folder that `..data` leads to, None if it leads nowhere here."""
    try:
        name = os.readlink(DATA, dir_fd=volume)
        if not _is_data_folder(name):
            return None
        os.close(open_folder_beneath(volume, name))
    except OSError:
        return None
    return name


def data_folder_name(now_ns: int) -> str:
    """Return the name of a folder made at that time: `..2026_11_21_13_00_00.123456789`."""
    seconds, nanoseconds = divmod(now_ns, _NANOSECONDS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"..{moment:%Y_%m_%d_%H_%M_%S}.{nanoseconds:09d}"


def _is_data_folder(name: str) -> bool:
    return name.startswith(_HIDDEN) and name not in (DATA, _NEW_LINK, "..") and "/" not in name


def _holds(volume: int, name: str, payload: Payload) -> bool:
    """True if the folder holds the payload, no more and no less."""
    wanted = _children(payload)
    try:
        with _held(open_folder_beneath(volume, name)) as data:
            for folder, names in wanted.items():
                with _held(open_folder_beneath(data, folder)) as inner:
                    if _names(inner) != names:
                        return False
            return all(_is_same(data, path, file) for path, file in payload.items())
    except OSError:
        return False


def _children(payload: Payload) -> Mapping[str, set[str]]:
    """The names in each folder of a payload; the topmost folder is ""."""
    children: dict[str, set[str]] = {"": set()}
    for path in payload:
        parts = PurePosixPath(path).parts
        for depth, name in enumerate(parts):
            children.setdefault("/".join(parts[:depth]), set()).add(name)
    return children


def _is_same(data: int, path: str, file: VolumeFile) -> bool:
    with _held(open_file_beneath(data, path)) as descriptor:
        status = os.fstat(descriptor)
        if stat.S_IMODE(status.st_mode) != file.mode or status.st_size != len(file.content):
            return False
        if file.user not in (None, status.st_uid) or file.group not in (None, status.st_gid):
            return False
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(len(file.content) + 1) == file.content


def _replace_data(
    folder: Path, volume: int, payload: Payload, group: int | None, now_ns: int
) -> str:
    name = _make_data_folder(volume, now_ns)
    try:
        _fill(volume, name, payload, group)
        _point(volume, DATA, name, group)
    except BaseException:
        remove_tree(folder / name)
        raise
    return name


def _make_data_folder(volume: int, now_ns: int) -> str:
    while True:
        name = data_folder_name(now_ns)
        try:
            os.mkdir(name, _FOLDER_MODE, dir_fd=volume)
        except FileExistsError:
            now_ns += 1
        else:
            return name


def _fill(volume: int, name: str, payload: Payload, group: int | None) -> None:
    with _held(open_folder_beneath(volume, name)) as data:
        _give(data, _FOLDER_MODE, None, group)
        for folder in sorted(_children(payload)):
            if folder:
                parent, _, own = folder.rpartition("/")
                with _held(open_folder_beneath(data, parent)) as above:
                    os.mkdir(own, _FOLDER_MODE, dir_fd=above)
                with _held(open_folder_beneath(data, folder)) as made:
                    _give(made, _FOLDER_MODE, None, group)
        for path, file in payload.items():
            parent, _, own = path.rpartition("/")
            with _held(open_folder_beneath(data, parent)) as above:
                _write(above, own, file)


def _give(descriptor: int, mode: int, user: int | None, group: int | None) -> None:
    """Set owner and mode of a folder; owners first, as changing them takes setgid away."""
    if user is not None or group is not None:
        os.fchown(descriptor, -1 if user is None else user, -1 if group is None else group)
    os.fchmod(descriptor, mode if group is None else mode | _GROUP_FOLDER_MODE)


def _write(folder: int, name: str, file: VolumeFile) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as stream:
        stream.write(file.content)
        stream.flush()
        if file.user is not None or file.group is not None:
            os.fchown(
                stream.fileno(),
                -1 if file.user is None else file.user,
                -1 if file.group is None else file.group,
            )
        os.fchmod(stream.fileno(), file.mode)


def _point(volume: int, name: str, target: str, group: int | None) -> None:
    """Make a symlink, in the place of one that is there, in one step."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEW_LINK, dir_fd=volume)
    os.symlink(target, _NEW_LINK, dir_fd=volume)
    if group is not None:
        os.chown(_NEW_LINK, -1, group, dir_fd=volume, follow_symlinks=False)
    os.replace(_NEW_LINK, name, src_dir_fd=volume, dst_dir_fd=volume)


def _link_names(volume: int, payload: Payload, group: int | None) -> None:
    for name in sorted(_children(payload)[""]):
        target = f"{DATA}/{name}"
        if _link_target(volume, name) != target:
            _point(volume, name, target, group)


def _unlink_names(volume: int, payload: Payload) -> None:
    """Remove our links to what the payload has no more; what others put there is left alone."""
    wanted = _children(payload)[""]
    for name in _names(volume):
        if name not in wanted and (_link_target(volume, name) or "").startswith(f"{DATA}/"):
            os.unlink(name, dir_fd=volume)


def _link_target(volume: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=volume)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return None
        raise


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    with _held(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        yield descriptor


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
