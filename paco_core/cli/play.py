"""The verb ``paco play``: serve the page, open a browser, and end without leaving anything behind."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from paco_core.config.params import PARAMS_FILE, load
from paco_core.data import local_page
from paco_core.io import local_server
from paco_core.operations.play.app import create_app
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.play.jobs import Jobs
from paco_core.operations.play.studio import Studio

PATIENCE_S = 5.0  # for the work in hand, when the page is closed
INTERRUPTED = 130


def play(root: Path, port: int, *, browser: bool, metadata: bool) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        metadata: write the origin of each generated image into its file.

    Raises:
        DataError: if the parameters are invalid, or the port is in use.
    """
    params = load(root / PARAMS_FILE)
    listener = local_page.listen(port)
    studio, jobs = Studio(root, params, Gallery(), metadata=metadata), Jobs()
    try:
        listener.listen()  # a browser that comes early waits
        address = f"http://{local_page.HOST}:{listener.getsockname()[1]}"
        print(f"paco play: {address}\nCtrl-C stops.", flush=True)
        if browser and local_server.has_display():
            webbrowser.open(address)
        local_server.run_server(create_app(studio, jobs), listener)
    finally:
        listener.close()
        is_stopped = jobs.close(PATIENCE_S)
        studio.close()
        if not is_stopped:
            # Loading cannot be interrupted, and an interpreter that exits meanwhile may crash.
            print("paco play: ended while a model was being loaded or at work", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
