"""The command ``paco``."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from paco_core.cli.arguments import parser
from paco_core.io.messages import explain_os_error
from paco_core.io.project import ensure_user, find_root, validate_code_origin
from paco_core.io.secrets import redact_tracebacks, redacted
from paco_core.io.text import spell_surrogates

OURS = ("dagster_dvc", "dvc_project", "paco_core", "paco_pipelines")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exit 0 when it worked, 1 with one clear message when input, data or the system are at fault."""
    _print_anything()
    ensure_user()
    args = parser().parse_args(argv)
    for argument in sys.argv[1:] if argv is None else argv:
        if spell_surrogates(argument) != argument:
            parser().error(f"{argument!r} is not UTF-8 text: rename the file, or write the words in UTF-8")
    redact_tracebacks()
    from dvc_project.errors import DvcProjectError
    from paco_core.config.params import ParamsError
    from paco_core.io.files import DataError

    root = None
    try:
        root = find_root()
        if root is not None:
            validate_code_origin(root)
        if root is not None and str(root) not in sys.path:
            sys.path.append(str(root))  # for custom rewards; `python -m paco_core` includes it already
        args.act(args)
    except KeyboardInterrupt:
        print(f"paco {args.verb}: interrupted; nothing half-written was kept", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # `paco graph | head`
        sys.stderr.close()
    except DvcProjectError as error:
        from paco_core.config.graph_keys import cause

        _end(args.verb, str(error) if root is None else cause(error, root))
    except (DataError, ParamsError) as error:
        _end(args.verb, str(error))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", *OURS):
            raise
        _end(
            args.verb,
            f"the package {missing} is not installed; `pip install 'paco-rl[pipeline]'` installs what the graph needs",
        )
    except Exception as error:
        message = explain_os_error(error)
        if message is None:
            raise
        _end(args.verb, message)


def _end(verb: str, message: str) -> None:
    print(f"paco {verb}: {redacted(message)}", file=sys.stderr)
    raise SystemExit(1) from None


def _print_anything() -> None:
    """A terminal that cannot show a character gets its code in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
