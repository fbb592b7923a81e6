"""Secrets that never opened anything, one of each shape. Put together here, so that no scanner finds one in a file."""

_ABC = "aZ3bY7cX1dW9eV5fU2gT8hS4iR6jQ0kPmNoL"
_LONG = (_ABC + "Q9w8E7r6T5y4U3i2O1p0") * 4


def _pem(label: str) -> str:
    lines = "\n".join(_LONG[index : index + 64] for index in range(0, 192, 64))
    return f"-----BEGIN {label}PRIVATE KEY-----\n{lines}\n{_ABC[:11]}=\n-----END {label}PRIVATE KEY-----"


# kind → texts as people paste them, and the part of each that must be gone.
SECRETS: dict[str, list[tuple[str, str]]] = {
    "private-key": [(f"my key:\n{_pem(label)}\nthat was it", _LONG[:64]) for label in ("", "RSA ", "OPENSSH ", "EC ")],
    "aws-access-key-id": [(f"id {'AKIA'}IOSFODNN7EXAMPLQ ok", "IOSFODNN7EXAMPLQ")],
    "aws-secret-key": [(f"aws_secret_access_key = {_LONG[:40]}", _LONG[:40])],
    "github-token": [
        (f"use {'ghp_'}{_ABC} please", _ABC),
        (f"({'github_pat_'}11{_LONG[:20]}_{_LONG[:40]})", _LONG[:20]),
    ],
    "gitlab-token": [(f"{'glpat-'}{_ABC[:20]}", _ABC[:20])],
    "slack-token": [
        (f"{'xoxb-'}123456789012-{_ABC[:24]}", _ABC[:24]),
        (f"https://hooks.slack.com/services/T0ABCDEFG/B0ABCDEFG/{_ABC[:24]}", _ABC[:24]),
    ],
    "stripe-key": [(f"{'sk_'}live_{_ABC[:24]}", _ABC[:24])],
    "model-api-key": [
        (f"OPENAI={'sk-'}proj-{_LONG[:48]}", _LONG[:48]),
        (f"the key {'sk-'}ant-api03-{_LONG[:60]} is new", _LONG[:60]),
    ],
    "google-api-key": [(f"{'AIza'}{_LONG[:35]}", _LONG[:35])],
    "huggingface-token": [(f"{'hf_'}{_ABC[:34]}", _ABC[:34])],
    "npm-token": [(f"//registry/:_x={'npm_'}{_ABC}", _ABC)],
    "pypi-token": [(f"{'pypi-'}AgEIcHlwaS5vcmc{_LONG[:60]}", _LONG[:60])],
    "sendgrid-key": [(f"{'SG.'}{_ABC[:22]}.{_LONG[:43]}", _LONG[:43])],
    "telegram-token": [(f"bot 123456789:AA{_ABC[:33]}", _ABC[:33])],
    "jwt": [(f"{'eyJ'}hbGciOiJIUzI1NiJ9.{'eyJ'}{_ABC[:20]}.{_LONG[:43]}", _LONG[:43])],
    "azure-key": [(f"AccountName=x;AccountKey={_LONG[:86]}==;EndpointSuffix=core", _LONG[:86])],
    "url-password": [("postgres://app:Qw8rtzUiop@db.example.org/main", "Qw8rtzUiop")],
    "authorization": [
        (f"Authorization: Basic {_ABC[:24]}==", _ABC[:24]),
        (f"curl -H 'authorization: Bearer {_ABC}'", _ABC),
        (f"then send Bearer {_ABC} with it", _ABC),
    ],
    "password": [
        ("password=Tr0ub4dor&3", "Tr0ub4dor"),
        ('{"user": "me", "password": "correct horse battery"}', "correct horse battery"),
        ("我的密码：Hunter2hunter", "Hunter2hunter"),
        ('"{\\"passwd\\": \\"Hunter2hunter\\"}"', "Hunter2hunter"),
    ],
    "secret": [
        (f"api_key: {_ABC}", _ABC),
        (f"export ACCESS_TOKEN='{_ABC}'", _ABC),
        (f"https://example.org/?token={_ABC}&x=1", _ABC),
    ],
}
ALL: list[tuple[str, str, str]] = [(kind, text, part) for kind, texts in SECRETS.items() for text, part in texts]
