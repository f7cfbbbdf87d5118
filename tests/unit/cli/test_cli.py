from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from paco_core.cli import commands as cli
from paco_core.cli import tour
from paco_core.config import profiles
from paco_core.planning import preflight
from paco_core.runtime import metrics_text
from paco_core.stages import declared

pytestmark = pytest.mark.slow


def paco(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "paco_core", *args], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize(("verb", "heavy"), [("--help", ["pydantic"]), ("check", ["pyarrow"])])
def test_a_light_verb_imports_no_heavy_library(project: Path, verb: str, heavy: list[str]) -> None:
    code = """
import sys
from paco_core.cli import commands as cli
try:
    cli.main([sys.argv[1]])
except SystemExit:
    pass
assert not {"torch", "mlflow", "diffusers", "transformers", "pandas", *sys.argv[2:]} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, verb, *heavy], cwd=project, check=True, capture_output=True)


def test_bad_parameters_end_with_one_clear_line(project: Path) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("learning_rate", "learnin_rate", 1))
    result = paco("run", "prompts", cwd=project)
    assert result.returncode == 1
    assert "unknown key" in result.stderr and "did you mean 'learning_rate'?" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [["pairs", "--item", "3"], ["grids"], ["grids", "--item", "7"], ["policies", "--item", "flux"]]
)
def test_an_item_that_a_stage_does_not_have_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(SystemExit):
        cli.main(["run", *arguments])
    assert f"stage {arguments[0]} " in capsys.readouterr().err and not (project / "data").exists()


def test_the_check_names_missing_models_and_little_memory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "memory_gb", lambda: 0.5)
    report = preflight.check_project(project, declared(project))
    assert not report.passed
    assert any("grids.model: folder data/zoo/flux is missing" in problem for problem in report.problems)
    assert any(problem.startswith("memory: 0.5 GB") for problem in report.problems)


def test_a_line_tells_the_first_figures_and_where_the_others_stand() -> None:
    few = {"pairs": 3, "margin.worst": 1.5263e-05, "tau": float("nan"), "loss.before": 2.0}
    assert metrics_text.metrics_line(few, "m.json") == "pairs 3, margin.worst 1.526e-05, tau nan, loss.before 2"
    ends = {"before": 0.5, "after": 0.25, "change": -0.25, "change_low": -0.5, "change_high": 0.0, "change_missing": 2}
    many = {f"{size}.{end}": value for size in range(10) for end, value in ends.items()}
    line = metrics_text.metrics_line(many, "m.json")
    change = "0.5 -> 0.25 (-0.250, 95% interval -0.500 to +0.000, 2 missing)"
    assert line == f"0 {change}, 1 {change}; 8 more in m.json"
    assert metrics_text.metrics_line({"a" * 200: 1, "b": 2}, "m.json") == f"{'a' * 200} 1; 1 more in m.json"
    assert metrics_text.metrics_line(dict.fromkeys(map(str, range(10)), 1), "m.json").endswith(
        ", 7 1; 2 more in m.json"
    )
    nan = float("nan")
    assert metrics_text.as_text(
        {f"0.{end}": v for end, v in {**ends, "change_low": nan, "change_high": nan}.items()}
    ) == {"0": "0.5 -> 0.25 (-0.250, 2 missing)"}, "of a single prompt"
    assert metrics_text.as_text({"0.before": nan, "0.after": 0.5, "0.change": nan}) == {"0": "nan -> 0.5"}


def test_the_check_looks_at_a_profile_that_is_not_in_use(project: Path) -> None:
    before = (project / "params.yaml").read_bytes()
    result = paco("check", "--profile", "paper", cwd=project)
    assert result.returncode == 1 and result.stdout.startswith("profile paper: what each stage would do")
    assert (project / "params.yaml").read_bytes() == before


def test_the_check_names_the_variable_of_a_missing_key(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles.use(project, "paper")
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    problem = "prompts.endpoint: the environment variable DEEPSEEK_API_KEY holds no key for https://api.deepseek.com"
    assert problem in preflight.check_project(project, declared(project)).problems
    monkeypatch.setenv("DEEPSEEK_API_KEY", "k")
    assert problem not in preflight.check_project(project, declared(project)).problems


def changed(project: Path, key: str, value: object) -> list[str]:
    """Problems that the check finds in the project when one key of its parameters has another value."""
    tree = yaml.safe_load((project / "params.yaml").read_text())
    *path, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    section = tree
    for part in path:
        section = section[part]
    section[last] = value
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    return preflight.check_project(project, declared(project)).problems


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("prompts.count", 1_000_000, "prompts.count=1000000: "),
        ("prompts.layout", "9x9", "prompts.layout=9x9: "),
        ("annotations.model", None, "annotations.model: null"),
        ("edits.painters.1.model", "data/zoo/nope", "edits.painters.1.model: folder data/zoo/nope is missing"),
        ("policies.recipes.flux_t2is.start", "./lora", "policies.recipes.flux_t2is.start: folder ./lora is missing"),
        ("pairs.keep_out", "data/external/bench", "pairs.keep_out: folder data/external/bench is missing"),
    ],
)
def test_the_check_names_what_a_changed_key_makes_impossible(
    project: Path, key: str, value: object, problem: str
) -> None:
    assert any(problem_line.startswith(problem) for problem_line in changed(project, key, value))


def test_a_section_that_its_stage_does_not_list_is_a_problem(project: Path) -> None:
    """DVC would take a change of it for none: the stage would keep its old results in silence."""
    graph = project / "dvc.yaml"
    lists_it = "params: [edit_reward, world, "
    assert lists_it in graph.read_text()
    graph.write_text(graph.read_text().replace(lists_it, "params: [world, ", 1))
    (problem,) = [p for p in preflight.check_project(project, declared(project)).problems if p.startswith("dvc.yaml")]
    assert "dvc.yaml, edit_reward: its section of params.yaml" in problem and "add `params: [edit_reward]`" in problem


def test_the_command_finds_rewards_in_the_project_s_folder(project: Path) -> None:
    """The script `paco` starts elsewhere than `python -m paco_core`, which the stages are started with."""
    (project / "my_own_rewards.py").write_text("def red(batch):\n    return [0.0] * len(batch)\n")
    mine = {"red": {"weight": 1.0, "reward": "my_own_rewards:red"}}
    changed(project, "policies.recipes.flux_t2is.rewards.terms", mine)
    script = "import sys; sys.path.remove(''); from paco_core.cli.commands import main; main(['check'])"
    result = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, text=True)
    assert "problem: grids.model" in result.stdout and "my_own_rewards" not in result.stdout + result.stderr


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that lies in no project."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_outside_a_project_nothing_is_written_and_one_line_says_why(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs = ["check", "status", "champions", "sync", "tables", "graph", "tour", "params", "code", "paint x", "play"]
    verbs += ["run prompts", "checkpoints list", "serve status", "annotate status", "provenance data/pairs"]
    for verb in (*verbs, "fetch reward out"):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(verb.split())
        assert exit_info.value.code == 1 and "lies in no paco project" in capsys.readouterr().err, verb
        assert list(nowhere.iterdir()) == [], verb


@pytest.mark.thorough
def test_a_model_scores_outside_a_project(repository: Path, nowhere: Path) -> None:
    for number, colour in enumerate(("red", "blue")):
        Image.new("RGB", (56, 56), colour).save(nowhere / f"{number}.png")
    result = paco("score", "0.png", "1.png", "--model", str(repository / "data/zoo/qwen2_5_vl"), cwd=nowhere)
    assert result.returncode == 0 and 0 <= float(result.stdout) <= 1, result.stderr
    assert {path.name for path in nowhere.iterdir()} == {"0.png", "1.png"}
    result = paco("doctor", cwd=nowhere)
    assert result.returncode == 0 and "parameters: " in result.stdout
    assert {path.name for path in nowhere.iterdir()} == {"0.png", "1.png"}


def test_a_long_command_keeps_options_with_their_values() -> None:
    command = shlex.join(
        ["paco", "paint", "a theme " * 11, "--panels", *["a big red cat"] * 4, "--seed", "1", "--compare"]
    )
    lines = tour._wrapped(command)
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == shlex.split(command)
    assert len(lines) > 2 and not [line for line in lines if line.removesuffix(" \\").endswith("--seed")]
