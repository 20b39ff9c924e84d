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
const prompt = "What is 3 + 4?";

for (const [name, model] of Object.entries(models)) {
    const called = [];
    const add_numbers = tool({
        description: "Adds two numbers.",
        inputSchema: z.object({ x: z.number().int(), y: z.number().int() }),
        execute: async ({ x, y }) => {
            called.push([x, y]);
            return x + y;
        },
    });
    const fields = { model, prompt, tools: { add_numbers }, stopWhen: stepCountIs(3), temperature: 0, maxRetries: 0 };
    const whole = await generateText(fields);
    assert.deepEqual(called.splice(0), [[3, 4]], name);
    assert.ok(whole.text.trim(), name);
    assert.equal(whole.steps.length, 2, name);

    const errors = [];
    const streamed = streamText({ ...fields, onError: ({ error }) => errors.push(error) });
    let text = "";
    for await (const piece of streamed.textStream) text += piece;
    assert.deepEqual(errors, [], name);
    assert.deepEqual(called.splice(0), [[3, 4]], name);
    assert.equal(text, whole.text, name);
    assert.equal((await streamed.totalUsage).totalTokens, whole.totalUsage.totalTokens, name);

    const schema = z.object({ x: z.number().int().min(0).max(9), y: z.number().int().min(0).max(9) });
    const { object } = await generateObject({ model, schema, prompt, maxRetries: 0 });
    schema.parse(object);
    console.log(`ok: ai, ${name}`);
}
