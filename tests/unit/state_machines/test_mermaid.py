from pathlib import Path

import pytest

from state_machines.mermaid import MarkerError, blocks, diagram, main, redrawn, table
from state_machines.pod import POD

ROOT = Path(__file__).parents[3]


def test_the_documentation_shows_the_tables_as_they_are() -> None:
    assert main(["--check", str(ROOT / "docs" / "state-machines.md")]) == 0


def test_the_readme_shows_the_pod_as_it_is() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md")
    assert main(["--check", str(readme)]) == 0


def test_events_on_the_same_way_share_an_arrow() -> None:
    lines = diagram(POD).splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    [*] --> Terminating : only the runtime knows the pod" in lines
    assert "    Terminating --> Terminated : ContainersStopped [seen stopped]" in lines
    assert "    Finished --> [*]" in lines
    assert len([line for line in lines if line.startswith("    SyncPod --> Terminating")]) == 1


def test_a_table_has_a_line_with_the_reason_for_every_row() -> None:
    lines = table(POD).splitlines()[2:]
    assert len(lines) == len(POD.rows)
    for line, row in zip(lines, POD.rows, strict=True):
        assert str(row.source) in line
        assert row.why in line


def test_text_around_the_markers_is_left_alone() -> None:
    begin, end = "<!-- x:begin -->", "<!-- x:end -->"
    text = f"above\n{begin}\nold\n{end}\nbelow\n{begin}\n{end}\n"
    new = redrawn(text, {"x": "new"})
    assert new == f"above\n{begin}\nnew\n{end}\nbelow\n{begin}\nnew\n{end}\n"
    assert redrawn(new, {"x": "new"}) == new


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no marker here\n", "has no marker such as <!-- pod-machine:begin -->"),
        ("<!-- pod-machine:begin -->\n", "pod-machine:begin --> has no partner"),
        ("<!-- pod-machine:end -->\n<!-- pod-machine:begin -->\n", "not followed by its end"),
        ("<!-- pod-machine:begin -->\n<!-- pleg-machine:end -->\n", "not followed by its end"),
        ("<!-- pot-machine:begin -->\n<!-- pot-machine:end -->\n", "unknown; known are pod-mach"),
    ],
)
def test_markers_that_do_not_fit_are_named(text: str, problem: str) -> None:
    with pytest.raises(MarkerError, match=problem):
        redrawn(text, blocks())


def test_a_document_that_drifted_is_found_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "README.md"
    document.write_text("<!-- pod-diagram:begin -->\nold\n<!-- pod-diagram:end -->\n")
    assert main(["--check", str(document)]) == 1
    assert "differs from the tables" in capsys.readouterr().err
    assert "old" in document.read_text()
    assert main(["--write", str(document)]) == 0
    assert diagram(POD) in document.read_text()
    assert main(["--check", str(document)]) == 0


def test_a_missing_document_is_named_and_the_others_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "here.md"
    document.write_text("<!-- pod-diagram:begin -->\n<!-- pod-diagram:end -->\n")
    assert main(["--write", str(tmp_path / "missing.md"), str(document)]) == 1
    assert "missing.md: No such file or directory" in capsys.readouterr().err
    assert diagram(POD) in document.read_text()
