// Two-step tool loops and objects of npm's `ai` package against `tokenmill serve demo`, whose address is the argument.

import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const compatible = createOpenAICompatible({ name: "tokenmill", baseURL, supportsStructuredOutputs: true, includeUsage: true });
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
    "openai-compatible": compatible("demo"),
    "openai chat": openai.chat("demo"),
    "openai responses": openai.responses("demo"),
};
const prompt = "What is the weather in Rome?";
const answer = "It is rainy in Rome, and it is 12 degrees.";

for (const [name, model] of Object.entries(models)) {
    const called = [];
    const current_weather = tool({
        description: "Get the weather in a city.",
        inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => {
            called.push(city);
            return { weather: "rainy", degrees: 12 };
        },
    });
    const fields = { model, prompt, tools: { current_weather }, stopWhen: stepCountIs(3), temperature: 0, maxRetries: 0 };
    const whole = await generateText(fields);
    assert.deepEqual(called.splice(0), ["Rome"], name);
    assert.equal(whole.text, answer, name);
    assert.equal(whole.steps.length, 2, name);

    const errors = [];
    const streamed = streamText({ ...fields, onError: ({ error }) => errors.push(error) });
    let text = "";
    for await (const piece of streamed.textStream) text += piece;
    assert.deepEqual(errors, [], name);
    assert.deepEqual(called.splice(0), ["Rome"], name);
    assert.equal(text, whole.text, name);
    assert.equal((await streamed.totalUsage).totalTokens, whole.totalUsage.totalTokens, name);

    const schema = z.object({ x: z.number().int().min(0).max(9), y: z.number().int().min(0).max(9) });
    const { object } = await generateObject({ model, schema, prompt: "What is 3 + 4?", maxRetries: 0 });
    schema.parse(object);
    console.log(`ok: ai, ${name}`);
}
