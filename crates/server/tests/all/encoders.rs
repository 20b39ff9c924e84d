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

#[tokio::test(flavor = "multi_thread")]
async fn a_reranker_lists_the_best_documents_first() {
    let server = TestServer::start_tiny("xlmr_rerank").await;
    let documents = json!(["a mat", { "text": "the cat sat on the mat" }, "nothing of it"]);
    let body = json!({ "query": "where is the cat", "documents": documents });
    let all = server.post_ok("/v1/rerank", &body).await;
    let results = all["results"].as_array().expect("results");
    assert_eq!(results.len(), 3);
    let scores: Vec<f64> = (results.iter())
        .map(|result| result["relevance_score"].as_f64().expect("a score"))
        .collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert!(results.iter().all(|result| result.get("document").is_none()));
    assert!(all["usage"]["total_tokens"].as_u64() > Some(10));
    for path in ["/rerank", "/v2/rerank", "/reranking", "/v1/reranking"] {
        let body = json!({
            "query": "where is the cat", "documents": documents, "top_n": 1, "return_documents": true
        });
        let best = server.post_ok(path, &body).await;
        let best = best["results"].as_array().expect("results").clone();
        assert_eq!(best.len(), 1);
        assert_eq!(best[0]["index"], results[0]["index"]);
        assert!(best[0]["document"]["text"].is_string());
    }
    for (body, param) in [
        (json!({ "query": "a", "documents": [] }), "documents"),
        (json!({ "query": "a", "documents": ["b"], "top_n": 0 }), "top_n"),
        (
            json!({ "query": "a", "documents": ["b"], "instruction": "find" }),
            "instruction",
        ),
    ] {
        let reply = server.post("/v1/rerank", &body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], param);
    }
    let reply = server.post("/v1/embeddings", &json!({ "input": "a" })).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("ranks documents"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_are_scored_in_the_order_of_the_request() {
    let server = TestServer::start_tiny("xlmr_rerank").await;
    let (query, texts) = ("where is the cat", ["a mat", "the cat sat on the mat"]);
    let ranked = json!({ "query": query, "documents": texts });
    let ranked = server.post_ok("/v1/rerank", &ranked).await;
    for body in [
        json!({ "text_1": query, "text_2": texts }),
        json!({ "text_1": [query], "text_2": texts }),
        json!({ "text_1": [query, query], "text_2": texts }),
    ] {
        let scored = server.post_ok("/v1/score", &body).await;
        let data = scored["data"].as_array().expect("scores");
        assert_eq!(data.len(), texts.len());
        for result in ranked["results"].as_array().expect("results") {
            let index = usize::try_from(result["index"].as_u64().expect("an index")).expect("it is small");
            assert_eq!(data[index]["index"], index);
            assert_eq!(data[index]["object"], "score");
            assert_eq!(data[index]["score"], result["relevance_score"]);
        }
        assert_eq!(scored["usage"], ranked["usage"]);
    }
    for (body, param) in [
        (json!({ "text_2": "b" }), "text_1"),
        (json!({ "text_1": "a", "text_2": [] }), "text_2"),
        (json!({ "text_1": [], "text_2": [] }), "text_2"),
        (json!({ "text_1": ["a", "b"], "text_2": ["c"] }), "text_2"),
        (
            json!({ "text_1": "a", "text_2": "b", "truncate_prompt_tokens": 3 }),
            "truncate_prompt_tokens",
        ),
    ] {
        let reply = server.post("/score", &body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert_eq!(reply.json()["error"]["param"], param);
    }
}
