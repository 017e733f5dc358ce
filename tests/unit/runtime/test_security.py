from typing import Any

import pytest
from attrs import evolve

from tests.node_facts import configured, node_facts
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    AppArmorProfile,
    Capabilities,
    Container,
    EphemeralContainer,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.security import (
    IdMapping,
    ImageUser,
    SecurityFacts,
    container_security_context,
    namespace_options,
    sandbox_security_context,
    verify_run_as_non_root,
)
from trio_kubelet.runtime.node_facts import NodeFacts

NODE = node_facts("/k")
MODE = cri.NamespaceMode
PROFILE = cri.SecurityProfileProfileType


def pod(context: PodSecurityContext | None = None, **spec: object) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u-1"),
        spec=PodSpec(security_context=context, **spec),  # type: ignore[arg-type]
    )


def container(**fields: object) -> Container:
    return Container(name="c", security_context=SecurityContext(**fields))  # type: ignore[arg-type]


PLAIN_POD, PLAIN, ROOT = pod(), container(), ImageUser(0)


def context(
    pod: Pod = PLAIN_POD,
    container: Container = PLAIN,
    node: NodeFacts = NODE,
    image_user: ImageUser = ROOT,
    **facts: object,
) -> cri.LinuxContainerSecurityContext:
    made = container_security_context(
        pod,
        container,
        node,
        image_user=image_user,
        **facts,  # type: ignore[arg-type]
    )
    return cri.LinuxContainerSecurityContext().parse(bytes(made))


@pytest.mark.parametrize(
    ("spec", "network", "pid", "ipc"),
    [
        ({}, MODE.POD, MODE.CONTAINER, MODE.POD),
        ({"host_network": True}, MODE.NODE, MODE.CONTAINER, MODE.POD),
        ({"host_pid": True}, MODE.POD, MODE.NODE, MODE.POD),
        ({"host_ipc": True}, MODE.POD, MODE.CONTAINER, MODE.NODE),
        ({"share_process_namespace": True}, MODE.POD, MODE.POD, MODE.POD),
        ({"share_process_namespace": True, "host_pid": True}, MODE.POD, MODE.NODE, MODE.POD),
    ],
)
def test_namespaces_are_the_pods_own_unless_it_shares_them(
    spec: dict[str, Any], network: int, pid: int, ipc: int
) -> None:
    options = namespace_options(pod(**spec))
    assert (options.network, options.pid, options.ipc) == (network, pid, ipc)
    assert options.userns_options.mode == MODE.NODE


def test_a_pod_that_asks_for_a_user_namespace_never_gets_that_of_the_node() -> None:
    asking = pod(host_users=False)
    words = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    with pytest.raises(ConfigError, match=words):
        sandbox_security_context(asking)
    with pytest.raises(ConfigError, match=words):
        context(asking)


def test_a_user_namespace_maps_users_and_groups_alike() -> None:
    mapping = IdMapping(host_id=65536, length=65536)
    options = namespace_options(pod(host_users=False), mapping).userns_options
    assert options.mode == MODE.POD
    assert options.uids == options.gids == [cri.IdMapping(65536, 0, 65536)]


def test_an_ephemeral_container_sees_the_processes_of_its_target() -> None:
    options = context(target_container_id="abc").namespace_options
    assert (options.pid, options.target_id) == (MODE.TARGET, "abc")
    shared = context(pod(share_process_namespace=True), target_container_id="abc")
    assert (shared.namespace_options.pid, shared.namespace_options.target_id) == (MODE.POD, "")


def test_the_user_is_the_containers_else_the_pods_else_the_images() -> None:
    demanding = pod(PodSecurityContext(run_as_user=1000, run_as_group=3000))
    own = context(demanding, container(run_as_user=0, run_as_group=7), image_user=ImageUser(5))
    assert is_present(own.run_as_user)
    assert (own.run_as_user.value, own.run_as_group.value) == (0, 7)
    inherited = context(demanding, image_user=ImageUser(None, "www"))
    assert (inherited.run_as_user.value, inherited.run_as_group.value) == (1000, 3000)
    assert inherited.run_as_username == ""
    of_image = context(image_user=ImageUser(5))
    assert of_image.run_as_user.value == 5
    assert not is_present(of_image.run_as_group)


def test_a_user_known_by_name_alone_is_sent_by_name() -> None:
    named = context(image_user=ImageUser(None, "www"))
    assert not is_present(named.run_as_user)
    assert named.run_as_username == "www"


def test_root_is_a_user_that_is_there() -> None:
    made = context()
    assert is_present(made.run_as_user)
    assert made.run_as_user.value == 0


NON_ROOT = PodSecurityContext(run_as_non_root=True)
WHERE = '(pod: "web_shop(u-1)", container: c)'


