//! llama.cpp's own API over a socket.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Setup, TestServer};

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
async fn a_list_of_prompts_is_answered_by_a_list() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let ask =
        |prompt: Value| json!({ "prompt": prompt, "n_predict": 8, "temperature": 0, "return_tokens": true });
    let texts = ["Once upon a time", "The cat", "<|bos|>Hi"];
    let mut alone = Vec::new();
    for text in texts {
        alone.push(server.post_ok("/completion", &ask(json!(text))).await);
    }
    let ids = server
        .post_ok("/tokenize", &json!({ "content": "The cat", "add_special": true }))
        .await["tokens"]
        .take();
    let check = |answer: &Value, expected: &Value| {
        for field in [
            "content",
            "tokens",
            "tokens_predicted",
            "tokens_evaluated",
            "prompt",
            "stop_type",
        ] {
            assert_eq!(answer[field], expected[field], "{field}");
        }
    };
    let many = server
        .post_ok("/completion", &ask(json!([texts[0], ids, texts[2]])))
        .await;
    let many = many.as_array().expect("a list");
    assert_eq!(many.len(), 3);
    for (index, (answer, expected)) in many.iter().zip(&alone).enumerate() {
        assert_eq!(answer["index"], index);
        check(answer, expected);
    }
    // A list of one text, and text and ids in turn, are one prompt.
    check(
        &server.post_ok("/completion", &ask(json!([texts[0]]))).await,
        &alone[0],
    );
    let bos = ids[0].clone();
    let cat = server
        .post_ok("/tokenize", &json!({ "content": "The cat" }))
        .await["tokens"]
        .take();
    let mixed: Vec<Value> = [bos]
        .into_iter()
        .chain(cat.as_array().expect("ids").clone())
        .collect();
    check(
        &server.post_ok("/completion", &ask(json!(mixed))).await,
        &alone[1],
    );
    let mixed = json!([ids[0], "The cat"]);
    check(&server.post_ok("/completion", &ask(mixed)).await, &alone[1]);

    let mut body = ask(json!(texts));
    body["stream"] = json!(true);
    let mut exchange = server.post_stream("/completion", &body).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut streamed = vec![String::new(); 3];
    let mut n_ends = 0;
    while let Some(data) = exchange.event().await {
        let event: Value = serde_json::from_str(&data).expect("an event");
        let index = event["index"].as_u64().expect("an index") as usize;
        streamed[index].push_str(event["content"].as_str().expect("a text"));
        if event["stop"] == true {
            n_ends += 1;
            for field in ["tokens_predicted", "tokens_evaluated", "prompt"] {
                assert_eq!(event[field], alone[index][field], "{field}");
            }
        }
    }
    assert_eq!(n_ends, 3);
    for (streamed, alone) in streamed.iter().zip(&alone) {
        assert_eq!(alone["content"], streamed.as_str());
    }
    for wrong in [
        json!([]),
        json!([[]]),
        json!([["a", "b"]]),
        json!([1, [2]]),
        json!(vec!["a"; 257]),
    ] {
        let reply = server.post("/completion", &ask(wrong.clone())).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("prompt")),
            "{wrong}: {}",
            reply.text()
        );
    }
    let infill = json!({ "input_prefix": "a", "input_suffix": "b", "prompt": ["c", "d"] });
    let reply = server.post("/infill", &infill).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
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
        ("/completion", json!({ "prompt": "a", "mirostat": 3 }), "mirostat"),
        (
            "/completion",
            json!({ "prompt": "a", "samplers": ["temperature", "top_q"] }),
            "samplers",
        ),
        (
            "/completion",
            json!({ "prompt": "a", "response_fields": "content" }),
            "response_fields",
        ),
        ("/embedding", json!({}), "content"),
        (
            "/completion",
            json!({ "prompt": "a", "max_tokens": "3" }),
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

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_filled_as_editors_ask_for_it() {
    let setup = Setup {
        fills: true,
        // Far more than is asked for, and not at once.
        says: Some(format!("return a;\n    }}\nfn b() {{}}\n{}", "x\n".repeat(900))),
        step_time: Duration::from_millis(2),
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let body = json!({
        "input_prefix": "fn a() {\n", "input_suffix": "\n}\n", "prompt": "    ",
        "input_extra": [{ "text": "fn c() {}\n", "time": [1, 2], "filename": "c.rs" }],
        "n_predict": 64, "n_indent": 4, "top_k": 40, "top_p": 0.99, "stream": false, "id_slot": 0, "seed": 1,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 60000,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_evaluated"],
    });
    let answer = server.post_ok("/infill", &body).await;
    assert_eq!(answer["content"], "return a;\n    }\n", "{answer}");
    let mut alone = body.clone();
    alone["input_extra"] = json!([]);
    // A request is known by its seed.
    alone["seed"] = json!(4);
    let alone = server.post_ok("/infill", &alone).await;
    let n_tokens = |answer: &Value| answer["tokens_evaluated"].as_u64().expect("a count");
    assert!(
        n_tokens(&answer) >= n_tokens(&alone) + 10,
        "the other file is in the prompt: {answer} {alone}"
    );
    assert_eq!(answer.as_object().map(serde_json::Map::len), Some(5), "{answer}");

    // Text after the line is not streamed either.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["seed"] = json!(2);
    let mut exchange = server.post_stream("/infill", &streamed).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut text = String::new();
    while let Some(data) = exchange.event().await {
        let event: Value = serde_json::from_str(&data).expect("an event");
        text.push_str(event["content"].as_str().unwrap_or_default());
    }
    assert_eq!(text, answer["content"]);

    // More of other files than fits: their beginning is left out, and the answer has its place.
    let mut crowded = body.clone();
    crowded["input_extra"] = json!([{ "text": "fn c() {}\n".repeat(1000), "filename": "c.rs" }]);
    crowded["seed"] = json!(3);
    let crowded = server.post_ok("/infill", &crowded).await;
    assert_eq!(crowded["content"], answer["content"]);
    let props = server.get("/props").await.json();
    let n_ctx = props["default_generation_settings"]["n_ctx"].as_u64();
    assert_eq!(Some(n_tokens(&crowded) + 64), n_ctx);

    // The line ends the computing too, and so does the time.
    for (seed, field, value, shown) in [
        (5, "n_indent", 4, "return a;\n    }\n"),
        (6, "t_max_predict_ms", 1, "return a;\n"),
    ] {
        let mut endless =
            json!({ "input_prefix": "fn a() {\n", "input_suffix": "\n}\n", "n_predict": -1, "seed": seed });
        endless[field] = json!(value);
        let ended = server.post_ok("/infill", &endless).await;
        assert_eq!(
            (&ended["content"], &ended["stop_type"]),
            (&json!(shown), &json!("limit")),
            "{field}"
        );
        assert!(ended["tokens_predicted"].as_u64() < Some(900), "{field} {ended}");
    }

    // llama.vim warms the cache with requests for nothing.
    let nothing = json!({ "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "temperature": 0.0,
        "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""],
        "input_extra": [{ "text": "fn c() {}\n", "filename": "c.rs" }] });
    assert_eq!(server.post_ok("/infill", &nothing).await, json!({}));
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_vectors_are_given_in_its_words() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    for path in ["/health", "/v1/health"] {
        let health = server.get(path).await;
        assert_eq!(
            (health.status, health.json()),
            (200, json!({ "status": "ok" })),
            "{path}"
        );
    }
    let vectors = server
        .post_ok("/embedding", &json!({ "content": ["The cat.", "A dog."] }))
        .await;
    let theirs = server
        .post_ok("/v1/embeddings", &json!({ "input": "The cat." }))
        .await;
    assert_eq!(vectors[0]["embedding"][0], theirs["data"][0]["embedding"]);
    assert_eq!(
        (vectors[1]["index"].as_u64(), vectors.as_array().map(Vec::len)),
        (Some(1), Some(2))
    );
}
