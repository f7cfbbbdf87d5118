"""An S3 endpoint on the loopback interface: moto's server, in memory, for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAME = "paco"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Bucket:
    """A bucket named ``paco``; ``environment`` is what DVC, MLflow and boto3 need to find it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {**KEYS, "AWS_ENDPOINT_URL": url, "MLFLOW_S3_ENDPOINT_URL": url}
        self._client().create_bucket(Bucket=NAME)

    def keys(self, prefix: str = "") -> list[str]:
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"], region_name=KEYS["AWS_DEFAULT_REGION"],
        )  # fmt: skip


@contextmanager
def bucket() -> Iterator[Bucket]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield Bucket(f"http://{host}:{port}")
    finally:
        server.stop()
