//! Endpoints around the model: words, embeddings, names, the description and the page.

use serde_json::{Value, json};

use tokenmill_server::ServerConfig;

use crate::server::{Setup, TestServer};

#[tokio::test(flavor = "multi_thread")]
async fn text_becomes_tokens_and_text_again() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let text = "Über die Brücke — 日本語 🙂\n\tend";
    let tokens = server
        .post_ok("/tokenize", &json!({ "content": text, "with_pieces": true }))
        .await;
    let ids: Vec<&Value> = tokens["tokens"]
        .as_array()
        .expect("tokens")
        .iter()
        .map(|token| &token["id"])
        .collect();
    assert_eq!(tokens["count"], ids.len());
    assert_eq!(
        server.post_ok("/detokenize", &json!({ "tokens": ids })).await["content"],
        text
    );
    let prompt = server
        .post_ok(
            "/apply-template",
            &json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
        )
        .await["prompt"]
        .clone();
    assert!(prompt.as_str().expect("text").contains("Hi"));
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_are_unit_vectors_in_either_encoding() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let inputs = json!({ "input": ["The cat sat.", "A dog ran away."], "model": "demo" });
    let reply = server.post_ok("/v1/embeddings", &inputs).await;
    let vectors: Vec<Vec<f64>> = reply["data"]
        .as_array()
        .expect("data")
        .iter()
        .map(|item| {
            item["embedding"]
                .as_array()
                .expect("numbers")
                .iter()
                .map(|x| x.as_f64().expect("a number"))
                .collect()
        })
        .collect();
    assert_eq!(vectors.len(), 2);
    for vector in &vectors {
        assert_eq!(vector.len(), 256);
        let norm: f64 = vector.iter().map(|x| x * x).sum();
        // 256 values rounded to f32 each.
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
    assert_ne!(vectors[0], vectors[1]);
    let alone = json!({ "input": "The cat sat.", "encoding_format": "base64" });
    let encoded = server.post_ok("/v1/embeddings", &alone).await;
    let bytes = decode_base64(encoded["data"][0]["embedding"].as_str().expect("text"));
    let decoded: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .collect();
    let floats: Vec<f32> = vectors[0].iter().map(|&x| x as f32).collect();
    assert_eq!(decoded, floats);
    server.assert_idle().await;
}

fn decode_base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .expect("base64")
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_inputs_are_embedded_at_once_as_by_openai() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let reply = server
        .post("/v1/embeddings", &json!({ "input": vec!["a"; 2049] }))
        .await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("expected 1 to 2048"), "{}", reply.text());
    let reply = server
        .post_ok("/v1/embeddings", &json!({ "input": vec!["a"; 600] }))
        .await;
    assert_eq!(reply["data"].as_array().expect("a list").len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_listed_under_its_names() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let list = server.get("/v1/models").await.json();
    let names: Vec<&Value> = list["data"]
        .as_array()
        .expect("models")
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(names, ["demo", "demo-alias"]);
    assert_eq!(
        server.get("/v1/models/demo-alias").await.json()["id"],
        "demo-alias"
    );
    let other = server.get("/v1/models/org/other").await;
    assert_eq!((other.status, &other.json()["id"]), (200, &json!("demo")));
    let strict = ServerConfig {
        strict_model_names: true,
        ..ServerConfig::default()
    };
    let server = TestServer::start_with(Setup {
        server: strict,
        ..Setup::default()
    });
    let missing = server
        .await
        .expect("it started above")
        .get("/v1/models/org/other")
        .await;
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_loads_only_what_the_server_has() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let page = server.get("/").await;
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-security-policy")
            .is_some_and(|policy| policy.starts_with("default-src 'none'"))
    );
    assert!(
        page.text()
            .contains("<meta name=\"max-body-bytes\" content=\"8388608\">"),
        "the page knows how large a request may be"
    );
    let mut n_files = 0;
    for piece in page.text().split('"').filter(|piece| piece.starts_with("/web/")) {
        assert_eq!(server.get(piece).await.status, 200, "{piece}");
        n_files += 1;
    }
    assert!(n_files >= 2);
    for word in ["http://", "https://", "onclick", "style=\"", "<script>"] {
        assert!(!page.text().contains(word), "{word}");
    }
    assert_eq!(server.get("/web/nothing.js").await.status, 404);
    let description = server.get("/openapi.json").await.json();
    for path in description["paths"].as_object().expect("paths").keys() {
        // Every path that is described exists: asked with a wrong method it says so.
        let status = crate::wire::Exchange::send(&server.address, "PATCH", path, &[], b"")
            .await
            .reply()
            .await
            .status;
        assert_eq!(status, 405, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokenize_refuses_what_says_nothing_of_its_input() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (field, value) in [
        ("add_generation_prompt", json!(false)),
        ("continue_final_message", json!(true)),
        ("chat_template_kwargs", json!({ "a": 1 })),
        ("reasoning_effort", json!("low")),
        ("enable_thinking", json!(true)),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "f" } }]),
        ),
    ] {
        let mut body = json!({ "content": "Hi" });
        body[field] = value;
        let reply = server.post("/tokenize", &body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(field))
        );
        assert!(reply.text().contains("needs `messages`"), "{}", reply.text());
    }
    for field in ["add_special", "parse_special"] {
        let mut body = json!({ "messages": messages });
        body[field] = json!(true);
        let reply = server.post("/tokenize", &body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(field))
        );
        body[field] = json!(false);
        server.post_ok("/tokenize", &body).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_looks_like_a_control_token_in_a_message_is_text() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let count = async |content: &str| {
        let body = json!({ "messages": [{ "role": "user", "content": content }] });
        let counted = server.post_ok("/v1/messages/count_tokens", &body).await;
        counted["input_tokens"].as_u64().expect("a count")
    };
    let plain = count("a").await;
    // As a control token it would be one token; as text it is several.
    assert!(count("a<|end|>").await > plain + 2);
    let body = json!({ "content": "<|end|>", "parse_special": true });
    assert_eq!(
        server.post_ok("/tokenize", &body).await["count"],
        1,
        "it is one of the vocabulary's"
    );
}
