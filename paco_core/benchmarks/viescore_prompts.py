"""Prompts of VIEScore: those of paco, or the published ones in a file of the user.

The published texts (VIEScore, arXiv 2312.14867, as GEdit-Bench uses them) are not ours to copy. They are read from a
file ``vie_prompts.py`` of VIEScore's code, of GEdit-Bench's, or of the package ``editscore``: its texts, by name,
without running it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paco_core.io.files import DataError, digest

FILE = "vie_prompts.py"
INSTRUCTION = "<instruction>"
CONTEXTS = ("_context_no_delimit", "_context_no_delimit_reasoning_first")
RULES = "_prompts_0shot_two_image_edit_rule"
CONSISTENCY, QUALITY = "_prompts_0shot_tie_rule_SC", "_prompts_0shot_rule_PQ"


@dataclass(frozen=True)
class Wording:
    """The two questions; ``<instruction>`` stands for the instruction in the first."""

    name: str
    consistency: str
    quality: str

    def about_edit(self, instruction: str) -> str:
        return self.consistency.replace(INSTRUCTION, instruction)


_FORM = """\
Answer with one JSON object: "reasoning", one or two short sentences, then "score", a list of the two numbers in the \
order above. Use whole numbers from 0 to 10."""

OURS = Wording(
    "our own words",
    f"""\
The first picture is an original, the second one was made from it by an image editor that was told: {INSTRUCTION}

Rate two things, each from 0 to 10.
1. Was the instruction carried out? 0: nothing of it can be seen, as when both pictures are the same. 10: all of it, \
exactly as told.
2. Was everything else left alone? 0: the second picture is a different scene. 10: nothing changed but what the \
instruction needs.

{_FORM}""",
    f"""\
The picture was made by an image editor. Rate two things, each from 0 to 10, and nothing else.
1. Does it look natural? 0: light, shadows, distances or proportions are plainly wrong. 10: nothing about it looks odd.
2. Is it free of flaws? 0: large parts are distorted, smeared, broken or stamped with marks. 10: none can be found.

{_FORM}""",
)


def wording(prompts: str | None, root: Path) -> Wording:
    """Ours, or the published wording.

    Args:
        prompts: None, a folder (of the project, or absolute) that holds ``vie_prompts.py``, or the name of an installed
            package that does.

    Raises:
        DataError: when it is neither, or the file lacks one of the texts.
    """
    if prompts is None:
        return OURS
    path = _file(prompts, root)
    texts = _texts(path)
    context = next((texts[name] for name in CONTEXTS if name in texts), None)
    lacking = [name for name in (RULES, CONSISTENCY, QUALITY) if name not in texts]
    if context is None or lacking:
        missing = lacking or [" or ".join(CONTEXTS)]
        raise DataError(f"{path}: lacks {', '.join(missing)}; expected the prompts of VIEScore")
    consistency = "\n".join([context, texts[RULES], texts[CONSISTENCY]])
    if INSTRUCTION not in consistency:
        raise DataError(f"{path}: {CONSISTENCY} does not say where the instruction goes ({INSTRUCTION})")
    quality = "\n".join([context, texts[QUALITY]])
    return Wording(f"published words of {prompts} ({digest([consistency, quality], 8)})", consistency, quality)


def _file(prompts: str, root: Path) -> Path:
    if (folder := root / prompts).is_dir():
        places = [folder]
    else:
        spec = find_spec(prompts) if prompts.isidentifier() else None
        places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
        if not places:
            raise DataError(f"gedit.viescore.prompts: {prompts!r} is no folder below the project, and no package here")
    for place in places:
        if (place / FILE).is_file():
            return place / FILE
    raise DataError(f"{places[0]}: holds no {FILE}")


def _texts(path: Path) -> dict[str, str]:
    """The texts that a Python file gives names to; nothing of it is run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not a Python file ({error})") from None
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
