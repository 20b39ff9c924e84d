//! Tests that conversations stay usable, whatever a model or another server wrote into them.

use serde_json::{Value, json};

use crate::{
    server::{Setup, TestServer},
    wire::Exchange,
};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

/// Writes all its input; takes arguments as an object.
const OBJECTS: &str = "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
                       {{ p.text or p.type }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}\
                       {% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}</tool_call>{% endfor %}{{ '\n' }}{% endfor %}";

/// Writes arguments unchanged.
const TEXTS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}\
                     {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}\
                     </tool_call>{% endfor %}{{ '\n' }}{% endfor %}";

/// Requires that roles alternate, with a system message only at the start.
const ALTERNATES: &str = "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% set rest = messages[1:] %}{% else %}\
                          {% set rest = messages %}{% endif %}{% set ns = namespace(i=0) %}{% for m in rest %}\
                          {% if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}{% if (m.role == 'user') != (ns.i % 2 == 0) %}\
                          {{ raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
                          {% set ns.i = ns.i + 1 %}{% elif m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}\
                          {{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.arguments | tojson }}>{% endfor %}\
                          {{ '\n' }}{% endfor %}";

async fn start(template: &str) -> Option<TestServer> {
    TestServer::start_with(Setup {
        template: Some(template.to_owned()),
        says: Some("Yes.".to_owned()),
        ..Setup::default()
    })
    .await
}

/// Renders messages of the chat endpoint.
async fn rendered(server: &TestServer, messages: &Value) -> String {
    let reply = server
        .post_ok("/apply-template", &json!({ "messages": messages }))
        .await;
    reply["prompt"].as_str().expect("a text").to_owned()
}

