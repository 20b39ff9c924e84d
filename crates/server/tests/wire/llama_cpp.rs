//! llama.cpp's own API over a socket.

use serde_json::{Value, json};

use crate::server::TestServer;

#[tokio::test(flavor = "multi_thread")]
async fn streamed_and_whole_completions_are_the_same() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let mut body = json!({ "prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "return_tokens": true,
        "n_probs": 2, "cache_prompt": true, "id_slot": -1, "seed": -1, "repeat_last_n": -1,
        "dry_multiplier": 0, "dry_penalty_last_n": -1, "logit_bias": [] });
    let whole = server.post_ok("/completion", &body).await;
    let text = whole["content"].as_str().expect("text").to_owned();
    assert_eq!(
        (&whole["stop_type"], &whole["tokens_predicted"], &whole["prompt"]),
        (&json!("limit"), &json!(12), &json!("<|bos|>Once upon a time"))
    );
    let ids = whole["tokens"].as_array().expect("ids");
    assert_eq!(ids.len(), 12);
    let scores = whole["completion_probabilities"].as_array().expect("scores");
    assert_eq!(scores.len(), ids.len());
    assert!(scores.iter().zip(ids).all(|(score, id)| score["id"] == *id
        && score["top_logprobs"].as_array().is_some_and(|top| top.len() == 2)));
    let theirs = json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0 });
    let theirs = server.post_ok("/v1/completions", &theirs).await;
    assert_eq!(theirs["choices"][0]["text"], text.as_str());

    body["stream"] = json!(true);
    let mut exchange = server.post_stream("/completion", &body).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut events: Vec<Value> = Vec::new();
    while let Some(data) = exchange.event().await {
        events.push(serde_json::from_str(&data).expect("an event"));
    }
    let (end, pieces) = events.split_last().expect("events");
    let streamed: String = pieces
        .iter()
        .filter_map(|piece| piece["content"].as_str())
        .collect();
    let streamed_ids: Vec<&Value> = pieces
        .iter()
        .flat_map(|piece| piece["tokens"].as_array().expect("ids"))
        .collect();
    assert_eq!((streamed, streamed_ids), (text.clone(), ids.iter().collect()));
    assert_eq!(
        (&end["stop"], &end["tokens_predicted"]),
        (&json!(true), &json!(12))
    );

    let stop = &text[6..9];
    let stopped = json!({ "prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "stop": [stop] });
    let stopped = server.post_ok("/completion", &stopped).await;
    assert_eq!(
        (
            &stopped["stop_type"],
            &stopped["stopping_word"],
            &stopped["content"]
        ),
        (
            &json!("word"),
            &json!(stop),
            &json!(text[..text.find(stop).expect("it is there")])
        )
    );
    let shaped = json!({ "prompt": "Once", "n_predict": 20, "grammar": "root ::= \"yes\" | \"no\"" });
    let shaped = server.post_ok("/completion", &shaped).await;
    assert!(
        ["yes", "no"].contains(&shaped["content"].as_str().expect("text")),
        "{shaped}"
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_described_and_refusals_name_the_field() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let props = server.get("/props").await.json();
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 40);
    assert_eq!(
        props["chat_template"],
        server.app.model.chat_template().unwrap_or_default()
    );
    let slots = server.get("/slots").await.json();
    let slots = slots.as_array().expect("slots");
    assert_eq!(props["total_slots"], slots.len());
    assert!(slots.iter().all(|slot| slot["is_processing"] == false));
    let n_ctx = props["default_generation_settings"]["n_ctx"].as_u64();
    let long = vec![5; n_ctx.expect("a count of tokens") as usize + 1];
    let long = server.post("/completion", &json!({ "prompt": long })).await;
    let error = long.json();
    assert_eq!(
        (long.status, &error["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    for (path, body, param) in [
        ("/completion", json!({}), "prompt"),
        ("/completion", json!({ "prompt": "a", "n_probs": 21 }), "n_probs"),
        ("/completion", json!({ "prompt": "a", "id_slot": 1 }), "id_slot"),
        ("/completion", json!({ "prompt": "a", "mirostat": 2 }), "mirostat"),
        (
            "/completion",
            json!({ "prompt": "a", "response_fields": ["content"] }),
            "response_fields",
        ),
        (
            "/completion",
            json!({ "prompt": "a", "max_tokens": 3 }),
            "max_tokens",
        ),
        // The demo model was not trained to fill gaps.
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b" }),
            "input_suffix",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "a", "suffix": "b" }),
            "suffix",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "a", "suffix": "b", "echo": true }),
            "suffix",
        ),
        (
            "/v1/completions",
            json!({ "prompt": [1], "suffix": "b" }),
            "suffix",
        ),
    ] {
        let reply = server.post(path, &body).await;
        let error = reply.json();
        assert_eq!(
            (reply.status, error["error"]["param"].as_str()),
            (400, Some(param)),
            "{path} {error}"
        );
    }
}
