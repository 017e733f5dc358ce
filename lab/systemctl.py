"""Stands in for `systemctl` on a machine whose first process is not systemd.

It starts and stops services as their units say: drop-ins, environment files, the expansion of
`ExecStart`, Type=notify, and what was read counts until `daemon-reload`. Nothing is restarted by
itself. Units and state are those of the machine it is called on: `/run/lab-services` has a log,
a process id and the read unit of each service.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab import LabError
from lab.processes import alive, last_words, wait_until

UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/lib/systemd/system"))
STATE = Path("/run/lab-services")
READY_SECONDS = 90
STOP_SECONDS = 30
NOT_ACTIVE = 3
VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(slots=True)
class ServiceUnit:
    """What of a unit matters to start it; `command` is not expanded."""

    type: str = "simple"
    command: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    environment_files: list[str] = field(default_factory=list)

    def words(self, environment: Mapping[str, str]) -> list[str]:
        """The command line with this environment, expanded as systemd does."""
        return [
            word
            for written in shlex.split(self.command)
            for word in _expanded(written, environment)
        ]

    def variables(self) -> dict[str, str]:
        """The environment that the unit gives. LabError for a file that must be there."""
        found = dict(self.environment)
        for name in self.environment_files:
            path = Path(name.removeprefix("-"))
            if path.exists():
                found |= _assignments(path.read_text())
            elif not name.startswith("-"):
                raise LabError(f"{path} is missing")
        return found


def read_service(name: str, folders: tuple[Path, ...]) -> ServiceUnit:
    """Read a unit `NAME.service` with its drop-ins; the first folder that has a file counts.

    LabError if there is none.
    """
    files = [folder / f"{name}.service" for folder in folders]
    unit = next((path for path in files if path.exists()), None)
    if unit is None:
        raise LabError(f"Unit {name}.service could not be found.")
    drop_ins: dict[str, Path] = {}
    for folder in reversed(folders):
        drop_ins |= {path.name: path for path in (folder / f"{name}.service.d").glob("*.conf")}
    service = ServiceUnit()
    for path in (unit, *(drop_ins[each] for each in sorted(drop_ins))):
        for key, value in _settings(path.read_text()):
            _set(service, key, value)
    return service


def _set(service: ServiceUnit, key: str, value: str) -> None:
    if key == "Type":
        service.type = value
    elif key == "ExecStart":
        service.command = value
    elif key == "Environment":
        service.environment |= _assignments(value)
    elif key == "EnvironmentFile":
        service.environment_files = [*service.environment_files, value] if value else []


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """The settings of the section [Service]."""
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip()
        elif section == "[Service]" and line and line[0] not in "#;":
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()


def _assignments(text: str) -> dict[str, str]:
    words = shlex.split(text, comments=True)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _expanded(word: str, environment: Mapping[str, str]) -> list[str]:
    if re.fullmatch(r"\$\w+", word):
        return environment.get(word[1:], "").split()
    return [VARIABLE.sub(lambda found: environment.get(found[1], ""), word)]


def start(name: str) -> None:
    """Start a service, unless it runs; with Type=notify it is ready when this returns."""
    if is_active(name):
        return
    service = _loaded(name)
    given = {**os.environ, **service.variables()}
    log = STATE / f"{name}.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, log.open("ab") as output:
        address = STATE / f"{name}.notify"
        address.unlink(missing_ok=True)
        notified.bind(str(address))
        if service.type == "notify":
            given["NOTIFY_SOCKET"] = str(address)
        process = subprocess.Popen(
            service.words(given),
            env=given,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        (STATE / f"{name}.pid").write_text(str(process.pid))
        if service.type == "notify":
            _wait_for_ready(name, process, notified)


def _wait_for_ready(name: str, process: subprocess.Popen[bytes], notified: socket.socket) -> None:
    notified.settimeout(0.2)
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if b"READY=1" in notified.recv(4096).splitlines():
                return
        except TimeoutError:
            continue
    words = last_words((STATE / f"{name}.log").read_text(errors="replace"), 5)
    raise LabError(f"{name}.service did not become ready: {words}")


def stop(name: str) -> None:
    """SIGTERM for a service that runs, and wait for its end."""
    pid = _pid(name)
    if not is_active(name):
        return
    os.kill(pid, signal.SIGTERM)
    wait_until(
        lambda: not alive(pid),
        deadline_seconds=STOP_SECONDS,
        else_say=lambda: f"{name}.service does not end",
    )


def is_active(name: str) -> bool:
    """Whether a service runs."""
    pid = _pid(name)
    return pid > 0 and alive(pid)


def _restart(name: str) -> None:
    stop(name)
    start(name)


def _status(name: str) -> None:
    _loaded(name)
    print(f"{name}.service\n   Loaded: loaded\n   Active: {_activity(name)}")


def _tell_activity(name: str) -> None:
    print(_activity(name))
    if not is_active(name):
        raise SystemExit(NOT_ACTIVE)


def _activity(name: str) -> str:
    return "active" if is_active(name) else "inactive"


def _loaded(name: str) -> ServiceUnit:
    """The unit as it was when it was first asked for, or since the last daemon-reload."""
    kept = STATE / "loaded" / f"{name}.json"
    if kept.exists():
        return ServiceUnit(**json.loads(kept.read_text()))
    service = read_service(name, UNITS)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asdict(service)))
    return service


def _pid(name: str) -> int:
    try:
        return int((STATE / f"{name}.pid").read_text())
    except FileNotFoundError:
        return 0


def _is_there(name: str) -> None:
    _loaded(name)


VERBS: Mapping[str, tuple[Callable[[str], None], ...]] = {
    "start": (start,),
    "stop": (stop,),
    "restart": (_restart,),
    "status": (_status,),
    "enable": (_is_there,),
    "disable": (_is_there,),
    "is-enabled": (_is_there,),
    "is-active": (_tell_activity,),
}
AT_ONCE: Mapping[str, Callable[[str], None]] = {"enable": start, "disable": stop}


def main(arguments: list[str]) -> None:
    """Do what the command line says; LabError for what cannot be done."""
    verb, *names = (word for word in arguments if not word.startswith("-"))
    STATE.mkdir(parents=True, exist_ok=True)
    if verb == "daemon-reload":
        shutil.rmtree(STATE / "loaded", ignore_errors=True)
        return
    actions = VERBS[verb] + ((AT_ONCE[verb],) if "--now" in arguments else ())
    for name in names:
        for act in actions:
            act(name.removesuffix(".service"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LabError as error:
        sys.exit(str(error))
