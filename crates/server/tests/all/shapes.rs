//! Answers in a shape: every field that asks for one, over a socket.

use std::time::Instant;

use serde_json::{Value, json};

use crate::server::TestServer;

const CHAT: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

fn is_person(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let is_named = value["name"] == "Ada" || value["name"] == "Bob";
    is_named && value["age"].as_i64().is_some_and(|age| (1..100).contains(&age))
}

fn messages() -> Value {
    json!([{"role": "user", "content": "Who is it?"}])
}

async fn answer(server: &TestServer, path: &str, body: &Value) -> Value {
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    reply.json()
}

#[tokio::test]
async fn every_field_shapes_the_answer() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let format = json!({"type": "json_schema", "name": "person", "schema": schema(), "strict": true});
    let named =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema(), "strict": true}});
    for extra in [
        json!({"response_format": named}),
        json!({"guided_json": schema()}),
        json!({"json_schema": schema()}),
        json!({"structured_outputs": {"json": schema()}}),
    ] {
        let mut body = json!({"messages": messages(), "max_tokens": 200, "temperature": 2, "n": 3, "logprobs": true,
            "presence_penalty": 1, "seed": 7});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let reply = answer(&server, CHAT, &body).await;
        for choice in reply["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            assert!(
                is_person(choice["message"]["content"].as_str().unwrap()),
                "{choice}"
            );
        }
    }
    let body = json!({"input": "Who is it?", "max_output_tokens": 200, "text": {"format": format}});
    let reply = answer(&server, "/v1/responses", &body).await;
    assert!(
        is_person(reply["output"][0]["content"][0]["text"].as_str().unwrap()),
        "{reply}"
    );
    let body = json!({"messages": messages(), "max_tokens": 200, "output_config": {"format": {"type": "json_schema", "schema": schema()}}});
    let reply = answer(&server, "/v1/messages", &body).await;
    assert!(
        is_person(reply["content"][0]["text"].as_str().unwrap()),
        "{reply}"
    );

    let complete = |extra: Value| {
        let mut body = json!({"prompt": "Once", "max_tokens": 40, "temperature": 1.5, "seed": 3});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    };
    let is_year = |text: &str| {
        text.len() == 4 && text.starts_with('1') && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let lark = "start: \"1\" DIGIT DIGIT DIGIT\nDIGIT: /[0-9]/";
    for extra in [
        json!({"guided_regex": "1[0-9]{3}"}),
        json!({"regex": "^1[0-9]{3}$"}),
        json!({"structured_outputs": {"regex": "1[0-9]{3}"}}),
        json!({"grammar": "root ::= \"1\" [0-9] [0-9]{2}"}),
        json!({"ebnf": "root ::= \"1\" [0-9] [0-9]{2}"}),
        json!({"guided_grammar": lark}),
    ] {
        let reply = answer(&server, "/v1/completions", &complete(extra)).await;
        let choice = &reply["choices"][0];
        assert!(is_year(choice["text"].as_str().unwrap()), "{choice}");
        assert_eq!(choice["finish_reason"], "stop");
    }
    let reply = answer(
        &server,
        "/v1/completions",
        &complete(json!({"guided_choice": ["red", "green"]})),
    )
    .await;
    assert!(
        ["red", "green"].contains(&reply["choices"][0]["text"].as_str().unwrap()),
        "{reply}"
    );
    let body = json!({"messages": messages(), "max_tokens": 300, "response_format": {"type": "json_object"}});
    let reply = answer(&server, CHAT, &body).await;
    let choice = &reply["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('{'), "{text}");
    if choice["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
    }
}

#[tokio::test]
async fn a_cut_answer_says_so_and_stop_strings_still_end() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({"prompt": "Once", "max_tokens": 5, "guided_regex": "[0-9]{500}"});
    let reply = answer(&server, "/v1/completions", &body).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let body = json!({"prompt": "Once", "max_tokens": 60, "guided_regex": "[0-9]{20}end", "stop": "en"});
    let reply = answer(&server, "/v1/completions", &body).await;
    let choice = &reply["choices"][0];
    assert_eq!(
        (
            choice["finish_reason"].as_str(),
            choice["text"].as_str().map(str::len)
        ),
        (Some("stop"), Some(20))
    );
}

