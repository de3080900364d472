from headrace_contracts.pb import codes_pb2 as _codes_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sampling(_message.Message):
    __slots__ = ("max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_ids", "bias_values", "seed", "stop_token_ids", "logprobs")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    bias_values: _containers.RepeatedScalarFieldContainer[float]
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    def __init__(self, max_new_tokens: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_ids: _Optional[_Iterable[int]] = ..., bias_values: _Optional[_Iterable[float]] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class MediaItem(_message.Message):
    __slots__ = ("kind", "token_first", "token_end", "fingerprint", "data")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[MediaItem.Kind]
        KIND_IMAGE: _ClassVar[MediaItem.Kind]
        KIND_AUDIO: _ClassVar[MediaItem.Kind]
        KIND_VIDEO: _ClassVar[MediaItem.Kind]
    KIND_UNSPECIFIED: MediaItem.Kind
    KIND_IMAGE: MediaItem.Kind
    KIND_AUDIO: MediaItem.Kind
    KIND_VIDEO: MediaItem.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: MediaItem.Kind
    token_first: int
    token_end: int
    fingerprint: bytes
    data: bytes
    def __init__(self, kind: _Optional[_Union[MediaItem.Kind, str]] = ..., token_first: _Optional[int] = ..., token_end: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class RequestRecord(_message.Message):
    __slots__ = ("version", "id", "model", "gateway", "slot", "tenant", "band", "key_id", "prompt", "n", "sampling", "deadline_ms", "submitted_ms", "cache_salt", "traceparent", "attempt", "media", "edge")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: str
    model: str
    gateway: str
    slot: int
    tenant: str
    band: int
    key_id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    n: int
    sampling: Sampling
    deadline_ms: int
    submitted_ms: int
    cache_salt: bytes
    traceparent: str
    attempt: int
    media: _containers.RepeatedCompositeFieldContainer[MediaItem]
    edge: bytes
    def __init__(self, version: _Optional[int] = ..., id: _Optional[str] = ..., model: _Optional[str] = ..., gateway: _Optional[str] = ..., slot: _Optional[int] = ..., tenant: _Optional[str] = ..., band: _Optional[int] = ..., key_id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., n: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., submitted_ms: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., traceparent: _Optional[str] = ..., attempt: _Optional[int] = ..., media: _Optional[_Iterable[_Union[MediaItem, _Mapping]]] = ..., edge: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("version", "engine", "pass_id", "slots", "attempts", "firsts", "counts", "tokens", "logged", "finishes", "logprobs", "starts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    engine: str
    pass_id: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logged: _containers.RepeatedScalarFieldContainer[int]
    finishes: _containers.RepeatedCompositeFieldContainer[RowFinish]
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    starts: _containers.RepeatedCompositeFieldContainer[RowStart]
    def __init__(self, version: _Optional[int] = ..., engine: _Optional[str] = ..., pass_id: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logged: _Optional[_Iterable[int]] = ..., finishes: _Optional[_Iterable[_Union[RowFinish, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., starts: _Optional[_Iterable[_Union[RowStart, _Mapping]]] = ...) -> None: ...

class RowFinish(_message.Message):
    __slots__ = ("row", "reason", "code", "message", "usage")
    ROW_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    row: int
    reason: _codes_pb2.FinishReason
    code: _codes_pb2.Code
    message: str
    usage: Usage
    def __init__(self, row: _Optional[int] = ..., reason: _Optional[_Union[_codes_pb2.FinishReason, str]] = ..., code: _Optional[_Union[_codes_pb2.Code, str]] = ..., message: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class RowLogprobs(_message.Message):
    __slots__ = ("row", "width", "chosen", "top_ids", "top_values")
    ROW_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_VALUES_FIELD_NUMBER: _ClassVar[int]
    row: int
    width: int
    chosen: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, row: _Optional[int] = ..., width: _Optional[int] = ..., chosen: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_values: _Optional[_Iterable[float]] = ...) -> None: ...

class RowStart(_message.Message):
    __slots__ = ("row", "prompt_tokens", "cached_tokens", "engine_queue_us")
    ROW_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    row: int
    prompt_tokens: int
    cached_tokens: int
    engine_queue_us: int
    def __init__(self, row: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., engine_queue_us: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "engine_queue_us", "prefill_us", "decode_us", "preemptions")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    engine_queue_us: int
    prefill_us: int
    decode_us: int
    preemptions: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., engine_queue_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("version", "id", "slot", "n", "attempt")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: str
    slot: int
    n: int
    attempt: int
    def __init__(self, version: _Optional[int] = ..., id: _Optional[str] = ..., slot: _Optional[int] = ..., n: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("version", "attempt", "choices", "firsts", "counts", "tokens", "logprobs", "finishes", "frame_id", "prompt_tokens")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    version: int
    attempt: int
    choices: _containers.RepeatedScalarFieldContainer[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    finishes: _containers.RepeatedCompositeFieldContainer[RowFinish]
    frame_id: str
    prompt_tokens: int
    def __init__(self, version: _Optional[int] = ..., attempt: _Optional[int] = ..., choices: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., finishes: _Optional[_Iterable[_Union[RowFinish, _Mapping]]] = ..., frame_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("version", "cancel", "attach", "drain")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    version: int
    cancel: CancelNudge
    attach: Attach
    drain: Drain
    def __init__(self, version: _Optional[int] = ..., cancel: _Optional[_Union[CancelNudge, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class CancelNudge(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("id", "gateway", "slot", "first")
    ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    id: str
    gateway: str
    slot: int
    first: int
    def __init__(self, id: _Optional[str] = ..., gateway: _Optional[str] = ..., slot: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...

class CancelMark(_message.Message):
    __slots__ = ("reason", "choice", "at")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    reason: _codes_pb2.FinishReason
    choice: int
    at: int
    def __init__(self, reason: _Optional[_Union[_codes_pb2.FinishReason, str]] = ..., choice: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class ModelCard(_message.Message):
    __slots__ = ("version", "model", "created", "context_tokens", "block_tokens", "vocabulary", "weights_version", "chat_template", "files", "end_token_ids", "begin_token_id", "add_begin_token", "special_tokens", "pool_tokens", "architecture", "dtype", "temperature", "top_p", "top_k")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ADD_BEGIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    version: int
    model: str
    created: int
    context_tokens: int
    block_tokens: int
    vocabulary: int
    weights_version: str
    chat_template: str
    files: _containers.ScalarMap[str, str]
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    begin_token_id: int
    add_begin_token: bool
    special_tokens: _containers.ScalarMap[str, str]
    pool_tokens: int
    architecture: str
    dtype: str
    temperature: float
    top_p: float
    top_k: int
    def __init__(self, version: _Optional[int] = ..., model: _Optional[str] = ..., created: _Optional[int] = ..., context_tokens: _Optional[int] = ..., block_tokens: _Optional[int] = ..., vocabulary: _Optional[int] = ..., weights_version: _Optional[str] = ..., chat_template: _Optional[str] = ..., files: _Optional[_Mapping[str, str]] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., begin_token_id: _Optional[int] = ..., add_begin_token: _Optional[bool] = ..., special_tokens: _Optional[_Mapping[str, str]] = ..., pool_tokens: _Optional[int] = ..., architecture: _Optional[str] = ..., dtype: _Optional[str] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ...) -> None: ...
