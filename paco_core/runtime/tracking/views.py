"""Saved views of an experiment's page: charts and columns that a link opens, as MLflow's own "Share" keeps them.

MLflow stores a shared view as a tag of the experiment, JSON in the terms of its page; a link names it with
``viewStateShareKey``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from paco_core.runtime.stage import View

TAG = "mlflow.sharedViewState."
SAMPLES = "samples_seen"
TRAININGS = "workflowType=machine_learning"  # otherwise the page stands among those of chat models


@dataclass(frozen=True)
class RunChart:
    """One figure of all runs: its course over the samples seen, or its last value as bars."""

    metric: str
    kind: Literal["LINE", "BAR"] = "LINE"

    def card(self, section: str) -> dict[str, Any]:
        """What MLflow keeps of a chart."""
        card = {
            "type": self.kind,
            "uuid": f"{self.kind.lower()}-{self.metric}",
            "metricKey": self.metric,
            "metricSectionId": section,
            "runsCountToCompare": 10,
            "deleted": False,
            "isGenerated": False,
        }
        if self.kind == "BAR":
            return {**card, "dataAccessKey": self.metric}
        axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": SAMPLES, "xAxisScaleType": "linear"}
        return {
            **card,
            **axis,
            "selectedMetricKeys": [self.metric],
            "scaleType": "linear",
            "lineSmoothness": 0,
            "useGlobalLineChartConfig": False,
            "yAxisKey": "metric",
        }


def saved_view(key: str, view: View) -> dict[str, str]:
    """The tag that holds a view: the charts in a section of their own, before those that MLflow makes; and columns."""
    charts = [RunChart(*chart) for chart in view.charts]
    metrics = list(dict.fromkeys(chart.metric for chart in charts))
    state = {
        "compareRunCharts": [chart.card(key) for chart in charts],
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


def page(mlflow: str, experiment_id: str, key: str) -> str:
    """The address of a saved view."""
    return f"{mlflow}/#/experiments/{experiment_id}/runs?{TRAININGS}&viewStateShareKey={key}&compareRunsMode=CHART"