#[tokio::test]
async fn what_cannot_be_enforced_is_a_400_that_names_the_field() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let large = json!({"enum": ["x".repeat(5 << 20)]});
    for (extra, param, message) in [
        (
            json!({"guided_json": {"type": "nonsense"}}),
            "guided_json",
            "cannot be enforced",
        ),
        (json!({"guided_json": endless}), "guided_json", "no finite text"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": large}}}),
            "response_format.json_schema.schema",
            "the limit is 1048576",
        ),
        (
            json!({"guided_regex": "(a"}),
            "guided_regex",
            "cannot be enforced",
        ),
        (json!({"grammar": "root ::= root"}), "grammar", "no finite text"),
        (json!({"grammar": "root ::= \"a"}), "grammar", "line 1"),
        (json!({"guided_choice": []}), "guided_choice", "empty"),
        (
            json!({"guided_regex": "a", "guided_choice": ["a"]}),
            "guided_choice",
            "contradicts",
        ),
    ] {
        let mut body = json!({"messages": messages(), "max_tokens": 5});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let reply = server.post(CHAT, &body).await;
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, error["param"].as_str()),
            (400, Some(param)),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
}

#[tokio::test]
async fn a_shape_that_is_whole_ends_before_the_fewest_tokens() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for stream in [false, true] {
        let body = json!({"messages": messages(), "max_tokens": 40, "min_tokens": 30, "temperature": 0,
            "guided_choice": ["yes"], "stream": stream});
        let reply = server.post(CHAT, &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(!reply.text().contains("shape_failed"), "{}", reply.text());
        if !stream {
            let choice = &reply.json()["choices"][0];
            assert_eq!(choice["message"]["content"], "yes");
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
    // One that may end and may continue continues, whatever the model would rather do.
    let end = json!({"content": "<|end|>", "parse_special": true});
    let end = answer(&server, "/tokenize", &end).await["tokens"][0].to_string();
    let mut body = json!({"messages": messages(), "max_tokens": 60, "temperature": 0, "guided_regex": "(ab)+",
        "logit_bias": {end: 100}});
    let n_tokens = |reply: &Value| reply["usage"]["completion_tokens"].as_u64().unwrap();
    let shortest = answer(&server, CHAT, &body).await;
    assert!(n_tokens(&shortest) < 4, "{shortest}");
    body["min_tokens"] = json!(20);
    let longer = answer(&server, CHAT, &body).await;
    assert!((20..24).contains(&n_tokens(&longer)), "{longer}");
    let text = longer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.len() > 10 && text.replace("ab", "").is_empty(), "{text}");
    server.assert_idle().await;
}

#[tokio::test]
async fn a_bias_against_all_that_a_shape_allows_is_the_requests_fault() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let biases: serde_json::Map<String, Value> = (3..2047).map(|id| (id.to_string(), json!(-100))).collect();
    let mut body =
        json!({"messages": messages(), "max_tokens": 8, "guided_choice": ["yes"], "logit_bias": biases});
    let reply = server.post(CHAT, &body).await;
    let error = &reply.json()["error"];
    assert_eq!(
        (reply.status, &error["code"]),
        (400, &json!("shape_failed")),
        "{error}"
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("`logit_bias` or `min_tokens` forbids"),
        "{error}"
    );
    body["stream"] = json!(true);
    let events = server.post(CHAT, &body).await;
    assert!(events.text().contains("\"shape_failed\""), "{}", events.text());
    server.assert_idle().await;
}

/// Half a second where nothing else runs and the code is optimised; before, such a body was parsed, which took twenty here.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused_by_its_field_before_it_is_parsed() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let schema = |n_bytes: usize| {
        let names = (0..n_bytes / 80).map(|idx| {
            (
                format!("name{idx:08}"),
                json!({"type": "string", "title": "x".repeat(30)}),
            )
        });
        json!({"type": "object", "properties": names.collect::<serde_json::Map<_, _>>()})
    };
    for (n_bytes, said) in [(10 << 20, "it has more than"), (7 << 20, "the limit is 1048576")] {
        let large = schema(n_bytes);
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": large}}]);
        for (more, param) in [
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": large}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"tools": tools}), "tools[0].function.parameters"),
        ] {
            let mut body = json!({"messages": messages(), "max_tokens": 5});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let begun = Instant::now();
            let reply = server.post(CHAT, &body).await;
            let took = begun.elapsed();
            let error = &reply.json()["error"];
            assert_eq!(
                (reply.status, error["param"].as_str()),
                (400, Some(param)),
                "{error}"
            );
            assert!(error["message"].as_str().unwrap().contains(said), "{error}");
            assert!(took.as_secs() < 8, "{took:?}");
        }
    }
    server.assert_idle().await;
}
