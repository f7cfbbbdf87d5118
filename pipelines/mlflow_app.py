"""MLflow's server as `make ui` starts it: its bare address opens the runs compared, not MLflow's welcome page.

An application plugin of MLflow (``mlflow server --app-name paco``): its own application, whose page gets one line more.
The welcome page stays where *Home* leads.
"""

from __future__ import annotations

import json
from pathlib import Path

from flask import Response, request
from mlflow.server import app as pages
from mlflow.server.fastapi_app import app

from pipelines.links import compared

__all__ = ["app"]


@pages.after_request
def open_compared(response: Response) -> Response:
    if request.path != "/" or response.mimetype != "text/html" or not (views := compared(Path.cwd(), "")):
        return response
    place = json.dumps(next(iter(views.values())).removeprefix("/")).replace("<", "\\u003c")
    line = f"<script>if (location.hash.length < 3) location.replace({place});</script>"
    response.direct_passthrough = False
    response.set_data(response.get_data().replace(b"</head>", line.encode() + b"</head>", 1))
    # The browser asks each time: what there is to compare changes with the runs, and the file does not.
    for header in ("ETag", "Last-Modified"):
        response.headers.pop(header, None)
    response.headers["Cache-Control"] = "no-store"
    return response
