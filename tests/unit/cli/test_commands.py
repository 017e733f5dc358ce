"""The command line: names, exit codes, and what is said on which stream."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import structlog
from click.testing import CliRunner

from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.cli import main
from trio_kubelet.cli.commands import COMMANDS, commands
from trio_kubelet.cli.start import start
from trio_kubelet.config import Settings

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def run(program: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """An agent that starts holds signals back; other tests start programs in this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """An agent that only notes the settings it was started with."""
    seen: list[Settings] = []

    def run_agent(settings: Settings, _read_anew: object) -> int:
        seen.append(settings)
        return 0

    agent = ModuleType("trio_kubelet.agent.main")
    agent.run_agent = run_agent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trio_kubelet.agent.main", agent)
    monkeypatch.setattr("trio_kubelet.telemetry.log.configure_logging", lambda _settings: None)
    monkeypatch.setattr(structlog, "get_logger", lambda *_: _Silent())
    return seen


class _Silent:
    def warning(self, event: str) -> None:
        pass


@pytest.mark.parametrize("program", ["kubelet", "/usr/bin/kubelet"])
def test_by_the_name_kubelet_the_version_is_that_of_kubernetes(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(program, "--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"Kubernetes {KUBERNETES_VERSION}\n"


def test_by_the_name_kubelet_the_arguments_are_flags(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--root-dir", "/srv/kubelet", "--fail-cgroupv1=false", "-v", "4"]
    assert run("/opt/bin/kubelet", *arguments, monkeypatch=monkeypatch) == 0
    (settings,) = started
    assert settings.options.root_dir == "/srv/kubelet"
    assert not settings.configuration.fail_cgroup_v1
    assert settings.configuration.logging.verbosity == 4


def test_run_takes_the_same_flags(started: list[Settings]) -> None:
    result = CliRunner().invoke(commands, ["run", "--hollow", "-v=4", "--max_pods", "7"])
    assert result.exit_code == 0
    assert started[0].options.hollow
    assert started[0].configuration.max_pods == 7


def test_the_exit_code_is_that_of_the_agent(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["trio_kubelet.agent.main"], "run_agent", lambda *_: 3)
    assert start([], "kubelet") == 3


def test_a_wrong_flag_is_one_line_on_stderr_and_exit_code_1(
    started: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(["--docker-endpoint=x"], "kubelet") == 1
    captured = capsys.readouterr()
    expected = "kubelet: failed to parse kubelet flag: unknown flag: --docker-endpoint"
    assert captured.err == f"{expected} (see kubelet --help)\n"
    assert not captured.out
    assert not started


def test_a_missing_file_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(["--config=/no/such/file"], "kubelet") == 1
    assert "/no/such/file: failed to read kubelet config file: No such file" in (
        capsys.readouterr().err
    )


BUG = """
from trio_kubelet.agent import main
async def run(*settings):
    raise ExceptionGroup("in tasks", [KeyError("no such thing")])
main._run = run
main.run_agent(None, None)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-m", "trio_kubelet", "run", "--docker-endpoint=x"), "flag: --docker-endpoint"),
        (("-m", "trio_kubelet", "run", "--hollow", "--lock-file={}/absent/lock"), "--lock-file: "),
        (("-c", BUG), "KeyError('no such thing')"),
    ],
    ids=["the command line", "the machine", "a bug"],
)
def test_in_the_journal_it_is_an_error_that_ends_the_agent(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with (tmp_path / "journal").open("w") as journal:
        stream = os.fstat(journal.fileno())
        ended = subprocess.run(
            [sys.executable, *(word.format(tmp_path) for word in words)],
            env={**os.environ, "JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"},
            stderr=journal,
            check=False,
        )
    assert ended.returncode == 1
    line, *_ = (tmp_path / "journal").read_text().splitlines()
    assert line.startswith("<3>trio-kubelet")
    assert said in line


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(["--help"], "kubelet") == 0
    shown = capsys.readouterr().out
    assert "-v, --v Level" in shown
    assert "--max-pods int32" in shown
    assert "(default 110) (DEPRECATED)" in shown


def test_version_names_agent_and_kubernetes() -> None:
    result = CliRunner().invoke(commands, ["version"])
    assert result.output == f"trio-kubelet {__version__} (Kubernetes {KUBERNETES_VERSION})\n"


def test_every_command_of_the_table_exists() -> None:
    result = CliRunner().invoke(commands, ["--help"])
    for name, entry in COMMANDS.items():
        assert name in result.output
        assert entry.summary in result.output
        assert commands.get_command(None, name) is not None  # type: ignore[arg-type]


def test_a_command_that_does_not_exist_is_refused() -> None:
    assert CliRunner().invoke(commands, ["fly"]).exit_code == 2


def test_check_config_accepts_a_good_file_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + "maxPods: 20\nfailSwapOn: false\n")
    result = CliRunner().invoke(commands, ["check-config", str(file)])
    assert result.exit_code == 0
    assert result.stdout == f"{file}: valid; 2 of its settings differ from the default\n"
    assert not result.stderr


def test_check_config_names_every_problem_with_its_field(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + "maxPods: -1\nport: 99999\nrunOnce: true\n")
    result = CliRunner().invoke(commands, ["check-config", str(file)])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    for field, line in zip(["maxPods", "port", "runOnce"], lines, strict=True):
        assert field in line


def test_check_config_shows_what_a_running_agent_needs_for_each_change(tmp_path: Path) -> None:
    running, new, folder = tmp_path / "running.yaml", tmp_path / "new.yaml", tmp_path / "conf.d"
    running.write_text(HEADER + "maxPods: 20\nregistryBurst: 20\n")
    new.write_text(HEADER + "maxPods: 30\ncgroupDriver: systemd\nlogging: {verbosity: 4}\n")
    folder.mkdir()
    (folder / "10-burst.conf").write_text(HEADER + "registryBurst: 30\n")
    check = ["check-config", "--diff", str(running)]
    result = CliRunner().invoke(commands, [*check, str(new), "--config-dir", str(folder)])
    assert result.exit_code == 0
    assert set(result.stdout.splitlines()[1:]) == {
        "restart: maxPods: 20 -> 30",
        "live: registryBurst: 20 -> 30",
        "drain first: cgroupDriver: cgroupfs -> systemd",
        "live: logging.verbosity: 0 -> 4",
    }
    assert (
        CliRunner().invoke(commands, [*check, str(running)]).stdout.endswith("no setting changes\n")
    )
    burst = ["--diff-config-dir", str(folder)]
    result = CliRunner().invoke(commands, [*check, str(running), *burst])
    assert result.stdout.splitlines()[1:] == ["live: registryBurst: 30 -> 20"]
    running.write_text(HEADER + "maxPods: -1\n")
    result = CliRunner().invoke(commands, [*check, str(new)])
    assert result.exit_code == 1
    assert "maxPods" in result.stdout.splitlines()[1]


def test_check_config_merges_drop_ins_and_warns_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER)
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "10-pods.conf").write_text(HEADER + "maxPods: 30\nenableContentionProfiling: true\n")
    (folder / "README").write_text("what these are for")
    result = CliRunner().invoke(commands, ["check-config", str(file), "--config-dir", str(folder)])
    assert result.exit_code == 0
    assert result.stdout.endswith("valid; 2 of its settings differ from the default\n")
    ignored, unsupported = result.stderr.splitlines()
    assert ignored.endswith("README: ignored, because only *.conf files are drop-ins")
    assert unsupported.endswith("enableContentionProfiling")


def test_check_config_names_all_that_is_wrong_at_once_in_all_files(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        HEADER
        + "future: 1\nlogging: {colour: blue}\nmaxPods: 1\nmaxPods: -2\nport: many\n"
        + "evictionHard: {'memory.available': 5}\nfeatureGates: {Fly: true, NodeSwap: false}\n"
        + "crashLoopBackOff: often\nnodeStatusReportFrequency: soon\n"
    )
    folder = tmp_path / "conf.d"
    folder.mkdir()
    first, second, third = (folder / f"{name}.conf" for name in "abc")
    first.write_text("[")
    second.write_text(HEADER + "registryBurst: -1\nregistryBurst: -1\nrunOnce: 1\nnews: 2\n")
    third.write_text("maxOpenFiles: x\n")
    result = CliRunner().invoke(commands, ["check-config", str(file), "--config-dir", str(folder)])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    for path, words in (
        (file, 'unknown field "future"'),
        (file, 'unknown field "logging.colour"'),
        (file, 'key "maxPods" already set in map'),
        (file, 'port: Invalid value: "many": must be an integer'),
        (file, "evictionHard[memory.available]: Invalid value: 5: must be a string"),
        (file, 'crashLoopBackOff: Invalid value: "often": must be an object'),
        (file, 'nodeStatusReportFrequency: Invalid value: "soon"'),
        (first, "failed to decode: "),
        (second, 'unknown field "news"'),
        (second, 'key "registryBurst" already set in map'),
        (second, "runOnce: Invalid value: 1: must be a boolean"),
        (third, "it must begin with apiVersion: kubelet.config.k8s.io/v1beta1"),
        (third, 'maxOpenFiles: Invalid value: "x": must be an integer'),
    ):
        assert sum(line.startswith(f"{path}: {words}") for line in lines) == 1, words
    gates = [line for line in lines if "feature gate" in line]
    assert gates == [
        "unrecognized feature gate: Fly",
        "cannot set feature gate NodeSwap to false, feature is locked to true",
    ]
    assert len(lines) == 15


def test_check_config_judges_values_of_a_file_with_wrong_types_too(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + "maxPods: -2\nport: many\nmaxParallelImagePulls: 5\nnews: 1\n")
    result = CliRunner().invoke(commands, ["check-config", str(file)])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f'{file}: port: Invalid value: "many": must be an integer',
        "invalid configuration: maxPods (--max-pods) -2 must not be a negative number",
        f'{file}: unknown field "news"',
    ]


@pytest.mark.parametrize(
    "oddity",
    ["future: 1\n", "maxPods: 1\nmaxPods: 1\n", "maxPods: 1\n---\nmaxPods: 2\n"],
    ids=["unknown field", "doubled key", "second document"],
)
def test_what_an_agent_would_read_past_fails_the_check(tmp_path: Path, oddity: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + oddity)
    result = CliRunner().invoke(commands, ["check-config", str(file)])
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)


def test_run_goes_on_with_a_field_that_it_does_not_know(
    started: list[Settings], tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + "future: 1\nmaxPods: 3\n")
    assert start([f"--config={file}"], "kubelet") == 0
    (settings,) = started
    assert settings.configuration.max_pods == 3
    assert settings.warnings == (
        f'{file}: using lenient decoding as strict decoding failed: unknown field "future"',
    )


def test_what_cannot_be_printed_stays_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    header = '{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"'
    file.write_text(
        header + ', "port": "\\ud800\\na", "\\udfff": 1, "maxPods": 1' + "0" * 5000 + "}"
    )
    result = CliRunner().invoke(commands, ["check-config", str(file)])
    assert result.exit_code == 1
    assert "4300" in result.stdout
    file.write_text(header + ', "port": "\\ud800\\na", "\\udfff": 1}')
    result = CliRunner().invoke(commands, ["check-config", str(file)])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f'{file}: port: Invalid value: "\\ud800\\na": must be an integer',
        f'{file}: unknown field "\\udfff"',
    ]
