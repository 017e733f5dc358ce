"""Container images made here, byte for byte the same each time.

One static binary (busybox) is the whole user land; catatonit, a static init, is the sandbox's
pause program and the init of what must obey SIGTERM at once (a process with PID 1 ignores it
unless it asks for it). Layers are uncompressed tar files with all times zero, entries in order
and owners fixed, so that an image's digest depends on the two binaries alone.
"""

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab import LabError
from lab.processes import run

PAUSE = "localhost/lab/pause:1"
BUSYBOX = "localhost/lab/busybox:1"
BUSYBOX_AS_USER = "localhost/lab/busybox-as-user:1"
SLEEPER = "localhost/lab/sleeper:1"
WEB = "localhost/lab/web:1"

MEDIA_INDEX = "application/vnd.oci.image.index.v1+json"
MEDIA_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MEDIA_CONFIG = "application/vnd.oci.image.config.v1+json"
MEDIA_LAYER = "application/vnd.oci.image.layer.v1.tar"

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}

PAGE = b"""<!doctype html>
<title>trio-kubelet</title>
<h1>Hello from a pod</h1>
<p>This page is served by a container that trio-kubelet started.</p>
"""
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nlab:x:1000:1000:lab:/home/lab:/bin/sh\n",
    "etc/group": b"root:x:0:\nlab:x:1000:\nextra:x:2000:lab\n",
}


@dataclass(frozen=True, slots=True)
class File:
    """An entry of a layer: a folder (no content), a file, or a link (`target`)."""

    mode: int
    content: bytes | None = None
    target: str = ""


@dataclass(frozen=True, slots=True)
class Blob:
    """Content by its digest, as registries and OCI layouts keep it."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.content).hexdigest()

    def descriptor(self) -> dict[str, object]:
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": len(self.content),
        }


@dataclass(frozen=True, slots=True)
class Image:
    """A name, what a container of it runs by default, and its layers of files by path."""

    name: str
    layers: tuple[Mapping[str, File], ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    working_folder: str = ""
    environment: tuple[str, ...] = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
    labels: Mapping[str, str] = field(default_factory=dict)

    def named(self, name: str) -> "Image":
        """Give the image another name; its digests do not change."""
        return replace(self, name=name)

    def marked(self, mark: str) -> "Image":
        """Give the image the label `mark`, and so another digest."""
        return replace(self, labels={**self.labels, "mark": mark})

    def blobs(self) -> tuple[Blob, ...]:
        """Layers, then the config, then the manifest, which refers to all before it."""
        layers = tuple(Blob(MEDIA_LAYER, _tar(files)) for files in self.layers)
        config = Blob(MEDIA_CONFIG, _json(self._config(layers)))
        manifest = Blob(
            MEDIA_MANIFEST,
            _json(
                {
                    "schemaVersion": 2,
                    "mediaType": MEDIA_MANIFEST,
                    "config": config.descriptor(),
                    "layers": [layer.descriptor() for layer in layers],
                }
            ),
        )
        return (*layers, config, manifest)

    @property
    def digest(self) -> str:
        """Its manifest's digest, as in `name@sha256:...`."""
        return self.blobs()[-1].digest

    @property
    def config_digest(self) -> str:
        """The id of the image, as the CRI calls it."""
        return self.blobs()[-2].digest

    def write(self, archive: Path) -> Path:
        """Write the image as an OCI layout in a tar file, for `ctr images import`."""
        blobs = self.blobs()
        named = {
            **blobs[-1].descriptor(),
            "annotations": {
                "io.containerd.image.name": self.name,
                "org.opencontainers.image.ref.name": self.name.rpartition(":")[2],
            },
        }
        index = {"schemaVersion": 2, "mediaType": MEDIA_INDEX, "manifests": [named]}
        files = {
            "oci-layout": File(0o644, _json({"imageLayoutVersion": "1.0.0"})),
            "index.json": File(0o644, _json(index)),
            **{
                f"blobs/{blob.digest.replace(':', '/')}": File(0o644, blob.content)
                for blob in blobs
            },
        }
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(_tar(files))
        return archive

    def _config(self, layers: Iterable[Blob]) -> dict[str, object]:
        run_with = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Env": list(self.environment),
            "User": self.user,
            "WorkingDir": self.working_folder,
            "Labels": dict(self.labels),
        }
        return {
            "architecture": architecture(),
            "os": "linux",
            "config": {name: value for name, value in run_with.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }


def architecture() -> str:
    """Return this machine's architecture as images name it: `amd64`."""
    machine = os.uname().machine
    return ARCHITECTURES.get(machine, machine)


def all_images(busybox: Path, catatonit: Path) -> tuple[Image, ...]:
    """Make the images of the lab. The processes of `web` and `sleeper` end at SIGTERM at once."""
    init = catatonit.read_bytes()
    user_land = _user_land(busybox, init)
    ends_at_once = ("/sbin/catatonit", "--")
    plain = Image(BUSYBOX, (user_land,), command=("sh",))
    return (
        Image(PAUSE, ({"pause": File(0o755, init)},), entrypoint=("/pause", "-P")),
        plain,
        replace(plain, name=BUSYBOX_AS_USER, user="1000:1000", working_folder="/home/lab"),
        Image(
            SLEEPER, (user_land,), entrypoint=ends_at_once, command=("sleep", str((1 << 31) - 1))
        ),
        Image(
            WEB,
            (user_land, {"www/index.html": File(0o644, PAGE)}),
            entrypoint=ends_at_once,
            command=("httpd", "-f", "-p", "80", "-h", "/www"),
        ),
    )


def _user_land(busybox: Path, init: bytes) -> dict[str, File]:
    folders = {
        path: File(0o755)
        for path in ("dev", "etc", "home", "home/lab", "proc", "root", "sys", "usr", "var", "www")
    }
    applets = run([busybox, "--list-full"]).split()
    if not applets:
        raise LabError(f"{busybox} lists no applets")
    links = {path: File(0o777, target="/bin/busybox") for path in applets if path != "bin/busybox"}
    return {
        **folders,
        **links,
        **{path: File(0o644, content) for path, content in ACCOUNTS.items()},
        "tmp": File(0o777 | stat.S_ISVTX),
        "bin/busybox": File(0o755, busybox.read_bytes()),
        "sbin/catatonit": File(0o755, init),
    }


def _tar(files: Mapping[str, File]) -> bytes:
    """Make a tar file that depends on names and contents alone; folders come before their files."""
    parents = {
        str(parent): File(0o755)
        for path in files
        for parent in Path(path).parents
        if str(parent) != "."
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, file in sorted({**parents, **files}.items()):
            entry = tarfile.TarInfo(path)
            entry.mode = file.mode
            if file.target:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.target
            elif file.content is None:
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(file.content)
            archive.addfile(entry, io.BytesIO(file.content or b""))
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
