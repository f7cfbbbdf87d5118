"""The command ``paco``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paco_core.cli.arguments import parser
from paco_core.io.project import found_root
from paco_core.io.secrets import redact_tracebacks, redacted


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exit 0 when it worked, 1 with one clear message when input or data are at fault."""
    args = parser().parse_args(argv)
    redact_tracebacks()
    root = found_root()
    if root is not None and str(root) not in sys.path:
        sys.path.append(str(root))  # where rewards of the user's own lie; `python -m paco_core` looks there anyway
    from paco_core.config.params import ParamsError
    from paco_core.io.files import DataError

    try:
        args.act(args)
    except (DataError, ParamsError) as error:
        print(f"paco {args.verb}: {redacted(str(error))}", file=sys.stderr)
        raise SystemExit(1) from None
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "dagster_dvc", "dvc_project", "paco_core", "pipelines"):
            raise
        print(
            f"paco {args.verb}: the package {missing} is not installed; `pip install 'paco-rl[pipeline]'` installs "
            "what the graph needs",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(f"paco {args.verb}: interrupted; nothing half-written was kept", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # `paco graph | head`
        sys.stderr.close()
    except OSError as error:
        if error.errno != 28:  # ENOSPC
            raise
        print(
            f"paco {args.verb}: no space left on the disk ({error.filename or 'while writing'}); "
            "free some space and run the same command again: finished outs were kept",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
