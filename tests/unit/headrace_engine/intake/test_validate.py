"""Records become requests, or refusals with the code and the numbers that the caller gets."""

from __future__ import annotations

import math

import pytest
from headrace_contracts.codes import Code
from headrace_contracts.pb.queue_pb2 import MediaItem, RequestRecord
from headrace_engine.errors import RequestRejected
from headrace_engine.intake.validate import Bounds, validate
from headrace_engine.state.request import Request, RequestHandle
from support.held import make_record

BOUNDS = Bounds(model="m", vocabulary=100, context_tokens=16)


def check(
    record: RequestRecord,
    *,
    delivered: tuple[tuple[int, ...], ...] = (),
    ended: tuple[int, ...] = (),
) -> Request:
    """Validates at second 50 of the engine's clock, which is 1,000,000 ms of the wall's."""
    return validate(
        record,
        BOUNDS,
        handle=RequestHandle(4),
        attempt=2,
        delivered=delivered,
        ended=ended,
        now_s=50.0,
        now_ms=1_000_000,
    )


def refused(record: RequestRecord) -> tuple[Code, str]:
    """Code and message of the refusal."""
    with pytest.raises(RequestRejected) as caught:
        check(record)
    return caught.value.code, str(caught.value)


def test_a_good_record_becomes_a_request_with_every_field() -> None:
    record = make_record(n=2)
    record.sampling.logprobs = 3
    record.sampling.stop_token_ids.extend([9, 8])
    record.sampling.bias_ids.append(4)
    record.sampling.bias_values.append(-1.5)
    record.sampling.seed = 2**64 - 1
    record.cache_salt = b"salt"
    record.deadline_ms = 1_002_500

    request = check(record)

    assert request.prompt.tolist() == [5, 6, 7]
    assert (request.id, request.n, request.tenant, request.band) == ("r1", 2, "t", 1)
    assert (request.handle, request.attempt, request.cache_salt) == (4, 2, b"salt")
    assert request.deadline_s == pytest.approx(52.5)
    assert request.sampling.logprobs == 3
    assert request.sampling.stop_token_ids == {8, 9}
    assert (request.sampling.bias_ids, request.sampling.bias_values) == ((4,), (-1.5,))
    assert request.sampling.seed == 2**64 - 1


def test_no_logprobs_is_not_zero_logprobs() -> None:
    assert check(make_record()).sampling.logprobs is None


def test_what_earlier_attempts_delivered_is_kept_with_the_choices_that_ended() -> None:
    request = check(make_record(n=2), delivered=((1, 2), (3,)), ended=(1,))

    assert [tokens.tolist() for tokens in request.generated] == [[1, 2], [3]]
    assert request.finished == {1}


def test_prompt_and_output_may_fill_the_context_to_the_last_token() -> None:
    assert check(make_record(prompt=(1,) * 8, max_new_tokens=8)).sampling.max_new_tokens == 8

    code, message = refused(make_record(prompt=(1,) * 9, max_new_tokens=8))
    assert code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "17" in message
    assert "16" in message


@pytest.mark.rule("request.refused-before-it-is-queued")
def test_an_absurd_length_is_refused_with_the_numbers_of_the_context() -> None:
    code, message = refused(make_record(max_new_tokens=2**32 - 1))

    assert code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "4294967295" in message


def test_another_model_is_refused_by_name() -> None:
    code, message = refused(make_record(model="other"))

    assert code is Code.MODEL_NOT_FOUND
    assert "other" in message


def test_a_version_that_is_not_known_is_refused() -> None:
    record = make_record()
    record.version = 9

    assert "9" in refused(record)[1]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MediaItem.KIND_IMAGE, "image"),
        (MediaItem.KIND_AUDIO, "audio"),
        (MediaItem.KIND_VIDEO, "video"),
    ],
)
def test_media_are_refused_by_their_kind(kind: MediaItem.Kind, name: str) -> None:
    record = make_record()
    record.media.add(kind=kind)

    code, message = refused(record)

    assert code is Code.UNSUPPORTED_PARAMETER
    assert name in message


def test_a_deadline_that_has_passed_is_refused_as_such() -> None:
    record = make_record()
    record.deadline_ms = 1_000_000

    assert refused(record)[0] is Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("n", [0, 129])
def test_n_out_of_range_is_refused(n: int) -> None:
    assert "n is" in refused(make_record(n=n))[1]


def test_ids_outside_the_vocabulary_are_refused_wherever_they_stand() -> None:
    prompt = make_record(prompt=(1, 100))
    bias = make_record()
    bias.sampling.bias_ids.append(100)
    bias.sampling.bias_values.append(0.0)
    stop = make_record()
    stop.sampling.stop_token_ids.append(4_000_000_000)

    assert "100" in refused(prompt)[1]
    assert "logit_bias" in refused(bias)[1]
    assert "stop_token_ids" in refused(stop)[1]
    with pytest.raises(RequestRejected, match="delivered"):
        check(make_record(), delivered=((100,),))


def test_an_empty_prompt_is_refused() -> None:
    assert "prompt" in refused(make_record(prompt=()))[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_p", 1.1),
        ("min_p", -0.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    record = make_record()
    setattr(record.sampling, field, value)

    assert field in refused(record)[1]


def test_more_minimum_than_maximum_is_refused() -> None:
    record = make_record(max_new_tokens=3)
    record.sampling.min_new_tokens = 4

    assert "min_new_tokens" in refused(record)[1]


def test_bias_needs_a_value_for_each_id_and_a_finite_one() -> None:
    uneven = make_record()
    uneven.sampling.bias_ids.append(1)
    infinite = make_record()
    infinite.sampling.bias_ids.append(1)
    infinite.sampling.bias_values.append(math.inf)

    assert "logit_bias" in refused(uneven)[1]
    assert "logit_bias" in refused(infinite)[1]


def test_lists_and_logprobs_have_bounds() -> None:
    bias, stops, logprobs = make_record(), make_record(), make_record()
    bias.sampling.bias_ids.extend([1] * 1025)
    bias.sampling.bias_values.extend([0.0] * 1025)
    stops.sampling.stop_token_ids.extend([1] * 65)
    logprobs.sampling.logprobs = 21

    assert "1024" in refused(bias)[1]
    assert "64" in refused(stops)[1]
    assert "20" in refused(logprobs)[1]


def test_a_top_k_above_the_vocabulary_means_the_vocabulary() -> None:
    record = make_record()
    record.sampling.top_k = 2**32 - 1

    assert check(record).sampling.top_k == 100
