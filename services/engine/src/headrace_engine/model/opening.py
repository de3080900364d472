"""From a path to checked weights: which reader, which family."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace_engine.errors import ModelRejected
from headrace_engine.model.config import ModelConfig
from headrace_engine.model.families import llama
from headrace_engine.model.layers import Weights, read_weights
from headrace_engine.model.loader.gguf import GgufCheckpoint
from headrace_engine.model.loader.gguf_header import read_gguf_header
from headrace_engine.model.loader.safetensors import FolderCheckpoint, read_json
from headrace_engine.model.loader.source import KNOWN_SHA256, check_sha256, resolve


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Weights still on disk, and a digest of their content."""

    path: Path
    weights: Weights
    digest: str
    """Hexadecimal; changes whenever a weight or the configuration does."""


def open_model(model: str, *, sha256: str | None = None) -> OpenedModel:
    """Finds, reads and checks what ``model`` names; maps the weights without copying them.

    ``sha256`` is what the file must hash to; for the default model it is known. Raises
    ModelRejected naming file and tensor.
    """
    path = resolve(model)
    expected = sha256 or KNOWN_SHA256.get(model)
    if path.is_dir():
        if sha256 is not None:
            raise ModelRejected(f"{path}: a SHA-256 is checked for files, not for folders")
        return _open_folder(path)
    if path.suffix.lower() != ".gguf":
        raise ModelRejected(f"{path}: expected a folder with config.json, or a .gguf file")
    digest = check_sha256(path, expected) if expected is not None else None
    return _open_gguf(path, digest)


def _open_gguf(path: Path, sha256: str | None) -> OpenedModel:
    checkpoint = GgufCheckpoint(path, sha256=sha256)
    config = llama.config_from_gguf(checkpoint.header)
    interleaved = config.architecture == "llama"
    weights = read_weights(config, checkpoint, llama.GGUF_NAMES, interleaved=interleaved)
    return OpenedModel(path, weights, checkpoint.digest)


def _open_folder(path: Path) -> OpenedModel:
    checkpoint = FolderCheckpoint(path)
    stored = llama.HF_NAMES["output"] in checkpoint
    config = llama.config_from_hf(path, checkpoint.config, output_stored=stored)
    weights = read_weights(config, checkpoint, llama.HF_NAMES, interleaved=False)
    return OpenedModel(path, weights, checkpoint.digest)


def read_config(model: str) -> ModelConfig:
    """The numbers of what ``model`` names: a folder with ``config.json`` is enough, or a .gguf file.

    Raises ModelRejected naming file and key.
    """
    path = resolve(model)
    if path.is_dir():
        return llama.config_from_hf(path, read_json(path / "config.json"), output_stored=True)
    return llama.config_from_gguf(read_gguf_header(path))
