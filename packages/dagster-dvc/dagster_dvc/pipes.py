"""Dagster Pipes around DVC, which may not run the stage at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster import PipesContextInjector, PipesMessageReader, PipesSession
from dagster._core.pipes.context import PipesMessageHandler, build_external_execution_context_data


@contextmanager
def open_stage_session(
    context: dg.AssetExecutionContext,
    injector: PipesContextInjector,
    reader: PipesMessageReader,
    extras: Mapping[str, Any],
) -> Iterator[PipesSession]:
    """``dagster.open_pipes_session`` that expects no messages.

    A stage that DVC restored or left alone says nothing, and neither does a command without Pipes: Dagster's own
    session would warn of both in the run's log. One that began to talk and did not end is warned of as there.
    """
    context.set_requires_typed_event_stream(error_message="The asset returns no result: return `reproduce().result()`.")
    data = build_external_execution_context_data(context, dict(extras))
    handler = PipesMessageHandler(context, reader)
    try:
        with injector.inject_context(data) as injected, handler.handle_messages() as read:
            yield PipesSession(
                context_data=data,
                message_handler=handler,
                context_injector_params=injected,
                message_reader_params=read,
                context=context,
            )
    finally:
        if handler.received_opened_message and not handler.received_closed_message:
            context.log.warning("the stage ended before it had sent all its messages; some may be lost")
