"""Rejected rows of external files: location and cause of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paco_core.io.files import write_jsonl

MAX_PRINTED = 5  # rows that are printed one by one


@dataclass
class Rejected:
    """Skipped rows as (place, cause). A cause begins with its kind: ``picture: no such file``."""

    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, place: str, cause: str) -> None:
        self.rows.append((place, cause))

    def lines_of(self, file: Path, kind: str = "line") -> Callable[[int, str], None]:
        """Callback for :func:`paco_core.io.files.read_jsonl` that records each line that is not a JSON object."""
        return lambda number, cause: self.add(f"{file}:{number}", f"{kind}: {cause}")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.rows)

    @property
    def example(self) -> str:
        """The end of an error message: the first row, or an empty text if no row was rejected."""
        return f", e.g. {': '.join(self.rows[0])}" if self.rows else ""

    @property
    def causes(self) -> list[str]:
        """One line per file and cause, with the numbers of all its rows: ``prompts.jsonl:3, 7: record: …``."""
        numbers: dict[tuple[str, str], list[str]] = {}
        for place, cause in self.rows:
            file, _, number = place.rpartition(":")
            numbers.setdefault((file, cause), []).append(number)
        return [f"{file}:{', '.join(rows)}: {cause}" for (file, cause), rows in numbers.items()]

    def figures(self, name: str = "rejected") -> dict[str, int]:
        """Counts by kind of cause, for example ``rejected.picture``."""
        kinds = Counter(cause.split(":")[0] for _, cause in self.rows)
        return {f"{name}.{kind}": count for kind, count in sorted(kinds.items())}

    def print(self, log: Callable[[str], object], list_file: Path | None = None) -> None:
        """Print the first rows, the number of further rows, and the file that lists all."""
        for place, cause in self.rows[:MAX_PRINTED]:
            log(f"left out: {place}: {cause}")
        if (num_omitted := len(self.rows) - MAX_PRINTED) > 0:
            log(f"left out: {num_omitted} more" + (f"; {list_file} lists them all" if list_file else ""))

    def write(self, file: Path) -> None:
        """Write them as JSON Lines of place and cause."""
        write_jsonl(file, ({"place": place, "cause": cause} for place, cause in self.rows))
