"""Decisions through the packages that speak both APIs: TypeSafe's, OpenAI's, LiteLLM with several providers, LangChain's, and npm's `ai`
where TOKENMILL_AI_DECISIONS names the folder it is in."""

import json
import math
import os
import subprocess
import warnings

# Nothing is sent to anyone but the server of this test.
os.environ |= {"LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

import litellm
from langchain_core._api import LangChainBetaWarning
from langchain_openai import decisions as langchain
from openai import BadRequestError, OpenAI
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient, TypeSafeUnprocessableEntityError

from server import Server

STATE = "The card was stolen, and there are three charges in an hour that I did not make. " * 8
TEAMS = {"cards": "the card desk", "loans": None}
LEVELS = ["can wait", "today", "now"]


def close(a, b):
    return math.isclose(a, b, abs_tol=1e-6)


with Server() as server:
    with TypeSafeClient(base_url=server.url, api_key="key", model="demo") as client:
        questions = {
            "fraud": Noul(instructions="Is it fraud?"),
            "team": Choice(instructions="Who takes it?", criteria=TEAMS),
            "risk": Score(instructions="How urgent is it?", criteria=LEVELS),
        }
        first = client.system_one(state=STATE, questions=questions)
        team, risk = first.choices["team"], first.scores["risk"]
        assert 0 <= first.nouls["fraud"].noul <= 1
        assert team.choice in TEAMS and close(sum(team.probabilities.values()), 1)
        assert 0 <= risk.score <= 2 and close(sum(risk.probabilities.values()), 1)
        assert first.usage.input_tokens > 0 and first.usage.output_tokens == 0
        assert [model.name for model in client.models.list().models][0] == "demo"
        again = client.system_one(state=STATE, questions={"team": questions["team"]})
        assert again.choices["team"] == team, "the same question alone has the same answer"
        try:
            many = {f"team {number}": None for number in range(300)}
            client.system_one(state=STATE, questions={"team": Choice(instructions="Who?", criteria=many)})
            raise SystemExit("a choice of 300 options was answered")
        except TypeSafeUnprocessableEntityError as error:
            assert "team" in str(error), error

    client = OpenAI(base_url=f"{server.url}/v1", api_key="key")
    asked = [
        {"type": "predicate", "instructions": "Is it fraud?", "name": "fraud"},
        {
            "type": "choice",
            "instructions": "Who takes it?",
            "choices": [{"value": "cards", "description": "the card desk"}, {"value": "loans"}],
        },
        {"type": "score", "instructions": "How urgent is it?", "levels": [{"label": name} for name in LEVELS]},
    ]
    decision = client.decisions.create(model="demo", input=STATE, questions=asked)
    fraud, choice, score = decision.answers
    assert (fraud.type, choice.type, score.type) == ("predicate", "choice", "score")
    assert fraud.name == "fraud" and close(fraud.probability, first.nouls["fraud"].noul)
    by_value = {option.value: option.probability for option in choice.probabilities}
    assert choice.choice == team.choice and all(close(by_value[name], team.probabilities[name]) for name in TEAMS)
    assert close(score.score, risk.score) and [level.label for level in score.probabilities] == LEVELS
    usage = decision.usage
    assert usage.total_tokens == usage.input_tokens and usage.input_tokens_details.cached_tokens > 0
    conversation = [
        {"role": "developer", "content": "Answer as a bank would."},
        {"role": "user", "content": [{"type": "input_text", "text": STATE}]},
    ]
    told = client.decisions.create(model="demo", input=conversation, questions=asked[:1])
    assert 0 <= told.answers[0].probability <= 1
    try:
        client.decisions.create(model="demo", input=STATE, questions=[{**asked[1], "choices": []}])
        raise SystemExit("a choice without options was answered")
    except BadRequestError as error:
        assert error.param == "questions[0].choices", error

    def check(client, found_fraud, found_cards, found_risk):
        """Another client has the probabilities of TypeSafe's."""
        found = (found_fraud, found_cards, found_risk)
        expected = (first.nouls["fraud"].noul, team.probabilities["cards"], risk.score)
        assert all(map(close, found, expected)), (client, found, expected)

    by_name = {
        "fraud": {"type": "noul", "instructions": "Is it fraud?"},
        "team": {"type": "choice", "instructions": "Who takes it?", "criteria": TEAMS},
        "risk": {"type": "score", "instructions": "How urgent is it?", "criteria": LEVELS},
    }
    v1 = f"{server.url}/v1"
    providers = [("typesafe", server.url), ("hosted_vllm", v1), ("lm_studio", v1), ("ollama", server.url), ("openai", v1)]
    for provider, base in providers:
        fields = {"model": f"{provider}/demo", "api_base": base, "api_key": "key"}
        answers = litellm.systemone(**fields, state=STATE, questions=by_name).answers
        check(provider, answers["fraud"].noul, answers["team"].probabilities["cards"], answers["risk"].score)
        named = [{**question, "name": name} for name, question in zip(by_name, asked)]
        fraud, choice, score = litellm.decisions(**fields, input=STATE, questions=named).answers
        cards = {option.value: option.probability for option in choice.probabilities}["cards"]
        check(provider, fraud.probability, cards, score.score)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        client = langchain.OpenAIDecisions(model="demo", base_url=v1, api_key="key", max_retries=0)
    questions = {
        "fraud": langchain.Predicate(instructions="Is it fraud?"),
        "team": langchain.Choice(instructions="Who takes it?", choices=TEAMS),
        "risk": langchain.Score(instructions="How urgent is it?", levels=LEVELS),
    }
    answers = client.invoke({"input": STATE, "questions": questions}).answers
    check("langchain", answers["fraud"].probability, answers["team"].probabilities["cards"], answers["risk"].score)

    folder = os.environ.get("TOKENMILL_AI_DECISIONS")
    if folder is not None:
        known = {"fraud": first.nouls["fraud"].noul, "team": team.probabilities["cards"], "risk": risk.score}
        command = ["node", "decide.mjs", server.url, json.dumps({"state": STATE, **known})]
        subprocess.run(command, cwd=folder, check=True, timeout=60)
print(f"ok: decisions of typesafe-sdk, openai, litellm and langchain, {usage.input_tokens_details.cached_tokens} of {usage.input_tokens} tokens cached")
