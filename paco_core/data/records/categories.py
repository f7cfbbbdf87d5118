"""The 6 categories and 32 subcategories of text-to-image-set prompts (arXiv 2512.04784, from T2IS-Bench)."""

from __future__ import annotations

from dataclasses import dataclass

from paco_core.data.records.records import PromptRecord


@dataclass(frozen=True)
class Subcategory:
    """One kind of picture set, and what its panels show."""

    category: str
    name: str
    brief: str

    def __str__(self) -> str:
        return f"{self.category} / {self.name}"


#: category -> subcategory -> what the panels of such a set show
_BRIEFS: dict[str, dict[str, str]] = {
    "Design Style": {
        "Home Decoration": "rooms or furnishings of one home in one interior style",
        "IP Product": "merchandise that carries one mascot or brand character",
        "Font Design": "letters, words or signs in one typeface of a certain material or look",
        "Poster Design": "posters of one campaign or event with one visual identity",
        "Creative Style": "different subjects in one unusual artistic style",
    },
    "Story": {
        "Children Book": "pages of a picture book about the same characters",
        "Hist. Narrative": "moments of one historical event or life, in order",
        "Movie Shot": "shots of one film scene with the same actors, set and light",
        "Comic Story": "panels of a comic strip that tell one short story",
        "News Illustration": "illustrations of one news story from different sides",
    },
    "Process": {
        "Evolution Illustration": "one thing changing over a very long time, step by step",
        "Draw Process": "one artwork coming into being, from sketch to finish",
        "Growth Process": "one plant, animal or person growing",
        "Arch. Building": "one building under construction, from ground to completion",
        "Cooking Process": "one dish being prepared, from ingredients to plate",
        "Physical Law": "one physical or chemical effect unfolding in time",
    },
    "Instruction": {
        "Historical Panel": "plates of an exhibition about one era, object or culture",
        "Activity Arrange": "activities of one plan or day, in order, with the same people",
        "Evolution Illustration": "a chart of how one species or technology developed",
        "Education Illustration": "steps that explain one idea of a school subject",
        "Travel Guide": "stations of one journey for the same traveller, in one drawing style",
        "Product Instruction": "steps of using or assembling one product",
    },
    "Character": {
        "Multi-view": "one character seen from different sides",
        "Multi-pose": "one character in different poses or actions",
        "Portrait Design": "portraits of one character in different framings or outfits",
        "Multi-Expression": "one character with different facial expressions",
        "Multi-Scenario": "one character in different places and situations",
    },
    "Editing": {
        "Inpainting and replacement": "one picture, with one of its parts replaced by another thing in each panel",
        "Element manipulation": "one picture, with an element added, removed or moved in each panel",
        "Background modification": "one subject, unchanged, before another background in each panel",
        "Attribute and effect manipulation": "one picture in another colour, material, light or weather each time",
        "Image editing and manipulation": "one picture and different edits of it, all else unchanged",
    },
}

CATEGORIES = tuple(_BRIEFS)
SUBCATEGORIES = tuple(
    Subcategory(category, name, brief) for category, kinds in _BRIEFS.items() for name, brief in kinds.items()
)


def category(record: PromptRecord) -> str:
    """The category of a record, without the word that some files append."""
    return record.category.removesuffix(" Generation")


def prompts_per_subcategory(count: int) -> dict[Subcategory, int]:
    """How many of ``count`` prompts each subcategory gets: equal shares, one more for the first in turn.

    Turns go through the categories, so that a small count still touches all six.
    """
    kinds = [[k for k in SUBCATEGORIES if k.category == category] for category in CATEGORIES]
    turns = [kind[n] for n in range(max(map(len, kinds))) for kind in kinds if n < len(kind)]
    size, remainder = divmod(count, len(turns))
    return {kind: size + (number < remainder) for number, kind in enumerate(turns)}
