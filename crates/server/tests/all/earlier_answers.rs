//! Answers that are asked for again, seen from outside: few steps for the same request, and nothing for another.

use serde_json::{Value, json};
use tokenmill_sched::{EngineConfig, Speculation};
use tokenmill_server::{ApiKeys, ServerConfig};

use crate::{
    server::{Setup, TestServer},
    wire::{Exchange, Reply},
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

async fn server(speculation: Speculation) -> Option<TestServer> {
    TestServer::start_with(Setup {
        server: ServerConfig {
            api_keys: ApiKeys::from_lines("alpha\nbeta"),
            ..ServerConfig::default()
        },
        engine: EngineConfig {
            speculation,
            ..EngineConfig::default()
        },
        ..Setup::default()
    })
    .await
}

async fn send(server: &TestServer, method: &str, path: &str, key: &str, body: &str) -> Reply {
    Exchange::send(
        &server.address,
        method,
        path,
        &[("x-api-key", key)],
        body.as_bytes(),
    )
    .await
    .reply()
    .await
}

/// Tokens that earlier answers have guessed.
async fn n_of_earlier(server: &TestServer) -> u64 {
    let reply = send(server, "GET", "/metrics", "alpha", "").await;
    let name = "tokenmill_drafter_tokens_total{model_name=\"demo\",drafter=\"earlier\"} ";
    let value = reply.text().lines().find_map(|line| line.strip_prefix(name));
    value.expect("the metric is there").parse().unwrap()
}

/// Asks with a key, and returns the answer, its number of tokens, and the numbers of drafted and accepted
/// tokens.
async fn ask(server: &TestServer, key: &str, path: &str, body: &Value) -> (Value, u64, u64, u64) {
    let reply = send(server, "POST", path, key, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = reply.json();
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    (
        reply["choices"].clone(),
        count(&reply["usage"]["completion_tokens"]),
        count(&reply["timings"]["draft_n"]),
        count(&reply["timings"]["draft_n_accepted"]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_of_the_same_key_takes_few_steps_and_no_other_does() {
    let Some(server) = server(Speculation::Ngram { max_draft: 16 }).await else {
        return;
    };
    let body = json!({ "prompt": "Once upon a time there was a secret that only one knew: it was", "max_tokens": 60, "temperature": 0 });
    let (answer, n_tokens, n_first, _) = ask(&server, "alpha", COMPLETIONS, &body).await;
    // Drafts from the text itself are the same for every client that has not asked before.
    let again = ask(&server, "alpha", COMPLETIONS, &body).await;
    assert_eq!((&again.0, again.1), (&answer, n_tokens));
    let (n_drafted, n_right) = (again.2, again.3);
    assert_eq!(n_drafted, n_right, "the same answer comes");
    // The prompt's step gives one token, and each that follows up to seventeen.
    let n_steps = n_tokens - n_right;
    assert!(n_steps <= 1 + n_tokens.div_ceil(17), "{n_right} of {n_tokens}");
    assert_ne!(n_first, n_drafted);

    // Another key and another salt are as the first was.
    assert_eq!(ask(&server, "beta", COMPLETIONS, &body).await.2, n_first);
    let mut salted = body.clone();
    salted["cache_salt"] = json!("other");
    assert_eq!(ask(&server, "alpha", COMPLETIONS, &salted).await.2, n_first);

    assert_eq!(n_of_earlier(&server).await, n_drafted);
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_and_chats_that_come_again_are_guessed_too() {
    let Some(server) = server(Speculation::Ngram { max_draft: 16 }).await else {
        return;
    };
    let schema = |last: &str| {
        json!({ "type": "json_schema", "json_schema": { "name": "pet", "schema": {
            "type": "object",
            "properties": { "name": { "type": "string", "maxLength": 20 }, last: { "type": "string", "maxLength": 30 } },
            "required": ["name", last],
            "additionalProperties": false,
        } } })
    };
    let body = |last| {
        json!({
            "messages": [{ "role": "user", "content": "Tell me about a cat and a dog." }],
            "max_tokens": 60, "temperature": 0, "response_format": schema(last),
        })
    };
    let first = ask(&server, "alpha", CHAT, &body("story")).await;
    let again = ask(&server, "alpha", CHAT, &body("story")).await;
    assert_eq!(again.0, first.0);
    assert!(
        again.3 > first.3 && again.3 * 4 > again.1 * 3,
        "{first:?}, {again:?}"
    );
    // An answer to another schema shares only its beginning, so no drafts from earlier answers are counted
    // for it.
    let before = n_of_earlier(&server).await;
    assert!(before > 0);
    ask(&server, "alpha", CHAT, &body("colour")).await;
    assert_eq!(n_of_earlier(&server).await, before);
}
