"""Pull records on the disk: their form, what bad bytes do, what kills and cancelled pulls leave."""

import json
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.config.records import (
    ImagePulledRecord,
    ImagePullIntent,
    ImagePullSecret,
    ImagePullServiceAccount,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.images.access import AccessCheck, Verification, VerificationPolicy
from trio_kubelet.runtime.images.pull_record_files import (
    PullRecordError,
    file_name,
    parsed,
    printed,
)
from trio_kubelet.runtime.images.pull_records import (
    GIVE_UP_SECONDS,
    PERIOD_SECONDS,
    PullRecords,
    ShownCredentials,
    Source,
)

IMAGE, IMAGE_ID = "registry.test/a:1", "sha256:1"
FOUND = cri.Image(id=IMAGE_ID)
MINE = ImagePullSecret(uid="u", namespace="shop", name="key", credential_hash="abc")
NOBODY = ImagePullSecret(uid="v", namespace="other", name="none", credential_hash="def")

INTENT_FILE = (
    '{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1",'
    '"image":"registry.test/a:1"}\n'
)
RECORD_FILE = (
    '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",'
    '"lastUpdatedTime":"2020-01-02T03:04:05Z","imageRef":"sha256:1","credentialMapping":'
    '{"registry.test/a":{"kubernetesSecrets":[{"uid":"u","namespace":"shop","name":"key",'
    '"credentialHash":"abc"}]},"registry.test/b":{"nodePodsAccessible":true},"registry.test/c":'
    '{"kubernetesServiceAccounts":[{"uid":"x","namespace":"shop","name":"robot"}]}}}\n'
)


@define
class Runtime:
    """The images of a runtime, as the records ask for them."""

    images: dict[str, str] = field(factory=dict)
    is_away: bool = False
    lists: int = 0

    async def image_status(self, image: cri.ImageSpec) -> cri.Image | None:
        await self._answer()
        found = self.images.get(image.image)
        return cri.Image(id=found) if found is not None else None

    async def list_images(self) -> Sequence[cri.Image]:
        self.lists += 1
        await self._answer()
        return [cri.Image(id=image_id) for image_id in self.images.values()]

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise RpcError(Code.UNAVAILABLE, "away")


async def records(
    root: Path, policy: VerificationPolicy = VerificationPolicy.NEVER_VERIFY_PRELOADED_IMAGES
) -> PullRecords:
    found = PullRecords(root, Verification(policy=policy), TrioClock())
    await found.load()
    return found


def shows(*sources: Source) -> ShownCredentials:
    async def secrets() -> Sequence[ImagePullSecret]:
        return [each for each in sources if isinstance(each, ImagePullSecret)]

    async def accounts(
        _recorded: Sequence[ImagePullServiceAccount],
    ) -> Sequence[ImagePullServiceAccount]:
        return [each for each in sources if isinstance(each, ImagePullServiceAccount)]

    return ShownCredentials(secrets, accounts)


async def allowed(at: PullRecords, image: str, found: cri.Image, shown: ShownCredentials) -> bool:
    return await at.check(image, found, shown) is not AccessCheck.MUST_AUTHENTICATE


async def may_use(at: PullRecords, *secrets: Source, image: str = IMAGE) -> bool:
    return await allowed(at, image, FOUND, shows(*secrets))


async def pull(at: PullRecords, used: Source | None, image: str = IMAGE) -> None:
    await at.begin(image)
    await at.succeed(image, IMAGE_ID, used)


def intent_path(root: Path, image: str = IMAGE) -> Path:
    return root / "image_manager" / "pulling" / file_name(image)


def record_path(root: Path, image_id: str = IMAGE_ID) -> Path:
    return root / "image_manager" / "pulled" / file_name(image_id)


def unfinished(path: Path) -> Path:
    """Where a file is written before it is renamed."""
    return path.with_name(f".{path.name}.new")


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def test_files_are_named_and_written_as_the_go_kubelet_does_it() -> None:
    name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56"
    assert file_name("docker.io/testing/test:latest") == name
    for kind, text in ((ImagePullIntent, INTENT_FILE), (ImagePulledRecord, RECORD_FILE)):
        value, is_current = parsed(kind, text.encode())
        assert is_current
        assert printed(value) == text
        old, is_current = parsed(kind, text.replace("v1beta1", "v1alpha1").encode())
        assert (old, is_current) == (value, False)


BAD = {
    "nothing": b"",
    "no JSON": b'{"kind":',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "nested deeply": b"[" * 100_000,
    "another kind": INTENT_FILE.replace("ImagePullIntent", "Pod").encode(),
    "no version": b'{"kind":"ImagePulledRecord","imageRef":"sha256:1"}',
    "a future version": RECORD_FILE.replace("v1beta1", "v2").encode(),
    "an unknown field": RECORD_FILE.replace('"imageRef"', '"scope":"all","imageRef"').encode(),
    "another type": RECORD_FILE.replace("true", '"yes"').encode(),
    "no time": RECORD_FILE.replace("2020-01-02T03:04:05Z", "yesterday").encode(),
    "half a character": RECORD_FILE.replace('"sha256:1"', '"\\ud800"').encode(),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
async def test_bad_bytes_prove_nothing_and_end_nothing(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    put(record_path(tmp_path), data)
    put(record_path(tmp_path, "sha256:2"), RECORD_FILE.replace("sha256:1", "sha256:2"))
    put(intent_path(tmp_path, "broken"), data)
    put(tmp_path / "image_manager" / "pulled" / "README", "not ours")
    at = await records(tmp_path)
    assert capsys.readouterr().out.count("image pull record is malformed") == 2
    assert not await may_use(at, MINE)
    assert not await allowed(at, "broken", cri.Image(id="sha256:9"), shows(MINE))
    assert await allowed(at, IMAGE, cri.Image(id="sha256:2"), shows(MINE))
    await pull(at, MINE)
    assert await may_use(await records(tmp_path), MINE)


@given(st.binary(max_size=200) | st.from_regex(rb"\{\"kind\":\"Image.{0,80}", fullmatch=True))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for kind in (ImagePullIntent, ImagePulledRecord):
        with pytest.raises(PullRecordError):
            parsed(kind, data)


async def test_what_the_go_kubelet_recorded_counts(tmp_path: Path) -> None:
    put(record_path(tmp_path), RECORD_FILE.replace("v1beta1", "v1alpha1"))
    at = await records(tmp_path)
    assert await may_use(at, MINE)
    assert not await may_use(at, NOBODY)
    assert not await may_use(at)
    assert await may_use(at, image="registry.test/b:2")
    assert not await may_use(at, image="registry.test/c:2")
    assert record_path(tmp_path).read_text() == RECORD_FILE, "brought to the current version"


async def test_a_record_is_for_a_name_as_containers_write_it(tmp_path: Path) -> None:
    at = await records(tmp_path)
    await pull(at, MINE, image="busybox:1")
    assert '"credentialMapping":{"busybox":' in record_path(tmp_path).read_text()
    assert await may_use(at, MINE, image="busybox:2")
    assert not await may_use(at, MINE, image="docker.io/library/busybox:1")


async def test_a_pull_is_an_intent_and_then_a_record(tmp_path: Path, mock_clock: MockClock) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    assert intent_path(tmp_path).read_text() == INTENT_FILE
    await at.succeed(IMAGE, IMAGE_ID, MINE)
    assert not intent_path(tmp_path).exists()
    record = json.loads(record_path(tmp_path).read_text())
    assert record["imageRef"] == IMAGE_ID
    (secret,) = record["credentialMapping"]["registry.test/a"]["kubernetesSecrets"]
    assert secret == {"uid": "u", "namespace": "shop", "name": "key", "credentialHash": "abc"}
    for path in (record_path(tmp_path).parent, record_path(tmp_path).parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(record_path(tmp_path).stat().st_mode) == 0o600


async def test_only_who_has_proven_access_may_use_an_image_and_a_restart_changes_nothing(
    tmp_path: Path,
) -> None:
    at = await records(tmp_path)
    assert await may_use(at), "it was there before"
    await pull(at, MINE)
    for each in (at, await records(tmp_path)):
        assert await may_use(each, MINE)
        assert not await may_use(each, NOBODY)
        assert not await may_use(each, MINE, image="another.test/a:1")
    await pull(at, NOBODY)
    assert await may_use(at, MINE)
    assert await may_use(at, NOBODY)
    await pull(at, None)
    assert await may_use(await records(tmp_path))


async def test_a_secret_that_was_recognized_is_recorded(tmp_path: Path) -> None:
    at = await records(tmp_path)
    await pull(at, MINE)
    copy = ImagePullSecret(uid="w", namespace="other", name="copy", credential_hash="abc")
    assert await may_use(at, copy)
    rotated = ImagePullSecret(uid="w", namespace="other", name="copy", credential_hash="new")
    assert await may_use(await records(tmp_path), rotated)


async def test_secrets_are_asked_for_only_where_they_count(tmp_path: Path) -> None:
    async def no_secrets() -> Sequence[ImagePullSecret]:
        raise AssertionError("asked")

    async def no_accounts(_: object) -> Sequence[ImagePullServiceAccount]:
        raise AssertionError("asked")

    never = ShownCredentials(no_secrets, no_accounts)
    at = await records(tmp_path)
    assert await allowed(at, IMAGE, FOUND, never)
    await pull(at, None)
    assert await allowed(at, IMAGE, FOUND, never)
    assert not await allowed(at, "another.test/a:1", FOUND, never)


async def test_an_image_of_a_service_account_is_for_that_account(tmp_path: Path) -> None:
    account = ImagePullServiceAccount(uid="a", namespace="shop", name="builder")
    at = await records(tmp_path)
    await pull(at, account)
    await pull(at, MINE)
    again = await records(tmp_path)
    assert await may_use(again, account)
    assert await may_use(again, MINE)
    assert not await may_use(again, evolve(account, uid="another one of that name"))
    assert not await may_use(again, evolve(account, namespace="other"))
    assert not await may_use(again)


async def test_while_an_image_is_pulled_nobody_else_may_use_it(tmp_path: Path) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    assert not await may_use(at, MINE)
    await at.fail(IMAGE)
    assert await may_use(at), "the pull brought nothing, so it was there before"
    assert not intent_path(tmp_path).exists()


async def test_an_intent_stays_until_its_last_pull_has_ended(tmp_path: Path) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    await at.begin(IMAGE)
    await at.fail(IMAGE)
    assert intent_path(tmp_path).exists()
    await at.fail(IMAGE)
    assert not intent_path(tmp_path).exists()


@pytest.mark.parametrize("how", ["killed", "cancelled", "cancelled, and another one failed"])
async def test_an_image_that_came_unseen_is_nobodys(
    tmp_path: Path, mock_clock: MockClock, how: str
) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    if how == "killed":
        at = await records(tmp_path)
    else:
        at.leave_open(IMAGE)
    if how.endswith("failed"):
        await at.begin(IMAGE)
        await at.fail(IMAGE)
    assert not await may_use(at, MINE)
    runtime = Runtime({IMAGE: IMAGE_ID})
    await at.tidy(runtime)
    assert not intent_path(tmp_path).exists()
    assert "credentialMapping" not in json.loads(record_path(tmp_path).read_text())
    assert not await may_use(await records(tmp_path), MINE)


@pytest.mark.parametrize("how", ["under way", "killed", "cancelled"])
async def test_another_name_is_no_way_round_a_pull_whose_outcome_is_unknown(
    tmp_path: Path, how: str
) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    if how == "killed":
        at = await records(tmp_path)
    elif how == "cancelled":
        at.leave_open(IMAGE)
    digest = f"registry.test/a@sha256:{'0' * 64}"
    brought = cri.Image(id=IMAGE_ID, repo_tags=[IMAGE, "registry.test/a:2"], repo_digests=[digest])
    for name in (IMAGE, "registry.test/a:2", digest, "mirror.test/a:1", IMAGE_ID):
        assert not await allowed(at, name, brought, shows(MINE))
    other = cri.Image(id="sha256:2", repo_tags=["registry.test/a:3"])
    assert await allowed(at, "registry.test/a:3", other, shows()), "it was there before"


@pytest.mark.parametrize("how", ["killed", "cancelled"])
async def test_an_intent_whose_image_never_came_is_given_up_after_ten_minutes(
    tmp_path: Path, mock_clock: MockClock, how: str
) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    if how == "killed":
        at = await records(tmp_path)
    else:
        at.leave_open(IMAGE)
    for seconds in (0, 1, 598):
        mock_clock.jump(seconds)
        await at.tidy(Runtime())
        assert intent_path(tmp_path).exists(), "the runtime may still be about to end it"
    mock_clock.jump(1)
    await at.tidy(Runtime())
    assert not intent_path(tmp_path).exists()
    assert not record_path(tmp_path).exists()


async def test_a_pull_that_is_left_open_again_gets_its_ten_minutes_again(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    at = await records(tmp_path)
    for _ in range(2):
        await at.begin(IMAGE)
        at.leave_open(IMAGE)
        mock_clock.jump(GIVE_UP_SECONDS - 1)
        await at.tidy(Runtime())
        assert intent_path(tmp_path).exists()
    mock_clock.jump(1)
    await at.tidy(Runtime())
    assert not intent_path(tmp_path).exists()


async def test_a_pull_that_is_left_open_is_looked_for_at_once(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = 0
    at = await records(tmp_path)
    runtime_health, runtime = RuntimeHealth(), Runtime()
    runtime_health.update(RuntimeState(up=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.tend, runtime, runtime_health)
        await trio.sleep(PERIOD_SECONDS / 2)
        runtime.images[IMAGE] = IMAGE_ID
        await at.begin(IMAGE)
        at.leave_open(IMAGE)
        await trio.sleep(1)
        assert record_path(tmp_path).exists()
        assert not intent_path(tmp_path).exists()
        nursery.cancel_scope.cancel()


async def test_records_go_with_their_images(tmp_path: Path, mock_clock: MockClock) -> None:
    at = await records(tmp_path)
    await pull(at, MINE)
    put(record_path(tmp_path, "sha256:2"), RECORD_FILE.replace("sha256:1", "sha256:2"))
    put(record_path(tmp_path, "sha256:3"), b"nonsense")
    put(record_path(tmp_path, "sha256:4"), b"nonsense")
    at = await records(tmp_path)
    mock_clock.jump(5)
    await at.tidy(Runtime({"a": IMAGE_ID, "b": "sha256:4"}))
    left = {path.name for path in record_path(tmp_path).parent.iterdir()}
    assert left == {file_name(IMAGE_ID), file_name("sha256:4")}
    await at.tidy(Runtime())
    assert not list(record_path(tmp_path).parent.iterdir())
    assert await may_use(at), "somebody else may bring it again"


async def test_a_record_that_is_younger_than_the_list_stays(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    at = await records(tmp_path)
    await pull(at, MINE)
    await at.tidy(Runtime())
    assert record_path(tmp_path).exists()


async def test_records_are_tidied_every_five_minutes_whatever_the_runtime_says(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = 0
    put(record_path(tmp_path), RECORD_FILE)
    at = await records(tmp_path)
    runtime_health, runtime = RuntimeHealth(), Runtime({"a": IMAGE_ID}, is_away=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.tend, runtime, runtime_health)
        runtime_health.update(RuntimeState(up=True))
        await trio.sleep(PERIOD_SECONDS / 2)
        assert runtime.lists == 1
        runtime.is_away, runtime.images = False, {}
        await trio.sleep(PERIOD_SECONDS)
        assert runtime.lists == 2
        assert not record_path(tmp_path).exists()
        nursery.cancel_scope.cancel()


async def test_a_bug_in_tidying_ends_nothing(tmp_path: Path, mock_clock: MockClock) -> None:
    class Odd(Runtime):
        async def list_images(self) -> Sequence[cri.Image]:
            if not await super().list_images() and self.lists == 1:
                raise RuntimeError("a bug")
            return ()

    mock_clock.autojump_threshold = 0
    put(record_path(tmp_path), RECORD_FILE)
    at = await records(tmp_path)
    runtime_health, runtime = RuntimeHealth(), Odd()
    runtime_health.update(RuntimeState(up=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.tend, runtime, runtime_health)
        await trio.sleep(PERIOD_SECONDS / 2)
        assert record_path(tmp_path).exists()
        await trio.sleep(PERIOD_SECONDS)
        assert not record_path(tmp_path).exists()
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_written_is_pulled_by_nobody_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = await records(tmp_path)
    await at.begin(IMAGE)
    blocker = unfinished(record_path(tmp_path))
    blocker.mkdir()
    await at.succeed(IMAGE, IMAGE_ID, MINE)
    assert "image pull record write failed" in capsys.readouterr().out
    assert intent_path(tmp_path).exists()
    assert not await may_use(at, MINE)
    blocker.rmdir()
    await pull(at, MINE)
    assert await may_use(at, MINE)
    assert not intent_path(tmp_path).exists()


async def test_without_an_intent_there_is_no_pull(tmp_path: Path) -> None:
    at = await records(tmp_path)
    blocker = unfinished(intent_path(tmp_path))
    blocker.mkdir()
    with pytest.raises(IsADirectoryError):
        await at.begin(IMAGE)
    blocker.rmdir()
    assert await may_use(at)
    await pull(at, MINE)
    assert not await may_use(at)
