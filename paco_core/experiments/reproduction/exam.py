"""The examination that every trained policy of a recipe sits: the same unseen cases, noise, sizes and measures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.benchmarks import gedit
from paco_core.benchmarks.unseen import measuring, unseen_cases
from paco_core.config.params import Params
from paco_core.config.references import contents, model_content
from paco_core.data.records.edit_records import EditRecord
from paco_core.experiments.grid import needed, say
from paco_core.io import files, paths
from paco_core.io.atomic import atomic
from paco_core.io.content import folder_content
from paco_core.io.files import write_json
from paco_core.io.pictures import in_a_row, reference_digests
from paco_core.io.progress import Progress
from paco_core.painting.painted import AFTER, BEFORE, cuts_of
from paco_core.policies.base import load_recipe
from paco_core.policies.cuts import report
from paco_core.policies.encodings import cache_folder
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.painting.painted import Painted

TABLE, PICTURES = "table.parquet", "pictures"
CAPTIONS, REFERENCE = "captions.json", "reference"  # among the pictures; references of edits alone
SHOWN = 4  # prompts whose pictures are kept for the page


class Exam:
    """Pictures of prompts that no seed can have trained on, measured as ``t2is`` or ``gedit`` measures.

    Raises:
        DataError: when the reward, the prompts or a model is missing, naming the stage to run; when no prompt
            is left over.
    """

    def __init__(self, root: Path, params: Params, recipe: str) -> None:
        self.root, self.params, self.recipe = root, params, recipe
        self.rule = params.policies.recipes[recipe]
        self.task = task_of(self.rule)
        self.judge = needed(root, paths.REWARD_MERGED)
        read = partial(needed, root)
        self.cases = unseen_cases(read, params, recipe, self.task.seen(self.rule, read))

    def identity(self) -> dict[str, Any]:
        """What the figures depend on beside the trained weights.

        Held: records whole, and the pixels of what is edited; seeds, steps, sizes, guidance and length of texts; number
        format and device of painter and judge; code of the benchmark; by content the judge, all models and files that
        the recipe names, and the annotator.
        """
        rule, reward = self.rule, self.params.reward
        sizes = [rule.eval_sizes, rule.reference_size, rule.record_size]
        records, reference = self.cases.records, self.cases.reference
        return {
            "prompts": [record.model_dump() for record in records],
            "references": [] if reference is None else reference_digests([reference(record) for record in records]),
            "painting": [self.cases.seeds, self.cases.steps, *sizes, rule.guidance, rule.max_sequence_length],
            "painter": [rule.dtype, rule.device],
            "measuring": [self.params.world, reward.device, reward.dtype, reward.min_pixels, reward.max_pixels],
            "code": StageCodes.present(self.root).of(self.task.benchmark, None).digest,
            "judge": folder_content(self.judge),
            "named": contents(self.root, rule),
            "annotator": model_content(self.root, str(self.params.annotations.model)),
        }

    def examine(self, adapter: Path | None, folder: Path) -> dict[str, Any]:
        """Paint with the bare model (None) or an adapter; write ``table.parquet`` and some pictures to ``folder``.

        Models are loaded anew each time: trainings in between need the memory.

        Returns:
            The recipe's name, and what was cut off prompts.
        """
        policy = load_recipe(self.rule, self.root, cache=cache_folder(self.root))
        if adapter is not None:
            policy.load_adapter(adapter)
        when = BEFORE if adapter is None else AFTER
        pictures = len(self.cases.records) * len(self.cases.seeds) * len(self.rule.eval_sizes)
        with Progress(pictures, folder.name, "pictures", say) as progress:
            painted = self.cases.painted_by(policy, self.recipe, self.rule, when=when, advance=progress.advance)
        table = measuring(self.root, self.params, self.judge, self.cases)(painted)
        # Edits of one picture stand or fall together; a set stands alone.
        table = table.assign(group=table[self.task.group])
        with atomic(folder / PICTURES, replace=True) as part:
            self._keep(painted, part)
        with atomic(folder / TABLE) as part:
            table.drop(columns=["policy", "when", *gedit.ABOUT], errors="ignore").to_parquet(part, index=False)
        return {"recipe": self.recipe, **report(cuts_of(painted), say)}

    def _keep(self, painted: list[Painted], folder: Path) -> None:
        """Pictures of the first prompts with the first seed, by size; what they are of; of edits, what was edited."""
        shown = {record.idx: record for record in self.cases.records[:SHOWN]}
        for p in painted:
            if p.record.idx in shown and p.seed == self.cases.seeds[0]:
                (folder / str(p.size)).mkdir(parents=True, exist_ok=True)
                p.image.save(folder / str(p.size) / f"{p.record.idx}.png")
        captions = {idx: of.prompt if isinstance(of, EditRecord) else of.theme for idx, of in shown.items()}
        write_json(folder / CAPTIONS, captions)
        if self.cases.reference is not None:
            (folder / REFERENCE).mkdir()
            for idx, record in shown.items():
                in_a_row(self.cases.reference(record)).save(folder / REFERENCE / f"{idx}.png")


def measured(folder: Path) -> pd.DataFrame:
    """What an examination left in a folder: a column a measure, a row a picture, by ``size`` and ``group``.

    Raises:
        DataError: when it is missing or damaged.
    """
    again = f"remove {folder / 'result.json'} and run `paco reproduce` again"
    table = files.read_table(folder / TABLE, remedy=again)
    return table.drop(columns=["prompt_id", "seed"]).set_index(["size", "group"])
