"""Show Sphinx's roles in docstrings (:class:`.base.Policy`) as the code that they name."""

import re

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?\.?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites each docstring once, when it has been read."""

    def on_instance(self, *, obj, **_):
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
