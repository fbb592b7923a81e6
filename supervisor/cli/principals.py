"""token: make a token for a principal, and the entry of the file of principals that goes with it. Asks nobody."""

import argparse
import secrets

from supervisor.cli.answers import OK, say, say_json
from supervisor.cli.arguments import Verbs, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from supervisor.principals import Principal

TOKEN_BYTES = 32


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    token = verbs.add("token", run_token, "make a token for a principal and the entry of the file of principals for it")
    token.add_argument("name", help="of the principal: who will use the token")
    token.add_argument("--tenant", help="whose memory it is for (default: one of the principal's own name)")
    token.add_argument(
        "--may", default="read,write", help="what it may do: some of read,write,forget,admin (default: read,write)"
    )


def run_token(options: argparse.Namespace) -> int:
    """Print a new token and its entry. Nothing keeps the token."""
    # Imported here: no other verb needs the daemon's rules.
    from supervisor.principals import CAPABILITIES, Principal, Principals, token_digest

    may = [word.strip() for word in options.may.split(",")]
    if unknown := [word for word in may if word not in CAPABILITIES]:
        refuse("bulkhead token", f"--may has {unknown[0]!r}; known are {', '.join(sorted(CAPABILITIES))}")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    made = Principal(
        name=options.name,
        tenant=options.tenant or options.name,
        may=frozenset(each for each in CAPABILITIES if each in may),
        token_sha256=token_digest(token),
    )
    try:
        Principals((made,))
    except ValueError as error:
        refuse("bulkhead token", str(error))
    if options.json:
        say_json({"token": token, "principal": _members(made)})
        return OK
    say(f"token  {token}")
    say()
    say("Give it to who is to use it; it is not kept and not shown again. For the file of principals:")
    say()
    say("[[principal]]")
    for name, value in _members(made).items():
        say(f"{name} = {value!r}".replace("'", '"'))
    return OK


def _members(principal: "Principal") -> dict[str, object]:
    return {
        "name": principal.name,
        "tenant": principal.tenant,
        "may": sorted(principal.may),
        "token_sha256": principal.token_sha256,
    }
