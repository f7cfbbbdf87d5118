"""Import of OmniRef-Bench (arXiv 2606.26947): its cases become editing prompts with several references.

    edits_upto_N.jsonl   key, instruction, input_image (a list), task_type; cases with at most N references
    pictures/            one PNG per reference, named by its content
    rejected.jsonl  summary.json

The import reads a JSON file with the keys of ``benchmark/metadata`` of Weistrass/DyRef at revision ea6ec79. Paths of
images are relative to the folder of the file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from paco_core.data.records.records import Words
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, UniqueIds, inside, md5_of, read_json, write_json, write_jsonl
from paco_core.io.pictures import read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png
from paco_core.io.validation import StrictModel, first_validation_error


class _Case(StrictModel):
    model_config = ConfigDict(extra="ignore")

    index: int
    prompt: Words
    category: Words
    edit_image: Annotated[list[Words], Field(min_length=1)]


def import_omniref(source: Path, out: Path) -> dict[str, Any]:
    """Import a JSON file, or a folder with one, into the new folder ``out``; returns the counts.

    Cases that cannot be used are skipped and written to ``rejected.jsonl``, with their position and cause.

    Raises:
        DataError: if there is no such file, or no case can be used.
    """
    file = _file(source)
    content = read_json(file)
    if not isinstance(content, list):
        raise DataError(f"{file}: expected a list of cases, as benchmark/metadata of DyRef contains them")
    rejected, rows, names = Rejected(), list[dict[str, Any]](), UniqueIds()
    with atomic(out) as part:
        (part / "pictures").mkdir(parents=True)
        for number, entry in enumerate(content):
            try:
                case = _Case.model_validate(entry)
                row, pngs = _row(case, file.parent)
                try:
                    names.add(row["key"], number)
                except DataError as error:
                    raise DataError(f"duplicate: index {error}") from None
            except ValidationError as error:
                rejected.add(f"{file}: [{number}]", f"record: {first_validation_error(error)}")
                continue
            except DataError as error:
                rejected.add(f"{file}: [{number}]", str(error))
                continue
            rows.append(row)
            for name, png in pngs.items():
                (part / name).write_bytes(png)
        if not rows:
            raise DataError(f"{file}: none of its {len(rejected)} cases can be used{rejected.example}")
        sizes = Counter(len(row["input_image"]) for row in rows)
        files = {most: [row for row in rows if len(row["input_image"]) <= most] for most in sorted(sizes)}
        for most, part_rows in files.items():
            write_jsonl(part / f"edits_upto_{most}.jsonl", part_rows)
        rejected.write(part / "rejected.jsonl")
        counts: dict[str, Any] = {f"edits.upto_{most}": len(part_rows) for most, part_rows in files.items()}
        counts |= {"pictures": len(list((part / "pictures").iterdir())), **rejected.figures()}
        write_json(part / "summary.json", counts)
    return counts


def _file(source: Path) -> Path:
    if source.is_file():
        return source
    files = sorted(source.glob("*.json"))
    if len(files) != 1:
        raise DataError(
            f"{source}: contains {len(files)} JSON files; pass the path of the file with the cases of OmniRef-Bench, "
            "which is in the folder of its images"
        )
    return files[0]


def _row(case: _Case, folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A row of ``edit_prompts.file``, and its images as PNG, by their paths in the row."""
    paths, pngs = list[str](), dict[str, bytes]()
    for name in case.edit_image:
        try:
            png = encode_png(read_image(inside(folder, name)))
        except DataError as error:
            raise DataError(f"picture: {error}") from None
        paths.append(f"pictures/{md5_of(png)[:16]}.png")
        pngs[paths[-1]] = png
    row = {
        "key": f"omniref-{case.index}",
        "instruction": case.prompt,
        "input_image": paths,
        "task_type": case.category,
    }
    return row, pngs
