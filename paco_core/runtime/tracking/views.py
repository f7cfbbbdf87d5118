"""Saved views of an experiment's page: charts and columns that a link opens, as MLflow's own "Share" stores them.

MLflow stores a shared view as a tag of the experiment, JSON in the terms of its page; a link names it with
``viewStateShareKey``.
"""

from __future__ import annotations

import json
from typing import Any

from paco_core.runtime.stage import View

TAG = "mlflow.sharedViewState."
SAMPLES = "samples_seen"
TRAININGS = "workflowType=machine_learning"  # otherwise the page is among those of chat models


def saved_view(key: str, view: View) -> dict[str, str]:
    """The tag that stores a view: the charts in a section before those that MLflow makes, and the columns."""
    metrics = list(dict.fromkeys(metric for metric, _ in view.charts))
    state = {
        "compareRunCharts": [_chart(metric, kind, key) for metric, kind in view.charts],
        "compareRunSections": [{"uuid": key, "name": view.title, "display": True, "isReordered": True, "columns": 2}],
        "isAccordionReordered": True,
        "selectedColumns": [
            *(f"metrics.`{metric}`" for metric in metrics),
            "attributes.`Models`",
            "tags.`profile`",
            "tags.`dvc.experiment`",
        ],
    }
    return {f"{TAG}{key}": json.dumps(state, separators=(",", ":"))}


def _chart(metric: str, kind: str, section: str) -> dict[str, Any]:
    """One metric of all runs: a line over the samples seen, or the last value as bars."""
    chart = {
        "type": kind, "uuid": f"{kind.lower()}-{metric}", "metricKey": metric, "metricSectionId": section,
        "runsCountToCompare": 10, "deleted": False, "isGenerated": False,
    }  # fmt: skip
    if kind == "BAR":
        return {**chart, "dataAccessKey": metric}
    return {
        **chart,
        "xAxisKey": "metric", "selectedXAxisMetricKey": SAMPLES, "xAxisScaleType": "linear",
        "selectedMetricKeys": [metric], "scaleType": "linear", "lineSmoothness": 0, "useGlobalLineChartConfig": False,
        "yAxisKey": "metric",
    }  # fmt: skip


def view_url(mlflow: str, experiment_id: str, key: str) -> str:
    """The address of a saved view."""
    return f"{mlflow}/#/experiments/{experiment_id}/runs?{TRAININGS}&viewStateShareKey={key}&compareRunsMode=CHART"
