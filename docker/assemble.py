"""Turns an environment into the part of an image that is ours, the same one every time.

usage: assemble.py ENVIRONMENT ROOT [FOLDER...]    in a build stage, with SOURCE_DATE_EPOCH set

Removes what no service reads, compiles the rest (no process writes to an image), and copies it to
ROOT beside licences and bill of materials. FOLDERs are mount points, which group 0 may write to: any
user id works then. Every time stamp is SOURCE_DATE_EPOCH; bytecode is checked against nothing, so
that stamps do not matter to it.
"""

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

UNREAD = ("torch/include", "torch/share", "torch/test", "**/tests", "**/*.pyi", "**/*.a")
"""Below site-packages: headers, test suites, type stubs."""


def main() -> None:
    """Assembles."""
    environment, root = Path(sys.argv[1]), Path(sys.argv[2])
    documents = root / "usr/share/doc/headrace"
    documents.mkdir(parents=True)
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(name, documents)
    packages = next(environment.glob("lib/python3*/site-packages"))
    for pattern in UNREAD:
        for path in list(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    describe(environment, documents / "sbom.cdx.json")
    if not compileall.compile_dir(
        packages,
        quiet=2,
        force=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    ):
        print("some modules do not compile; they are left as they are")
    shutil.copytree(environment, root / str(environment).lstrip("/"), symlinks=True)
    mount_points = [root / folder.lstrip("/") for folder in sys.argv[3:]]
    for folder in mount_points:
        folder.mkdir(parents=True)
    stamp(root)
    for folder in mount_points:
        folder.chmod(0o775)


def describe(environment: Path, file: Path) -> None:
    """A bill of materials of what is installed, in CycloneDX."""
    command = [Path(sys.executable).with_name("cyclonedx-py"), "environment"]
    command += ["--output-reproducible", "--of", "JSON", "-o", file, environment / "bin/python"]
    subprocess.run(command, check=True)


def stamp(root: Path) -> None:
    """Gives every file one time; nobody but root may write to it."""
    when = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o755)
        os.utime(path, (when, when), follow_symlinks=False)


main()
