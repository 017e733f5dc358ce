"""What a runtime offers, read off its status."""

from trio_kubelet.k8s import NodeFeatures, NodeRuntimeHandler
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.handlers import features_of
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState, runtime_state


def test_runtime_handlers_are_told_by_name_with_what_they_can_do() -> None:
    answer = cri.StatusResponse(
        runtime_handlers=[
            cri.RuntimeHandler(name="runc"),
            cri.RuntimeHandler(
                name="", features=cri.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
            ),
        ]
    )
    handlers = features_of(answer).handlers
    assert [handler.name for handler in handlers] == ["", "runc"]
    assert [_able(handler) for handler in handlers] == [(True, False), (False, False)]


def test_the_handlers_that_make_recursive_read_only_mounts_are_told_by_name() -> None:
    able = cri.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
    handlers = [
        cri.RuntimeHandler(name="", features=able),
        cri.RuntimeHandler(name="runc", features=able),
        cri.RuntimeHandler(name="old", features=cri.RuntimeHandlerFeatures()),
        cri.RuntimeHandler(name="silent"),
    ]
    runtime_features = features_of(cri.StatusResponse(runtime_handlers=handlers))
    assert runtime_features.recursive_read_only == {"", "runc"}
    assert features_of(cri.StatusResponse()).recursive_read_only == frozenset()


def _able(handler: NodeRuntimeHandler) -> tuple[bool | None, bool | None]:
    assert handler.features is not None
    return handler.features.recursive_read_only_mounts, handler.features.user_namespaces


def test_features_are_told_only_by_a_runtime_that_knows_them() -> None:
    assert features_of(cri.StatusResponse()).features is None
    able = cri.StatusResponse(features=cri.RuntimeFeatures(supplemental_groups_policy=True))
    assert features_of(able).features == NodeFeatures(supplemental_groups_policy=True)


def test_a_runtime_that_falls_silent_keeps_what_it_offered() -> None:
    runtime_health = RuntimeHealth()
    runtime_health.update(
        runtime_state(cri.StatusResponse(runtime_handlers=[cri.RuntimeHandler(name="x")]))
    )
    runtime_features = runtime_health.state.runtime_features
    runtime_health.mark_down("container runtime is down: gone")
    assert not runtime_health.state.answered
    assert runtime_health.state.runtime_features == runtime_features
    assert [handler.name for handler in runtime_features.handlers] == ["x"]


def test_offers_are_part_of_what_changes() -> None:
    runtime_health, changes = RuntimeHealth(), list[RuntimeState]()
    runtime_health.on_change.add(lambda _, after: changes.append(after))
    for handlers in (["a"], ["a"], ["a", "b"]):
        answer = [cri.RuntimeHandler(name=name) for name in handlers]
        runtime_health.update(runtime_state(cri.StatusResponse(runtime_handlers=answer)))
    assert [len(state.runtime_features.handlers) for state in changes] == [1, 2]
