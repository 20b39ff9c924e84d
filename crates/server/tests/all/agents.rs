//! Features that agents use besides tools: effort, edits of the context, blocks and items of other servers'
//! tools, stored answers, error messages.

use serde_json::{Value, json};

use crate::{
    server::{Setup, TestServer},
    wire::Exchange,
};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

/// Writes all that it is given, so that the count of a prompt's tokens tells what arrived.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{{ reasoning_effort or '' }}{{ verbosity or '' }}\
                        {% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\
                        {{ c.function | tojson }}</tool_call>{% endfor %};{% endfor %}{% if false %}<think></think>{% endif %}";

async fn start() -> Option<TestServer> {
    TestServer::start_with(Setup {
        template: Some(TEMPLATE.to_owned()),
        says: Some("One two three.".to_owned()),
        ..Setup::default()
    })
    .await
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    let Value::Object(more) = more else {
        panic!("an object")
    };
    body.as_object_mut().expect("an object").extend(more);
    body
}

async fn counted(server: &TestServer, body: &Value) -> u64 {
    let reply = server.post_ok("/v1/messages/count_tokens", body).await;
    reply["input_tokens"].as_u64().expect("a number")
}

/// The request must be refused, and name `param` and all of `words`.
async fn refused(server: &TestServer, path: &str, body: &Value, param: &str, words: &[&str]) {
    let reply = server.post(path, body).await;
    let text = reply.text();
    assert_eq!(reply.status, 400, "{text}");
    assert!(text.contains(&format!("`{param}`")), "{param}: {text}");
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_take_what_claude_code_sends() {
    let Some(server) = start().await else { return };
    let body = json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "Hi" }] });
    let plain = counted(&server, &body).await;
    let effort = |effort: &str| with(&body, json!({ "output_config": { "effort": effort } }));
    server.post_ok(MESSAGES, &effort("medium")).await;
    assert!(
        counted(&server, &effort("medium")).await > plain,
        "the template reads of it"
    );
    refused(
        &server,
        MESSAGES,
        &effort("zzz"),
        "output_config.effort",
        &["zzz", "medium"],
    )
    .await;

    let edits = |edits: Value| with(&body, json!({ "context_management": { "edits": edits } }));
    let keeps_all = json!([{ "type": "clear_thinking_20251015", "keep": "all" }]);
    server.post_ok(MESSAGES, &edits(keeps_all)).await;
    let clears = edits(json!([{ "type": "clear_tool_uses_20250919" }]));
    refused(
        &server,
        MESSAGES,
        &clears,
        "context_management.edits[0].type",
        &[],
    )
    .await;

    let history = json!([
        { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": [
            { "type": "redacted_thinking", "data": "x" },
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": { "query": "q" } },
            { "type": "web_search_tool_result", "tool_use_id": "s", "content": [
                { "type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "x" }] },
            { "type": "text", "text": "a" },
            { "type": "tool_use", "id": "t", "name": "find", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t",
            "content": [{ "type": "tool_reference", "tool_name": "weather" }] }] },
    ]);
    server
        .post_ok(MESSAGES, &with(&body, json!({ "messages": history })))
        .await;
    let tool = |more: Value| {
        let tool = with(
            &json!({ "name": "weather", "input_schema": { "type": "object" } }),
            more,
        );
        with(&body, json!({ "tools": [tool] }))
    };
    let bare = counted(&server, &tool(json!({}))).await;
    let full = tool(
        json!({ "eager_input_streaming": true, "allowed_callers": ["direct"], "defer_loading": false,
        "input_examples": [{ "city": "Bern" }] }),
    );
    server.post_ok(MESSAGES, &full).await;
    assert!(
        counted(&server, &full).await > bare,
        "the model reads the examples"
    );
    refused(
        &server,
        MESSAGES,
        &tool(json!({ "allowed_callers": ["code_execution_20250825"] })),
        "tools[0].allowed_callers",
        &[],
    )
    .await;
    let any = with(&full, json!({ "tool_choice": "any" }));
    refused(
        &server,
        MESSAGES,
        &any,
        "tool_choice",
        &["an object with the `type`", "`any`"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_say_what_was_asked_and_are_found_until_they_are_deleted() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let schema = json!({ "type": "string", "maxLength": 9 });
    let format = json!({ "type": "json_schema", "name": "n", "schema": schema });
    let body =
        json!({ "input": "Hi", "max_output_tokens": 2, "text": { "format": format, "verbosity": "low" } });
    let cut = server.post_ok(RESPONSES, &body).await;
    assert_eq!(cut["text"], json!({ "format": format, "verbosity": "low" }));
    assert_eq!(
        (&cut["tool_choice"], &cut["store"]),
        (&json!("auto"), &json!(true))
    );
    let plain = server
        .post_ok(RESPONSES, &json!({ "input": "Hi", "max_output_tokens": 8 }))
        .await;
    assert_eq!(plain["text"]["format"], json!({ "type": "text" }));
    let shouted = json!({ "input": "Hi", "text": { "verbosity": "loud" } });
    refused(&server, RESPONSES, &shouted, "text.verbosity", &["loud"]).await;
    let strained = json!({ "input": "Hi", "reasoning": { "effort": "zzz" } });
    refused(&server, RESPONSES, &strained, "reasoning.effort", &["zzz"]).await;

    let id = plain["id"].as_str().expect("an id");
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(server.get(&path).await.json(), plain);
    let events = server.get(&format!("{path}?stream=true")).await;
    assert_eq!(events.status, 400, "{}", events.text());
    let delete = async || {
        Exchange::send(&server.address, "DELETE", &path, &[], b"")
            .await
            .reply()
            .await
    };
    let deleted = delete().await;
    assert_eq!(
        deleted.json(),
        json!({ "id": id, "object": "response", "deleted": true })
    );
    assert_eq!(
        (delete().await.status, server.get(&path).await.status),
        (404, 404)
    );
    let after = json!({ "input": "Hi", "previous_response_id": id });
    assert_eq!(server.post(RESPONSES, &after).await.status, 400);
    let unkept = server
        .post_ok(
            RESPONSES,
            &json!({ "input": "Hi", "max_output_tokens": 8, "store": false }),
        )
        .await;
    let unkept = unkept["id"].as_str().expect("an id");
    let missing = server.get(&format!("{RESPONSES}/{unkept}")).await;
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &json!("not_found"))
    );
    // Each part of a path that is not a text is refused in the words of its API.
    for path in ["/v1/responses/%FF", "/v1/models/%FF", "/slots/%FF", "/web/%FF"] {
        for method in ["GET", "DELETE", "POST"] {
            let reply = Exchange::send(&server.address, method, path, &[], b"{}")
                .await
                .reply()
                .await;
            assert!(
                (400..=501).contains(&reply.status),
                "{method} {path}: {}",
                reply.text()
            );
            assert!(
                reply.json()["error"]["message"].is_string(),
                "{method} {path}: {}",
                reply.text()
            );
        }
    }
    let conversation = json!({ "input": "Hi", "conversation": "c" });
    refused(
        &server,
        RESPONSES,
        &conversation,
        "conversation",
        &["only whole answers are stored"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_read_the_history_of_codex() {
    let Some(server) = start().await else { return };
    let input = json!([
        { "role": "user", "content": "Hi" },
        { "type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin" },
        { "type": "custom_tool_call_output", "call_id": "c", "output": "done" },
        { "type": "web_search_call", "id": "ws", "status": "completed", "action": { "type": "search", "query": "q" } },
        { "type": "local_shell_call", "call_id": "d", "action": { "type": "exec", "command": ["ls"] }, "status": "completed" },
        { "type": "function_call_output", "call_id": "d", "output": "a.txt" },
        { "type": "compaction", "encrypted_content": "x" },
    ]);
    let reply = server.post(RESPONSES, &json!({ "input": input })).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        reply.header("x-tokenmill-ignored-items"),
        Some("compaction, web_search_call")
    );
    let plain = server.post(RESPONSES, &json!({ "input": [input[0]] })).await;
    assert_eq!(plain.header("x-tokenmill-ignored-items"), None);
    let unknown = json!({ "input": [{ "type": "mcp_call", "id": "m" }] });
    refused(&server, RESPONSES, &unknown, "input[0].type", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said_in_words_of_the_request() {
    let Some(server) = start().await else { return };
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2 });
    let cases: [(Value, &str, &[&str]); 8] = [
        (
            json!({ "thinking_budget": 3, "reasoning_budget": 4 }),
            "reasoning_budget",
            &["thinking_budget"],
        ),
        (json!({ "thinking_budget": -2 }), "thinking_budget", &["-2"]),
        (
            json!({ "reasoning_effort": "zzz" }),
            "reasoning_effort",
            &["zzz", "medium"],
        ),
        (json!({ "verbosity": "loud" }), "verbosity", &["loud"]),
        (
            json!({ "tools": [{ "type": "function" }] }),
            "tools[0].function",
            &["required"],
        ),
        (json!({ "tools": ["f"] }), "tools[0]", &["an object"]),
        (
            json!({ "guided_regex": "(a" }),
            "guided_regex",
            &["unclosed group"],
        ),
        (
            json!({ "guided_regex": "[^\\s\\S]" }),
            "guided_regex",
            &["no finite text"],
        ),
    ];
    for (more, param, words) in cases {
        refused(&server, CHAT, &with(&body, more), param, words).await;
    }
    for more in [
        json!({ "thinking_budget": 3, "reasoning_budget": 3 }),
        json!({ "thinking_budget": -1 }),
        json!({ "reasoning_effort": "xhigh", "verbosity": "medium" }),
    ] {
        server.post_ok(CHAT, &with(&body, more)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_with_tools_are_rendered_and_counted() {
    let Some(server) = start().await else { return };
    let function = json!({ "name": "weather", "parameters": { "type": "object" } });
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let tools = with(
        &body,
        json!({ "tools": [{ "type": "function", "function": function }] }),
    );
    let prompt = async |body: &Value| {
        let prompt = server.post_ok("/apply-template", body).await["prompt"].clone();
        prompt.as_str().expect("text").to_owned()
    };
    assert!(prompt(&tools).await.contains("weather") && !prompt(&body).await.contains("weather"));
    let none = with(&tools, json!({ "tool_choice": "none" }));
    assert_eq!(prompt(&none).await, prompt(&body).await);
    assert_eq!(
        prompt(&with(&body, json!({ "tools": null }))).await,
        prompt(&body).await
    );
    let ids = server.post_ok("/tokenize", &tools).await["tokens"].clone();
    let rendered = server.post_ok("/v1/chat/completions/render", &tools).await;
    assert_eq!(ids, rendered["token_ids"], "{rendered}");
    let text = json!({ "content": "Hi", "tools": tools["tools"] });
    refused(&server, "/tokenize", &text, "tools", &["messages"]).await;
    let own = with(&body, json!({ "chat_template": "{{ messages }}" }));
    refused(&server, "/tokenize", &own, "chat_template", &[]).await;
}
