//! Bad requests: each has its documented status, names its fault, and leaves the server as it was.

use serde_json::{Value, json};
use tokenmill_server::{ApiKeys, ServerConfig};

use crate::{
    server::{Setup, TestServer},
    wire::Exchange,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

async fn post_bytes(server: &TestServer, path: &str, body: &[u8]) -> (u16, Value) {
    let reply = Exchange::send(&server.address, "POST", path, &[], body)
        .await
        .reply()
        .await;
    (reply.status, reply.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_named() {
    let strict = Setup {
        server: ServerConfig {
            strict_model_names: true,
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(strict).await else {
        return;
    };
    let hello = r#""messages":[{"role":"user","content":"hi"}]"#;
    let chat = |more: &str| (CHAT, format!("{{{hello},{more}}}"));
    let of = |path: &'static str, body: &str| (path, body.to_owned());
    for body in ["{", "", "[1]", &"[".repeat(100_000)] {
        check_fault(&server, of(CHAT, body), 400, "malformed_json", None).await;
    }
    let scored = format!(
        r#"{{"prompt":[{}],"echo":true,"logprobs":20,"n":128,"max_tokens":1}}"#,
        ["[1,1,1,1,1]"; 60].join(",")
    );
    for (request, param) in [
        (of(CHAT, "{}"), "messages"),
        (of(CHAT, r#"{"messages":[]}"#), "messages"),
        (of(CHAT, r#"{"messages":"hi"}"#), "messages"),
        (
            of(CHAT, r#"{"messages":[{"role":"user","content":7}]}"#),
            "messages[0].content",
        ),
        (
            of(CHAT, r#"{"messages":[{"role":"robot","content":"hi"}]}"#),
            "messages[0].role",
        ),
        (chat(r#""temperature":"hot""#), "temperature"),
        (chat(r#""temperature":3"#), "temperature"),
        (chat(r#""max_tokens":-2"#), "max_tokens"),
        (chat(r#""n":0"#), "n"),
        (chat(r#""n":1000"#), "n"),
        (chat(r#""stop":"""#), "stop"),
        (
            chat(r#""tools":[{"type":"function","function":{"description":"d"}}]"#),
            "tools[0].function.name",
        ),
        (
            chat(r#""tool_choice":{"type":"function","function":{"name":"f"}}"#),
            "tool_choice",
        ),
        (
            chat(r#""response_format":{"type":"xml"}"#),
            "response_format.type",
        ),
        (chat(r#""stream_options":{}"#), "stream_options"),
        (of(COMPLETIONS, &scored), "echo"),
        (of(COMPLETIONS, r#"{"prompt":[]}"#), "prompt"),
        (of(COMPLETIONS, r#"{"prompt":[99999]}"#), "prompt"),
        (
            of(COMPLETIONS, r#"{"prompt":"a","echo":true,"logprobs":21}"#),
            "logprobs",
        ),
        (
            of("/v1/embeddings", r#"{"input":"a","dimensions":0}"#),
            "dimensions",
        ),
        (
            of("/v1/responses", r#"{"input":"a","previous_response_id":"x"}"#),
            "previous_response_id",
        ),
        (of("/detokenize", r#"{"tokens":[99999]}"#), "tokens"),
    ] {
        check_fault(&server, request, 400, "invalid_value", Some(param)).await;
    }
    for (more, status, code, param) in [
        (r#""model":"gpt-9""#, 404, "model_not_found", "model"),
        (r#""temprature":1"#, 400, "unknown_parameter", "temprature"),
        (r#""tools":[{}]"#, 400, "unsupported_parameter", "tools[0].type"),
    ] {
        check_fault(&server, chat(more), status, code, Some(param)).await;
    }
    server.assert_idle().await;
}

/// Posts a body, and compares status, code and field of its refusal.
async fn check_fault(
    server: &TestServer,
    (path, body): (&str, String),
    status: u16,
    code: &str,
    param: Option<&str>,
) {
    let (found, error) = post_bytes(server, path, body.as_bytes()).await;
    let error = &error["error"];
    let shown: String = body.chars().take(100).collect();
    assert_eq!(
        (found, error["code"].as_str(), error["param"].as_str()),
        (status, Some(code), param),
        "{shown}: {error}"
    );
    let message = error["message"].as_str();
    assert!(message.is_some_and(|message| message.len() > 10), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_text_are_malformed() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for body in [
        &b"{\"prompt\":\"\xff\xfe\"}"[..],
        b"\x00",
        b"{\"prompt\":\"\xc3\"}",
    ] {
        let (status, error) = post_bytes(&server, COMPLETIONS, body).await;
        assert_eq!((status, &error["error"]["code"]), (400, &json!("malformed_json")));
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_is_told_both_numbers() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let n_ctx = server.app.model.engine().limits().n_ctx;
    let prompt = vec![5; n_ctx + 9];
    let body = json!({ "prompt": prompt });
    let reply = server.post(COMPLETIONS, &body).await;
    let error = reply.json()["error"].clone();
    assert_eq!(
        (reply.status, &error["code"]),
        (400, &json!("context_length_exceeded"))
    );
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains(&(n_ctx + 9).to_string()) && message.contains(&n_ctx.to_string()),
        "{message}"
    );
    let chat = json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "word ".repeat(n_ctx) }] });
    let reply = server.post("/v1/messages", &chat).await;
    assert_eq!((reply.status, &reply.json()["type"]), (400, &json!("error")));
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_megabytes_are_refused_readably() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = vec![b' '; 100 << 20];
    let (status, error) = post_bytes(&server, CHAT, &body).await;
    assert_eq!((status, &error["error"]["code"]), (413, &json!("body_too_large")));
    // A client that asks first is told before it sends anything.
    let head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 104857600\r\n\r\n";
    assert_eq!(
        Exchange::write(&server.address, head).await.reply().await.status,
        413
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_keys_open() {
    let setup = Setup {
        server: ServerConfig {
            api_keys: ApiKeys::from_lines("alpha\nbeta"),
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let body = json!({ "prompt": "One", "max_tokens": 1 }).to_string();
    let ask = async |headers: &[(&str, &str)]| {
        Exchange::send(&server.address, "POST", COMPLETIONS, headers, body.as_bytes())
            .await
            .reply()
            .await
    };
    assert_eq!(ask(&[("authorization", "Bearer beta")]).await.status, 200);
    assert_eq!(ask(&[("x-api-key", "alpha")]).await.status, 200);
    for headers in [
        &[][..],
        &[("authorization", "Bearer alph")],
        &[("authorization", "Bearer ")],
        &[("authorization", "alpha")],
        &[("x-api-key", "gamma")],
    ] {
        let refused = ask(headers).await;
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some("Bearer")),
            "{headers:?}"
        );
        assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    }
    let message = Exchange::send(&server.address, "POST", "/v1/messages", &[], b"{}")
        .await
        .reply()
        .await;
    assert_eq!(
        (message.status, &message.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    for (path, status) in [
        ("/metrics", 401),
        ("/v1/models", 401),
        ("/livez", 200),
        ("/readyz", 200),
        ("/", 200),
    ] {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_methods_and_path_tricks_lead_nowhere() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/web/../../etc/passwd", 404),
        ("GET", "/web/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/web/%2e%2e/style.css", 404),
        ("GET", "//etc/passwd", 404),
        ("GET", "/web/style.css%00.js", 404),
        ("GET", "/v1/models/%ff", 404),
        ("GET", "/web/%ff", 404),
    ] {
        let reply = Exchange::send(&server.address, method, path, &[], b"")
            .await
            .reply()
            .await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert!(reply.json()["error"]["message"].is_string(), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn origins_are_closed_unless_named() {
    let preflight = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "POST"),
    ];
    let Some(closed) = TestServer::start().await else {
        return;
    };
    let reply = Exchange::send(&closed.address, "OPTIONS", CHAT, &preflight, b"")
        .await
        .reply()
        .await;
    assert_eq!(reply.header("access-control-allow-origin"), None);
    let setup = Setup {
        server: ServerConfig {
            cors_origins: vec!["https://a.example".to_owned()],
            ..ServerConfig::default()
        },
        ..Setup::default()
    };
    let named = TestServer::start_with(setup).await.expect("the model is there");
    let reply = Exchange::send(&named.address, "OPTIONS", CHAT, &preflight, b"")
        .await
        .reply()
        .await;
    assert_eq!(
        reply.header("access-control-allow-origin"),
        Some("https://a.example")
    );
    // As OpenAI's package for browsers asks.
    let headers = "authorization,content-type,x-stainless-lang";
    let asking = [
        preflight[0],
        preflight[1],
        ("access-control-request-headers", headers),
    ];
    let reply = Exchange::send(&named.address, "OPTIONS", CHAT, &asking, b"")
        .await
        .reply()
        .await;
    assert_eq!(reply.header("access-control-allow-headers"), Some(headers));
    let other = [
        ("origin", "https://b.example"),
        ("access-control-request-method", "POST"),
    ];
    let reply = Exchange::send(&named.address, "OPTIONS", CHAT, &other, b"")
        .await
        .reply()
        .await;
    assert_eq!(reply.header("access-control-allow-origin"), None);
}
