"""Canaries: secrets of every kind that people have, each with a word of its own that no output may hold.

The word stands inside of the secret, so that whatever quotes it leaves the word as it is; base64 is looked for apart.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Canary:
    """A secret. ``text`` is what holds it, in which ``word`` may stand once or more; ``variable`` names the one of the environment with
    that text, and is empty where it is only told by others."""

    word: str
    text: str
    variable: str = ""


VARIABLES = {  # names that say it, and values in which nothing else does; {} is where the word goes
    "DB_PASS": "/{}", "GH_PAT": "ghp_{}", "SIGNING_KEY": "@{}", "SMTP_PWD": ".{}", "SLACK_TOKEN": "xoxb-{}", "OAUTH_CLIENT_SECRET": "{}==",
    "AWS_SECRET_ACCESS_KEY": "{}/+Kx", "AWS_SESSION_TOKEN": "Fwo%2F{}%3D", "PGPASSWORD": "{}&<>'\"", "GITHUB_TOKEN": "ghs_{}",
    "OPENAI_API_KEY": "sk-{}", "NPM_AUTH": "bmFtZTo{}", "APP_CREDS": "{}|;$(", "SSHPASS": "a b {} c", "MY_COOKIE": "sid={}",
    "JWT": "eyJ0.{}.sig", "RESTIC_PASSWORD": "täglich-{}", "ANSIBLE_VAULT_PASSPHRASE": "{}\\n%s", "AZURE_CONNECTION_STRING": "Account={};x",
    "SENTRY_DSN": "https://{}@o1.example.org/2", "SLACK_WEBHOOK": "https://hooks.example.org/services/{}", "HF_TOKEN": "hf_{}",
    "PASSWORD_SALT": "::error::{}", "TLS_PRIVATE_KEY": "-----BEGIN KEY-----\nMIIE{}\n-----END KEY-----", "db_password": "</script>{}",
    "BEARER": "Bearer {}", "CI_REGISTRY_PASSWORD": "{}.db", "ENCRYPTION_KEY": "{}%20%2F", "WANDB_API_KEY": "0123{}",
}
LOCATIONS = {  # variables whose names say nothing: their values are URLs with a secret in them
    "ENDPOINT": "postgresql://u@db.example.org/x?password={}", "REPLICA": "postgresql://db.example.org/x?user=u&sslpassword={}&a=1",
    "QUEUE": "amqp://u:p@{}@mq.example.org/v", "INDEX_URL": "https://{}a1@pypi.example.org/simple", "HTTPS_PROXY": "http://u:{}@proxy:3128",
    "CACHE": "redis://:{}@cache.example.org:6379/0",
}
TOLD = (  # nowhere in the environment: whoever prints them has them from elsewhere
    "postgresql+psycopg://user:{}@db.example.org/bench", "https://weights.example.org/m.pth?X-Amz-Signature={}&X-Amz-Expires=9",
    "https://{}b2@git.example.org/a", "host=h password={} dbname=d", "s3://key1234567890abcdef:{}@bucket/weights",
    "mysql://u:a/b@{}@host:3306/db", "https://x.example.org/w?sig={}",
)


def _canaries() -> Iterator[Canary]:
    given = [*VARIABLES.items(), *LOCATIONS.items(), *(("", text) for text in TOLD)]
    for number, (variable, text) in enumerate(given, 10):
        word = f"c4n4ry{number}q7z{number * 7919 % 9973:04d}"
        yield Canary(word, text.replace("{}", word), variable)


CANARIES = tuple(_canaries())
ENVIRONMENT = {canary.variable: canary.text for canary in CANARIES if canary.variable}


def signs(canary: Canary) -> tuple[bytes, ...]:
    """What gives a canary away: its word, in capitals too, and what base64 makes of it wherever it stands."""
    word = canary.word.encode()
    inside = [base64.b64encode(b"." * before + word + b"...")[4 : 4 + 4 * (len(word) // 3 - 1)] for before in range(3)]
    return word, word.upper(), *inside


def found_in(content: bytes) -> list[str]:
    """The canaries that stand in some bytes, by the names of their variables or by their texts."""
    return [canary.variable or canary.text for canary in CANARIES if any(sign in content for sign in signs(canary))]
