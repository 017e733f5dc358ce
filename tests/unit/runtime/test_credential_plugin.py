"""Image credential providers as programs: what they are asked, what they may do, how they end."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from attrs import define, field

from trio_kubelet.config.credential_providers import PROVIDER_V1
from trio_kubelet.config.records import CredentialProvider, ExecEnvVar
from trio_kubelet.runtime.images import credential_plugin
from trio_kubelet.runtime.images.credential_plugin import (
    MAX_ANSWER_BYTES,
    MAX_LOGINS,
    CredentialPlugin,
    CredentialPluginError,
    CredentialProviderResponse,
    CredentialRequest,
)
from trio_kubelet.tasks import programs

V1BETA1 = "credentialprovider.kubelet.k8s.io/v1beta1"
IMAGE = "registry.test/team/image"
SECRET = "not-for-the-log"


def answer(**changes: object) -> str:
    document = {
        "kind": "CredentialProviderResponse",
        "apiVersion": PROVIDER_V1,
        "cacheKeyType": "Registry",
        "cacheDuration": "5m",
        "auth": {"registry.test": {"username": "me", "password": SECRET}},
        **changes,
    }
    return json.dumps({name: each for name, each in document.items() if each is not None})


@define
class Plugins:
    """A folder of programs, and what was counted of their runs."""

    folder: Path
    runs: list[tuple[str, bool]] = field(factory=list)

    def write(self, script: str, name: str = "plugin") -> None:
        """Write a program for the shell."""
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def answers(self, **changes: object) -> None:
        """Write one that gives an answer."""
        self.write(f"cat >/dev/null\ncat <<'END'\n{answer(**changes)}\nEND")

    async def ask(
        self,
        request: CredentialRequest = CredentialRequest(image=IMAGE),  # noqa: B008 - frozen
        **config: object,
    ) -> CredentialProviderResponse:
        settings = {"name": "plugin", "api_version": PROVIDER_V1, **config}
        provider = CredentialProvider(**settings)  # type: ignore[arg-type]
        plugin = CredentialPlugin(
            provider, self.folder, lambda name, _seconds, failed: self.runs.append((name, failed))
        )
        with trio.fail_after(30):
            return await plugin.ask(request)


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    return Plugins(tmp_path)


async def test_a_program_gives_logins(plugins: Plugins) -> None:
    plugins.answers()
    response = await plugins.ask()
    assert response.auth["registry.test"].password == SECRET
    assert (response.cache_key_type, response.cache_duration) == ("Registry", timedelta(minutes=5))
    assert SECRET not in repr(response)
    assert plugins.runs == [("plugin", False)]


@pytest.mark.parametrize(
    ("changes", "duration"),
    [({"cacheDuration": None}, None), ({"cacheDuration": "0s"}, timedelta())],
)
async def test_no_duration_and_a_duration_of_zero_are_told_apart(
    plugins: Plugins, changes: dict[str, object], duration: timedelta | None
) -> None:
    plugins.answers(**changes)
    assert (await plugins.ask()).cache_duration == duration


async def test_a_program_has_its_arguments_its_variables_and_the_request(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_AGENT", "kept")
    monkeypatch.setenv("OVERRIDDEN", "old")
    plugins.write(
        'printf "%s\\n" "$*" "$OF_THE_AGENT" "$OVERRIDDEN" >"$0.said"; cat >"$0.asked"; exit 1'
    )
    request = CredentialRequest(
        image=IMAGE, service_account_token="t", service_account_annotations={"a/b": "c"}
    )
    with pytest.raises(CredentialPluginError):
        await plugins.ask(
            request,
            args=("get-credentials", "--now"),
            env=(ExecEnvVar(name="OVERRIDDEN", value="new"),),
            api_version=V1BETA1,
        )
    said = (plugins.folder / "plugin.said").read_text().splitlines()
    assert said == ["get-credentials --now", "kept", "new"]
    assert json.loads((plugins.folder / "plugin.asked").read_text()) == {
        "kind": "CredentialProviderRequest",
        "apiVersion": V1BETA1,
        "image": IMAGE,
        "serviceAccountToken": "t",
        "serviceAccountAnnotations": {"a/b": "c"},
    }


async def test_a_program_that_reads_no_request_may_answer(plugins: Plugins) -> None:
    plugins.write(f"exec <&-\ncat <<'END'\n{answer()}\nEND")
    request = CredentialRequest(image=IMAGE, service_account_token="x" * (1 << 20))
    assert (await plugins.ask(request)).auth


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such account >&2; exit 3", "exit status 3: no such account"),
        ("kill -9 $$", "signal: killed"),
        ("kill -40 $$", "signal: real-time signal 6"),
        ("exit 1", "exit status 1"),
        ("printf '\\377\\000' >&2; exit 1", "exit status 1: "),
        (f"head -c {MAX_ANSWER_BYTES + 1} /dev/zero; sleep 100", "more than 262144 bytes"),
    ],
)
async def test_a_program_that_fails_is_named_with_what_it_said(
    plugins: Plugins, script: str, words: str
) -> None:
    plugins.write(script)
    with pytest.raises(CredentialPluginError) as failed:
        await plugins.ask()
    begin = f"error execing credential provider plugin plugin for image {IMAGE}: "
    assert str(failed.value).startswith(begin)
    assert words in str(failed.value)
    assert plugins.runs == [("plugin", True)]


async def test_of_an_endless_complaint_the_beginning_is_shown(plugins: Plugins) -> None:
    plugins.write("yes broken | head -c 10000000 >&2; exit 1")
    with pytest.raises(CredentialPluginError) as failed:
        await plugins.ask()
    assert len(str(failed.value)) < 3000


async def test_a_program_that_says_its_token_makes_nobody_log_it(plugins: Plugins) -> None:
    plugins.write("cat >&2; exit 1")
    with pytest.raises(CredentialPluginError, match='"serviceAccountToken":"<token>"') as failed:
        await plugins.ask(CredentialRequest(image=IMAGE, service_account_token=SECRET))
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("shown", range(1, len(SECRET)))
async def test_of_a_token_at_the_end_of_what_is_shown_not_even_a_part_is_logged(
    plugins: Plugins, shown: int
) -> None:
    before = "." * (programs.MAX_STDERR_BYTES - shown)
    plugins.write(f"cat >/dev/null; printf %s {before}{SECRET} >&2; exit 1")
    with pytest.raises(CredentialPluginError) as failed:
        await plugins.ask(CredentialRequest(image=IMAGE, service_account_token=SECRET))
    assert str(failed.value).endswith(before)


async def test_an_answer_with_too_many_logins_is_refused(plugins: Plugins) -> None:
    plugins.answers(auth={f"r{number}.test": {} for number in range(MAX_LOGINS)})
    assert len((await plugins.ask()).auth) == MAX_LOGINS
    plugins.answers(auth={f"r{number}.test": {} for number in range(MAX_LOGINS + 1)})
    with pytest.raises(CredentialPluginError, match="more than 1000 logins"):
        await plugins.ask()


async def test_a_program_that_is_gone_is_an_error(plugins: Plugins) -> None:
    with pytest.raises(CredentialPluginError, match="No such file or directory"):
        await plugins.ask()


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "Secret"},
        {"auth": [SECRET]},
        {"auth": {"registry.test": {"username": "me", "password": SECRET, "extra": SECRET}}},
        {"cacheDuration": f"{SECRET}"},
        {"apiVersion": V1BETA1},
        {"cacheKeyType": SECRET},
        {"cacheKeyType": None},
    ],
)
async def test_an_answer_that_is_none_is_refused_without_a_word_of_it(
    plugins: Plugins, changes: dict[str, object]
) -> None:
    plugins.answers(**changes)
    with pytest.raises(CredentialPluginError) as refused:
        await plugins.ask()
    assert SECRET not in str(refused.value)
    assert "plugin" in str(refused.value)


@pytest.mark.parametrize("text", ["", SECRET, "[]", "[1]", "{" * 1000, '"x"', "null"])
async def test_what_is_no_json_object_is_refused(plugins: Plugins, text: str) -> None:
    plugins.write(f"cat <<'END'\n{text}\nEND")
    with pytest.raises(CredentialPluginError, match="error decoding credential provider plugin"):
        await plugins.ask()


def children(plugins: Plugins) -> list[int]:
    return [int(pid) for pid in (plugins.folder / "plugin.pids").read_text().split()]


def is_gone(pid: int) -> bool:
    """True if a process does not run, whether somebody has collected it or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def all_gone(plugins: Plugins) -> None:
    with trio.fail_after(10):
        while not all(map(is_gone, children(plugins))):
            await trio.testing.wait_all_tasks_blocked(0.01)


HANGS = 'sleep 1000 & echo $$ $! >"$0.new"; mv "$0.new" "$0.pids"; wait'


async def until_it_runs(plugins: Plugins) -> None:
    while not (plugins.folder / "plugin.pids").exists():
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_at_the_deadline_a_program_is_killed_with_its_children(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_plugin, "RUN_SECONDS", 0.5)
    plugins.write(HANGS)
    with pytest.raises(CredentialPluginError, match="deadline exceeded"):
        await plugins.ask()
    await all_gone(plugins)


async def test_who_is_cancelled_leaves_no_program_behind(plugins: Plugins) -> None:
    plugins.write(HANGS)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plugins.ask)
        await until_it_runs(plugins)
        nursery.cancel_scope.cancel()
    await all_gone(plugins)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert plugins.runs == [], "no failure of the program's"


async def test_children_that_keep_the_pipes_hold_up_no_answer(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PIPES_SECONDS", 0.1)
    plugins.write(f"sleep 1000 & echo $! >\"$0.pids\"\ncat <<'END'\n{answer()}\nEND")
    assert (await plugins.ask()).auth
    await all_gone(plugins)
