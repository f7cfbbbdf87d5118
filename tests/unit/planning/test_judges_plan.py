"""What two judges and a rubric cost a training."""

from __future__ import annotations

from pathlib import Path

from paco_core.config.params import load, parse
from paco_core.planning.plan import plan
from paco_core.planning.workload import Workload


def test_plan_counts_both_judges_and_a_rubrics_questions(repository: Path) -> None:
    """Two judges ask six pairs each of a 2x2 set, a rubric one question of all its criteria."""
    rubric = {
        "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": None},
        "criteria": {"style": "one style", "identity": "one person"},
    }
    terms = {
        "consistency": {"weight": 1.0},
        "other": {"weight": 0.0, "reward": "consistency", "model": "data/zoo/qwen2_5_vl"},
        "rubric": {"weight": 1.0, "rubric": rubric},
    }
    rewards = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    tree = load(repository / "params.yaml").model_dump()
    tree["policies"]["recipes"]["flux_t2is"] |= {"rewards": rewards, "prompts_per_epoch": 8, "group_size": 16}
    asked = parse(tree)
    found = Workload.from_params(asked, "flux_t2is")
    assert (found.questions_a_picture, found.rubric_questions) == (12, 1)
    text = str(plan(asked, "flux_t2is", repository))
    assert "1536 distinct pairs (12 per picture) and 128 questions of rubrics" in text
