"""The parser that Dagster's selections need, and that DVC's stable dependencies replace by an older one."""

from importlib.metadata import PackageNotFoundError, version

from paco_core.io.shipped import RUN_LOCK

NEEDED = "4.13"


def antlr_problem() -> str | None:
    """What is wrong with the environment, and what to install; None where selections like ``key:a+`` work.

    With another version every selection fails with "ord() expected a character".
    """
    try:
        installed = version("antlr4-python3-runtime")
    except PackageNotFoundError:
        installed = "no version"
    if installed.startswith(f"{NEEDED}."):
        return None
    return (
        f"antlr4-python3-runtime: {installed} is installed, {NEEDED} needed: hydra-core 1.3, which DVC brings, asks "
        f"for an older one, and Dagster's asset selections fail with it. Run `pip install -r {RUN_LOCK}`: it holds "
        "versions of hydra-core and omegaconf that work with both"
    )
