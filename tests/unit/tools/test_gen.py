"""What is generated holds every declaration, and no secret value or machine's name."""

from __future__ import annotations

import json

import gen
import pytest
from chartgen import images
from headrace_contracts.codes import Code
from headrace_engine.settings import EngineSettings
from headrace_gateway.settings import GatewaySettings
from headrace_kit.settings import Settings, setting


def test_every_file_is_made_and_ends_with_one_line_break() -> None:
    made = gen.everything()
    assert made.keys() >= {
        "docs/reference/metrics.md",
        "docs/reference/engine.schema.json",
        "docker/.env.example",
        "charts/headrace/values.schema.json",
    }
    for name, text in made.items():
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name


def test_list_of_images_has_those_of_chart_and_compose_with_what_they_are_for() -> None:
    made = gen.everything()["images.txt"]
    uses = {line.split()[0]: line for line in made.splitlines() if line[0] != "#"}
    assert set(uses) == set(images.images(made))
    assert uses["headrace-engine:0.1.0-cuda"].endswith("chart (models on a GPU), compose (gpu)")
    assert "valkey/valkey:8.0" in uses
    assert sum("compose (observability)" in line for line in uses.values()) == 3
    for line in images.COMPOSE.read_text().splitlines():
        key, _, image = line.strip().partition(": ")
        assert key != "image" or image in uses


def test_pages_name_every_setting() -> None:
    made = gen.everything()
    for page, cls in (
        ("docs/reference/gateway-settings.md", GatewaySettings),
        ("docs/reference/engine-settings.md", EngineSettings),
    ):
        for name in cls.model_fields:
            assert f"| `{name}` |" in made[page]
            assert f"#{cls.env_prefix}{name.upper()}=" in made["docker/.env.example"]


def test_every_code_has_a_row_that_says_who_moves() -> None:
    page = gen.errors_page()
    for code in Code:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{code.wire_name}` |")]
        assert row.split("|")[-2].strip().endswith(".")


def test_comment_above_a_group_of_codes_belongs_to_each_of_them() -> None:
    proto = "enum Code {\n  CODE_X = 0;\n  // One\n  // move.\n  CODE_A = 1;\n  CODE_B = 2;\n\n  // Two.\n  CODE_C = 3;\n}"
    assert gen.code_comments(proto) == {"X": "", "A": "One move.", "B": "One move.", "C": "Two."}


def test_keys_page_shows_the_real_keys() -> None:
    page = gen.keys_page()
    assert "| `hr:{<model>}:q:<band>:<tenant>` | Stream: work of one band and tenant. |" in page
    assert "| `hr:models` | Sorted set:" in page


def test_schemas_are_json_and_refer_to_each_other() -> None:
    made = gen.everything()
    whole = json.loads(made["docs/reference/config.schema.json"])
    for section, reference in whole["properties"].items():
        schema = json.loads(made[f"docs/reference/{reference['$ref']}"])
        assert schema["title"].lower().startswith(section)
        assert schema["additionalProperties"] is False


def test_setting_without_a_meaning_is_refused() -> None:
    class Silent(Settings, env_prefix="HEADRACE_SILENT_"):
        size: int = setting(1)

    with pytest.raises(SystemExit, match="no docstring below size"):
        gen.settings_page("Silent", Silent, "")
