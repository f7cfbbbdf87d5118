"""The parser that Dagster's selections need, and that DVC's stable dependencies replace by an older one."""

from importlib.metadata import PackageNotFoundError, version

import dagster as dg

NEEDED = "4.13"


def check_antlr() -> None:
    """Refuse an environment in which every selection like ``key:a+`` fails with "ord() expected a character".

    Raises:
        DagsterInvariantViolationError: naming the version that is installed and what to install.
    """
    try:
        found = version("antlr4-python3-runtime")
    except PackageNotFoundError:
        found = "no version"
    if not found.startswith(f"{NEEDED}."):
        raise dg.DagsterInvariantViolationError(
            f"antlr4-python3-runtime: {found} is installed, {NEEDED} needed: hydra-core 1.3, which DVC brings, asks "
            "for an older one, and Dagster's asset selections fail with it. Run `pip install -r requirements.txt` in "
            "the project's folder: it holds versions of hydra-core and omegaconf that work with both"
        )
