//! Tests that stop strings end the answer and affect nothing else, streamed and whole, in every API.

use serde_json::{Value, json};

use crate::{
    server::{Setup, TestServer},
    wire::Exchange,
};

const TEMPLATE: &str =
    "{% for m in messages %}{{ m.content }};{% endfor %}{% if false %}<think></think><tool_call>{% endif %}";

async fn start(says: &str) -> Option<TestServer> {
    TestServer::start_with(Setup {
        template: Some(TEMPLATE.to_owned()),
        says: Some(says.to_owned()),
        ..Setup::default()
    })
    .await
}

/// Returns text, reasoning, calls and the finish reason of a chat's answer, whole or streamed.
async fn answer(
    server: &TestServer,
    stop: &Value,
    is_streamed: bool,
) -> (String, String, Vec<String>, String) {
    let tool = json!({ "type": "function", "function": { "name": "w", "parameters": {
        "type": "object", "properties": { "s": { "type": "string" } } } } });
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "stop": stop, "tools": [tool], "stream": is_streamed });
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if !is_streamed {
        let reply = server.post_ok("/v1/chat/completions", &body).await;
        let (choice, message) = (&reply["choices"][0], &reply["choices"][0]["message"]);
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let calls = calls.map(|call| text(&call["function"]["arguments"])).collect();
        return (
            text(&message["content"]),
            text(&message["reasoning_content"]),
            calls,
            text(&choice["finish_reason"]),
        );
    }
    let mut exchange: Exchange = server.post_stream("/v1/chat/completions", &body).await;
    let (mut content, mut reasoning, mut calls, mut finish) =
        (String::new(), String::new(), Vec::new(), String::new());
    assert_eq!(exchange.head().await.0, 200);
    while let Some(event) = exchange.event().await {
        if event == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(&event).expect("JSON");
        let choice = &chunk["choices"][0];
        content.push_str(&text(&choice["delta"]["content"]));
        reasoning.push_str(&text(&choice["delta"]["reasoning_content"]));
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("a place") as usize;
            calls.resize(calls.len().max(index + 1), String::new());
            calls[index].push_str(&text(&call["function"]["arguments"]));
        }
        if choice["finish_reason"].is_string() {
            finish = text(&choice["finish_reason"]);
        }
    }
    (content, reasoning, calls, finish)
}

async fn check(says: &str, stop: Value, expected: (&str, &str, &[&str], &str)) {
    let Some(server) = start(says).await else { return };
    for is_streamed in [false, true] {
        let (content, reasoning, calls, finish) = answer(&server, &stop, is_streamed).await;
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        assert_eq!(
            (content.trim(), reasoning.trim(), &calls[..], finish.as_str()),
            expected,
            "{says:?}, {stop}, streamed {is_streamed}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_thought_is_not_searched() {
    let thought = "<think>\nThe Question: is easy.\n\nSo.\n</think>\n\n";
    let reasoning = "The Question: is easy.\n\nSo.";
    check(
        &format!("{thought}Seven. Question: no"),
        json!(["Question:"]),
        ("Seven.", reasoning, &[], "stop"),
    )
    .await;
    check(
        &format!("{thought}Seven.\n\nMore"),
        json!(["\n\n"]),
        ("Seven.", reasoning, &[], "stop"),
    )
    .await;
    check(
        &format!("{thought}Seven STO all"),
        json!(["STOP"]),
        ("Seven STO all", reasoning, &[], "stop"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_handed_to_a_tool_is_not_searched() {
    let call = "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"s\": \"a STOP b\"}}\n</tool_call>";
    check(
        call,
        json!(["STOP"]),
        ("", "", &["{\"s\": \"a STOP b\"}"], "tool_calls"),
    )
    .await;
    check(
        &format!("I STO look. {call}"),
        json!(["STOP"]),
        ("I STO look.", "", &["{\"s\": \"a STOP b\"}"], "tool_calls"),
    )
    .await;
    check(
        &format!("I STOP. {call}"),
        json!(["STOP"]),
        ("I", "", &[], "stop"),
    )
    .await;
}