@pytest.mark.parametrize(
    ("pod", "container", "image_user", "message"),
    [
        (
            pod(NON_ROOT),
            container(),
            ImageUser(0),
            f"container has runAsNonRoot and image will run as root {WHERE}",
        ),
        (
            pod(),
            container(run_as_non_root=True),
            ImageUser(0),
            f"container has runAsNonRoot and image will run as root {WHERE}",
        ),
        (
            pod(NON_ROOT),
            container(run_as_user=0),
            ImageUser(5),
            f"container's runAsUser breaks non-root policy {WHERE}",
        ),
        (
            pod(NON_ROOT),
            container(),
            ImageUser(None, "www"),
            "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is"
            f" non-root {WHERE}",
        ),
        (
            pod(NON_ROOT),
            container(),
            ImageUser(None, "w" * 1_000_000),
            f"container has runAsNonRoot and image has non-numeric user ({'w' * 1024}), cannot"
            f" verify user is non-root {WHERE}",
        ),
        (
            pod(NON_ROOT),
            container(),
            ImageUser(1 << 31),
            "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be"
            f" 1-(2147483647)): must be between 0 and 2147483647, inclusive {WHERE}",
        ),
    ],
)
def test_root_is_refused_where_it_is_not_wanted(
    pod: Pod, container: Container, image_user: ImageUser, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        context(pod, container, image_user=image_user)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("pod", "container", "image_user"),
    [
        (pod(), container(), ImageUser(0)),
        (pod(NON_ROOT), container(run_as_non_root=False), ImageUser(0)),
        (pod(NON_ROOT), container(), ImageUser(5)),
        (pod(NON_ROOT), container(run_as_user=5), ImageUser(0)),
        (pod(evolve(NON_ROOT, run_as_user=5)), container(), ImageUser(None, "root")),
    ],
)
def test_others_may_run(pod: Pod, container: Container, image_user: ImageUser) -> None:
    verify_run_as_non_root(pod, container, image_user)


def test_groups_are_the_pods_and_those_of_its_volumes() -> None:
    grouped = pod(PodSecurityContext(fs_group=0, supplemental_groups=(4, 5)))
    facts = SecurityFacts(extra_groups=(9,))
    assert context(grouped, facts=facts).supplemental_groups == [0, 4, 5, 9]
    assert sandbox_security_context(grouped, facts).supplemental_groups == [0, 9, 4, 5]


@pytest.mark.parametrize(("policy", "value"), [("", 0), ("Merge", 0), ("Strict", 1)])
def test_the_policy_for_groups_is_passed_on(policy: str, value: int) -> None:
    strict = pod(PodSecurityContext(supplemental_groups_policy=policy))
    assert context(strict).supplemental_groups_policy == value
    assert sandbox_security_context(strict).supplemental_groups_policy == value


def test_an_unknown_policy_for_groups_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unsupported supplementalGroupsPolicy: Loose"):
        context(pod(PodSecurityContext(supplemental_groups_policy="Loose")))


RUNTIME_DEFAULT = SeccompProfile(type="RuntimeDefault")
UNCONFINED = SeccompProfile(type="Unconfined")


@pytest.mark.parametrize(
    ("own", "pods", "by_default", "profile"),
    [
        (None, None, False, PROFILE.Unconfined),
        (None, None, True, PROFILE.RuntimeDefault),
        (UNCONFINED, None, True, PROFILE.Unconfined),
        (UNCONFINED, RUNTIME_DEFAULT, False, PROFILE.Unconfined),
        (None, RUNTIME_DEFAULT, False, PROFILE.RuntimeDefault),
        (RUNTIME_DEFAULT, UNCONFINED, False, PROFILE.RuntimeDefault),
    ],
)
def test_seccomp_is_the_containers_else_the_pods_else_the_nodes(
    own: SeccompProfile | None, pods: SeccompProfile | None, by_default: bool, profile: int
) -> None:
    made = context(
        pod(PodSecurityContext(seccomp_profile=pods)),
        container(seccomp_profile=own),
        configured(NODE, seccomp_default=by_default),
    )
    assert is_present(made.seccomp)
    assert made.seccomp.profile_type == profile


def test_a_seccomp_profile_of_the_node_is_found_below_its_root_folder() -> None:
    profile = SeccompProfile(type="Localhost", localhost_profile="a/b.json")
    made = context(container=container(seccomp_profile=profile)).seccomp
    assert (made.profile_type, made.localhost_ref) == (PROFILE.Localhost, "/k/seccomp/a/b.json")
    with pytest.raises(ConfigError, match="localhostProfile must be set"):
        context(container=container(seccomp_profile=SeccompProfile(type="Localhost")))


