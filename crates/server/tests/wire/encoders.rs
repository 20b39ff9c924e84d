//! Endpoints of models that embed and rank, on tiny ones with random weights.

use serde_json::{Value, json};

use crate::server::TestServer;

fn numbers(item: &Value) -> Vec<f64> {
    let numbers = item["embedding"].as_array().expect("numbers");
    numbers.iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_embeds_in_as_many_dimensions_as_asked_for() {
    let server = TestServer::start_tiny("nomic_bert").await;
    let input = json!(["the cat sat", "a dog"]);
    let whole = server.post_ok("/v1/embeddings", &json!({ "input": input })).await;
    let cut = json!({ "input": input, "dimensions": 16 });
    let cut = server.post_ok("/v1/embeddings", &cut).await;
    for i in 0..2 {
        let (whole, cut) = (numbers(&whole["data"][i]), numbers(&cut["data"][i]));
        assert_eq!((whole.len(), cut.len()), (64, 16));
        let norm = whole[..16].iter().map(|x| x * x).sum::<f64>().sqrt();
        for (whole, cut) in whole.iter().zip(&cut) {
            assert!((whole / norm - cut).abs() < 1e-6);
        }
    }
    for dimensions in [0, 65] {
        let body = json!({ "input": "a", "dimensions": dimensions });
        let reply = server.post("/v1/embeddings", &body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], "dimensions");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_refuses_to_write_and_to_rank() {
    let server = TestServer::start_tiny("nomic_bert").await;
    let messages = json!([{ "role": "user", "content": "hello" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/completions", json!({ "prompt": "hello" })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 4 })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
    }
    let long = json!({ "input": "cat ".repeat(5000) });
    let reply = server.post("/v1/embeddings", &long).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("2048"), "{}", reply.text());
}
