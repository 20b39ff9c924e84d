//! Answers that the token limit cuts at any place: a partial call is never the answer's text once the call's
//! name is known.

use serde_json::{Value, json};

use crate::server::{Setup, TestServer};

const TEMPLATE: &str =
    "{% for m in messages %}{{ m.content }};{% endfor %}{% if false %}<tool_call>{% endif %}";

const ANSWER: &str = "Adding.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 31, \"y\": [4, 5], \"note\": \"so, \\\"it\\\" is\"}}\n</tool_call>";

async fn start() -> Option<TestServer> {
    TestServer::start_with(Setup {
        template: Some(TEMPLATE.to_owned()),
        says: Some(ANSWER.to_owned()),
        ..Setup::default()
    })
    .await
}

/// A request of the form of `path` with a limit of tokens.
fn body(path: &str, n: usize, is_stream: bool) -> Value {
    let parameters = json!({ "type": "object" });
    let function = json!({ "name": "add", "description": "Adds.", "parameters": parameters });
    let messages = json!([{ "role": "user", "content": "Well?" }]);
    match path {
        "/v1/messages" => json!({ "messages": messages, "max_tokens": n, "stream": is_stream,
            "tools": [{ "name": "add", "description": "Adds.", "input_schema": parameters }] }),
        "/v1/responses" => json!({ "input": "Well?", "max_output_tokens": n, "stream": is_stream,
            "tools": [{ "type": "function", "name": "add", "parameters": parameters }] }),
        "/api/chat" => {
            json!({ "model": "demo", "messages": messages, "options": { "num_predict": n }, "stream": is_stream,
            "tools": [{ "type": "function", "function": function }] })
        }
        _ => json!({ "messages": messages, "max_tokens": n, "stream": is_stream,
            "tools": [{ "type": "function", "function": function }] }),
    }
}

/// An answer in the words of all endpoints.
#[derive(Debug, Default, PartialEq)]
struct Said {
    text: String,
    /// The arguments of its call: as text, or what is whole of them.
    arguments: Option<Value>,
    is_cut: bool,
}

fn read(path: &str, whole: &Value) -> Said {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut said = Said::default();
    match path {
        "/v1/messages" => {
            for block in whole["content"].as_array().expect("blocks") {
                match block["type"].as_str().expect("a type") {
                    "text" => said.text.push_str(&text(&block["text"])),
                    "tool_use" => said.arguments = Some(block["input"].clone()),
                    other => panic!("{other}"),
                }
            }
            said.is_cut = whole["stop_reason"] == "max_tokens";
        }
        "/v1/responses" => {
            let items = whole["output"].as_array().expect("items");
            for item in items {
                match item["type"].as_str().expect("a type") {
                    "message" => said.text.push_str(&text(&item["content"][0]["text"])),
                    "function_call" => said.arguments = Some(item["arguments"].clone()),
                    other => panic!("{other}"),
                }
            }
            said.is_cut = whole["status"] == "incomplete";
            let last = items.last().expect("an item");
            // Complete items are marked as complete, whatever follows.
            if last["type"] == "function_call" {
                let is_object = serde_json::from_str::<Value>(&text(&last["arguments"])).is_ok();
                assert!(is_object || last["status"] == "incomplete", "{whole}");
                assert!(
                    items[..items.len() - 1]
                        .iter()
                        .all(|item| item["status"] == "completed"),
                    "{whole}"
                );
            }
        }
        "/api/chat" => {
            said.text = text(&whole["message"]["content"]);
            let call = &whole["message"]["tool_calls"][0];
            said.arguments = call.is_object().then(|| call["function"]["arguments"].clone());
            said.is_cut = whole["done_reason"] == "length";
        }
        _ => {
            let choice = &whole["choices"][0];
            said.text = text(&choice["message"]["content"]);
            let call = &choice["message"]["tool_calls"][0];
            said.arguments = call.is_object().then(|| call["function"]["arguments"].clone());
            said.is_cut = choice["finish_reason"] == "length";
        }
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_call_is_a_call_on_every_endpoint() {
    let Some(server) = start().await else { return };
    let in_full = json!({ "x": 31, "y": [4, 5], "note": "so, \"it\" is" });
    for path in [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/api/chat",
    ] {
        let mut seen = Vec::new();
        // The tests of calls in `text` cut at every position.
        for n in (1..).step_by(3) {
            let said = read(path, &server.post_ok(path, &body(path, n, false)).await);
            assert!(!said.text.contains("arguments"), "{path} {n}: {said:?}");
            if let Some(arguments) = &said.arguments {
                assert_eq!(said.text, "Adding.", "{path} {n}");
                match arguments {
                    Value::String(json) => assert!(in_full_text().starts_with(json), "{path} {n}: {json}"),
                    some => {
                        let some = some.as_object().expect("an object");
                        assert!(
                            some.iter().all(|(key, value)| in_full[key] == *value),
                            "{path} {n}: {some:?}"
                        );
                        // A member that came whole is there as soon as the next begins.
                        assert!(some.len() != 1 || some.contains_key("x"), "{path} {n}: {some:?}");
                    }
                }
                if seen.last() != Some(arguments) {
                    seen.push(arguments.clone());
                }
            }
            if !said.is_cut {
                break;
            }
            assert!(n < 500, "the answer ends");
        }
        assert!(seen.len() > 2, "{path}: {seen:?}");
        let last = seen.last().expect("a call");
        let last = last
            .as_str()
            .map_or_else(|| last.clone(), |json| serde_json::from_str(json).expect("JSON"));
        assert_eq!(last, in_full, "{path}");
    }
}

fn in_full_text() -> &'static str {
    let at = ANSWER.find("{\"x\"").expect("the arguments");
    let end = ANSWER.rfind("}\n").expect("the end of the call");
    &ANSWER[at..end]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_in_a_call_has_no_text_of_it() {
    let Some(server) = start().await else { return };
    // So many tokens that the name is known, and not the end.
    let mut n = 1;
    while read(
        "/v1/messages",
        &server
            .post_ok("/v1/messages", &body("/v1/messages", n, false))
            .await,
    )
    .arguments
    .is_none_or(|arguments| arguments == json!({}))
    {
        n += 1;
        assert!(n < 500, "the call comes");
    }
    for path in [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/api/chat",
    ] {
        let streamed = server.post(path, &body(path, n, true)).await;
        let streamed = streamed.text();
        let (cut, call) = match path {
            "/v1/messages" => ("\"max_tokens\"", "\"tool_use\""),
            "/v1/responses" => ("\"incomplete\"", "\"function_call\""),
            _ => ("\"length\"", "\"tool_calls\""),
        };
        assert!(
            streamed.contains(cut) && streamed.contains(call),
            "{path}: {streamed}"
        );
        assert!(!streamed.contains("tool_call>"), "{path}: {streamed}");
        assert!(!streamed.contains("arguments\\\": "), "{path}: {streamed}");
    }
}
