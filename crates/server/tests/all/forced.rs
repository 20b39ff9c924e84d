//! Calls that are required or strict, and reasoning with a budget, of a model that babbles at temperature 2.

use serde_json::{Value, json};

use crate::server::{Setup, TestServer};

const CHAT: &str = "/v1/chat/completions";

async fn start(signs: &str, end: &str) -> Option<TestServer> {
    let template = format!(
        "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}};{{% endfor %}}{{% if false %}}{signs}{{% endif %}}{end}"
    );
    TestServer::start_with(Setup {
        template: Some(template),
        ..Setup::default()
    })
    .await
}

fn schema() -> Value {
    json!({ "type": "object", "properties": {
        "city": { "type": "string", "enum": ["Bern", "Basel"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"], "additionalProperties": false })
}

fn weather() -> Value {
    json!({ "name": "weather", "parameters": schema() })
}

fn now() -> Value {
    json!({ "name": "now", "parameters": { "type": "object", "properties": {}, "additionalProperties": false } })
}

fn body(more: &Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Well?" }], "temperature": 2, "max_tokens": 400, "tools": [
        { "type": "function", "function": weather() }, { "type": "function", "function": now() }] });
    (body.as_object_mut().expect("an object")).extend(more.as_object().expect("an object").clone());
    body
}

fn check_call(name: &str, arguments: &Value) {
    match name {
        "weather" => {
            assert!(
                arguments["city"] == "Bern" || arguments["city"] == "Basel",
                "{arguments}"
            );
            assert!(
                arguments["days"]
                    .as_i64()
                    .is_some_and(|days| (1..10).contains(&days)),
                "{arguments}"
            );
        }
        "now" => assert_eq!(arguments, &json!({})),
        other => panic!("no tool {other}"),
    }
}

/// Names of the calls of a chat answer, whose arguments are valid. The last one may be cut, where the answer is.
fn calls_of(whole: &Value) -> Vec<String> {
    let calls = whole["choices"][0]["message"]["tool_calls"].as_array();
    let calls = calls.unwrap_or_else(|| panic!("no calls in {whole}"));
    let name = |call: &Value| {
        let name = call["function"]["name"].as_str().expect("a name").to_owned();
        let arguments = call["function"]["arguments"].as_str().expect("a text");
        check_call(
            &name,
            &serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {whole}")),
        );
        name
    };
    let is_whole = |call: &Value| {
        let arguments = call["function"]["arguments"].as_str().expect("a text");
        serde_json::from_str::<Value>(arguments).is_ok()
    };
    let is_cut =
        whole["choices"][0]["finish_reason"] == "length" && calls.last().is_some_and(|last| !is_whole(last));
    calls[..calls.len() - usize::from(is_cut)]
        .iter()
        .map(name)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_can_require_calls() {
    let Some(server) = start("<tool_call>", "").await else {
        return;
    };
    let single = body(&json!({ "tool_choice": "required", "parallel_tool_calls": false }));
    let whole = server.post_ok(CHAT, &single).await;
    assert_eq!(calls_of(&whole).len(), 1, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
    assert_eq!(whole["choices"][0]["message"]["content"], Value::Null, "{whole}");
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let named = body(&json!({ "tool_choice": named }));
    assert_eq!(calls_of(&server.post_ok(CHAT, &named).await), ["weather"]);
    let several = body(&json!({ "tool_choice": "required", "seed": 9 }));
    let whole = server.post_ok(CHAT, &several).await;
    assert!(!calls_of(&whole).is_empty(), "{whole}");

    let tool =
        |tool: Value| json!({ "name": tool["name"], "input_schema": tool["parameters"], "strict": true });
    // Without a limit of calls, an answer could by chance exceed the context.
    for choice in [
        json!({ "type": "any", "disable_parallel_tool_use": true }),
        json!({ "type": "tool", "name": "weather", "disable_parallel_tool_use": true }),
    ] {
        let body = json!({ "messages": [{ "role": "user", "content": "Well?" }], "temperature": 2, "max_tokens": 400,
            "tools": [tool(weather()), tool(now())], "tool_choice": choice });
        let whole = server.post_ok("/v1/messages", &body).await;
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let blocks = whole["content"].as_array().expect("blocks");
        assert!(
            !blocks.is_empty() && blocks.iter().all(|block| block["type"] == "tool_use"),
            "{whole}"
        );
        for block in blocks {
            check_call(block["name"].as_str().expect("a name"), &block["input"]);
            assert!(choice["type"] == "any" || block["name"] == "weather");
        }
    }
    let flat = |mut tool: Value| {
        tool["type"] = "function".into();
        tool
    };
    for choice in [
        json!("required"),
        json!({ "type": "function", "name": "now" }),
        json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "now" }] }),
    ] {
        let body = json!({ "input": "Well?", "temperature": 2, "max_output_tokens": 400, "parallel_tool_calls": false,
            "tools": [flat(weather()), flat(now())], "tool_choice": choice });
        let whole = server.post_ok("/v1/responses", &body).await;
        let call = &whole["output"][0];
        assert_eq!(call["type"], "function_call", "{whole}");
        let name = call["name"].as_str().expect("a name");
        check_call(
            name,
            &serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON"),
        );
        assert!(choice == "required" || name == "now", "{whole}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_that_cannot_be_are_refused_by_their_field() {
    let Some(server) = start("<arg_key>", "").await else {
        return;
    };
    let dated = json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": {
        "type": "object", "properties": { "day": { "type": "string", "format": "date" } } } } }]);
    let broken = json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": {
        "type": "object", "properties": { "n": { "type": "integer", "minimum": 3, "maximum": 2 } }, "required": ["n"] } } }]);
    for (more, param) in [
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "absent" } } }),
            "tool_choice",
        ),
        (json!({ "tool_choice": "required", "tools": [] }), "tool_choice"),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "mode": "auto", "tools": [] } }),
            "tool_choice",
        ),
        (json!({ "tools": dated }), "tools"),
        (json!({ "tools": broken }), "tools"),
    ] {
        let reply = server.post(CHAT, &body(&more)).await;
        assert_eq!(reply.status, 400, "{more}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{more}: {}", reply.text());
    }
    // A schema that cannot be compiled does not hinder a choice that is the model's.
    let mut lenient = broken;
    lenient[0]["function"]["strict"] = json!(false);
    server
        .post_ok(CHAT, &body(&json!({ "tools": lenient, "max_tokens": 8 })))
        .await;
}

