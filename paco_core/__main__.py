"""``python -m paco_core`` = ``paco``."""

import os

if __name__ == "__main__":
    if "PACO_PRELOADED" in os.environ:  # see paco_core.runtime.preloading
        from paco_core.runtime.preloading.client import run_preloaded

        run_preloaded()
    from paco_core.cli.commands import main

    main()
