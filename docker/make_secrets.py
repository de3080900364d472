"""Makes the secrets of a stack in two folders, where they are absent. usage: make_secrets.py SERVER KEYS

SERVER gets a password and an access list for each user of the bundled server, KEYS the pepper under
which API keys are stored, which only what checks or makes keys may read.
"""

import hashlib
import secrets
import sys
from pathlib import Path

SERVICE = (
    "+@read +@write +@connection +@transaction +@stream +eval +evalsha +time "
    "-@admin -@dangerous +info +config|get"
)
USERS = {
    "gateway": f"resetkeys resetchannels ~hr:* -@all {SERVICE}",
    "engine": "resetkeys resetchannels ~hr:{* ~hr:models ~hr:gateways ~hr:probe ~hr:blob:* "
    f"~hr:ctl:* ~hr:out:* ~hr:engine:* ~hr:gateway:* -@all {SERVICE}",
}
"""What each may do; as in the chart."""


def main() -> None:
    """Makes what is absent."""
    server, keys = map(Path, sys.argv[1:3])
    passwords = {user: secret(server / f"{user}_password") for user in USERS}
    secret(keys / "pepper")
    rules = [
        # Nobody can be this user, except the server itself when it reads its append-only file: what
        # it may not do then is lost.
        "user default off resetpass ~* &* +@all",
        "user probe on nopass resetkeys resetchannels -@all +ping",
    ]
    for user, rule in USERS.items():
        hashed = hashlib.sha256(passwords[user].encode()).hexdigest()
        rules.append(f"user {user} on #{hashed} {rule}")
    write(server / "users.acl", "\n".join(rules) + "\n")


def secret(file: Path) -> str:
    """The one in the file, or a new one."""
    if not file.exists():
        write(file, secrets.token_hex(32))
    return file.read_text()


def write(file: Path, text: str) -> None:
    """For the owner and group 0, which every container of the stack runs in; whole or not at all."""
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o640)
    fresh.write_text(text)
    fresh.replace(file)


main()
