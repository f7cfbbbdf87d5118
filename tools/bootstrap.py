"""Make ``.venv`` from locks/dev.txt: says what is in the way before it downloads anything.

With ``--gpu`` it holds CUDA, too. Without, the packages of tools/cuda-only.txt are left out, and tools/cuda_stubs.py
writes what PyTorch asks for when it is loaded. An environment that has CUDA keeps it.

Written for any Python 3, so that a too old one gets a sentence instead of a syntax error.
"""

import glob
import os
import platform
import shutil
import subprocess
import sys

NEEDED = ((3, 11), (3, 14))
SIZE_GB, CUDA_GB = 3.8, 3.6  # of the environment, and what CUDA adds
ROOM_GB = 1.3  # to unpack
VENV = ".venv"
PYTHON = os.path.join(VENV, "bin", "python")
UV = os.path.join(VENV, "bin", "uv")
LOCK = "locks/dev.txt"  # what the graph needs, and what its tests need
CUDA_ONLY, STUBS = os.path.join("tools", "cuda-only.txt"), os.path.join("tools", "cuda_stubs.py")
#: Of these few processes import anything; compiled, they would take 0.2 GB more.
NOT_COMPILED = r"/site-packages/([^/]*/)*(tests|moto)/"
#: The project, and the two libraries that are wheels of their own.
PROJECTS = (".", "packages/dvc-project", "packages/dagster-dvc")
#: Files that are newer than what the environment was made from, and hold the folder that it was made for; `make setup`
#: looks at the one for this machine.
READY, READY_GPU = os.path.join(VENV, ".ready"), os.path.join(VENV, ".ready-gpu")


def fail(text):
    sys.exit("set-up cannot work: " + text)


def preflight(root, size_gb):
    version = sys.version_info[:2]
    if not NEEDED[0] <= version < NEEDED[1]:
        fail(
            "Python %d.%d found, 3.11, 3.12 or 3.13 needed; name another with `make setup PYTHON=python3.12`" % version
        )
    free = shutil.disk_usage(root).free / 1e9
    needed = size_gb + ROOM_GB
    if free < needed:  # only then is it worth the walk
        needed = max(ROOM_GB, needed - gb_of(os.path.join(root, VENV)))
    if free < needed:
        fail("%.1f GB free below %s, %.0f GB needed" % (free, root, needed))
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("this Python has no venv module; on Debian and Ubuntu: apt-get install python3-venv")


def gb_of(folder):
    """What lies there already; packages that are replaced leave their room to the new ones."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files) / 1e9


def step(number, text):
    print("%d/5 %s" % (number, text), flush=True)


def succeeds(*command, **options):
    # uv trusts only the certificates it carries unless asked otherwise: behind a company's proxy that fails.
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_SYSTEM_CERTS": "1"}
    try:
        return subprocess.run(command, env={**settings, **os.environ}, **options).returncode == 0
    except OSError:  # not there, or cut off
        return False


def run(*command):
    if not succeeds(*command):
        fail("`%s` failed; its output is above" % " ".join(command[:6]))


def make_environment(python, root):
    """A new one where there is none, or where an interrupted set-up left one without pip.

    Also in a folder that was copied or moved: the commands of an environment hold its path.
    """
    version = (python, "-m", "pip", "--version")
    is_whole = succeeds(*version, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if made_for(READY) not in (None, root) or not is_whole:
        run(sys.executable, "-m", "venv", "--clear", VENV)


def made_for(ready):
    """The folder that a finished environment was made for; None where none was finished."""
    if not os.path.exists(ready):
        return None
    with open(ready) as text:
        return text.read()


def install(pip, *options):
    """The pinned packages; on a terminal uv shows how far it is."""
    uv = (UV, "pip", "install", "--python", PYTHON) + (() if sys.stderr.isatty() else ("--quiet",))
    pinned = ("--require-hashes", "-r", LOCK)
    if not succeeds(*uv, *pinned, *options):
        # A mirror that only pip's own configuration names: uv does not read that file. pip leaves nothing out.
        print("uv could not install them; trying pip, which takes some minutes and installs CUDA, too ...", flush=True)
        run(*pip, "--no-compile", *pinned)


def compile_packages():
    """Bytecode, on all processors. What does not compile is a template, or for another Python; nobody imports it.

    Not with compileall's own ``-j``: its processes outlive a Ctrl-C.
    """
    packages = sorted(glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", "*")))
    command = [PYTHON, "-m", "compileall", "-qq", "-x", NOT_COMPILED]
    shares = [packages[start :: os.cpu_count()] for start in range(min(os.cpu_count(), len(packages)))]
    for process in [subprocess.Popen(command + share) for share in shares]:
        process.wait()


def main(gpu):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.chdir(root)
    # The stand-ins are code for this processor; elsewhere PyTorch does not load without all that it asks for.
    cuda = gpu or os.path.exists(READY_GPU) or (sys.platform, platform.machine()) != ("linux", "x86_64")
    size_gb = SIZE_GB + (CUDA_GB if cuda else 0)
    preflight(root, size_gb)
    step(1, "an environment: %s, Python %d.%d" % (VENV, sys.version_info[0], sys.version_info[1]))
    make_environment(PYTHON, root)
    pip = (PYTHON, "-m", "pip", "install", "-qq")  # errors only: its warnings are about its own configuration
    run(*pip, "uv>=0.9.8")  # the first with --excludes
    without = "" if cuda else ", without CUDA (no NVIDIA GPU is here; `make setup GPU=1` adds it)"
    step(2, "the packages of %s, %.1f GB%s" % (LOCK, size_gb, without))
    install(pip, *(() if cuda else ("--excludes", CUDA_ONLY)))
    if not succeeds(PYTHON, STUBS) and not cuda:
        print("PyTorch does not load without CUDA here; adding it ...", flush=True)
        install(pip)
        run(PYTHON, STUBS)
    step(3, "bytecode, so that nothing starts slowly (about half a minute)")
    compile_packages()
    step(4, "the project's own packages")
    editable = [word for project in PROJECTS for word in ("--editable", "./" + project)]
    run(*pip, "--no-deps", "--no-build-isolation", *editable)
    # MLflow takes seconds to make its tables; the first stage would wait for them. What fails here is reported there.
    step(5, "MLflow's tables")
    succeeds(PYTHON, "-m", "paco_core.runtime.tracking.prepare", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Dagster's settings, and .env, where its commands find them.
    run(PYTHON, "-m", "paco_pipelines.instance.settings")
    for path in (READY, READY_GPU) if cuda else (READY,):
        with open(path, "w") as ready:
            ready.write(root)
    print("ready: %s" % VENV)


if __name__ == "__main__":
    try:
        main(gpu="--gpu" in sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted; the next `make setup` goes on from here")
