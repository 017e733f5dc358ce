"""An image registry on loopback, for the tests of pulling.

Debian's docker-registry serves a folder over plain HTTP; a private containerd is told in its
hosts.toml that the name `registry.test` is found there. Images are pushed by the registry's HTTP
interface, as clients do it. Stopping and starting keep port and contents, so that a registry can
go away and come back; with `login` it asks for a name and a password.
"""

import base64
import json
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from lab import LabError
from lab.images import Blob, Image
from lab.packages import Packages
from lab.ports import free_port
from lab.processes import last_words, wait_until
from lab.started import Started

NAME = "registry.test"
USER, PASSWORD = "lab", "open sesame"
# bcrypt of PASSWORD, the only kind of hash that the registry takes.
HTPASSWD = f"{USER}:$2b$04$L5HR415zr8yljLQXc5..iOd8ZWOFdDxBWrRQXGBghevNk8mA.zUhy\n"
START_DEADLINE_SECONDS = 30
REQUEST_DEADLINE_SECONDS = 30


class Registry(Started):
    """A registry with its contents in `folder`; a context manager that starts and stops it.

    All methods block. Put the folder into a containerd's folder, and an abandoned registry is
    swept away with that containerd.
    """

    def __init__(
        self, folder: Path, *, login: bool = False, packages: Packages | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.login = login
        self.port = 0
        self._packages = packages
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; on the same port as before if it was stopped. Ready when this returns."""
        program = (self._packages or Packages()).unpacked("docker-registry")
        self.port = self.port or free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "htpasswd").write_text(HTPASSWD)
        configuration = self.folder / "config.yml"
        configuration.write_text(json.dumps(self._configuration()))
        with (self.folder / "registry.log").open("ab") as log:
            self._process = process = subprocess.Popen(
                [program / "usr/bin/docker-registry", "serve", configuration],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def answers() -> bool:
            if process.poll() is not None:
                raise LabError(f"the registry ended at once: {self._last_words()}")
            try:
                self._request("GET", "/v2/")
            except OSError:
                return False
            return True

        wait_until(
            answers,
            deadline_seconds=START_DEADLINE_SECONDS,
            else_say=lambda: f"the registry does not answer: {self._last_words()}",
        )

    def stop(self) -> None:
        """Go away; connections are refused from now on. Safe to repeat."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Accept connections, but answer nothing until `thaw`: what a hung registry does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on, with the requests that came meanwhile first."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def push(self, image: Image, repository: str) -> str:
        """Serve the image as `repository` (`lab/web:1`) and return the name to pull it by.

        A tag that was there before moves. `image.digest` is what it can be pulled by as well.
        """
        path, _, tag = repository.partition(":")
        *content, manifest = image.blobs()
        for blob in content:
            self._push_blob(path, blob)
        self._request("PUT", f"/v2/{path}/manifests/{tag}", manifest.content, manifest.media_type)
        return f"{NAME}/{repository}"

    def serve_to(self, registries: Path, name: str = NAME) -> None:
        """Tell a containerd (its `registries` folder) that the name of a registry leads here."""
        folder = registries / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.toml").write_text(
            f'server = "{self.url}"\n\n[host."{self.url}"]\ncapabilities = ["pull", "resolve"]\n'
        )

    def requests(self) -> tuple[str, ...]:
        """List method and path of each request answered so far: `GET /v2/lab/web/...`."""
        return tuple(_logged_requests((self.folder / "registry.log").read_text().splitlines()))

    def _push_blob(self, path: str, blob: Blob) -> None:
        upload = self._request("POST", f"/v2/{path}/blobs/uploads/")
        mark = "&" if "?" in upload else "?"
        location = f"{upload}{mark}digest={urllib.parse.quote(blob.digest)}"
        self._request("PUT", location, blob.content, "application/octet-stream")

    def _request(self, method: str, path: str, body: bytes = b"", kind: str = "") -> str:
        """Return the Location that the answer names, if any."""
        headers = {"Content-Type": kind} if kind else {}
        if self.login:
            token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        request = urllib.request.Request(
            urllib.parse.urljoin(self.url, path), data=body, method=method, headers=headers
        )
        # No proxy of the environment is to see what goes over loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=REQUEST_DEADLINE_SECONDS) as answer:
                return str(answer.headers.get("Location", ""))
        except urllib.error.HTTPError as error:
            raise LabError(f"registry: {method} {path}: {error}") from error

    def _configuration(self) -> dict[str, object]:
        """Return the registry's configuration; its YAML takes JSON."""
        password = {"htpasswd": {"realm": "lab", "path": str(self.folder / "htpasswd")}}
        return {
            "version": 0.1,
            "log": {"level": "info", "formatter": "text", "accesslog": {"disabled": False}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.folder / "contents")},
                "delete": {"enabled": True},
            },
            "http": {"addr": f"127.0.0.1:{self.port}"},
            **({"auth": password} if self.login else {}),
        }

    def _last_words(self) -> str:
        return last_words((self.folder / "registry.log").read_text(errors="replace"))


def _logged_requests(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        _, quote, rest = line.partition('] "')
        if quote:
            yield " ".join(rest.split()[:2])
