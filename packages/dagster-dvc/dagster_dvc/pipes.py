"""Dagster Pipes around DVC, which may not run the stage at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster_pipes import PipesContextData


def pipes_context_data(
    context: dg.AssetExecutionContext, key: dg.AssetKey, partition: str | None, extras: Mapping[str, Any]
) -> PipesContextData:
    """What a stage gets to know from Pipes: one asset and one partition, also where the op makes several."""
    name = key.to_escaped_user_string()
    return PipesContextData(
        asset_keys=[name],
        code_version_by_asset_key={name: context.assets_def.get_asset_spec(key).code_version},
        provenance_by_asset_key={name: None},
        partition_key=partition,
        partition_key_range=None if partition is None else {"start": partition, "end": partition},
        partition_time_window=None,
        run_id=context.run_id,
        job_name=context.job_name,
        retry_number=context.retry_number,
        extras=dict(extras),
    )


@contextmanager
def open_stage_session(
    context: dg.AssetExecutionContext,
    injector: dg.PipesContextInjector,
    reader: dg.PipesMessageReader,
    data: PipesContextData,
) -> Iterator[dg.PipesSession]:
    """``dagster.open_pipes_session`` that expects no messages.

    A stage that DVC restored or left alone reports nothing, and neither does a command without Pipes: the session of
    Dagster would warn of both in the run's log. A stage that opened Pipes and did not close them is reported as there.
    """
    context.set_requires_typed_event_stream(
        error_message="The asset returns no result: `yield from dvc.stream(context)`."
    )
    handler = dg.PipesMessageHandler(context, reader)
    try:
        with injector.inject_context(data) as context_params, handler.handle_messages() as message_params:
            yield dg.PipesSession(
                context_data=data,
                message_handler=handler,
                context_injector_params=context_params,
                message_reader_params=message_params,
                context=context,
            )
    finally:
        if handler.received_opened_message and not handler.received_closed_message:
            context.log.warning("the stage ended before it had sent all its messages; some may be lost")
