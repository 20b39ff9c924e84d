"""A task of lm-eval against `tokenmill serve demo`: its log-probabilities of endings are those of a direct request."""

import json
import os
import pathlib
import tempfile
import time
import urllib.request

# Data sets come from files of this test.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

ROWS = [
    {"question": "What is 3 + 4? The answer is", "endings": ["7.", "a horse and a cow."], "gold": 0},
    {"question": "Once upon a", "endings": ["zxq", "time"], "gold": 1},
]
TASK = """
task: endings
dataset_path: json
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: gold
doc_to_choice: "{{{{endings}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def post(address, body):
    request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def log_probability(url, context, ending):
    """The log-probability of an ending, summed from a request with `echo`. lm-eval puts no token before a context."""
    tokens = post(f"{url}/tokenize", {"prompt": context + ending, "add_special_tokens": False})["tokens"]
    body = {"model": "demo", "prompt": tokens, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    scores = post(f"{url}/v1/completions", body)["choices"][0]["logprobs"]
    end = len(context + ending)
    places = zip(scores["text_offset"], scores["token_logprobs"])
    return sum(score for offset, score in places if len(context) <= offset < end)


def lm_eval_task(url):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.environ["HF_HOME"] = str(folder)
        import lm_eval
        from lm_eval.tasks import TaskManager

        rows = folder / "rows.jsonl"
        rows.write_text("\n".join(map(json.dumps, ROWS)))
        (folder / "endings.yaml").write_text(TASK.format(rows=rows))
        result = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "demo", "base_url": f"{url}/v1/completions", "tokenizer_backend": "remote", "max_length": 512},
            tasks=["endings"],
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            bootstrap_iters=0,
        )
    assert result["results"]["endings"]["acc,none"] == 1.0, result["results"]
    n_compared = 0
    for sample in result["samples"]["endings"]:
        for (context, ending), [(found, _)] in zip(sample["arguments"], sample["resps"]):
            expected = log_probability(url, context, ending)
            assert abs(found - expected) < 1e-3, (context, ending, found, expected)
            n_compared += 1
    assert n_compared == 4
