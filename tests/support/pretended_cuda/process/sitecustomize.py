"""Found on PYTHONPATH by every Python process: CUDA is pretended from the moment that PyTorch is imported."""

import importlib.abc
import importlib.machinery
import sys


class _Torch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def and_pretend(module):  # type: ignore[no-untyped-def]
            sys.meta_path.remove(self)
            execute(module)
            from tests.support import pretended_cuda

            pretended_cuda.FOREVER = pretended_cuda.install()

        spec.loader.exec_module = and_pretend
        return spec


sys.meta_path.insert(0, _Torch())
