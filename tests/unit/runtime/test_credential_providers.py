"""Who asks an image credential provider, how often, and for whom its answers are kept."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, evolve, field
from trio.testing import MockClock

from tests.unit.runtime.image_nodes import POD, PRIVATE, SANDBOX, closed, node, pull_records
from trio_kubelet.config.credential_providers import PROVIDER_V1
from trio_kubelet.config.records import (
    CredentialProviderV1,
    ImagePullServiceAccount,
    ServiceAccountTokenAttributes,
)
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, ServiceAccount
from trio_kubelet.references import NoReferences, ObjectError
from trio_kubelet.runtime.images import credential_providers
from trio_kubelet.runtime.images.credential_plugin import CredentialPlugin
from trio_kubelet.runtime.images.credential_providers import (
    ImageCredentialProvider,
    ImageCredentialProviders,
    ProvidedCredentials,
)
from trio_kubelet.runtime.images.credentials import image_matches
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.images.pod_images import PodImages, WantedImage

TOKENS = ServiceAccountTokenAttributes(
    service_account_token_audience="registry.test",
    cache_type="ServiceAccount",
    require_service_account=True,
    required_service_account_annotation_keys=("registry.test/role",),
    optional_service_account_annotation_keys=("registry.test/team",),
)


@define
class Accounts(NoReferences):
    """The service accounts of an API server, whose tokens have the pod in them."""

    annotations: dict[str, dict[str, str]]
    problem: str = ""

    async def service_account(self, namespace: str, name: str) -> ServiceAccount:
        if self.problem:
            raise ObjectError(self.problem)
        found = self.annotations[name]
        meta = ObjectMeta(namespace=namespace, name=name, uid=f"uid-{name}", annotations=found)
        return ServiceAccount(metadata=meta)

    async def account_token(self, pod: Pod, audience: str, account_uid: str) -> str:
        return f"token for {account_uid} at {audience} in {pod.metadata.name}"


def pod(name: str = "p", account: str = "") -> Pod:
    meta = ObjectMeta(namespace="ns", name=name, uid=f"uid-{name}")
    return Pod(metadata=meta, spec=PodSpec(service_account_name=account))


@define
class Provider:
    """A provider whose program notes what it is asked."""

    folder: Path
    name: str = "plugin"
    references: NoReferences = field(factory=NoReferences)
    match_images: tuple[str, ...] = ("*.test",)
    default_cache_duration: timedelta = timedelta(minutes=5)
    token_attributes: ServiceAccountTokenAttributes | None = None

    def write(self, script: str) -> None:
        program = self.folder / self.name
        program.write_text(f'#!/bin/sh\ncat >>"$0.asked"\n{script}\n')
        program.chmod(0o755)

    def answers(self, *, scope: str = "Image", password: str = "good", **more: object) -> None:
        document = {
            "kind": "CredentialProviderResponse",
            "apiVersion": PROVIDER_V1,
            "cacheKeyType": scope,
            "auth": {"registry.test": {"username": "me", "password": password}},
            **more,
        }
        self.write(f"cat <<'END'\n{json.dumps(document)}\nEND")

    def asked(self) -> list[Mapping[str, object]]:
        """The requests to the program so far."""
        path = self.folder / f"{self.name}.asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def images(self) -> list[object]:
        return [each["image"] for each in self.asked()]

    def open(self) -> ImageCredentialProvider:
        config = CredentialProviderV1(
            name=self.name,
            match_images=self.match_images,
            default_cache_duration=self.default_cache_duration,
            api_version=PROVIDER_V1,
            token_attributes=self.token_attributes,
        )
        plugin = CredentialPlugin(config, self.folder, lambda *_: None)
        return ImageCredentialProvider(config, plugin, self.references)

    def providers(self) -> ImageCredentialProviders:
        return ImageCredentialProviders([self.open()])


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


def logins(provided: ProvidedCredentials) -> list[tuple[str, str]]:
    return [(each.username, each.password) for each in provided.credentials]


@pytest.mark.parametrize(
    ("pattern", "image", "expected"),
    [
        ("registry.test", "registry.test/a", True),
        ("*.test", "registry.test/a", True),
        ("*", "registry.test/a", False),
        ("*.*.test", "eu.registry.test/a", True),
        ("*.test", "eu.registry.test/a", False),
        ("reg*.test", "registry.test/a", True),
        ("registry.test:5000", "registry.test:5000/a", True),
        ("registry.test", "registry.test:5000/a", False),
        ("registry.test:5000", "registry.test/a", False),
        ("*.test:5000", "registry.test:5000/a", True),
        ("registry.test/team", "registry.test/team/a", True),
        ("registry.test/team", "registry.test/teams/a", True),
        ("registry.test/team", "registry.test/other/a", False),
        ("registry.test/", "registry.test/a", True),
        ("registry.test/*", "registry.test/a", False),
        ("docker.io", "docker.io/library/busybox", True),
        ("", "registry.test/a", False),
    ],
)
def test_images_are_matched_by_host_port_and_beginning_of_the_path(
    pattern: str, image: str, expected: bool
) -> None:
    assert image_matches(pattern, image) is expected


async def test_only_who_matches_is_asked_and_by_the_name_without_tag(provider: Provider) -> None:
    provider.answers()
    providers = provider.providers()
    assert logins(await providers.lookup(POD, "registry.test/a:1")) == [("me", "good")]
    for image in ("elsewhere.example/a:1", "busybox", "Bad/Name"):
        assert await providers.lookup(POD, image) == ProvidedCredentials()
    assert provider.images() == ["registry.test/a"]


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        ("Image", ["registry.test/a", "registry.test/b", "other.test/a"]),
        ("Registry", ["registry.test/a", "other.test/a"]),
        ("Global", ["registry.test/a"]),
    ],
)
async def test_an_answer_is_kept_for_what_it_says(
    provider: Provider, scope: str, asked: list[str]
) -> None:
    provider.answers(scope=scope)
    providers = provider.providers()
    for image in ("registry.test/a:1", "registry.test/a:2", "registry.test/b", "other.test/a"):
        for _ in range(2):
            await providers.lookup(POD, image)
    assert provider.images() == asked


@pytest.mark.parametrize(
    ("more", "default_seconds", "kept_seconds"),
    [
        ({}, 60, 60),
        ({"cacheDuration": None}, 60, 60),
        ({"cacheDuration": "10s"}, 60, 10),
        ({"cacheDuration": "0s"}, 60, 0),
        ({"cacheDuration": "-1s"}, 60, 0),
        ({}, 0, 0),
    ],
)
async def test_an_answer_is_kept_as_long_as_it_says_or_the_configuration(
    provider: Provider,
    mock_clock: MockClock,
    more: dict[str, Any],
    default_seconds: int,
    kept_seconds: int,
) -> None:
    provider.default_cache_duration = timedelta(seconds=default_seconds)
    provider.answers(**more)
    providers = provider.providers()
    await providers.lookup(POD, PRIVATE)
    if kept_seconds:
        mock_clock.jump(kept_seconds - 0.1)
        await providers.lookup(POD, PRIVATE)
        assert len(provider.asked()) == 1
        mock_clock.jump(0.2)
    await providers.lookup(POD, PRIVATE)
    assert len(provider.asked()) == 2


async def test_of_too_many_answers_the_one_goes_that_was_not_used_for_longest(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_providers, "MAX_KEPT_ANSWERS", 2)
    provider.answers()
    providers = provider.providers()
    for name in ("a", "b", "a", "c", "a", "b"):
        await providers.lookup(POD, f"registry.test/{name}")
    assert provider.images() == [f"registry.test/{name}" for name in ("a", "b", "c", "b")]


async def test_a_registry_that_none_can_have_is_left_out(provider: Provider) -> None:
    login = {"username": "me", "password": "good"}
    provider.answers(auth={"https://[": login, "x" * 5000: login, "registry.test": login})
    assert logins(await provider.providers().lookup(POD, PRIVATE)) == [("me", "good")]


async def test_other_providers_are_asked_once_they_are_told(tmp_path: Path) -> None:
    first, second = (Provider(tmp_path, name) for name in ("first", "second"))
    first.answers(scope="Global", password="one")
    second.answers(scope="Global", password="two")
    providers = first.providers()
    assert logins(await providers.lookup(POD, PRIVATE)) == [("me", "one")]
    providers.use([second.open()])
    assert logins(await providers.lookup(POD, PRIVATE)) == [("me", "two")]
    providers.use([])
    assert logins(await providers.lookup(POD, PRIVATE)) == []


async def test_a_failure_is_not_kept(provider: Provider) -> None:
    provider.write("echo broken >&2; exit 1")
    providers = provider.providers()
    failed = await providers.lookup(POD, PRIVATE)
    assert failed.problems == ('credential provider "plugin" gave no credentials',)
    provider.answers()
    assert logins(await providers.lookup(POD, PRIVATE)) == [("me", "good")]


async def test_who_asks_the_same_at_once_shares_a_run(provider: Provider) -> None:
    provider.answers(cacheDuration="0s")
    providers = provider.providers()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(providers.lookup, POD, PRIVATE)
    assert len(provider.asked()) == 1


async def test_a_provider_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    hanging = Provider(tmp_path, "hanging", match_images=("slow.test",))
    hanging.write("exec sleep 1000")
    quick = Provider(tmp_path, "quick", match_images=("registry.test",))
    quick.answers()
    providers = ImageCredentialProviders([hanging.open(), quick.open()])
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(providers.lookup, POD, f"slow.test/{number}")
            while not hanging.asked():
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert logins(await providers.lookup(pod("q"), PRIVATE)) == [("me", "good")]
            assert len(hanging.asked()) <= 2, "a pod has two runs at once"
            nursery.cancel_scope.cancel()


async def test_all_providers_of_an_image_are_tried(tmp_path: Path) -> None:
    broken, first, second = (Provider(tmp_path, name) for name in ("broken", "first", "second"))
    broken.write("exit 1")
    first.answers(password="one")
    second.answers(password="two")
    providers = ImageCredentialProviders([each.open() for each in (broken, first, second)])
    provided = await providers.lookup(POD, PRIVATE)
    assert logins(provided) == [("me", "one"), ("me", "two")]
    assert len(provided.problems) == 1


def with_tokens(
    provider: Provider,
    annotations: Mapping[str, Mapping[str, str]],
    attributes: ServiceAccountTokenAttributes = TOKENS,
) -> ImageCredentialProviders:
    provider.references = Accounts({name: dict(each) for name, each in annotations.items()})
    provider.token_attributes = attributes
    return provider.providers()


ROLE = {"registry.test/role": "reader", "unrelated": "x"}


async def test_a_provider_is_given_the_token_and_the_annotations_that_it_wants(
    provider: Provider,
) -> None:
    provider.answers()
    team = {**ROLE, "registry.test/team": "blue"}
    provided = await with_tokens(provider, {"builder": team}).lookup(pod("p", "builder"), PRIVATE)
    [asked] = provider.asked()
    assert asked["serviceAccountToken"] == "token for uid-builder at registry.test in p"
    assert asked["serviceAccountAnnotations"] == {
        "registry.test/role": "reader",
        "registry.test/team": "blue",
    }
    account = ImagePullServiceAccount(uid="uid-builder", namespace="ns", name="builder")
    assert [each.source for each in provided.credentials] == [account]


async def test_a_provider_is_not_asked_for_a_pod_without_account_or_annotation(
    provider: Provider,
) -> None:
    provider.answers()
    providers = with_tokens(provider, {"plain": {"registry.test/team": "blue"}})
    for each in (pod(), pod("q", "plain")):
        assert await providers.lookup(each, PRIVATE) == ProvidedCredentials()
    assert provider.asked() == []


async def test_a_provider_that_needs_no_account_is_asked_without_one(provider: Provider) -> None:
    provider.answers()
    attributes = evolve(
        TOKENS, require_service_account=False, required_service_account_annotation_keys=()
    )
    provided = await with_tokens(provider, {}, attributes).lookup(pod(), PRIVATE)
    assert [each.source for each in provided.credentials] == [None]
    assert "serviceAccountToken" not in provider.asked()[0]


async def test_an_account_that_cannot_be_had_is_a_problem(provider: Provider) -> None:
    provider.answers()
    provider.references = Accounts({}, problem="the API server is away")
    provider.token_attributes = TOKENS
    provided = await provider.providers().lookup(pod("p", "builder"), PRIVATE)
    assert len(provided.problems) == 1
    assert provider.asked() == []


PODS: Sequence[Pod] = (pod("p", "one"), pod("q", "one"), pod("r", "two"), pod("p", "one"))


@pytest.mark.parametrize(("cache_type", "runs"), [("ServiceAccount", 2), ("Token", 3)])
async def test_answers_are_kept_by_account_or_by_token(
    provider: Provider, cache_type: str, runs: int
) -> None:
    provider.answers(scope="Global")
    attributes = evolve(TOKENS, cache_type=cache_type)
    providers = with_tokens(provider, {"one": ROLE, "two": ROLE}, attributes)
    for each in PODS:
        await providers.lookup(each, PRIVATE)
    assert len(provider.asked()) == runs


async def test_an_account_with_other_annotations_is_asked_for_anew(provider: Provider) -> None:
    provider.answers(scope="Global")
    providers = with_tokens(provider, {"one": ROLE})
    await providers.lookup(PODS[0], PRIVATE)
    assert isinstance(provider.references, Accounts)
    provider.references.annotations["one"] = {**ROLE, "unrelated": "y"}
    await providers.lookup(PODS[0], PRIVATE)
    assert len(provider.asked()) == 1
    provider.references.annotations["one"] = {"registry.test/role": "writer"}
    await providers.lookup(PODS[0], PRIVATE)
    assert len(provider.asked()) == 2


@pytest.mark.parametrize(("cache_type", "is_refused"), [("ServiceAccount", True), ("Token", False)])
async def test_a_token_as_password_is_only_for_who_has_that_token(
    provider: Provider, cache_type: str, is_refused: bool
) -> None:
    provider.answers(password="token for uid-one at registry.test in p")
    attributes = evolve(TOKENS, cache_type=cache_type)
    provided = await with_tokens(provider, {"one": ROLE}, attributes).lookup(PODS[0], PRIVATE)
    assert bool(provided.credentials) is not is_refused
    assert bool(provided.problems) is is_refused


# A pull


async def test_an_image_is_pulled_with_the_credentials_of_a_provider(provider: Provider) -> None:
    provider.answers()
    async with node(registry=closed()) as at:
        ours = evolve(at, images=evolve(at.images, providers=provider.providers()))
        await ours.ensure(PRIVATE)
        assert len(provider.asked()) == 1
        await evolve(ours, known=PodImages()).ensure(PRIVATE, policy="IfNotPresent")
        assert len(provider.asked()) == 1, "the image is there"


async def test_a_pull_that_fails_names_the_provider_that_gave_nothing(provider: Provider) -> None:
    provider.write("echo no account >&2; exit 1")
    async with node(registry=closed()) as at:
        ours = evolve(at, images=evolve(at.images, providers=provider.providers()))
        with pytest.raises(ImageError, match='credential provider "plugin" gave no credentials'):
            await ours.ensure(PRIVATE)
        assert not any("no account" in said for said in ours.said()), "what it says is for the log"


async def test_an_image_of_an_account_is_for_pods_of_that_account(
    provider: Provider, tmp_path: Path
) -> None:
    provider.answers(cacheDuration="0s")
    providers = with_tokens(provider, {"one": ROLE, "two": ROLE})
    async with node(registry=closed(), access=await pull_records(tmp_path)) as at:
        images = evolve(at.images, providers=providers)

        async def ensure(each: Pod, policy: str) -> None:
            container = Container(name="c", image=PRIVATE, image_pull_policy=policy)
            wanted = WantedImage.of_container(container)
            await images.ensure(each, wanted, PodImages(), SANDBOX)

        await ensure(pod("p", "one"), "IfNotPresent")
        await ensure(pod("q", "one"), "Never")
        assert len(provider.asked()) == 2
        for stranger in (pod("r", "two"), pod("s")):
            with pytest.raises(ImageError, match="ErrImageNeverPull"):
                await ensure(stranger, "Never")
        assert len(provider.asked()) == 2, "nothing that they could be told would prove access"
