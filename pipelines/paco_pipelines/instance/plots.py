"""The library that draws the page of `dvc plots show`, so that the page is not blank without internet.

DVC's page links to Vega on a public server. That of the project (``.dvc/plots/page.html``) loads ``vega.js`` from its
own folder first; ``make setup`` and ``paco init`` write it.
"""

from __future__ import annotations

from pathlib import Path

from paco_core.io.files import write_text

VEGA = Path(".dvc/plots/vega.js")
VERSION = "5.21"  # of Vega-Lite: the last of the major version that DVC's templates are written for


def write_vega(root: Path) -> None:
    """Write Vega, Vega-Lite and Vega-Embed (BSD-3-Clause) as one script, unless it is there."""
    try:
        import vl_convert
    except ImportError:  # the page goes on linking to it
        return
    if not (root / VEGA).is_file() and (root / VEGA).parent.is_dir():
        script = vl_convert.javascript_bundle(vl_version=VERSION)  # type: ignore[call-arg]  # its stub asks for a snippet
        write_text(root / VEGA, script)
