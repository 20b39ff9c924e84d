"""Frameworks for agents against `tokenmill serve demo`. In a loop the demo model calls a tool, the framework runs it, and the
model answers with the result; whole and streamed. Where a framework asks for objects, one is asked for too.

Names of frameworks as arguments run these only. What is missing is skipped, and is a failure where it was named, or where CI=true. npm's `ai` package runs where TOKENMILL_AI_SDK names the folder it is in.
"""

import asyncio
import json
import os
import subprocess
import sys
import time

# Nothing is sent to anyone but the server of this test.
os.environ |= {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "none",
    "ANTHROPIC_API_KEY": "none",
}

import pydantic

from lm_eval_task import lm_eval_task
from server import Server

QUESTION = "What is the weather in Rome?"
RESULT = '{"weather": "rainy", "degrees": 12}'
# The demo model is a toy: it was trained to answer from results that are such objects, and adds only by itself.
ANSWER = "It is rainy in Rome, and it is 12 degrees."
SUM_QUESTION = "What is 3 + 4?"
CALLED = []


class Missing(Exception):
    """What a test needs is not here."""


def current_weather(city: str) -> str:
    """Get the weather in a city."""
    CALLED.append(city)
    return RESULT


class Sum(pydantic.BaseModel):
    """A sum."""

    x: int = pydantic.Field(ge=0, le=9)
    y: int = pydantic.Field(ge=0, le=9)


def check_loop(what, answer):
    """One call was made, with the city of the question, and its result is the answer."""
    assert CALLED == ["Rome"], (what, CALLED)
    assert answer == ANSWER, (what, answer)
    CALLED.clear()


def langchain(url):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    for use_responses in (False, True):
        model = ChatOpenAI(model="demo", base_url=f"{url}/v1", temperature=0, max_retries=0, use_responses_api=use_responses)
        agent = create_agent(model, tools=[current_weather])
        question = {"messages": [{"role": "user", "content": QUESTION}]}
        check_loop("whole", agent.invoke(question)["messages"][-1].text)
        pieces = [piece.text for piece, _ in agent.stream(question, stream_mode="messages") if piece.type.startswith("AI")]
        assert len(pieces) > 3, pieces
        check_loop("streamed", "".join(pieces))
        shaped = model.with_structured_output(Sum, method="json_schema").invoke(SUM_QUESTION)
        assert isinstance(shaped, Sum)


def llama_index(url):
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="demo",
        api_base=f"{url}/v1",
        api_key="none",
        temperature=0,
        max_retries=0,
        context_window=512,
        is_chat_model=True,
        is_function_calling_model=True,
    )

    async def ask():
        for streaming in (False, True):
            agent = FunctionAgent(tools=[FunctionTool.from_defaults(current_weather)], llm=model, streaming=streaming)
            check_loop(("streaming", streaming), str(await agent.run(QUESTION)))

    # A client belongs to the loop it was first used in.
    asyncio.run(ask())
    shaped = model.as_structured_llm(Sum).complete(SUM_QUESTION).raw
    assert isinstance(shaped, Sum)


def pydantic_ai(url):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.output import NativeOutput, ToolOutput
    from pydantic_ai.providers.openai import OpenAIProvider

    async def ask(kind):
        model = kind("demo", provider=provider)
        agent = Agent(model, tools=[current_weather], model_settings={"temperature": 0})
        check_loop("whole", (await agent.run(QUESTION)).output)
        async with agent.run_stream(QUESTION) as result:
            check_loop("streamed", "".join([piece async for piece in result.stream_text(delta=True)]))
        for output in (ToolOutput, NativeOutput):
            shaped = (await Agent(model, output_type=output(Sum)).run(SUM_QUESTION)).output
            assert isinstance(shaped, Sum), shaped

    async def ask_both():
        await ask(OpenAIChatModel)
        await ask(OpenAIResponsesModel)

    # A client belongs to the loop it was first used in.
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    asyncio.run(ask_both())


def openai_agents(url):
    import agents
    import openai

    async def ask(model):
        settings = agents.ModelSettings(temperature=0)
        tool = agents.function_tool(current_weather)
        agent = agents.Agent(name="herald", instructions="Tell the weather.", model=model, model_settings=settings, tools=[tool])
        whole = await agents.Runner.run(agent, QUESTION)
        check_loop("whole", whole.final_output)
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        deltas = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        assert "".join(deltas) == streamed.final_output, (deltas, streamed.final_output)
        check_loop("streamed", streamed.final_output)
        shaped = agents.Agent(name="reader", model=model, output_type=Sum)
        assert isinstance((await agents.Runner.run(shaped, SUM_QUESTION)).final_output, Sum)

    async def ask_both():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            await ask(agents.OpenAIChatCompletionsModel(model="demo", openai_client=client))
            await ask(agents.OpenAIResponsesModel(model="demo", openai_client=client))

    asyncio.run(ask_both())


def instructor(url):
    import instructor
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    # Its other modes say the schema in the prompt only, which the demo model was not trained for.
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        shaped = instructor.from_openai(client, mode=mode)
        fields = {"model": "demo", "messages": [{"role": "user", "content": SUM_QUESTION}], "response_model": Sum, "max_retries": 0}
        assert isinstance(shaped.create(**fields), Sum), mode
        *_, last = shaped.create_partial(**fields)
        Sum.model_validate(last.model_dump())


def litellm(url):
    import litellm

    litellm.suppress_debug_info = True
    tool = {
        "type": "function",
        "function": {
            "name": "current_weather",
            "description": "Get the weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    v1 = f"{url}/v1"
    for name, base in [("openai/demo", v1), ("hosted_vllm/demo", v1), ("anthropic/demo", url), ("ollama_chat/demo", url)]:
        for stream in (False, True):
            messages = [{"role": "user", "content": QUESTION}]

            def ask():
                fields = {"model": name, "messages": messages, "tools": [tool], "temperature": 0, "max_tokens": 60}
                answer = litellm.completion(**fields, api_base=base, api_key="none", stream=stream)
                if stream:
                    answer = litellm.stream_chunk_builder(list(answer))
                return answer.choices[0].message

            message = ask()
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or []:
                result = current_weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "name": "current_weather", "content": result})
            check_loop((name, stream), ask().content)


def ai_sdk(url):
    folder = os.environ.get("TOKENMILL_AI_SDK")
    if folder is None:
        raise Missing("TOKENMILL_AI_SDK names no folder with npm's ai")
    subprocess.run(["node", "loop.mjs", url], cwd=folder, check=True, timeout=60)


if __name__ == "__main__":
    tests = [langchain, llama_index, pydantic_ai, openai_agents, instructor, litellm, lm_eval_task, ai_sdk]
    known = {test.__name__: test for test in tests}
    named = sys.argv[1:]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise SystemExit(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    with Server() as server:
        for name in named or known:
            began = time.monotonic()
            try:
                known[name](server.url)
            except Missing as missing:
                if named or os.environ.get("CI") == "true":
                    raise SystemExit(f"failed: {name}: {missing}") from missing
                print(f"skipped: {name}: {missing}", flush=True)
            else:
                print(f"ok: {name} in {time.monotonic() - began:.0f} s", flush=True)
