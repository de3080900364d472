"""Generates the protobuf modules of headrace_contracts from ``proto/``.

usage: gen_proto.py [--check]
"""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # pyright: ignore[reportMissingTypeStubs]

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
OUT = ROOT / "libs/contracts/src/headrace_contracts/pb"


def generate(out: Path) -> None:
    """Writes every generated file into ``out``. Imports are made absolute within our package."""
    with tempfile.TemporaryDirectory() as scratch:
        files = sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))
        arguments = ["protoc", f"-I{PROTO}", f"--python_out={scratch}", f"--pyi_out={scratch}"]
        arguments.append(f"--grpc_python_out={scratch}")
        if protoc.main(arguments + files) != 0:  # pyright: ignore[reportUnknownMemberType]
            raise SystemExit("protoc failed")
        for made in sorted(Path(scratch).rglob("*_pb2*.py*")):
            text = made.read_text().replace(
                "from headrace.v1 import", "from headrace_contracts.pb import"
            )
            if made.name.endswith("_grpc.py") and "_pb2 as " not in text:
                continue  # a file without services has an empty stub
            (out / made.name).write_text(text)
    (out / "__init__.py").write_text('"""Generated from proto/ by `make gen`. Do not edit."""\n')


def main() -> int:
    """Generates in place, or compares with what is committed."""
    if "--check" not in sys.argv:
        generate(OUT)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        names = sorted({p.name for p in fresh.iterdir()} | {p.name for p in OUT.glob("*.py*")})
        _, differ, missing = filecmp.cmpfiles(fresh, OUT, names, shallow=False)
        for name in differ + missing:
            print(f"stale: {OUT.relative_to(ROOT) / name}; run `make gen`")
        return 1 if differ or missing else 0


if __name__ == "__main__":
    sys.exit(main())
