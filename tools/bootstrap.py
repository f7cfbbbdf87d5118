"""Make ``.venv`` from requirements-dev.txt: says what is in the way before it downloads anything.

Written for any Python 3, so that a too old one gets a sentence instead of a syntax error.
"""

import os
import shutil
import subprocess
import sys

NEEDED = ((3, 11), (3, 14))
FREE_GB = 9.0  # the environment takes 6.1 GB; the rest is room to unpack
LEAST_GB = 1.0  # of room to unpack, where a whole environment lies already
VENV = ".venv"
LOCK = "requirements-dev.txt"  # what the graph needs, and what its tests need
#: The project, and the two libraries that are wheels of their own.
PROJECTS = (".", "wheels/dvc-project", "wheels/dagster-dvc")


def fail(text):
    sys.exit("set-up cannot work: " + text)


def preflight(root):
    version = sys.version_info[:2]
    if not NEEDED[0] <= version < NEEDED[1]:
        fail(
            "Python %d.%d found, 3.11, 3.12 or 3.13 needed; name another with `make setup PYTHON=python3.12`" % version
        )
    free = shutil.disk_usage(root).free / 1e9
    needed = FREE_GB
    if free < needed:  # only then is it worth the walk
        needed = max(LEAST_GB, FREE_GB - size_gb(os.path.join(root, VENV)))
    if free < needed:
        fail("%.1f GB free below %s, %.0f GB needed (PyTorch alone takes 4)" % (free, root, needed))
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("this Python has no venv module; on Debian and Ubuntu: apt-get install python3-venv")


def size_gb(folder):
    """What lies there already; packages that are replaced leave their room to the new ones."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files) / 1e9


def succeeds(*command, **how):
    # uv trusts only the certificates it carries unless asked otherwise: behind a company's proxy that fails.
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_SYSTEM_CERTS": "1"}
    try:
        return subprocess.run(command, env={**settings, **os.environ}, **how).returncode == 0
    except OSError:  # not there, or cut off
        return False


def run(*command):
    if not succeeds(*command):
        fail("`%s` failed; its output is above" % " ".join(command[:6]))


def make_environment(python):
    """A new one where there is none, or where an interrupted set-up left one without pip."""
    if not succeeds(python, "-m", "pip", "--version", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        run(sys.executable, "-m", "venv", "--clear", VENV)


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.chdir(root)
    preflight(root)
    python = os.path.join(VENV, "bin", "python")
    make_environment(python)
    if not os.path.exists(os.path.join(VENV, "bin", "uv")):
        run(python, "-m", "pip", "install", "--quiet", "uv")
    uv = (os.path.join(VENV, "bin", "uv"), "pip", "install", "--quiet", "--python", python)
    pip = (python, "-m", "pip", "install", "--quiet")
    pinned = ("--require-hashes", "-r", LOCK)
    print("installing the pinned packages into .venv (about a minute, 6 GB) ...", flush=True)
    if not succeeds(*uv, "--compile-bytecode", *pinned):
        # A mirror that only pip's own configuration names: uv does not read that file.
        print("uv could not install them; trying pip, which takes some minutes ...", flush=True)
        run(*pip, *pinned)
    editable = [word for project in PROJECTS for word in ("--editable", "./" + project)]
    run(*pip, "--no-deps", "--no-build-isolation", *editable)
    # MLflow takes seconds to make its tables; the first stage would wait for them. What fails here is reported there.
    succeeds(python, "-m", "paco_core.runtime.tracking.prepare", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(VENV, ".ready"), "w") as ready:
        ready.write("made from %s\n" % LOCK)
    print("ready: .venv")


if __name__ == "__main__":
    main()
