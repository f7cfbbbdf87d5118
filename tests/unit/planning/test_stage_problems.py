"""Whatever a stage would refuse and parameters or prompt files say, `paco check` says in the stage's own sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from paco_core.benchmarks.t2is_bench.questions import read_criteria, validate_texts
from paco_core.benchmarks.unseen_prompts import only_test_file
from paco_core.config.params import Params, parse
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.sources import validate_excluded
from paco_core.data.pairs.character_stories import read_stories, validate_usable
from paco_core.data.pairs.editing import editing_pairs
from paco_core.data.pairs.imported_pairs import imported_pairs
from paco_core.data.pairs.limits import held_out_units, validate_candidate_count, validate_validation_pairs
from paco_core.data.prompts.diversify import validate_target
from paco_core.data.prompts.edit_prompts import make_edit_prompts
from paco_core.data.prompts.prompts import make_prompts
from paco_core.grpo.prompt_split import (
    held_out_edits,
    hold_out,
    predefined_split,
    prompts_of_epoch,
    validate_even_batches,
    validate_whole_groups,
)
from paco_core.io.files import DataError, write_json, write_jsonl
from paco_core.io.rejected import Rejected
from paco_core.io.shipped import LIBRARY
from paco_core.planning import preflight
from paco_core.planning.stage_problems import stage_problems
from paco_core.policies.base import validate_token_grid
from paco_core.policies.families import validate_pipeline_class, validate_text_window
from paco_core.rewards import needs, registry
from paco_core.stages import declared
from paco_core.storybook.world import VOCABULARY
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from tests.support import REPOSITORY
from tests.support.dataset_world import records

FLUX, KONTEXT = "policies.recipes.flux_t2is", "policies.recipes.kontext_edit"
PROMPTS = "prompts.jsonl"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Parameters, graph, and models without weights: their configurations are all that is read."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    for file in (REPOSITORY / "data/zoo").rglob("*.json"):
        if file.name in ("model_index.json", "config.json", "open_clip_config.json", "tokenizer_config.json"):
            place = tmp_path / file.relative_to(REPOSITORY)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
    return tmp_path


def params_with(root: Path, changes: dict[str, Any]) -> Params:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    for key, value in changes.items():
        *path, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        section = tree
        for part in path:
            section = section[part]
        section[last] = value
    (root / "params.yaml").write_text(yaml.safe_dump(tree))
    return parse(tree)


def sets(root: Path, count: int = 30, name: str = PROMPTS, **fields: Any) -> str:
    write_jsonl(root / name, [record.model_dump() | fields for record in records(count)])
    return name


def edits(root: Path, pictures: int) -> str:
    for number in range(pictures):
        Image.new("RGB", (64, 64), (20 * number, 0, 0)).save(root / f"{number}.png")
    rows = [{"instruction": f"Make it {n}.", "input_image": f"{n}.png"} for n in range(pictures)]
    write_jsonl(root / "edits.jsonl", rows)
    return "edits.jsonl"


def of_edits(root: Path, pictures: int) -> dict[str, Any]:
    file = {"edit_prompts.source": "file", "edit_prompts.file": edits(root, pictures), "edit_prompts.count": None}
    return {**file, "edits.painters": []}


def imports(root: Path, name: str = PROMPTS, **changes: Any) -> dict[str, Any]:
    return {"prompts.engine": "import", "prompts.source": name, "prompts.count": None, "diverse_prompts.target": None,
            **changes}  # fmt: skip


def message_of(refuses: Callable[[], object]) -> str:
    """The sentence that the stage prints, from the function that it calls."""
    with pytest.raises(DataError) as stopped:
        refuses()
    return str(stopped.value)


def case_target_beyond_count(root: Path) -> tuple[dict[str, Any], str]:
    records = make_prompts(params_with(root, {}).prompts, (64, 64), root).records
    return {"diverse_prompts.target": 401}, message_of(lambda: validate_target(records, 401))


def case_file_shorter_than_count(root: Path) -> tuple[dict[str, Any], str]:
    changes = imports(root, sets(root)) | {"prompts.count": 31}
    return changes, message_of(lambda: make_prompts(params_with(root, changes).prompts, (64, 64), root))


def case_all_prompts_held_back(root: Path) -> tuple[dict[str, Any], str]:
    return imports(root, sets(root, 16)), message_of(lambda: hold_out(records(16), 16, 0))


def case_epochs_of_more_prompts(root: Path) -> tuple[dict[str, Any], str]:
    return imports(root, sets(root, 20)), message_of(lambda: prompts_of_epoch(4, 8, 0, 0))


def case_files_that_share_ids(root: Path) -> tuple[dict[str, Any], str]:
    files = {"train": sets(root, 20, "train.jsonl"), "test": sets(root, 20, "test.jsonl")}
    return {f"{FLUX}.prompts": files}, message_of(lambda: predefined_split(records(20), records(20), 16, 0))


def case_recipes_of_different_files(root: Path) -> tuple[dict[str, Any], str]:
    tree = yaml.safe_load((root / "params.yaml").read_text())["policies"]["recipes"]
    write_jsonl(root / "train.jsonl", [{**r.model_dump(), "idx": f"t{r.idx}"} for r in records(20)])
    files = {"train": "train.jsonl", "test": sets(root, 20, "test.jsonl")}
    changes = {"policies.recipes": tree | {"other": tree["flux_t2is"] | {"prompts": files}}}
    return changes, message_of(lambda: only_test_file(params_with(root, changes)))


def case_all_pictures_held_back(root: Path) -> tuple[dict[str, Any], str]:
    changes = {**of_edits(root, 4), "edit_prompts.unseen": 4}
    return changes, message_of(lambda: make_edit_prompts(params_with(root, changes).edit_prompts, root))


def case_few_edits_watched(root: Path) -> tuple[dict[str, Any], str]:
    changes = {**of_edits(root, 10), "edit_prompts.unseen": 3}
    records = make_edit_prompts(params_with(root, changes).edit_prompts, root).records
    return changes, message_of(lambda: held_out_edits(records, None, 16, 0))


def case_triples_without_a_usable_one(root: Path) -> tuple[dict[str, Any], str]:
    write_jsonl(root / "triples.jsonl", [{"original": "a.png", "edited": "b.png", "instruction": "\t"}])
    changes = {"pairs.editing": {"source": "import", "count": None, "file": "triples.jsonl"}}
    return changes, message_of(lambda: editing_pairs(params_with(root, changes).pairs.editing, root))


def case_stories_without_a_usable_one(root: Path) -> tuple[dict[str, Any], str]:
    write_jsonl(root / "stories.jsonl", [{"characters": [], "panels": [{"image": "a.png", "text": "Mia"}]}])
    rejected = Rejected()
    stories = read_stories(root / "stories.jsonl", rejected)
    changes = {"pairs.characters.stories": "stories.jsonl"}
    return changes, message_of(lambda: validate_usable(root / "stories.jsonl", stories, rejected))


def case_imported_pairs_without_a_table(root: Path) -> tuple[dict[str, Any], str]:
    (root / "own").mkdir()
    return {"pairs.imported": "own"}, message_of(lambda: imported_pairs(root / "own"))


def case_rule_of_more_candidates(root: Path) -> tuple[dict[str, Any], str]:
    changes = {"prompts.layout": "1x2", "pairs.rule": "top2_bottom2", "prompts.count": 100,
               "diverse_prompts.target": None}  # fmt: skip
    return changes, message_of(lambda: validate_candidate_count("top2_bottom2", 2, "layout 1x2"))


def case_shares_of_one_prompt(root: Path) -> tuple[dict[str, Any], str]:
    return imports(root, sets(root, 1)), message_of(lambda: held_out_units(1, 0.2, "benchmark"))


def case_nothing_to_validate_on(_root: Path) -> tuple[dict[str, Any], str]:
    return {"pairs.validation_share": 0.0}, message_of(lambda: validate_validation_pairs(0))


def case_strangers_excluded(root: Path) -> tuple[dict[str, Any], str]:
    row = {"annotator": "ann", "instance_id": "i", "revision": 1, "verdict": "skipped", "ranking": None,
           "shown": [0, 1], "seconds": 1.0, "at": "2026-01-01T00:00:00+00:00", "pictures": ""}  # fmt: skip
    write_jsonl(root / answer_file.FILE, [row])
    changes = {"annotations.source": "people", "annotations.exclude": ["bob"]}
    return changes, message_of(lambda: validate_excluded({"bob"}, {"ann"}))


def case_window_of_a_recipe(root: Path) -> tuple[dict[str, Any], str]:
    changes = {f"{FLUX}.max_sequence_length": 41}
    recipe = params_with(root, changes).policies.recipes["flux_t2is"]
    return changes, message_of(lambda: validate_text_window(FLUX, recipe, root))


def case_window_of_a_painter(root: Path) -> tuple[dict[str, Any], str]:
    changes = {"edits.painters.0.max_sequence_length": 9}
    painter = params_with(root, changes).edits.painters[0]
    return changes, message_of(lambda: validate_text_window("edits.painters.0", painter, root))


def case_pixels_of_a_painter(_root: Path) -> tuple[dict[str, Any], str]:
    return {"edits.size": 72}, message_of(lambda: validate_token_grid((72, 72), 16))


def case_model_of_another_family(_root: Path) -> tuple[dict[str, Any], str]:
    sentence = message_of(lambda: validate_pipeline_class("data/zoo/flux", "FluxPipeline", "flux_kontext"))
    return {f"{KONTEXT}.model": "data/zoo/flux"}, sentence


def case_layout_of_panels_that_are_no_whole_tokens(_root: Path) -> tuple[dict[str, Any], str]:
    changes = {"prompts.layout": ["2x2", "1x3"], f"{FLUX}.train_size": 48}
    return changes, "24 x 72 px cannot be divided into 16 px tokens and 1x3 panels; the nearest valid size is 32 x 96"


def case_pairs_of_a_reward_that_compares_none(_root: Path) -> tuple[dict[str, Any], str]:
    changes = {f"{FLUX}.rewards.terms.clip_t": {"weight": 1.0, "model": "data/zoo/clip", "pairs": 3}}
    return changes, "rewards: reward clip_t: pairs and aggregate are options of consistency"


def case_reward_of_panels_without_panels(root: Path) -> tuple[dict[str, Any], str]:
    single = [r.model_copy(update={"layout": "1x1", "prompt": "ONE-PANEL Images with a 1x1 grid layout of a cat. "
              f"[PANEL-1]: a cat {r.idx}"}) for r in records(30)]  # fmt: skip
    write_jsonl(root / PROMPTS, [r.model_dump() for r in single])
    changes = imports(root, PROMPTS, **{"prompts.layout": "1x1"})
    split = hold_out(make_prompts(params_with(root, changes).prompts, (64, 64), root).records, 16, 0)
    return changes, message_of(lambda: needs.validate_panel_counts("consistency", split.trained))


def case_prompts_that_the_world_cannot_measure(root: Path) -> tuple[dict[str, Any], str]:
    first, *remaining = records(30)
    unsized = re.sub("|".join(VOCABULARY["size"]), "odd", first.prompt)
    foreign = [first.model_copy(update={"prompt": unsized}), *remaining]
    write_jsonl(root / PROMPTS, [record.model_dump() for record in foreign])
    return imports(root, PROMPTS), message_of(lambda: SETS.validate_truth(foreign))


def case_edits_that_the_world_cannot_measure(root: Path) -> tuple[dict[str, Any], str]:
    changes = {**of_edits(root, 12), "edit_prompts.unseen": 2, "policies.defaults.eval_prompts": 1}
    return changes, message_of(
        lambda: EDITS.validate_truth(make_edit_prompts(params_with(root, changes).edit_prompts, root).records)
    )


def case_reward_without_its_model(root: Path) -> tuple[dict[str, Any], str]:
    changes = {f"{FLUX}.rewards.terms": {"pickscore": {"weight": 1.0}}}
    term = params_with(root, changes).policies.recipes["flux_t2is"].rewards.terms["pickscore"]
    return changes, message_of(lambda: needs.require_model("pickscore", term))


def case_judge_that_is_no_folder(root: Path) -> tuple[dict[str, Any], str]:
    changes = {f"{FLUX}.rewards.terms": {"consistency": {"weight": 1.0, "model": "OWNER/JUDGE"}}}
    rewards = params_with(root, changes).policies.recipes["flux_t2is"].rewards
    return changes, message_of(lambda: registry.validate_judge_folders(root, rewards))


def case_processes_that_share_unevenly(root: Path) -> tuple[dict[str, Any], str]:
    changes = {"policies.defaults.rollout_batch": 100}
    recipe = params_with(root, changes).policies.recipes["flux_t2is"]
    return changes, message_of(lambda: validate_even_batches([(64, 64)] * 184, recipe, 3))


def case_groups_that_are_split(root: Path) -> tuple[dict[str, Any], str]:
    (root / "mine_of_groups.py").write_text(
        "def whole(batch):\n    return [0.0] * len(batch)\nwhole.groupwise = True\n"
    )
    changes = {f"{FLUX}.rewards.terms": {"mine": {"weight": 1.0, "reward": "mine_of_groups:whole"}},
               "policies.defaults.rollout_batch": 16}  # fmt: skip
    return changes, message_of(
        lambda: validate_whole_groups(["mine"], params_with(root, changes).policies.recipes["flux_t2is"], 3)
    )


def case_alignment_without_texts(_root: Path) -> tuple[dict[str, Any], str]:
    changes = {"world": "real", "edits.painters": [], "t2is_bench.alignment": {"model": "data/zoo/qwen2_5_vl"}}
    return changes, message_of(lambda: validate_texts(None))


def case_criteria_of_no_case(root: Path) -> tuple[dict[str, Any], str]:
    write_json(root / "criteria.json", {"0001": 7})
    return {"t2is_bench.criteria": "criteria.json"}, message_of(
        lambda: read_criteria(root / "criteria.json", Rejected())
    )


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_check_says_what_the_stage_would_say(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    if "processes" in name or "groups" in name:
        config = yaml.safe_load((LIBRARY / "launch/cpu.yaml").read_text()) | {"num_processes": 3}
        (project / "three.yaml").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("PACO_LAUNCHER", "accelerate")
        monkeypatch.setenv("PACO_ACCELERATE_CONFIG", "three.yaml")
    before = set(stage_problems(params_with(project, {}), project, declared(project)))
    assert not before or name in ("processes_that_share_unevenly", "groups_that_are_split"), before
    changes, sentence = CASES[name](project)
    problems = stage_problems(params_with(project, changes), project, declared(project))
    assert any(sentence in problem for problem in problems), (sentence, problems)


def test_one_problem_hides_no_other_and_each_is_said_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    changes = {
        **of_edits(project, 1), f"{FLUX}.max_sequence_length": 41, f"{FLUX}.train_size": 72,
        f"{FLUX}.rewards.terms": {"mine": {"weight": 1.0, "reward": "no_such:thing"}},
        f"{FLUX}.prompts": {"train": "missing.jsonl", "test": "missing.jsonl"},
    }  # fmt: skip
    problems = stage_problems(params_with(project, changes), project, declared(project))
    assert [problem.partition(": ")[0] for problem in problems] == [
        message_of(lambda: make_edit_prompts(params_with(project, changes).edit_prompts, project)),
        f"{FLUX}.max_sequence_length", f"{FLUX}.rewards",
    ], problems  # fmt: skip
    problems = stage_problems(params_with(project, {f"{FLUX}.prompts": None}), project, declared(project))
    assert problems[-1].startswith(f"{FLUX}: record ") and "72 x 72" in problems[-1] and len(problems) == 4


def test_this_project_has_no_problem() -> None:
    problems = preflight.check_project(REPOSITORY, declared(REPOSITORY)).problems
    assert [problem for problem in problems if not problem.startswith(("disk", "memory"))] == []
