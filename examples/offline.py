"""The engine in this process: a batch of prompts, a stream that is left early, a nap. No server."""

from __future__ import annotations

from headrace_cli.pipeline import pipeline
from headrace_engine.api import EngineAsleep, EngineSettings, Sampling

GREEDY = Sampling(24, temperature=0.0)

with pipeline(settings=EngineSettings(context_tokens=512)) as pipe:
    print("== answers")
    prompts = ["One, two, three, four,", [{"role": "user", "content": "What is a river?"}]]
    for answer in pipe(prompts, GREEDY):
        print(f"{answer.text!r} ({answer.finish.name}, {answer.usage.completion_tokens} tokens)")

    print("== token ids")
    for output in pipe.engine.create_instance().stream_infer([504, 3575, 282], GREEDY):
        print(f"from {output.first}: {output.tokens}")
        if output.first >= 4:
            break  # the sequence is cancelled, and gone, before the next line runs

    print("== asleep")
    pipe.engine.sleep(1)
    try:
        pipe(["Hello"], GREEDY)
    except EngineAsleep as refusal:
        print(f"refused: {refusal}")
    pipe.engine.wakeup()
    print("awake:", len(pipe(["Hello"], GREEDY)))
