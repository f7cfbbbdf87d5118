"""Definitions of a paco project: every asset of ``dvc.yaml``, the reward's endpoint, champions, checks, schedules."""

from __future__ import annotations

import warnings

import dagster as dg

from dagster_dvc import build_dvc_assets, build_dvc_sources, build_in_sync_checks, in_process_if_up_to_date
from paco_pipelines.antlr import antlr_problem
from paco_pipelines.defs import operations, schedules, serving
from paco_pipelines.defs.checks import stage_checks
from paco_pipelines.defs.graph import PROJECT, TRANSLATOR
from paco_pipelines.defs.resources import resources
from paco_pipelines.defs.sensors import sensors

if problem := antlr_problem():
    raise dg.DagsterInvariantViolationError(problem)
with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):  # source links: it says so once an asset
    operation_assets = dg.with_source_code_references(dg.load_assets_from_modules([serving, operations]))

# A process a step, forked from one that has the definitions and what most checks import: a run of everything has
# seventy steps.
PROCESSES = dg.multiprocess_executor.configured(
    {"start_method": {"forkserver": {"preload_modules": ["paco_pipelines.definitions", "paco_core.data.checks"]}}}
)


def build_definitions(executor: dg.ExecutorDefinition = PROCESSES) -> dg.Definitions:
    """The definitions of the project that the working folder is in.

    Args:
        executor: runs the steps of a run that has something to do.
    """
    return dg.Definitions(
        assets=[*build_dvc_assets(PROJECT, translator=TRANSLATOR), *operation_assets, *build_dvc_sources(PROJECT)],
        asset_checks=[
            *stage_checks(),
            *dg.load_asset_checks_from_modules([serving]),
            *build_in_sync_checks(PROJECT),
        ],
        jobs=schedules.JOBS,
        schedules=schedules.SCHEDULES,
        sensors=sensors(),
        resources=resources(),
        executor=in_process_if_up_to_date(executor, PROJECT, TRANSLATOR),
    )
