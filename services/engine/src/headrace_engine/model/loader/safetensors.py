"""Weights out of a Hugging Face folder: ``config.json`` and one or many safetensors files."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.formats import BLOCKS, Format, RawTensor

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_FORMATS: Final = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
_SAMPLE_BYTES: Final = 1 << 16
_HEADER_LIMIT_BYTES: Final = 100 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class FolderCheckpoint:
    """A folder with ``config.json`` and safetensors, sharded or not, memory-mapped.

    The safetensors header is read here rather than through the package's ``safe_open``, which
    has no bfloat16 in NumPy and no byte ranges.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, object] = read_json(path / "config.json")
        self._maps: dict[Path, NDArray[np.uint8]] = {}
        self._entries: dict[str, _Entry] = {}
        digest = hashlib.sha256((path / "config.json").read_bytes())
        for file in self._files():
            digest.update(self._open(file))
        self.digest = digest.hexdigest()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def tensor(self, name: str) -> RawTensor:
        """See Checkpoint."""
        entry = self._entries.get(name)
        if entry is None:
            raise ModelRejected(f"{self.path}: tensor {name} is missing")
        format = _FORMATS.get(entry.dtype)
        if format is None:
            raise ModelRejected(
                f"{entry.file}: tensor {name} is stored as {entry.dtype}; read are"
                f" {', '.join(_FORMATS)}"
            )
        columns = entry.shape[-1] if entry.shape else 1
        size = BLOCKS[format][1]
        expected = int(np.prod(entry.shape, dtype=np.int64)) * size
        if entry.end - entry.begin != expected:
            raise ModelRejected(
                f"{entry.file}: tensor {name} has {entry.end - entry.begin} bytes, its shape"
                f" {list(entry.shape)} needs {expected}"
            )
        data = self._maps[entry.file]
        if entry.end > len(data):
            raise ModelRejected(
                f"{entry.file}: tensor {name} is truncated: it ends at byte {entry.end}, the file"
                f" has {len(data)}"
            )
        rows = data[entry.begin : entry.end].reshape(-1, columns * size)
        return RawTensor(name, entry.file, format, entry.shape, rows, entry.begin)

    def _files(self) -> list[Path]:
        if (self.path / _INDEX).is_file():
            index = read_json(self.path / _INDEX)
            names = index.get("weight_map")
            if not isinstance(names, dict):
                raise ModelRejected(f"{self.path / _INDEX}: weight_map is missing")
            files = sorted({str(name) for name in cast("dict[str, object]", names).values()})
            for file in files:
                if Path(file).is_absolute() or ".." in Path(file).parts:
                    raise ModelRejected(f"{self.path / _INDEX}: {file} lies outside the folder")
            return [self.path / file for file in files]
        if (self.path / _SINGLE).is_file():
            return [self.path / _SINGLE]
        raise ModelRejected(f"{self.path}: holds neither {_SINGLE} nor {_INDEX}")

    def _open(self, file: Path) -> bytes:
        """Adds the file's tensors; returns bytes that change when its content does."""
        if not file.is_file():
            raise ModelRejected(f"{file}: named by the index, but missing")
        data = np.memmap(file, dtype=np.uint8, mode="r") if file.stat().st_size else None
        if data is None or len(data) < 8:
            raise ModelRejected(f"{file}: truncated: shorter than a header")
        (length,) = struct.unpack("<Q", data[:8].tobytes())
        if length > min(len(data) - 8, _HEADER_LIMIT_BYTES):
            raise ModelRejected(
                f"{file}: truncated or not safetensors: a header of {length} bytes in a file of"
                f" {len(data)}"
            )
        header = data[8 : 8 + length].tobytes()
        start = 8 + length
        digest = hashlib.sha256(header + str(len(data)).encode())
        for name, entry in _read_header(file, header, start).items():
            self._entries[name] = entry
            digest.update(data[entry.begin : min(entry.end, entry.begin + _SAMPLE_BYTES)].tobytes())
        self._maps[file] = data
        return digest.digest()


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in ``path``. Raises ModelRejected naming the file."""
    try:
        value: object = json.loads(path.read_text())
    except OSError as error:
        raise ModelRejected(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelRejected(f"{path}: is not a JSON object")
    return cast("dict[str, object]", value)


def _read_header(file: Path, header: bytes, start: int) -> dict[str, _Entry]:
    try:
        table = cast("dict[str, dict[str, object]]", json.loads(header))
        entries: dict[str, _Entry] = {}
        for name, entry in table.items():
            if name == "__metadata__":
                continue
            begin, end = _counts(entry["data_offsets"], least=0)
            shape = tuple(_counts(entry["shape"], least=1))
            entries[name] = _Entry(file, str(entry["dtype"]), shape, start + begin, start + end)
        _check_apart(entries)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelRejected(f"{file}: the safetensors header is damaged: {error}") from error
    return entries


def _counts(value: object, *, least: int) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    for count in cast("list[object]", value):
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise ValueError(f"{count!r} in {value!r} is not a whole number of at least {least}")
    return cast("list[int]", value)


def _check_apart(entries: dict[str, _Entry]) -> None:
    """Raises ValueError where a tensor ends before it begins, or two have bytes in common."""
    end, last = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end < entry.begin:
            raise ValueError(f"{name} ends before it begins")
        if entry.begin < end:
            raise ValueError(f"{name} and {last} have bytes in common")
        end, last = entry.end, name
