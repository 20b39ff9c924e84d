//! Tests the behaviour that clients of llama.cpp's server and of vLLM rely on, with the demo model.

use serde_json::{Value, json};
use tokenmill_server::{RequestDefaults, ServerConfig};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::server::{Setup, TestServer};

/// Counts the tokens of a prompt at `/v1/completions`.
async fn n_prompt(server: &TestServer, prompt: &Value) -> u64 {
    let body = json!({ "prompt": prompt, "max_tokens": 1 });
    let reply = server.post_ok("/v1/completions", &body).await;
    reply["usage"]["prompt_tokens"].as_u64().expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_a_client_wrote_is_the_one_that_the_template_writes() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let messages = json!([{ "role": "user", "content": "What is 3 + 4?" }]);
    let chat = json!({ "messages": messages, "max_tokens": 4, "temperature": 0 });
    let chat = server.post_ok("/v1/chat/completions", &chat).await;
    let n_tokens = chat["usage"]["prompt_tokens"].as_u64().expect("a count");
    let rendered = server
        .post_ok("/apply-template", &json!({ "messages": messages }))
        .await["prompt"]
        .clone();
    let text = rendered.as_str().expect("a text");
    assert!(!text.starts_with("<|bos|>"), "{text}");
    assert_eq!(n_prompt(&server, &rendered).await, n_tokens);
    // A prompt with the BOS token does not get another.
    assert_eq!(
        n_prompt(&server, &json!(format!("<|bos|>{text}"))).await,
        n_tokens
    );
    for path in ["/completion", "/v1/completions"] {
        let body = json!({ "prompt": text, "max_tokens": 4, "temperature": 0 });
        let reply = server.post_ok(path, &body).await;
        let said = match path {
            "/completion" => &reply["content"],
            _ => &reply["choices"][0]["text"],
        };
        assert_eq!(*said, chat["choices"][0]["message"]["content"], "{path}");
    }
    let count = json!({ "messages": messages });
    let counted = server.post_ok("/v1/chat/completions/input_tokens", &count).await;
    assert_eq!(counted["input_tokens"], n_tokens);
    let count = json!({ "input": "What is 3 + 4?" });
    let counted = server.post_ok("/v1/responses/input_tokens", &count).await;
    assert_eq!(counted["input_tokens"], n_tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_tokenized_with_their_control_tokens_and_pieces_of_characters_are_bytes() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let count = async |body: Value| server.post_ok("/tokenize", &body).await["count"].clone();
    assert_eq!(count(json!({ "content": "<|end|>" })).await, 1);
    assert!(
        count(json!({ "content": "<|end|>", "parse_special": false }))
            .await
            .as_u64()
            > Some(1)
    );
    let pieces = json!({ "content": "🙂", "with_pieces": true });
    let pieces = server.post_ok("/tokenize", &pieces).await;
    let mut bytes = Vec::new();
    for token in pieces["tokens"].as_array().expect("tokens") {
        match &token["piece"] {
            Value::String(text) => bytes.extend(text.bytes()),
            piece => bytes.extend(
                piece
                    .as_array()
                    .expect("bytes")
                    .iter()
                    .map(|byte| byte.as_u64().unwrap() as u8),
            ),
        }
    }
    assert_eq!(bytes, "🙂".as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_without_a_version_and_a_model_are_llama_cpps() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "prompt": "Once", "n_predict": 2, "temperature": 0 });
    let own = server.post_ok("/completions", &body).await;
    assert_eq!(
        own["content"],
        server.post_ok("/completion", &body).await["content"]
    );
    let openai = json!({ "model": "demo", "prompt": "Once", "max_tokens": 2, "temperature": 0 });
    let reply = server.post_ok("/completions", &openai).await;
    assert_eq!(reply["choices"][0]["text"], own["content"]);
    assert_eq!(
        server.post_ok("/v1/completions", &body).await["choices"][0]["text"],
        own["content"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_inputs_come_as_objects_and_in_pieces() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let said = async |prompt: Value| {
        let body = json!({ "prompt": prompt, "n_predict": 3, "temperature": 0 });
        server.post_ok("/completion", &body).await
    };
    let plain = said(json!("Once upon")).await;
    assert_eq!(
        said(json!({ "prompt_string": "Once upon" })).await["content"],
        plain["content"]
    );
    let both = said(json!([{ "prompt_string": "Once upon" }, "Once upon"])).await;
    assert_eq!(both[0]["content"], both[1]["content"]);
    let image = json!({ "prompt": { "prompt_string": "<__media__>", "multimodal_data": ["aGk="] } });
    let refused = server.post("/completion", &image).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("messages"))
    );
    let inputs = json!({ "input": ["a b", { "content": [{ "type": "text", "text": "a " }, { "type": "text", "text": "b" }] },
        { "prompt_string": "a b" }, [1, "a b"]] });
    let vectors = server.post_ok("/v1/embeddings", &inputs).await;
    assert_eq!(vectors["data"][0]["embedding"], vectors["data"][1]["embedding"]);
    assert_eq!(vectors["data"][0]["embedding"], vectors["data"][2]["embedding"]);
    assert_eq!(vectors["data"].as_array().map(Vec::len), Some(4));
    let one = server
        .post_ok("/v1/embeddings", &json!({ "input": [1, "a", 2] }))
        .await;
    assert_eq!(one["data"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_says_what_it_was_made_with_and_how_it_ended() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "prompt": "Once", "n_predict": 2, "ignore_eos": true, "seed": 42, "logit_bias": [[" the", false]] });
    let reply = server.post_ok("/completion", &body).await;
    let settings = &reply["generation_settings"];
    assert_eq!(
        (&settings["seed"], &settings["n_predict"]),
        (&json!(42), &json!(2))
    );
    let biases = settings["logit_bias"].as_array().expect("a list");
    assert!(
        biases.len() > 1 && biases.iter().all(|bias| bias["bias"].is_null()),
        "{settings}"
    );
    assert_eq!(reply["truncated"], false);
    for field in ["prompt_per_token_ms", "predicted_per_token_ms"] {
        assert!(
            reply["timings"][field].as_f64().expect("a number") >= 0.0,
            "{field}"
        );
    }
    let n_ctx = server.app.model.engine().limits().n_ctx;
    let long = json!({ "prompt": vec![5; n_ctx - 3], "ignore_eos": true });
    let filled = server.post_ok("/completion", &long).await;
    assert_eq!(
        (&filled["truncated"], &filled["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    let too_long = server
        .post("/completion", &json!({ "prompt": vec![5; n_ctx + 1] }))
        .await
        .json();
    let error = &too_long["error"];
    assert_eq!(
        (
            &error["type"],
            &error["code"],
            &error["n_ctx"],
            &error["n_prompt_tokens"]
        ),
        (
            &json!("exceed_context_size_error"),
            &json!("context_length_exceeded"),
            &json!(n_ctx),
            &json!(n_ctx + 1)
        )
    );
    let long = json!({ "model": "demo", "max_tokens": 1, "messages": [{ "role": "user", "content": "word ".repeat(n_ctx) }] });
    let told = server.post("/v1/messages", &long).await;
    assert!(told.text().contains("prompt is too long: "), "{}", told.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_computed_anew_where_the_cache_is_declined() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let cached = async |caches: bool| {
        let body = json!({ "prompt": "word ".repeat(40), "n_predict": 1, "cache_prompt": caches });
        server.post_ok("/completion", &body).await["timings"]["cache_n"].as_u64()
    };
    assert_eq!(cached(false).await, Some(0));
    assert_eq!(cached(true).await, Some(0), "the one before is not found");
    assert!(cached(true).await > Some(0));
    assert_eq!(cached(false).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn token_ids_end_an_answer_and_are_told_with_scores_of_the_prompt() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let whole = json!({ "prompt": "Once upon a", "max_tokens": 4, "temperature": 0, "return_token_ids": true, "prompt_logprobs": 2,
        "n": 2 });
    let reply = server.post_ok("/v1/completions", &whole).await;
    for choice in reply["choices"].as_array().expect("choices") {
        let prompt = choice["prompt_token_ids"].as_array().expect("ids");
        let scores = choice["prompt_logprobs"].as_array().expect("scores");
        assert_eq!(prompt.len(), scores.len());
        assert!(scores[0].is_null());
        for (id, score) in prompt.iter().zip(scores).skip(1) {
            let own = &score[id.to_string()];
            assert!(own["logprob"].as_f64().expect("a score") <= 0.0, "{score}");
            assert!(score.as_object().expect("by id").len() >= 2, "{score}");
        }
    }
    let ids = reply["choices"][0]["token_ids"].as_array().expect("ids").clone();
    assert_eq!(ids.len(), 4);
    let mut streamed = whole.clone();
    streamed["stream"] = json!(true);
    streamed["n"] = json!(1);
    let mut exchange = server.post_stream("/v1/completions", &streamed).await;
    assert_eq!(exchange.head().await.0, 200);
    let mut told: Vec<Value> = Vec::new();
    let mut is_first = true;
    while let Some(data) = exchange.event().await.filter(|data| data != "[DONE]") {
        let chunk: Value = serde_json::from_str(&data).expect("a chunk");
        let choice = &chunk["choices"][0];
        assert_eq!(
            choice["prompt_token_ids"].is_array(),
            std::mem::take(&mut is_first),
            "{choice}"
        );
        told.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(told, ids);
    let stopped = json!({ "prompt": "Once upon a", "max_tokens": 4, "temperature": 0, "stop_token_ids": [ids[2]], "return_token_ids": true });
    let stopped = server.post_ok("/v1/completions", &stopped).await;
    let choice = &stopped["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &stopped["usage"]["completion_tokens"]),
        (&json!("stop"), &json!(2))
    );
    let unknown = json!({ "prompt": "Once", "stop_token_ids": [1 << 30] });
    let refused = server.post("/v1/completions", &unknown).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("stop_token_ids"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_defaults_and_switches_are_obeyed() {
    let sampling = json!({ "temperature": 0.0, "seed": 42 });
    let server = ServerConfig {
        defaults: RequestDefaults {
            sampling: sampling.as_object().cloned().expect("an object"),
            max_tokens: Some(3),
            thinking_budget: None,
            is_verbose: true,
        },
        has_page: false,
        tells_slots: false,
        ..ServerConfig::default()
    };
    let setup = Setup {
        server,
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let messages = json!([{ "role": "user", "content": "Tell me a story." }]);
    let first = server
        .post_ok("/v1/chat/completions", &json!({ "messages": messages }))
        .await;
    let again = server
        .post_ok("/v1/chat/completions", &json!({ "messages": messages }))
        .await;
    assert_eq!(first["choices"][0]["message"], again["choices"][0]["message"]);
    assert_eq!(first["usage"]["completion_tokens"], 3);
    let prompt = first["__verbose"]["prompt"].as_str().expect("the prompt");
    assert!(prompt.contains("Tell me a story."), "{prompt}");
    let longer = json!({ "messages": messages, "max_tokens": 5, "verbose": false });
    let longer = server.post_ok("/v1/chat/completions", &longer).await;
    assert_eq!(
        (&longer["usage"]["completion_tokens"], &longer["__verbose"]),
        (&json!(5), &Value::Null)
    );
    let ollama = json!({ "messages": messages, "stream": false });
    assert_eq!(server.post_ok("/api/chat", &ollama).await["eval_count"], 3);
    let props = server.get("/props").await.json();
    assert_eq!(props["default_generation_settings"]["params"]["seed"], 42);
    assert_eq!(server.get("/slots").await.status, 501);
    assert_eq!(server.get("/").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_have_llama_cpps_names_and_count_as_it_does() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let mut sums = [0.0; 3];
    for _ in 0..2 {
        let body = json!({ "prompt": "word ".repeat(40), "n_predict": 4, "ignore_eos": true });
        let timings = server.post_ok("/completion", &body).await["timings"].clone();
        for (sum, field) in sums.iter_mut().zip(["prompt_n", "cache_n", "predicted_n"]) {
            *sum += timings[field].as_f64().expect("a count");
        }
    }
    let text = server.get("/metrics").await.text().to_owned();
    let value = |name: &str| -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("llamacpp:{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .parse()
            .expect("a number")
    };
    assert_eq!(
        [
            value("prompt_tokens_total"),
            value("prompt_tokens_cached_total"),
            value("tokens_predicted_total")
        ],
        sums
    );
    assert!(text.contains("# TYPE llamacpp:n_tokens_max counter\n"), "{text}");
    assert!(value("n_decode_total") > 0.0 && value("predicted_tokens_seconds") > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_written_as_by_llama_cpp() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
    let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.expect("it is read");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("an answer");
    assert!(reply.contains("\r\nContent-Type: application/json"), "{reply}");
}
