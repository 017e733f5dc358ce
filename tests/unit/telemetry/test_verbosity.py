"""Debug entries of all modules, or of those that `vmodule` names; the streams of a split log."""

import json
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import structlog
from attrs import evolve

from trio_kubelet.config import Settings
from trio_kubelet.config.parts import FormatOptions, LoggingConfiguration, OutputRoutingOptions
from trio_kubelet.config.parts import VModuleItem as Item
from trio_kubelet.telemetry.log import configure_logging
from trio_kubelet.telemetry.verbosity import matches, set_verbosity, set_vmodule


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    configured_before = structlog.get_config()
    yield
    set_vmodule(())
    set_verbosity(0)
    structlog.configure(**configured_before)


def configured(*items: Item, verbosity: int = 0) -> list[str]:
    """The lines of a log that is configured like this."""
    lines: list[str] = []
    use(LoggingConfiguration(verbosity=verbosity, vmodule=items), lines.append)
    return lines


def use(options: LoggingConfiguration, write: Callable[[str], None] | None = None) -> None:
    """Log as a configuration says."""
    settings = Settings()
    configuration = evolve(settings.configuration, logging=options)
    configure_logging(evolve(settings, configuration=configuration), write)


def says(module: str) -> Callable[[str], None]:
    """A function of a module with this name that writes a debug entry, and one of level info."""
    made = ModuleType(module)
    source = (
        "import structlog\n"
        "log = structlog.get_logger('x')\n"
        "def say(words):\n"
        "    log.debug(words)\n"
        "    log.bind(pod='p').debug(words + ' bound')\n"
        "    log.info(words + ' info')\n"
    )
    exec(source, made.__dict__)
    return made.say  # type: ignore[no-any-return]


def test_a_module_is_named_by_its_file_or_the_end_of_its_path() -> None:
    path = ["trio_kubelet", "volumes", "staged_volumes"]
    for pattern in ("staged_volumes", "staged*", "volumes/*", "*/volumes/staged_volumes", "*"):
        assert matches(pattern, path), pattern
    for pattern in (
        "volumes",
        "staged",
        "csi/*",
        "a/*/*/*",
        "/trio_kubelet/*/*",
        "",
        "/",
        "[",
        "x",
    ):
        assert not matches(pattern, path), pattern


def test_only_the_modules_that_are_named_write_debug_entries() -> None:
    lines = configured(Item(file_pattern="volumes/*", verbosity=4))
    says("trio_kubelet.volumes.emptydir")("loud")
    says("trio_kubelet.csi.drivers")("quiet")
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "loud",
        "loud bound pod=p",
        "loud info",
        "quiet info",
    ]


def test_a_module_never_says_less_than_all_others() -> None:
    lines = configured(Item(file_pattern="drivers", verbosity=0), verbosity=4)
    says("trio_kubelet.csi.drivers")("loud")
    assert len(lines) == 3


def test_a_level_below_that_of_debug_entries_adds_nothing() -> None:
    lines = configured(Item(file_pattern="*", verbosity=3))
    says("trio_kubelet.csi.drivers")("quiet")
    assert len(lines) == 1


def test_both_are_changed_while_the_agent_runs() -> None:
    lines = configured()
    say = says("trio_kubelet.csi.drivers")
    changes: list[tuple[Callable[[], None], int]] = [
        (lambda: None, 1),
        (lambda: set_vmodule([Item(file_pattern="drivers", verbosity=5)]), 3),
        (lambda: set_verbosity(4), 3),
        (lambda: set_verbosity(0), 3),
        (lambda: set_vmodule([Item(file_pattern="other", verbosity=5)]), 1),
    ]
    for change, written in changes:
        change()
        lines.clear()
        say("said")
        assert len(lines) == written


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_split_log_has_warnings_and_errors_alone_on_stderr(
    capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    split = OutputRoutingOptions(split_stream=True)
    options = FormatOptions(**{log_format: split})
    use(LoggingConfiguration(format=log_format, verbosity=4, options=options))
    log = structlog.get_logger("x")
    log.debug("a debug")
    log.info("a info")
    log.warning("a warning")
    log.error("a error")
    read = capfd.readouterr()
    assert said(read.out, log_format) == ["a debug", "a info"]
    assert said(read.err, log_format) == ["a warning", "a error"]


def test_the_options_of_the_other_format_split_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    split = FormatOptions(json=OutputRoutingOptions(split_stream=True))
    use(LoggingConfiguration(options=split))
    structlog.get_logger("x").info("said")
    assert capfd.readouterr().out == ""


def said(text: str, log_format: str) -> list[str]:
    lines = text.splitlines()
    if log_format == "json":
        return [json.loads(line)["msg"] for line in lines]
    return [line.split(maxsplit=2)[2] for line in lines]
