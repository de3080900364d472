from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODE_UNSPECIFIED: _ClassVar[Code]
    CODE_INVALID_REQUEST: _ClassVar[Code]
    CODE_UNSUPPORTED_PARAMETER: _ClassVar[Code]
    CODE_CONTEXT_LENGTH_EXCEEDED: _ClassVar[Code]
    CODE_MODEL_NOT_FOUND: _ClassVar[Code]
    CODE_REQUEST_NOT_FOUND: _ClassVar[Code]
    CODE_BODY_TOO_LARGE: _ClassVar[Code]
    CODE_BODY_TIMEOUT: _ClassVar[Code]
    CODE_PROMPT_NEVER_FITS: _ClassVar[Code]
    CODE_CONFLICT: _ClassVar[Code]
    CODE_METHOD_NOT_ALLOWED: _ClassVar[Code]
    CODE_NOT_FOUND: _ClassVar[Code]
    CODE_INVALID_API_KEY: _ClassVar[Code]
    CODE_PERMISSION_DENIED: _ClassVar[Code]
    CODE_RATE_LIMIT_EXCEEDED: _ClassVar[Code]
    CODE_QUEUE_FULL: _ClassVar[Code]
    CODE_NO_ENGINE: _ClassVar[Code]
    CODE_DRAINING: _ClassVar[Code]
    CODE_BACKEND_UNAVAILABLE: _ClassVar[Code]
    CODE_CANCELLED: _ClassVar[Code]
    CODE_DEADLINE_EXCEEDED: _ClassVar[Code]
    CODE_INTERNAL: _ClassVar[Code]
    CODE_ENGINE_FAILED: _ClassVar[Code]
    CODE_POISONED: _ClassVar[Code]
    CODE_NUMERIC_FAILURE: _ClassVar[Code]
    CODE_OUT_OF_MEMORY: _ClassVar[Code]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_ERROR: FinishReason
CODE_UNSPECIFIED: Code
CODE_INVALID_REQUEST: Code
CODE_UNSUPPORTED_PARAMETER: Code
CODE_CONTEXT_LENGTH_EXCEEDED: Code
CODE_MODEL_NOT_FOUND: Code
CODE_REQUEST_NOT_FOUND: Code
CODE_BODY_TOO_LARGE: Code
CODE_BODY_TIMEOUT: Code
CODE_PROMPT_NEVER_FITS: Code
CODE_CONFLICT: Code
CODE_METHOD_NOT_ALLOWED: Code
CODE_NOT_FOUND: Code
CODE_INVALID_API_KEY: Code
CODE_PERMISSION_DENIED: Code
CODE_RATE_LIMIT_EXCEEDED: Code
CODE_QUEUE_FULL: Code
CODE_NO_ENGINE: Code
CODE_DRAINING: Code
CODE_BACKEND_UNAVAILABLE: Code
CODE_CANCELLED: Code
CODE_DEADLINE_EXCEEDED: Code
CODE_INTERNAL: Code
CODE_ENGINE_FAILED: Code
CODE_POISONED: Code
CODE_NUMERIC_FAILURE: Code
CODE_OUT_OF_MEMORY: Code
