"""What is misspelt is found before anything heavy is imported, and answered with what was probably meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paco_core.cli.arguments import parser

TYPOS = {
    "zoo build flx": "the zoo has no member 'flx'; did you mean 'flux'? choose among flux",
    "zoo check flx": "the zoo has no member 'flx'; did you mean 'flux'?",
    "promote flux_t2si": "nothing is called 'flux_t2si'; did you mean 'flux_t2is'? choose one of: reward, flux_t2is",
    "rollback flux_t2si": "nothing is called 'flux_t2si'",
    "plan grids": "grids is a stage, whose cost `paco check` prints",
    "plan flux_t2si": "no recipe 'flux_t2si' in policies.recipes; did you mean 'flux_t2is'? there are: flux_t2is",
    "push flux_t2si me/name": "flux_t2si: did you mean 'flux_t2is'? nothing is there to push",
    "profile use smok": "no profile 'smok' in profiles/; did you mean 'smoke'? available: ",
    "run promts": "no stage 'promts'; did you mean 'prompts'? stages: ",
    "edit nowhere.png words": "nowhere.png: no such picture",
    "reproduce --variants ful": "no variant 'ful'; did you mean 'full'? there are: full",
    "paint theme --panels a b --policy flux_t2si": "'flux_t2si' is no policy for sets: did you mean 'flux_t2is'?",
    "paint theme --policy base": "give a prompt that marks its panels",
    "edit docs/images/report.webp words --policy kontext_edt": "'kontext_edt' is no policy for edits: did you mean",
    "provenance flux_t2si": "flux_t2si: dvc.lock records no stage that made it",
    "fetch flux_t2si folder": "'flux_t2si' is neither the reward, a trained recipe nor NAME@champion",
}
ASK = """
import sys
from paco_core.cli.commands import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code == 1, line
assert not {"torch", "mlflow"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_misspelt_name_costs_no_import_of_torch(repository: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, *TYPOS], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, message in TYPOS.items():
        assert f"paco {line.split()[0]}: {message}" in done.stderr


@pytest.mark.parametrize(
    ("words", "near"), [(["statu"], "status"), (["provenence", "x"], "provenance"), (["dataset", "exprt"], "export")]
)
def test_an_unknown_verb_is_answered_with_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert f"invalid choice: '{words[-1] if words[0] == 'dataset' else words[0]}', did you mean '{near}'?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["score", "a.png", "b.png", "--tabel", "pairs.csv"], "--table"),
        (["plan", "flux_t2is", "--proceses", "2"], "--processes"),
        (["zoo", "build", "--hlp"], "--help"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_of_its_verb(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args(words)
    assert end.value.code == 2 and capsys.readouterr().err.rstrip().endswith(f", did you mean '{near}'?")


def test_what_resembles_nothing_is_answered_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["frobnicate"])
    said = capsys.readouterr().err
    assert "did you mean" not in said and "choose from 'init', 'status'" in said