def test_the_sandbox_is_confined_whatever_the_pod_says() -> None:
    made = sandbox_security_context(pod(PodSecurityContext(seccomp_profile=UNCONFINED)))
    assert is_present(made.seccomp)
    assert made.seccomp.profile_type == PROFILE.RuntimeDefault


ANNOTATION = "container.apparmor.security.beta.kubernetes.io/c"


@pytest.mark.parametrize(
    ("own", "annotated", "pods", "profile", "deprecated"),
    [
        ("RuntimeDefault", "unconfined", "Unconfined", PROFILE.RuntimeDefault, "runtime/default"),
        (None, "unconfined", "RuntimeDefault", PROFILE.Unconfined, "unconfined"),
        (None, "localhost/x", None, PROFILE.Localhost, "localhost/x"),
        (None, "nonsense", "Unconfined", PROFILE.Unconfined, "unconfined"),
        (None, None, "RuntimeDefault", PROFILE.RuntimeDefault, "runtime/default"),
    ],
)
def test_apparmor_is_the_containers_else_annotated_else_the_pods(
    own: str | None, annotated: str | None, pods: str | None, profile: int, deprecated: str
) -> None:
    def named(kind: str | None) -> AppArmorProfile | None:
        return None if kind is None else AppArmorProfile(type=kind)

    asked = pod(PodSecurityContext(app_armor_profile=named(pods)))
    annotations = {} if annotated is None else {ANNOTATION: annotated}
    asked = evolve(asked, metadata=evolve(asked.metadata, annotations=annotations))
    made = context(asked, container(app_armor_profile=named(own)))
    assert is_present(made.apparmor)
    assert (made.apparmor.profile_type, made.apparmor_profile) == (profile, deprecated)


def test_without_apparmor_nothing_is_said_about_it() -> None:
    made = context()
    assert not is_present(made.apparmor)
    assert made.apparmor_profile == ""


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (AppArmorProfile(type="Localhost"), "missing localhost apparmor profile name"),
        (AppArmorProfile(type="Odd"), 'unknown apparmor profile type: "Odd"'),
    ],
)
def test_apparmor_profiles_that_cannot_be_are_errors(
    profile: AppArmorProfile, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        context(container=container(app_armor_profile=profile))


def test_selinux_labels_are_taken_as_a_whole() -> None:
    labelled = pod(PodSecurityContext(se_linux_options=SELinuxOptions(level="s0", user="u")))
    own = container(se_linux_options=SELinuxOptions(type="t"))
    assert context(labelled, own).selinux_options == cri.SeLinuxOption(type="t")
    expected = cri.SeLinuxOption(level="s0", user="u")
    assert context(labelled).selinux_options == expected
    assert sandbox_security_context(labelled).selinux_options == expected
    assert not is_present(context().selinux_options)


def test_capabilities_are_absent_unless_written() -> None:
    assert not is_present(context().capabilities)
    made = context(container=container(capabilities=Capabilities(add=("A",), drop=("ALL",))))
    assert made.capabilities == cri.Capability(["A"], ["ALL"])
    assert is_present(context(container=container(capabilities=Capabilities())).capabilities)


@pytest.mark.parametrize(("allowed", "no_new"), [(None, False), (True, False), (False, True)])
def test_privileges_do_not_grow_where_that_is_forbidden(allowed: bool | None, no_new: bool) -> None:
    assert context(container=container(allow_privilege_escalation=allowed)).no_new_privs is no_new


def test_paths_of_proc_are_masked_unless_unmasked() -> None:
    hot = "/sys/devices/system/cpu/cpu0/thermal_throttle"
    made = context(node=evolve(NODE, thermal_throttle_paths=(hot,)))
    assert made.masked_paths[0] == "/proc/asound"
    assert made.masked_paths[-2:] == ["/sys/devices/virtual/powercap", hot]
    assert "/proc/sys" in made.readonly_paths
    bare = context(container=container(proc_mount="Unmasked"))
    assert (bare.masked_paths, bare.readonly_paths) == ([], [])


def test_a_sandbox_is_privileged_if_any_container_is() -> None:
    might = SecurityContext(privileged=True)
    meek = Container(name="c")
    for spec in (
        {"containers": (meek, Container(name="d", security_context=might))},
        {"init_containers": (Container(name="d", security_context=might),)},
        {"ephemeral_containers": (EphemeralContainer(name="d", security_context=might),)},
    ):
        assert sandbox_security_context(pod(**spec)).privileged
    assert not sandbox_security_context(pod(containers=(meek,))).privileged


def test_a_sandbox_has_no_user_unless_the_pod_has_one() -> None:
    assert not is_present(sandbox_security_context(pod()).run_as_user)
    rooted = sandbox_security_context(pod(PodSecurityContext(run_as_user=0, run_as_group=0)))
    assert is_present(rooted.run_as_user)
    assert is_present(rooted.run_as_group)
