"""Who may use an image that is on the node already: a line for each case."""

import hashlib

import pytest

from trio_kubelet.config.records import (
    ImagePullCredentials,
    ImagePulledRecord,
    ImagePullSecret,
    ImagePullServiceAccount,
)
from trio_kubelet.k8s import Time
from trio_kubelet.k8s.image_reference import name_alone, with_default_tag
from trio_kubelet.runtime.images.access import (
    RECORDED_SECRETS,
    Access,
    Verification,
    VerificationPolicy,
    access,
    credential_hash,
    may_have_brought,
    with_access,
)

NEVER, PRELOADED, ALLOWLISTED, ALWAYS = VerificationPolicy
ALLOWLIST = ("registry.test/open/*", "registry.test/team/app", "docker.io/team/*", "busybox")
EARLIER, NOW = Time.parse("2026-01-01T00:00:00Z"), Time.parse("2026-01-02T00:00:00Z")


def secret(
    name: str = "s", content: str = "1", *, namespace: str = "ns", uid: str = "u"
) -> ImagePullSecret:
    return ImagePullSecret(uid=uid, namespace=namespace, name=name, credential_hash=content)


def pulled_with(*secrets: ImagePullSecret) -> ImagePullCredentials:
    return ImagePullCredentials(kubernetes_secrets=secrets)


EVERYBODY = ImagePullCredentials(node_pods_accessible=True)
NOBODY_KNOWN = ImagePullCredentials()


@pytest.mark.parametrize(
    ("policy", "image", "pulled_here", "needed"),
    [
        (NEVER, "registry.test/a:1", True, False),
        (NEVER, "registry.test/a:1", False, False),
        (PRELOADED, "registry.test/a:1", True, True),
        (PRELOADED, "registry.test/a:1", False, False),
        (ALWAYS, "registry.test/a:1", True, True),
        (ALWAYS, "registry.test/a:1", False, True),
        (ALLOWLISTED, "registry.test/a:1", False, True),
        (ALLOWLISTED, "registry.test/open/a:1", True, False),
        (ALLOWLISTED, "registry.test/open/a/b@sha256:0", True, False),
        (ALLOWLISTED, "registry.test/opener/a:1", True, True),
        (ALLOWLISTED, "registry.test/team/app:1", True, False),
        (ALLOWLISTED, "registry.test/team/app/more:1", True, True),
        (ALLOWLISTED, "busybox", True, False),
        (ALLOWLISTED, "docker.io/library/busybox", True, True),
        (ALLOWLISTED, "docker.io/team/app:1", True, False),
        (ALLOWLISTED, "team/app:1", True, True),
    ],
)
def test_the_policy_says_of_which_images_access_is_to_be_proven(
    policy: VerificationPolicy, image: str, pulled_here: bool, needed: bool
) -> None:
    verification = Verification(policy=policy, allowlist=ALLOWLIST)
    assert verification.is_needed(image, pulled_here=pulled_here) is needed


@pytest.mark.parametrize(
    ("image", "name", "tagged"),
    [
        ("busybox", "busybox", "busybox:latest"),
        ("busybox:1", "busybox", "busybox:1"),
        ("registry.test:5000/a", "registry.test:5000/a", "registry.test:5000/a:latest"),
        ("registry.test:5000/a:1", "registry.test:5000/a", "registry.test:5000/a:1"),
        ("[::1]:5000/a:1", "[::1]:5000/a", "[::1]:5000/a:1"),
        ("a/b@sha256:0", "a/b", "a/b@sha256:0"),
        ("a/b:1@sha256:0", "a/b", "a/b:1@sha256:0"),
    ],
)
def test_names_with_and_without_tags(image: str, name: str, tagged: str) -> None:
    assert name_alone(image) == name
    assert with_default_tag(image) == tagged


DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("pulls", "names", "expected"),
    [
        ([], ["busybox:1"], False),
        (["busybox:1"], ["busybox:1"], True),
        (["busybox:1"], ["docker.io/library/busybox:1"], True),
        (["busybox"], ["docker.io/library/busybox:latest"], True),
        (["busybox:1"], ["busybox:2"], False),
        (["busybox:1"], ["busybox:2", "docker.io/library/busybox:1"], True),
        ([f"busybox:1@{DIGEST}"], ["busybox:2", f"docker.io/library/busybox@{DIGEST}"], True),
        (["busybox:1"], ["registry.test/busybox:1"], False),
        (["No Name"], ["No Name"], True),
        (["No Name"], ["busybox:1", ""], False),
    ],
)
def test_which_pulls_may_have_brought_an_image(
    pulls: list[str], names: list[str], expected: bool
) -> None:
    assert may_have_brought(pulls, names) is expected


MANY = tuple(secret(f"s{number}", f"{number}") for number in range(RECORDED_SECRETS))
FREE, DENIED = Access(True), Access(False)


@pytest.mark.parametrize(
    ("known", "own", "expected"),
    [
        (EVERYBODY, [], FREE),
        (NOBODY_KNOWN, [secret()], DENIED),
        (pulled_with(secret()), [], DENIED),
        (pulled_with(secret()), [secret()], FREE),
        (pulled_with(secret()), [secret("other", "2")], DENIED),
        (
            pulled_with(secret()),
            [secret(namespace="elsewhere")],
            Access(True, secret(namespace="elsewhere")),
        ),
        (pulled_with(secret()), [secret(content="new")], Access(True, secret(content="new"))),
        (pulled_with(secret()), [secret(uid="made anew", content="2")], DENIED),
        (pulled_with(secret(content="")), [secret("other", "")], DENIED),
        (pulled_with(secret(content="")), [secret()], Access(True, secret())),
        (
            pulled_with(secret("a", "1"), secret("b", "2")),
            [secret("x", "9"), secret("b", "2")],
            FREE,
        ),
        (pulled_with(*MANY), [secret("other", "5")], FREE),
        (pulled_with(*MANY), [secret("s5", "new")], FREE),
        (
            ImagePullCredentials(
                kubernetes_service_accounts=(
                    ImagePullServiceAccount(uid="u", namespace="ns", name="s"),
                )
            ),
            [secret()],
            DENIED,
        ),
    ],
)
def test_what_a_pods_own_secrets_are_worth(
    known: ImagePullCredentials, own: list[ImagePullSecret], expected: Access
) -> None:
    assert access(known, own) == expected


@pytest.mark.parametrize(
    ("before", "pull", "after"),
    [
        (None, EVERYBODY, EVERYBODY),
        (None, pulled_with(secret()), pulled_with(secret())),
        (None, None, None),
        (EVERYBODY, pulled_with(secret()), EVERYBODY),
        (pulled_with(secret()), EVERYBODY, EVERYBODY),
        (pulled_with(secret()), None, pulled_with(secret())),
        (pulled_with(secret()), pulled_with(secret()), pulled_with(secret())),
        (
            pulled_with(secret(content="old")),
            pulled_with(secret(content="new")),
            pulled_with(secret(content="new")),
        ),
        (
            pulled_with(secret("b"), secret("c")),
            pulled_with(secret("z", namespace="a"), secret("a")),
            pulled_with(secret("z", namespace="a"), secret("a"), secret("b"), secret("c")),
        ),
    ],
)
def test_a_record_takes_up_what_a_pull_has_proven(
    before: ImagePullCredentials | None,
    pull: ImagePullCredentials | None,
    after: ImagePullCredentials | None,
) -> None:
    others = {"registry.test/other": EVERYBODY}
    record = ImagePulledRecord(
        image_ref="sha256:1",
        last_updated_time=str(EARLIER),
        credential_mapping=others | ({"registry.test/a": before} if before else {}),
    )
    found = with_access(record, "registry.test/a:1", pull, NOW)
    assert found.credential_mapping == others | ({"registry.test/a": after} if after else {})
    assert found.image_ref == "sha256:1"
    assert found.last_updated_time == str(EARLIER if after == before else NOW)


def test_credentials_are_recognized_by_the_hash_that_the_go_kubelet_makes() -> None:
    def hashed(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    assert credential_hash("u", "p", "", "") == hashed('{"username":"u","password":"p"}')
    assert credential_hash("u", "<&>", "m@x", "") == hashed(
        '{"username":"u","password":"\\u003c\\u0026\\u003e","email":"m@x"}'
    )
    assert credential_hash("", "", "", "one") != credential_hash("", "", "", "two")
