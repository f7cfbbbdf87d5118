"""Shapes of secrets: tokens with the prefix of their issuer, and private keys.

Issuers give their tokens a prefix, so scanners can find them. Each shape begins with such a literal. The expression
after it is only evaluated at a literal, which is several times faster than an expression over the complete text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Prefixes of one kind of secret, and an expression for the characters after them."""

    kind: str
    starts: tuple[str, ...]
    pattern: re.Pattern[str]
    at_word_start: bool = True  # no letter or digit precedes it


def _shape(kind: str, starts: str, pattern: str, *, at_word_start: bool = True) -> Shape:
    return Shape(kind, tuple(starts.split()), re.compile(pattern, re.ASCII), at_word_start)


#: Shapes that nothing but a secret has.
TOKENS = (
    _shape("a token of Hugging Face", "hf_ api_org_", "[A-Za-z0-9]{20}"),
    _shape("a token of GitHub", "gho_ ghp_ ghr_ ghs_ ghu_ github_pat_", "[A-Za-z0-9_]{20}"),
    _shape("a token of GitLab", "glpat- gldt- glrt- glcbt- glptt- glft- gloas- glsoat-", r"[\w-]{20}"),
    _shape("a key of AWS", "AKIA ASIA ABIA ACCA", "[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _shape("a key of Google", "AIza GOCSPX- ya29.", r"[\w-]{24}"),
    _shape("a key of OpenAI or Anthropic", "sk-", r"[\w-]{20}"),
    _shape("a key of a model provider", "gsk_ r8_ pplx- tgp_v1_ wandb_v1_ dapi", "[A-Za-z0-9_]{32}"),
    _shape("a key of a model provider", "xai- nvapi-", r"[\w-]{60}"),
    _shape("a token of Slack", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", "[A-Za-z0-9-]{10}"),
    _shape("a hook of Slack", "hooks.slack.com/services/", r"[\w/]{20}"),
    _shape("a hook of Discord", "discord.com/api/webhooks/ discordapp.com/api/webhooks/", r"\d+/[\w-]{20}"),
    _shape("a token of Telegram", ":AA", r"[\w-]{33}(?![\w-])", at_word_start=False),
    _shape("a key of Stripe", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", "[A-Za-z0-9+/]{16}"),
    _shape("a token of a package registry", "npm_ pypi- dckr_pat_ dckr_oat_ rubygems_", r"[\w-]{27}"),
    _shape("a key of a mail service", "SG.", r"[\w-]{16,64}\.[\w-]{16}"),
    _shape("a key of Twilio", "SK", "[0-9a-f]{32}(?![0-9A-Za-z])"),
    _shape("a token of a cloud service", "dop_v1_ doo_v1_ dor_v1_ shpat_ shpca_ shppa_ shpss_ PMAK-", "[0-9a-f]{24}"),
    _shape("a token of a cloud service", "hvs. hvb. lin_api_ ntn_ ATATT3 glsa_", r"[\w-]{20}"),
    _shape("a key of Azure", "AccountKey= SharedAccessKey=", "[A-Za-z0-9+/]{40}", at_word_start=False),
    _shape("a signed token (JWT)", "eyJ", r"[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10}"),
    _shape("a private key", "-----BEGIN", "(?: [A-Z0-9]+){0,3} PRIVATE KEY", at_word_start=False),
    _shape("a private key", "PuTTY-User-Key-File- AGE-SECRET-KEY-1", "[0-9A-Z]", at_word_start=False),
    _shape("a private key", "LS0tLS1CRUdJTi", "[A-Za-z0-9+/]{20,60}(?:UFJJVkFURSBLRV|BSSVZBVEUgS0VZ|QUklWQVRFIEtFW)"),
)


def tokens(text: str) -> Iterator[tuple[Shape, int, int]]:
    """Each token or private key in a text: start of the token, and end of its prefix."""
    for shape in TOKENS:
        for start in shape.starts:
            at = text.find(start)
            while at >= 0:
                after = at + len(start)
                if not (shape.at_word_start and at and text[at - 1].isalnum()) and (
                    match := shape.pattern.match(text, after)
                ):
                    yield shape, at, match.end()
                at = text.find(start, after)
