//! Tests that a server's only model answers requests with any model name, and reports its own name.

use serde_json::json;

use crate::server::TestServer;

#[tokio::test(flavor = "multi_thread")]
async fn the_one_model_answers_any_name_and_names_itself() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 1 }),
        ),
        ("/v1/completions", json!({ "prompt": "Hi", "max_tokens": 1 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 1 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": "Hi", "max_output_tokens": 1 })),
        ("/completion", json!({ "prompt": "Hi", "n_predict": 1 })),
        ("/tokenize", json!({ "content": "Hi" })),
        (
            "/api/chat",
            json!({ "messages": messages, "stream": false, "options": { "num_predict": 1 } }),
        ),
    ] {
        let mut body = body;
        body["model"] = json!("gpt-3.5-turbo");
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        if let Some(named) = reply.json()["model"].as_str() {
            assert!(named.starts_with("demo"), "{path}: {named}");
        }
    }
    let described = server.get("/v1/models/gpt-3.5-turbo").await;
    assert_eq!((described.status, &described.json()["id"]), (200, &json!("demo")));
    // Clients of Ollama ask this to learn whether they have to download it.
    let show = json!({ "model": "gpt-3.5-turbo" });
    assert_eq!(server.post("/api/show", &show).await.status, 404);
}
