"""Build the documentation's site into build/docs: lay the pages out, run zensical in strict mode, check what it wrote.

``python tools/docs/build.py``, or ``make docs``. A link, an anchor or a name of the API that leads nowhere ends it.
A page that is longer than its budget of words is a warning.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import budgets
import built
import pages

ROOT = Path(__file__).resolve().parents[2]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    source, site = ROOT / "build" / "docs-source", ROOT / "build" / "docs"
    pages.lay_out(ROOT, source)
    settings = shutil.copy(Path(__file__).with_name("zensical.toml"), ROOT / "build")
    completed = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", settings],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if completed.returncode:
        sys.stdout.write(COLOURS.sub("", completed.stdout).split("Traceback (most recent call last)")[0])
        return completed.returncode
    for page in budgets.over_budget(ROOT):
        print(page)
    faults = built.faults(site)
    for fault in faults:
        print(fault)
    if not faults:
        print(f"{len(list(site.rglob('*.html')))} pages: {(site / 'index.html').relative_to(ROOT)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
