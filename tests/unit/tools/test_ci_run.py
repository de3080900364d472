"""What ``.ci/run`` runs, in which order, and what it leaves out where no container can run."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from containers.cache import ROOT
from support.waiting import wait_until

# Programs that it finds instead of the machine's. Each writes down how it was called.
NOTE: Final = '#!/bin/bash\necho "$(basename "$0") $*" >>"$CALLS"\n'
SILENT: Final = "#!/bin/bash\nexit 0\n"


@dataclass(frozen=True, slots=True)
class Machine:
    """A tree with the script, on a machine of our making."""

    folder: Path

    def put(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def run(self) -> tuple[int, str, list[str]]:
        """Exit code, output, and the calls that matter."""
        calls = self.folder / "calls"
        calls.touch()
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [self.folder / ".ci/run"],
            env=os.environ | {"PATH": path, "CALLS": str(calls)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Where containers can run, as far as the script can see."""
    made = Machine(tmp_path)
    made.put(".ci/run", (ROOT / ".ci/run").read_text())
    made.put("tools/find_python.sh", f"#!/bin/sh\necho {tmp_path / 'bin/python'}\n")
    made.put("bin/make", NOTE)
    made.put("bin/python", NOTE)
    made.put("bin/id", "#!/bin/sh\necho 0\n")
    for name in ("unshare", "apt-get", "redis-server", "ip", "iptables"):
        made.put(f"bin/{name}", SILENT)
    return made


needs_debian = pytest.mark.skipif(
    not Path("/etc/debian_version").exists() or shutil.which("setsid") is None,
    reason="the script leaves deployments out where it is not Debian",
)


def test_without_root_deployments_are_left_out_and_said_so(machine: Machine) -> None:
    machine.put("bin/id", "#!/bin/sh\necho 1000\n")
    machine.put("bin/apt-get", NOTE)
    code, told, calls = machine.run()
    assert (code, calls) == (0, ["make test"])
    last = told.splitlines()[-1]
    assert last.startswith("SKIPPED: make test-deploy: ")
    assert last.endswith("it is not Debian, or this is not root")


@needs_debian
def test_a_kernel_that_forbids_containers_is_a_reason(machine: Machine) -> None:
    machine.put("bin/unshare", "#!/bin/sh\nexit 1\n")
    code, told, calls = machine.run()
    assert (code, calls) == (0, ["make test"])
    assert "this process may not make namespaces" in told


@needs_debian
def test_what_deployments_need_is_prepared_beside_the_other_tests(machine: Machine) -> None:
    code, told, calls = machine.run()
    prepare = "python tools/containers/prepare.py"
    assert code == 0, told
    assert sorted(calls) == ["make test", "make test-deploy", prepare]
    assert calls.index("make test-deploy") > calls.index(prepare)
    assert told.splitlines()[-1].startswith("== make test-deploy: passed")


@needs_debian
def test_what_could_not_be_prepared_is_said_and_tried_again(machine: Machine) -> None:
    machine.put("bin/python", f"{NOTE}echo no mirror; exit 3\n")
    code, told, calls = machine.run()
    assert code == 0
    assert "== what was prepared beside make test ended with 3\nno mirror\n" in told
    assert calls[-1] == "make test-deploy"


@needs_debian
def test_a_test_that_fails_ends_the_run_and_what_it_prepares(machine: Machine) -> None:
    machine.put("bin/make", f'{NOTE}until [ -s "$0.go" ]; do sleep 0.05; done; exit 7\n')
    prepare = (
        f'case $1 in *prepare.py) echo $$ >"{machine.folder}/bin/make.go"; sleep 600 ;; esac\n'
    )
    machine.put("bin/python", NOTE + prepare)
    code, told, calls = machine.run()
    assert code == 7, told
    assert calls[-1] == "python tools/containers/daemon.py down"
    assert "make test-deploy" not in calls
    pid = int((machine.folder / "bin/make.go").read_text())
    wait_until(lambda: ended(pid), "what it prepares goes on")


def ended(pid: int) -> bool:
    """Whether a process is gone, or nobody has asked yet how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return state.rpartition(")")[2].split()[0] == "Z"
