"""Weights out of a GGUF file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType

from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.formats import Format, RawTensor, row_bytes
from headrace_engine.model.loader.gguf_header import GgufHeader, read_gguf_header
from headrace_engine.model.loader.source import file_sha256

_WHOLE_FILE_BYTES: Final = 1 << 30
"""Files up to this size are hashed whole: 0.1 s per 100 MB at most."""
_SAMPLE_BYTES: Final = 1 << 16


class GgufCheckpoint:
    """One GGUF file, memory-mapped."""

    def __init__(self, path: Path, *, sha256: str | None = None) -> None:
        """``sha256``: the file's digest, where the caller has computed it already."""
        self.path = path
        self.header: GgufHeader = read_gguf_header(path)
        if self.header.header_bytes > self.header.file_bytes:
            raise ModelRejected(
                f"{path}: truncated: {self.header.file_bytes} bytes, and the weights begin at"
                f" {self.header.header_bytes}"
            )
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self.digest = sha256 or self._content_digest()

    def __contains__(self, name: str) -> bool:
        return name in self.header.tensors

    def tensor(self, name: str) -> RawTensor:
        """See Checkpoint."""
        entry = self.header.tensors.get(name)
        if entry is None:
            raise ModelRejected(f"{self.path}: tensor {name} is missing")
        format = self._format(name, entry.type_id)
        columns = entry.shape[-1]
        rows = int(np.prod(entry.shape[:-1], dtype=np.int64))
        width = row_bytes(format, columns)
        if width is None:
            raise ModelRejected(
                f"{self.path}: tensor {name} has rows of {columns} weights, which do not fill"
                f" {format.name} blocks"
            )
        end = entry.offset + rows * width
        if end > self.header.file_bytes:
            raise ModelRejected(
                f"{self.path}: tensor {name} is truncated: it ends at byte {end}, the file has"
                f" {self.header.file_bytes}"
            )
        data = self._bytes[entry.offset : end].reshape(rows, width)
        return RawTensor(name, self.path, format, entry.shape, data, entry.offset)

    def _format(self, name: str, type_id: int) -> Format:
        try:
            return Format(type_id)
        except ValueError:
            known = {kind.value: kind.name for kind in GGMLQuantizationType}
            raise ModelRejected(
                f"{self.path}: tensor {name} is quantized as {known.get(type_id, type_id)};"
                f" read are {', '.join(format.name for format in Format)}"
            ) from None

    def _content_digest(self) -> str:
        if self.header.file_bytes <= _WHOLE_FILE_BYTES:
            return file_sha256(self.path)
        digest = hashlib.sha256(self._bytes[: self.header.header_bytes].tobytes())
        digest.update(str(self.header.file_bytes).encode())
        for entry in self.header.tensors.values():
            digest.update(self._bytes[entry.offset : entry.offset + _SAMPLE_BYTES].tobytes())
        return digest.hexdigest()
