"""The question of a pair: rendered for an export, and read back from an import."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paco_core.reward_model.examples import EDIT_TEMPLATE, EDIT_TEMPLATES
from paco_core.reward_model.instructions import TEMPLATES, render


@dataclass(frozen=True)
class PairQuestion:
    """What a pair is asked: about a theme, about an edit, or (both None) plainly.

    ``template``: of an edit, where it is not the default.
    """

    theme: str | None = None
    instruction: str | None = None
    template: str | None = None

    def text(self, template: str) -> str:
        """The wording; an edit has a template of its own."""
        if self.instruction is not None:
            return render(self.template or EDIT_TEMPLATE, instruction=self.instruction)
        return render(template, theme=self.theme)


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(TEMPLATES[template])), re.DOTALL)


_PATTERNS = {name: _pattern(name) for name in ("theme", "plain", *EDIT_TEMPLATES)}


def parse_question(text: str) -> PairQuestion | None:
    """Inverse of :meth:`Question.text`; None for any other wording, and for one about a blank theme or instruction."""
    for name, pattern in _PATTERNS.items():
        match = pattern.fullmatch(text.strip())
        if match and all(part.strip() for part in match.groups()):
            return PairQuestion(**match.groupdict(), template=name if name in EDIT_TEMPLATES[1:] else None)
    return None
