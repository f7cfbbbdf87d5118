"""Dagster's definitions as a person sees them: one line each, without texts, for a comparison with a snapshot."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg


def outline(repository: dg.RepositoryDefinition) -> dict[str, dict[str, str]]:
    """Assets with what they follow, checks, jobs, schedules and sensors."""
    graph, names = repository.asset_graph, dg.AssetKey.to_user_string
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    return {
        "assets": {
            names(key): _line(
                group=[str(node.group_name)],
                after=map(names, node.parent_keys),
                partitions=node.partitions_def.get_partition_keys() if node.partitions_def else (),
                pools=node.pools or (),
                kinds=node.kinds,
                owners=node.owners,
            )
            for key in graph.get_all_asset_keys()
            for node in [graph.get(key)]
        },
        "checks": {
            f"{names(key.asset_key)}: {key.name}": "blocks" if graph.get(key).blocking else "warns"
            for key in graph.asset_check_keys
        },
        "jobs": {
            job.name: _line(
                assets=map(names, job.asset_layer.executable_asset_keys),
                checks=() if job.asset_layer.executable_asset_keys else _checks(job),
            )
            for job in jobs
        },
        "schedules": {
            schedule.name: _line(
                at=[schedule.cron_schedule], job=[schedule.job_name], status=[schedule.default_status.value]
            )
            for schedule in repository.schedule_defs
        },
        "sensors": {
            sensor.name: _line(kind=[type(sensor).__name__], status=[sensor.default_status.value])
            for sensor in repository.sensor_defs
        },
    }


def _checks(job: dg.JobDefinition) -> list[str]:
    return [f"{key.asset_key.to_user_string()}: {key.name}" for key in job.asset_layer.asset_graph.asset_check_keys]


def _line(**parts: Iterable[str]) -> str:
    lines = {name: ", ".join(sorted(values)) for name, values in parts.items()}
    return "; ".join(f"{name} {values}" for name, values in lines.items() if values)