/// A tool with these parameters.
fn tool(name: &str, parameters: &Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_are_no_object_are_refused_by_their_path() {
    let Some(server) = start("<tool_call>", "").await else {
        return;
    };
    let referred = json!({ "$ref": "#/$defs/word", "$defs": { "word": { "type": "string" } } });
    for parameters in [json!({ "type": "string" }), json!({ "type": "array" }), referred] {
        for (choice, strict) in [("required", true), ("required", false), ("auto", false)] {
            let mut bad = tool("bad", &parameters);
            bad["function"]["strict"] = json!(strict);
            let more = json!({ "tools": [tool("now", &now()["parameters"]), bad], "tool_choice": choice });
            let reply = server.post(CHAT, &body(&more)).await;
            assert_eq!(reply.status, 400, "{more}: {}", reply.text());
            assert_eq!(reply.json()["error"]["param"], "tools[1].function.parameters");
        }
    }
    server.assert_idle().await;
}

/// Where calls are required, one bad schema is refused with `strict` or without; where they are not, with `strict` only.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_whose_schema_cannot_be_enforced_is_named_with_the_reason() {
    let Some(server) = start("<tool_call>", "").await else {
        return;
    };
    let endless =
        json!({ "type": "object", "properties": { "same": { "$ref": "#" } }, "required": ["same"] });
    let negated = json!({ "type": "object", "properties": { "a": {} }, "not": { "required": ["a"] } });
    let required = json!("required");
    let named = json!({ "type": "function", "function": { "name": "bad" } });
    for (parameters, reason) in [
        (endless, "no finite arguments satisfy it"),
        (negated, "Unimplemented keys: [\"not\"]"),
    ] {
        let mut tools = json!([tool("now", &now()["parameters"]), tool("bad", &parameters)]);
        let expected = format!("`tools`: calls of the tool `bad` cannot be held to its schema: {reason}");
        for choice in [&required, &named] {
            let more = json!({ "tools": tools, "tool_choice": choice });
            let reply = server.post(CHAT, &body(&more)).await;
            let error = &reply.json()["error"];
            assert_eq!(
                (reply.status, &error["message"]),
                (400, &json!(expected)),
                "{more}"
            );
            assert_eq!(error["param"], "tools");
        }
        let messages = json!({ "messages": [{ "role": "user", "content": "Well?" }], "max_tokens": 9,
            "tools": [{ "name": "bad", "input_schema": parameters }], "tool_choice": { "type": "any" } });
        let reply = server.post("/v1/messages", &messages).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["message"], expected);
        // Without `strict`, optional properties stay optional.
        let auto = json!({ "tools": tools, "max_tokens": 8 });
        server.post_ok(CHAT, &body(&auto)).await;
        tools[1]["function"]["strict"] = json!(true);
        let reply = server.post(CHAT, &body(&json!({ "tools": tools }))).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["message"]),
            (400, &json!(expected))
        );
    }
    // Schemas of maps and lists as clients write them, with keywords without effect.
    let noted = json!({ "type": "object", "properties": { "answers": { "type": "object",
        "propertyNames": { "type": "string" }, "additionalProperties": { "type": "integer" }, "maxProperties": 1 },
        "days": { "type": "array", "items": { "enum": ["Mon"] }, "maxItems": 1, "uniqueItems": false } },
        "required": ["days"], "additionalProperties": false });
    let more = json!({ "tools": [tool("noted", &noted)], "tool_choice": "required", "max_tokens": 8 });
    server.post_ok(CHAT, &body(&more)).await;
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_tools_and_a_shape_is_one_or_the_other() {
    let shape = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": {
        "type": "object", "properties": { "name": { "enum": ["Ada", "Bob"] } }, "required": ["name"], "additionalProperties": false } } });
    // The demo model would hardly write the start of a call by itself.
    for (signs, end) in [("<tool_call>", ""), ("<tool_call></think>", "<think>")] {
        let Some(server) = start(signs, end).await else {
            return;
        };
        let token_of = async |text: &str, is_last: bool| {
            let body = json!({ "content": text, "add_special": false });
            let tokens = server.post_ok("/tokenize", &body).await["tokens"].clone();
            let tokens = tokens.as_array().expect("tokens").clone();
            let token = if is_last { tokens.last() } else { tokens.first() };
            token.expect("a token").to_string()
        };
        // Some answers are drawn to a call, some to the shape's name, which may begin as a call does.
        let (lure, name) = (token_of("<", true).await, token_of("Ada", false).await);
        let (mut n_calls, mut n_shaped) = (0, 0);
        for seed in 0..40 {
            let mut asked =
                body(&json!({ "response_format": shape, "parallel_tool_calls": false, "seed": seed }));
            match seed % 4 {
                1 | 3 => asked["logit_bias"] = json!({ lure.as_str(): 30 }),
                2 => asked["logit_bias"] = json!({ name.as_str(): 30 }),
                _ => {}
            }
            if !end.is_empty() {
                asked["thinking_budget"] = json!(3);
            }
            let whole = server.post_ok(CHAT, &asked).await;
            let choice = &whole["choices"][0];
            match choice["finish_reason"].as_str() {
                Some("tool_calls") => {
                    assert!(!calls_of(&whole).is_empty(), "{whole}");
                    assert_eq!(choice["message"]["content"], Value::Null, "{whole}");
                    n_calls += 1;
                }
                Some("stop") => {
                    let text = choice["message"]["content"].as_str().expect("a text");
                    let person: Value =
                        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {whole}"));
                    assert!(person["name"] == "Ada" || person["name"] == "Bob", "{whole}");
                    n_shaped += 1;
                }
                _ => panic!("{whole}"),
            }
            if n_calls > 0 && n_shaped > 0 {
                break;
            }
        }
        assert!(n_calls > 0 && n_shaped > 0, "{n_calls} calls, {n_shaped} texts");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_ends_with_its_budget_and_the_answer_follows() {
    let Some(server) = start("</think>", "<think>").await else {
        return;
    };
    let thoughts = |whole: &Value| -> u64 {
        let n_tokens = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
        n_tokens.as_u64().expect("a number")
    };
    // The end of the thoughts counts as well; the demo model writes it in several tokens.
    for (n_tokens, seed) in [(0, 1), (7, 2), (30, 3)] {
        let mut asked = body(&json!({ "thinking_budget": n_tokens, "seed": seed, "max_tokens": 100 }));
        asked["tools"] = Value::Null;
        asked["guided_regex"] = json!("[0-9]{4}");
        let whole = server.post_ok(CHAT, &asked).await;
        assert!((n_tokens..n_tokens + 12).contains(&thoughts(&whole)), "{whole}");
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["content"].as_str().map(str::len), Some(4), "{whole}");
    }
    for name in [
        "thinking_token_budget",
        "thinking_budget_tokens",
        "reasoning_budget",
    ] {
        let mut asked = body(&json!({ "seed": 4, "max_tokens": 60 }));
        asked["tools"] = Value::Null;
        asked[name] = json!(5);
        let whole = server.post_ok(CHAT, &asked).await;
        assert!((5..17).contains(&thoughts(&whole)), "{whole}");
    }
    let thinking = json!({ "type": "enabled", "budget_tokens": 6 });
    let mut asked = json!({ "messages": [{ "role": "user", "content": "Well?" }], "max_tokens": 60, "temperature": 2, "thinking": thinking });
    let mut whole = server.post_ok("/v1/messages", &asked).await;
    // These APIs take no seed, and sometimes an answer ends inside its reasoning.
    for _ in 0..8 {
        if whole["content"].as_array().is_some_and(|blocks| blocks.len() < 2) {
            whole = server.post_ok("/v1/messages", &asked).await;
        }
    }
    assert_eq!(whole["content"][0]["type"], "thinking", "{whole}");
    assert_eq!(whole["content"][1]["type"], "text", "{whole}");
    asked["thinking"]["type"] = json!("disabled");
    let refused = server.post("/v1/messages", &asked).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    let asked = json!({ "input": "Well?", "max_output_tokens": 60, "temperature": 2, "reasoning": { "max_tokens": 6 },
        "seed": 5, "min_tokens": 20 });
    let whole = server.post_ok("/v1/responses", &asked).await;
    assert_eq!(whole["output"][0]["type"], "reasoning", "{whole}");
    assert_eq!(whole["output"][1]["type"], "message", "{whole}");
}
