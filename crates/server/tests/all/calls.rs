//! Tool calls and reasoning on every endpoint, of a model that says what it is told to.

use serde_json::{Value, json};

use crate::server::{Setup, TestServer};

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
                        {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};\
                        {% endfor %}{% if false %}<think></think>{% endif %}";

const ANSWER: &str = "<think>\nHm.\n</think>\n\nLooking.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\n\
                      <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Basel\"}}\n</tool_call>";

async fn start(answer: &str) -> Option<TestServer> {
    TestServer::start_with(Setup {
        template: Some(TEMPLATE.to_owned()),
        says: Some(answer.to_owned()),
        ..Setup::default()
    })
    .await
}

fn weather() -> Value {
    json!({ "name": "weather", "description": "Tells it.", "parameters": {
        "type": "object", "properties": { "city": { "type": "string" } } } })
}

fn chat_body(more: &Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Well?" }],
        "tools": [{ "type": "function", "function": weather() }] });
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    body
}

/// The data of all events of a stream.
async fn events(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let mut exchange = server.post_stream(path, body).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut events = Vec::new();
    while let Some(data) = exchange.event().await {
        if data != "[DONE]" {
            events.push(serde_json::from_str(&data).expect("an event"));
        }
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_gives_calls_and_reasoning_apart_from_the_text() {
    let Some(server) = start(ANSWER).await else { return };
    let path = "/v1/chat/completions";
    let whole = server.post_ok(path, &chat_body(&json!({ "seed": 1 }))).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("Looking."), &json!("Hm."))
    );
    let calls = message["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 2);
    assert_eq!(
        calls[1]["function"],
        json!({ "name": "weather", "arguments": "{\"city\": \"Basel\"}" })
    );
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let thought = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!(thought.as_u64().expect("a number") > 1, "{whole}");

    let (mut text, mut reasoning, mut arguments, mut names) =
        (String::new(), String::new(), vec![String::new(); 2], Vec::new());
    let streamed = events(&server, path, &chat_body(&json!({ "seed": 2, "stream": true }))).await;
    for event in &streamed {
        let delta = &event["choices"][0]["delta"];
        text.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            names.extend(call["function"]["name"].as_str().map(str::to_owned));
            arguments[index].push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
    }
    assert_eq!((text.as_str(), reasoning.as_str()), ("Looking.", "Hm."));
    assert_eq!(arguments, ["{\"city\": \"Bern\"}", "{\"city\": \"Basel\"}"]);
    assert_eq!(names, ["weather", "weather"]);
    let last = streamed.last().expect("events");
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");

    // The answer can be sent back, with a result.
    let again = json!({ "seed": 3, "messages": [{ "role": "user", "content": "Well?" }, message,
        { "role": "tool", "tool_call_id": calls[0]["id"], "content": "Rain." },
        { "role": "tool", "tool_call_id": calls[1]["id"], "content": "Sun." }] });
    server.post_ok(path, &chat_body(&again)).await;
    let single = chat_body(&json!({ "seed": 4, "parallel_tool_calls": false }));
    let single = server.post_ok(path, &single).await;
    assert_eq!(
        single["choices"][0]["message"]["tool_calls"]
            .as_array()
            .expect("calls")
            .len(),
        1
    );
    // Without tools there is no call, and all of it is text.
    let none = chat_body(&json!({ "seed": 5, "tool_choice": "none" }));
    let none = server.post_ok(path, &none).await;
    let text = none["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
        .to_owned();
    assert!(
        text.contains("<tool_call>") && none["choices"][0]["finish_reason"] == "stop",
        "{none}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_call_is_text() {
    let broken = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": Bern}}</tool_call>";
    let Some(server) = start(broken).await else { return };
    let whole = server
        .post_ok("/v1/chat/completions", &chat_body(&json!({ "seed": 1 })))
        .await;
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(broken), &json!("stop"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_have_blocks_of_thinking_text_and_calls() {
    let Some(server) = start(ANSWER).await else { return };
    let tool = json!({ "name": "weather", "description": "Tells it.", "cache_control": { "type": "ephemeral" },
        "input_schema": { "type": "object", "properties": { "city": { "type": "string" } } } });
    let mut body =
        json!({ "max_tokens": 500, "messages": [{ "role": "user", "content": "Well?" }], "tools": [tool] });
    let whole = server.post_ok("/v1/messages", &body).await;
    let kinds: Vec<&str> = (whole["content"].as_array().expect("blocks").iter())
        .map(|block| block["type"].as_str().expect("a type"))
        .collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!(whole["content"][2]["input"], json!({ "city": "Bern" }));
    assert_eq!(whole["stop_reason"], "tool_use");
    let results: Vec<Value> = (whole["content"].as_array().expect("blocks")[2..].iter())
        .map(|call| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "Rain." }))
        .collect();
    let mut again = body.clone();
    let messages = again["messages"].as_array_mut().expect("messages");
    messages.push(json!({ "role": "assistant", "content": whole["content"] }));
    messages.push(json!({ "role": "user", "content": results }));
    let counted = server.post_ok("/v1/messages/count_tokens", &again).await;
    let before = server.post_ok("/v1/messages/count_tokens", &body).await;
    assert!(counted["input_tokens"].as_u64() > before["input_tokens"].as_u64());

    body["stream"] = json!(true);
    let streamed = events(&server, "/v1/messages", &body).await;
    let mut blocks: Vec<(String, String)> = Vec::new();
    for event in &streamed {
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len());
                let kind = event["content_block"]["type"].as_str().expect("a type");
                blocks.push((kind.to_owned(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!(event["index"], blocks.len() - 1);
                for name in ["text", "thinking", "partial_json"] {
                    let more = event["delta"][name].as_str().unwrap_or_default();
                    blocks.last_mut().expect("a block").1.push_str(more);
                }
            }
            _ => {}
        }
    }
    let expected = [
        ("thinking", "Hm."),
        ("text", "Looking."),
        ("tool_use", "{\"city\": \"Bern\"}"),
        ("tool_use", "{\"city\": \"Basel\"}"),
    ];
    assert_eq!(
        blocks,
        expected.map(|(kind, text)| (kind.to_owned(), text.to_owned()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_cut_anywhere_has_the_same_blocks_whole_and_streamed() {
    let Some(server) = start(ANSWER).await else { return };
    let tool = json!({ "name": "weather", "input_schema": { "type": "object" } });
    for max_tokens in 1..40 {
        let mut body = json!({ "max_tokens": max_tokens, "messages": [{ "role": "user", "content": "Well?" }], "tools": [tool] });
        let whole = server.post_ok("/v1/messages", &body).await;
        let kinds = |blocks: &mut dyn Iterator<Item = &Value>| -> Vec<String> {
            blocks
                .map(|block| block["type"].as_str().expect("a type").to_owned())
                .collect()
        };
        let of_whole = kinds(&mut whole["content"].as_array().expect("blocks").iter());
        body["stream"] = json!(true);
        let streamed = events(&server, "/v1/messages", &body).await;
        let starts = streamed
            .iter()
            .filter(|event| event["type"] == "content_block_start");
        let of_stream = kinds(&mut starts.map(|event| &event["content_block"]));
        assert_eq!(of_stream, of_whole, "of {max_tokens} tokens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_anthropics_servers_are_left_out_and_named() {
    let Some(server) = start(ANSWER).await else { return };
    let own = json!({ "type": "custom", "name": "weather", "input_schema": { "type": "object" } });
    let search = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 8 });
    let mut body = json!({ "max_tokens": 500, "messages": [{ "role": "user", "content": "Well?" }],
        "tools": [search, own, { "type": "code_execution_20250522", "name": "code_execution" }] });
    let mut without = body.clone();
    without["tools"] = json!([own]);
    let named = Some("code_execution_20250522, web_search_20250305");
    let reply = server.post("/v1/messages", &body).await;
    assert_eq!(
        (reply.status, reply.header("x-tokenmill-ignored-tools")),
        (200, named)
    );
    assert_eq!(reply.json()["stop_reason"], "tool_use");
    let counted = server.post("/v1/messages/count_tokens", &body).await;
    assert_eq!(
        (counted.status, counted.header("x-tokenmill-ignored-tools")),
        (200, named)
    );
    let plain = server.post("/v1/messages/count_tokens", &without).await;
    assert_eq!(plain.header("x-tokenmill-ignored-tools"), None);
    assert_eq!(counted.json(), plain.json(), "the model does not read of them");
    body["stream"] = json!(true);
    let streamed = server.post("/v1/messages", &body).await;
    assert_eq!(streamed.header("x-tokenmill-ignored-tools"), named);
    // A tool that cannot be called cannot be asked for either, and the refusal says why.
    let refused = |body: Value| {
        let server = &server;
        async move {
            let refused = server.post("/v1/messages", &body).await;
            assert_eq!(refused.status, 400, "{}", refused.text());
            refused.text().to_owned()
        }
    };
    body["tool_choice"] = json!({ "type": "tool", "name": "web_search" });
    let text = refused(body.clone()).await;
    assert!(
        text.contains("`web_search`, which is web_search_20250305") && text.contains("was left out"),
        "{text}"
    );
    body["tool_choice"] = json!({ "type": "tool", "name": "weather_map" });
    let text = refused(body.clone()).await;
    assert!(text.contains("there is no tool `weather_map`"), "{text}");
    body["tool_choice"] = json!({ "type": "any" });
    body["tools"] = json!([search]);
    let text = refused(body.clone()).await;
    assert!(
        text.contains("no tool is left to call: web_search_20250305"),
        "{text}"
    );
    body["tools"] = json!([]);
    let text = refused(body).await;
    assert!(text.contains("needs `tools`"), "{text}");
}

/// Unknown ones, and those that the client runs by Anthropic's descriptions.
#[tokio::test(flavor = "multi_thread")]
async fn tools_of_other_kinds_are_refused_by_kind() {
    let Some(server) = start(ANSWER).await else { return };
    for (kind, expected) in [
        ("web_serach_20250305", "web_fetch"),
        ("bash_20250124", "`bash`"),
        ("text_editor_20250124", "`text_editor`"),
        ("computer_20250124", "`computer`"),
        ("memory_20250124", "`memory`"),
    ] {
        let name = kind.split("_2").next();
        let tools = json!([{ "type": kind, "name": name }]);
        let body =
            json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "Well?" }], "tools": tools });
        for endpoint in ["/v1/messages", "/v1/messages/count_tokens"] {
            let refused = server.post(endpoint, &body).await;
            let text = refused.text();
            assert_eq!(refused.status, 400, "{text}");
            assert!(
                text.contains("tools[0].type") && text.contains(expected),
                "{kind}: {text}"
            );
            assert!(expected.starts_with('`') || text.contains(kind), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_have_items_and_are_remembered() {
    let Some(server) = start(ANSWER).await else { return };
    let mut tool = weather();
    tool["type"] = json!("function");
    let body = json!({ "input": "Well?", "seed": 1, "reasoning": { "effort": "high", "summary": "auto" },
        "include": ["reasoning.encrypted_content"], "tools": [tool, { "type": "web_search" }] });
    let reply = server.post("/v1/responses", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-tokenmill-ignored-tools"), Some("web_search"));
    let whole = reply.json();
    let kinds = |output: &Value| -> Vec<String> {
        let items = output.as_array().expect("items").iter();
        items
            .map(|item| item["type"].as_str().expect("a type").to_owned())
            .collect()
    };
    let expected = ["reasoning", "message", "function_call", "function_call"];
    assert_eq!(kinds(&whole["output"]), expected);
    assert_eq!(whole["output"][2]["arguments"], "{\"city\": \"Bern\"}");
    // OpenAI's packages refuse an answer without it.
    assert_eq!(whole["usage"]["input_tokens_details"]["cache_write_tokens"], 0);

    let result = json!([{ "type": "function_call_output", "call_id": whole["output"][2]["call_id"], "output": "Rain." }]);
    let mut next = body.clone();
    next["seed"] = json!(2);
    next["input"] = result;
    next["previous_response_id"] = whole["id"].clone();
    let after = server.post_ok("/v1/responses", &next).await;
    assert!(after["usage"]["input_tokens"].as_u64() > whole["usage"]["input_tokens"].as_u64());
    next["previous_response_id"] = json!("resp_unknown");
    assert_eq!(server.post("/v1/responses", &next).await.status, 400);

    let mut streaming = body;
    streaming["seed"] = json!(3);
    streaming["stream"] = json!(true);
    let streamed = events(&server, "/v1/responses", &streaming).await;
    let numbers: Vec<_> = streamed
        .iter()
        .map(|event| event["sequence_number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..streamed.len() as u64).map(Some).collect::<Vec<_>>());
    let last = streamed.last().expect("events");
    assert_eq!(
        (&last["type"], kinds(&last["response"]["output"])),
        (&json!("response.completed"), expected.map(str::to_owned).to_vec())
    );
    let of = |kind: &str| -> String {
        let found = streamed.iter().filter(|event| event["type"] == kind);
        found.filter_map(|event| event["delta"].as_str()).collect()
    };
    assert_eq!(
        of("response.function_call_arguments.delta"),
        "{\"city\": \"Bern\"}{\"city\": \"Basel\"}"
    );
    assert_eq!(
        (
            of("response.output_text.delta"),
            of("response.reasoning_text.delta")
        ),
        ("Looking.".into(), "Hm.".into())
    );
    let models = server.get("/v1/models").await.json();
    let first = &models["data"][0];
    assert_eq!(
        (&first["type"], &first["display_name"]),
        (&json!("model"), &first["id"])
    );
    assert!(
        first["created_at"]
            .as_str()
            .is_some_and(|time| time.len() == 20 && time.ends_with('Z')),
        "{first}"
    );
    assert_eq!(models["models"][0]["slug"], models["data"][0]["id"]);
}
