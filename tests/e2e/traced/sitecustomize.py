"""Records which leaves of the parameters and which files a stage reads; to be put first on PYTHONPATH.

Every read of an attribute of a section counts while the stage's own ``run`` is at work; a whole section that is dumped
counts with all its leaves. Each stage has a JSON file in ``params`` and one in ``files`` of the folder that
``PACO_TRACED`` names.
"""

import json
import os
import sys
from pathlib import Path


def _watch(stage: str, item: str | None, folder: Path) -> None:
    from contextlib import contextmanager

    from paco_core.config import params
    from paco_core.config.execution import execution_fields, places
    from paco_core.config.params_base import Section
    from paco_core.config.params_policies import PolicyRecipe
    from paco_core.config.params_training import PolicyTraining
    from paco_core.runtime import launch

    in_file = {key: place for place, key in places(params.Params).items()}
    shared = set(PolicyTraining.model_fields)
    paths: dict[int, str] = {}
    alive: list[Section] = []  # an id must not be given to another section
    read: set[str] = set()  # keys of the file

    def note(path: str) -> None:
        recipe, name = path.split(".")[:2] == ["policies", "recipes"], path.split(".")[3:4]
        if recipe and name and name[0] in shared:  # the recipe's own, or that of all
            below = "policies.defaults." + ".".join(path.split(".")[3:])
            if name[0] not in execution_fields(PolicyRecipe):
                read.add(path)
            return note(below)
        key = next((key for key in in_file if path == key or path.startswith(f"{key}.")), None)
        read.add(path if key is None else in_file[key] + path.removeprefix(key))
        return None

    state = {"on": False}
    plain = Section.__getattribute__

    def register(section: Section, path: str) -> None:
        paths[id(section)] = path
        alive.append(section)
        for name in type(section).model_fields:
            _register_value(plain(section, name), f"{path}.{name}" if path else name)

    def _register_value(value: object, path: str) -> None:
        if isinstance(value, Section):
            register(value, path)
        elif isinstance(value, dict | list | tuple):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                _register_value(part, f"{path}.{key}")

    def leaves(value: object, path: str) -> None:
        if isinstance(value, Section):
            for name in type(value).model_fields:
                leaves(plain(value, name), f"{path}.{name}" if path else name)
        elif isinstance(value, dict):
            for key, part in value.items():
                leaves(part, f"{path}.{key}")
        else:
            note(path)

    def getattribute(self: Section, name: str) -> object:
        value = plain(self, name)
        if state["on"] and id(self) in paths and name in type(self).model_fields:
            path = f"{paths[id(self)]}.{name}" if paths[id(self)] else name
            holds_sections = isinstance(value, dict) and any(isinstance(part, Section) for part in value.values())
            if not isinstance(value, Section) and not holds_sections:
                note(path)
        return value

    dump, copy, load = Section.model_dump, Section.model_copy, params.load

    def model_dump(self: Section, **options: object) -> object:
        if state["on"] and id(self) in paths:
            left_out = options.get("exclude") or set()
            for name in type(self).model_fields:
                if name not in left_out:
                    leaves(plain(self, name), f"{paths[id(self)]}.{name}" if paths[id(self)] else name)
        return dump(self, **options)

    def model_copy(self: Section, **options: object) -> Section:
        copied = copy(self, **options)
        if id(self) in paths:
            register(copied, paths[id(self)])
        return copied

    def loaded(path: Path) -> object:
        section = load(path)
        register(section, "")
        return section

    from opened import Opened

    enter = launch.open_stage

    @contextmanager
    def open_stage(*args: object) -> object:
        with enter(*args) as context:
            state["on"] = True
            opened = Opened(context.root, skip=(".git", ".dvc", ".paco", ".dagster", "mlartifacts", "__pycache__"))
            try:
                yield context
            finally:
                state["on"] = False
                label = f"{stage}@{item}" if item else stage
                for kind, paths in {"params": read, "files": opened.stop()}.items():
                    (folder / kind).mkdir(parents=True, exist_ok=True)
                    (folder / kind / f"{label}.json").write_text(json.dumps(sorted(paths)))

    Section.__getattribute__ = getattribute
    Section.model_dump, Section.model_copy = model_dump, model_copy
    import paco_core.runtime.context

    paco_core.runtime.context.load = loaded
    launch.open_stage = open_stage


_words = sys.orig_argv
if os.environ.get("PACO_TRACED") and _words[1:4] == ["-m", "paco_core", "run"] and "RANK" not in os.environ:
    _item = _words[_words.index("--item") + 1] if "--item" in _words else None
    sys.path.insert(0, str(Path.cwd()))
    _watch(_words[4], _item, Path(os.environ["PACO_TRACED"]))
