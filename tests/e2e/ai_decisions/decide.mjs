// Typed questions of npm's `ai` package, which is experimental, against `tokenmill serve demo`, whose address is the first argument. The second
// is JSON: the state, and the probabilities that another client read.

import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { experimental_decide as decide } from "ai";

const openai = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const { state, fraud, team, risk } = JSON.parse(process.argv[3]);
const { answers, usage } = await decide({
    model: openai.decisionModel("demo"),
    state,
    questions: {
        fraud: { type: "boolean", instructions: "Is it fraud?" },
        team: { type: "choice", instructions: "Who takes it?", criteria: { cards: "the card desk", loans: null } },
        risk: { type: "score", instructions: "How urgent is it?", criteria: ["can wait", "today", "now"] },
    },
    maxRetries: 0,
});
const near = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-6, `${found}, expected ${expected}`);
near(answers.fraud.probability, fraud);
near(answers.team.probabilities.cards, team);
near(answers.risk.score, risk);
assert.ok(usage.inputTokens > 0);
console.log("ok: ai, decisions");
