"""Dagster's PostgreSQL store, by the driver that it is written for, opened by one process at a time.

SQLAlchemy 2.1 means psycopg 3 by ``postgresql://``. Dagster reads psycopg2's error codes and sets a connection's
time-out as psycopg2 does it; with psycopg 3 two processes that open an empty database both fail. Named in the
``dagster.yaml`` of an instance whose environment has ``DAGSTER_POSTGRES_URL``.
"""

from __future__ import annotations

from typing import Any, Self

from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

LOCK = 7_226_001  # of PostgreSQL's advisory locks; any number that nobody else uses in this database


class LockedPostgresStorage(DagsterPostgresStorage):
    """``DagsterPostgresStorage``; tables are looked for, and made where they are missing, under an advisory lock.

    Configuration: ``postgres_url``.
    """

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> Self:
        url = make_url(config_value["postgres_url"]).set(drivername="postgresql+psycopg2")
        with create_engine(url, poolclass=NullPool).connect() as connection:
            connection.execute(text(f"SELECT pg_advisory_lock({LOCK})"))  # released with the connection
            return cls(url.render_as_string(hide_password=False), inst_data=inst_data)
