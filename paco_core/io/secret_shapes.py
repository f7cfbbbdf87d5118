"""What secrets look like: tokens by the shape that their issuer gave them, private keys, and assigned passwords.

Issuers mark their tokens with a prefix so that scanners can find them. Each shape here begins with such a literal; what
follows is looked at only where the literal stands, which is several times as fast as expressions over the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Literals that a secret of a kind starts with, and an expression for what follows them."""

    kind: str
    starts: tuple[str, ...]
    rest: re.Pattern[str]
    alone: bool = True  # no letter or digit stands before it


def _shape(kind: str, starts: str, rest: str, *, alone: bool = True) -> Shape:
    return Shape(kind, tuple(starts.split()), re.compile(rest, re.ASCII), alone)


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
    _shape("a token of Telegram", ":AA", r"[\w-]{33}(?![\w-])", alone=False),
    _shape("a key of Stripe", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", "[A-Za-z0-9+/]{16}"),
    _shape("a token of a package registry", "npm_ pypi- dckr_pat_ dckr_oat_ rubygems_", r"[\w-]{27}"),
    _shape("a key of a mail service", "SG.", r"[\w-]{16,64}\.[\w-]{16}"),
    _shape("a key of Twilio", "SK", "[0-9a-f]{32}(?![0-9A-Za-z])"),
    _shape("a token of a cloud service", "dop_v1_ doo_v1_ dor_v1_ shpat_ shpca_ shppa_ shpss_ PMAK-", "[0-9a-f]{24}"),
    _shape("a token of a cloud service", "hvs. hvb. lin_api_ ntn_ ATATT3 glsa_", r"[\w-]{20}"),
    _shape("a key of Azure", "AccountKey= SharedAccessKey=", "[A-Za-z0-9+/]{40}", alone=False),
    _shape("a signed token (JWT)", "eyJ", r"[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10}"),
    _shape("a private key", "-----BEGIN", "(?: [A-Z0-9]+){0,3} PRIVATE KEY", alone=False),
    _shape("a private key", "PuTTY-User-Key-File- AGE-SECRET-KEY-1", "[0-9A-Z]", alone=False),
    _shape("a private key", "LS0tLS1CRUdJTi", "[A-Za-z0-9+/]{20,60}(?:UFJJVkFURSBLRV|BSSVZBVEUgS0VZ|QUklWQVRFIEtFW)"),
)
_IS = r"""["']?\s{0,3}(?::=|=>|[:=])\s{0,3}["']?"""
#: A password is any word after an equals sign or in quotes; without them, as in a sentence or a vocabulary, it has
#: letters and digits.
_WORD = r"""[^\s"'`<>${}()\[\]|*,;:]"""
_MIXED = rf"(?={_WORD}*[a-z])(?={_WORD}*\d)"
_PASSWORD = (
    rf"""[\w-]{{0,40}}["']?\s?"""
    rf"""(?:(?::=|=>|=)\s?["']?{_WORD}{{6}}|:\s?["']{_WORD}{{6}}|:\s?{_MIXED}{_WORD}{{6}})"""
)
#: A key has letters and digits; words, other names and calls of functions seldom have as many.
_RANDOM = r"(?=[^\s\"']*[a-z])(?=[^\s\"']*\d(?:[^\s\"']*\d|[^\s\"']{16}))[a-z0-9+/_=~-]{16,}(?![\w.(\[])"
_KEY = rf"(?:_?id|_?key|_?token)?{_IS}{_RANDOM}"
#: What is assigned to a name that holds a secret, as in a shell, Python, JSON, YAML, a query of a URL, or a netrc.
#: These are compared with a text in lower case.
ASSIGNED = (
    _shape("a password", "password passwd passphrase", _PASSWORD, alone=False),
    _shape("a password", "_pass _pwd", rf"{_IS}{_MIXED}{_WORD}{{6}}", alone=False),
    _shape("a password", "login", r"\s{1,3}\S{1,80}\s{1,3}password\s{1,3}\S{4}"),
    _shape("a key", "api_key apikey api-key access_key accesskey access-key account_key auth_key", _KEY, alone=False),
    _shape("a key", "private_key encryption_key signing_key master_key secret token", _KEY, alone=False),
    _shape("a key", "signature credential sig=", rf"[\w-]{{0,20}}=?{_RANDOM}", alone=False),
    _shape("a key", "authorization", r"""["']?\s?[:=]\s?["']?(?:bearer|basic|token)\s{1,3}[\w+/.=~-]{8}"""),
    _shape("a key", '"auth" "_auth"', r"""\s?:\s?"[a-z0-9+/]{16}""", alone=False),
    _shape("a key", '"username"', r"""\s?:\s?"[^"]{1,80}"\s?,\s{0,9}"key"\s?:""", alone=False),
    _shape("a password in a URL", "://", r"[\w.~%!$&'()*+,;=-]{0,80}:[^\s/@:\"'<>|\\^`]{3,200}@[\w\[]", alone=False),
    _shape("a token in a URL", "://", r"[\w.~%+-]{20,255}@[\w\[]", alone=False),
)


def tokens(text: str) -> Iterator[tuple[Shape, int, int]]:
    """Each place of a text that has the shape of a token or a private key: where it starts and where its head ends."""
    return _places(TOKENS, text)


def assigned(lower: str) -> Iterator[tuple[Shape, int, int]]:
    """Each place of a text in lower case where a password or key is assigned to a name, or stands in a URL."""
    return _places(ASSIGNED, lower)


def _places(shapes: tuple[Shape, ...], text: str) -> Iterator[tuple[Shape, int, int]]:
    for shape in shapes:
        for start in shape.starts:
            at = text.find(start)
            while at >= 0:
                after = at + len(start)
                if not (shape.alone and at and text[at - 1].isalnum()) and (found := shape.rest.match(text, after)):
                    yield shape, at, found.end()
                at = text.find(start, after)