fn called(arguments: &Value) -> Value {
    json!([
        { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "call_1", "type": "function", "function": { "name": "w", "arguments": arguments } }] },
        { "role": "tool", "tool_call_id": "call_1", "content": "error" },
        { "role": "user", "content": "Go on" },
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_are_no_object_are_passed_on_as_the_template_takes_them() {
    let broken = [
        (json!("{\"s\": \"a"), "{\"s\": \"a"),
        (json!("{'s': 'a'}"), "{'s': 'a'}"),
        (json!("[1]"), "[1]"),
        (json!("hello"), "hello"),
        (json!([1, 2]), "[1,2]"),
        (json!(3), "3"),
    ];
    for (template, around) in [(OBJECTS, ["warguments=", ";"]), (TEXTS, ["w", ""])] {
        let Some(server) = start(template).await else {
            return;
        };
        for (arguments, text) in &broken {
            let prompt = rendered(&server, &called(arguments)).await;
            let expected = format!("<tool_call>{}{text}{}</tool_call>", around[0], around[1]);
            assert!(prompt.contains(&expected), "{expected}: {prompt}");
            server
                .post_ok(CHAT, &json!({ "messages": called(arguments), "max_tokens": 2 }))
                .await;
        }
        let prompt = rendered(&server, &called(&json!("null"))).await;
        assert!(!prompt.contains("null"), "{prompt}");
        let call =
            json!({ "type": "function_call", "call_id": "c", "name": "w", "arguments": "{\"s\": \"a" });
        let result = json!({ "type": "function_call_output", "call_id": "c", "output": "error" });
        let input = json!([{ "role": "user", "content": "Hi" }, call, result]);
        server
            .post_ok(RESPONSES, &json!({ "input": input, "max_output_tokens": 16 }))
            .await;
        let input = json!({ "type": "tool_use", "id": "t", "name": "w", "input": "{\"s\": \"a" });
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": "error" });
        let messages = json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": [input] },
            { "role": "user", "content": [result] }]);
        server
            .post_ok(MESSAGES, &json!({ "messages": messages, "max_tokens": 2 }))
            .await;
        let call = json!({ "function": { "name": "w", "arguments": "oops" } });
        let messages = json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "", "tool_calls": [call] },
            { "role": "tool", "content": "error" }]);
        server
            .post_ok(
                "/api/chat",
                &json!({ "model": "demo", "stream": false, "messages": messages }),
            )
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lone_surrogates_and_byte_order_marks_are_accepted() {
    let Some(server) = start(OBJECTS).await else {
        return;
    };
    let bodies = [
        (
            CHAT,
            r#"{"max_tokens":2,"messages":[{"role":"user","content":"a \ud83d b"}]}"#,
        ),
        (
            CHAT,
            "\u{feff}{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
        ),
        (
            MESSAGES,
            r#"{"max_tokens":2,"messages":[{"role":"user","content":"\ude00"}]}"#,
        ),
        (RESPONSES, r#"{"max_output_tokens":16,"input":"a\ud83d"}"#),
        ("/tokenize", r#"{"content":"\ud83d"}"#),
    ];
    for (path, body) in bodies {
        let exchange = Exchange::send(&server.address, "POST", path, &[], body.as_bytes()).await;
        let reply = exchange.reply().await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_servers_answered_may_be_sent_back() {
    let Some(server) = start(OBJECTS).await else {
        return;
    };
    let answer = |fields: Value| {
        let mut message = json!({ "role": "assistant", "content": "Yes." });
        let Value::Object(fields) = fields else {
            panic!("an object")
        };
        message.as_object_mut().expect("an object").extend(fields);
        json!([{ "role": "user", "content": "Hi" }, message, { "role": "user", "content": "Go on" }])
    };
    for (fields, expected) in [
        (
            json!({ "id": "msg_1", "annotations": [{ "type": "url_citation" }], "audio": null }),
            "assistant: Yes.",
        ),
        (
            json!({ "reasoning": "Hm.", "reasoning_details": [{ "type": "reasoning.text", "text": "Hm." }] }),
            "assistant: Yes.",
        ),
        (
            json!({ "provider_specific_fields": { "x": 1 }, "logprobs": { "content": [] } }),
            "assistant: Yes.",
        ),
        (
            json!({ "content": [{ "type": "refusal", "refusal": "No." }] }),
            "assistant: No.",
        ),
        (json!({ "content": null, "refusal": "No." }), "assistant: No."),
        (
            json!({ "content": null, "audio": { "id": "a", "transcript": "Well." } }),
            "assistant: Well.",
        ),
        (json!({ "content": null, "tool_calls": null }), "assistant: \n"),
        (
            json!({ "content": [{ "type": "thinking", "thinking": [{ "type": "text", "text": "Hm." }] },
            { "type": "text", "text": "So." }] }),
            "assistant: So.",
        ),
        (
            json!({ "content": null, "function_call": { "name": "f", "arguments": "{\"a\": 1}" } }),
            "<tool_call>fa=1;",
        ),
        (
            json!({ "content": null, "tool_calls": [{ "id": "c", "type": "custom", "custom": { "name": "sh", "input": "ls" } }] }),
            "<tool_call>shinput=ls;",
        ),
    ] {
        let prompt = rendered(&server, &answer(fields.clone())).await;
        assert!(prompt.contains(expected), "{fields}: {prompt}");
    }
    for fields in [json!({ "prefix": true }), json!({ "partial": true })] {
        let reply = server
            .post(CHAT, &json!({ "messages": answer(fields.clone()) }))
            .await;
        assert_eq!(reply.status, 400, "{fields} asks for something");
    }
    let user = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "Hi" }], "cache_control": { "type": "ephemeral" } }]);
    assert_eq!(rendered(&server, &user).await, "user: Hi\n");
    let result = json!([{ "role": "user", "content": "Hi" },
        { "role": "assistant", "content": null, "function_call": { "name": "f", "arguments": "{}" } },
        { "role": "function", "name": "f", "content": "7" }]);
    assert!(
        rendered(&server, &result).await.contains('7'),
        "the older form of a result"
    );
    for body in [
        json!({ "thread": null, "container": null, "nosuch": null }),
        json!({ "response_format": { "type": "text", "json_schema": null } }),
        json!({ "thinking": { "type": "disabled" } }),
    ] {
        let mut request = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2 });
        let Value::Object(body) = body else {
            panic!("an object")
        };
        request.as_object_mut().expect("an object").extend(body);
        server.post_ok(CHAT, &request).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_fit_the_template_whatever_their_order() {
    let Some(server) = start(ALTERNATES).await else {
        return;
    };
    let said = |turns: &[(&str, &str)]| -> Value {
        let message = |(role, content): &(&str, &str)| json!({ "role": role, "content": content });
        turns.iter().map(message).collect()
    };
    let check = async |turns: &[(&str, &str)], expected: &str| {
        assert_eq!(rendered(&server, &said(turns)).await, expected, "{turns:?}");
    };
    check(&[("user", "a"), ("user", "b")], "user: a\n\nb\n").await;
    check(
        &[("system", "s"), ("system", "t"), ("user", "a")],
        "[s\n\nt]user: a\n",
    )
    .await;
    check(
        &[("user", "a"), ("assistant", "b"), ("system", "s"), ("user", "c")],
        "user: a\nassistant: b\nuser: s\n\nc\n",
    )
    .await;
    check(&[("user", "a"), ("system", "s")], "user: a\n\ns\n").await;
    check(&[("assistant", "b"), ("user", "a")], "assistant: b\nuser: a\n").await;
    // The result and the user's text follow each other.
    let prompt = rendered(&server, &called(&json!("{}"))).await;
    assert_eq!(prompt, "user: Hi\nassistant: <{}>\ntool: error\nuser: Go on\n");
    let system = json!([{ "role": "user", "content": "a" }, { "role": "system", "content": [{ "type": "text", "text": "s" }] }]);
    for path in [MESSAGES, "/v1/messages/count_tokens"] {
        server
            .post_ok(path, &json!({ "messages": system, "max_tokens": 2 }))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn billing_headers_are_dropped() {
    let Some(server) = start(OBJECTS).await else {
        return;
    };
    let counted = async |system: Value| {
        let body = json!({ "system": system, "messages": [{ "role": "user", "content": "Hi" }] });
        server.post_ok("/v1/messages/count_tokens", &body).await["input_tokens"].clone()
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let plain = counted(json!([text("Be brief.")])).await;
    let billed = counted(json!([
        text("x-anthropic-billing-header: cc_version=2.1.197.84c;"),
        text("Be brief.")
    ]))
    .await;
    assert_eq!(plain, billed);
}

/// An image of one pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test(flavor = "multi_thread")]
async fn images_in_results_do_not_end_a_conversation() {
    let Some(server) = start(OBJECTS).await else {
        return;
    };
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": PIXEL } });
    let elsewhere =
        json!({ "type": "image", "source": { "type": "url", "url": "https://example.org/a.png" } });
    for content in [
        json!([{ "type": "text", "text": "shot" }, image]),
        json!([image]),
        json!([elsewhere]),
    ] {
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": content });
        let call = json!({ "type": "tool_use", "id": "t", "name": "w", "input": {} });
        let messages = json!([{ "role": "user", "content": "Look" }, { "role": "assistant", "content": [call] },
            { "role": "user", "content": [result] }]);
        server
            .post_ok(MESSAGES, &json!({ "messages": messages, "max_tokens": 2 }))
            .await;
    }
    let output = json!([{ "type": "input_text", "text": "shot" },
        { "type": "input_image", "image_url": format!("data:image/png;base64,{PIXEL}") }]);
    let input = json!([{ "role": "user", "content": "Look" },
        { "type": "function_call", "call_id": "c", "name": "w", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": output }]);
    server
        .post_ok(RESPONSES, &json!({ "input": input, "max_output_tokens": 16 }))
        .await;
    let shown = json!([{ "role": "user", "content": "Look" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "c", "type": "function", "function": { "name": "w", "arguments": "{}" } }] },
        { "role": "tool", "tool_call_id": "c", "content": [{ "type": "text", "text": "shot" },
            { "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{PIXEL}") } }] }]);
    let prompt = rendered(&server, &shown).await;
    assert!(
        prompt.contains("tool: shot\n[An image, which this model cannot see.]"),
        "{prompt}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_is_told_in_each_apis_words() {
    let Some(server) = start(OBJECTS).await else {
        return;
    };
    let messages = json!([{ "role": "user", "content": "word ".repeat(9000) }]);
    let reply = server
        .post(MESSAGES, &json!({ "messages": messages, "max_tokens": 5 }))
        .await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("prompt is too long: "), "{}", reply.text());
    let reply = server.post(CHAT, &json!({ "messages": messages })).await;
    assert!(
        reply.text().contains("context_length_exceeded"),
        "{}",
        reply.text()
    );
}
