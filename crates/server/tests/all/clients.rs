//! Requests of clients and gateways made for other servers: defaults of foreign fields, other forms of paths,
//! prefilled answers, questions about the replica.

use serde_json::{Value, json};

use crate::{server::TestServer, wire::Exchange};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test(flavor = "multi_thread")]
async fn defaults_of_foreign_servers_pass_and_other_values_do_not() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    // As vllm-router writes a request again.
    let routed = json!({
        "model": "demo", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2, "stream": false,
        "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true,
        "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false,
        "include_reasoning": true, "logprobs": false,
    });
    server.post_ok(CHAT, &routed).await;
    let defaults = json!({
        "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2, "add_special_tokens": false, "echo": false,
        "structured_outputs": { "json": null, "disable_fallback": false, "disable_any_whitespace": false },
        "kv_transfer_params": null, "mm_processor_kwargs": null, "chat_template": null, "documents": null,
        "min_keep": 0, "typ_p": 1, "reasoning_in_content": false, "grammar_lazy": false, "xtc_probability": 0.5,
        "xtc_threshold": 0.1, "dynatemp_exponent": 1, "mirostat": 2, "mirostat_tau": 5, "verbosity": "medium",
    });
    server.post_ok(CHAT, &defaults).await;
    let others = json!({
        "model": "", "max_tokens": -1, "cache_prompt": true, "keep_alive": "5m", "think": false,
        "spaces_between_special_tokens": true, "stop": ["."],
        "messages": [
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": "Ho", "reasoning_content": "hm" },
            { "role": "user", "content": "Well?" },
        ],
        "stream": true, "stream_options": { "continuous_usage_stats": false },
    });
    assert_eq!(server.post(CHAT, &others).await.status, 200);
    for (field, value) in [
        ("no_stop_trim", json!(true)),
        ("skip_special_tokens", json!(false)),
        ("keep_alive", json!(0)),
        ("guided_json", json!({ "type": "nonsense" })),
        ("stop_token_ids", json!([99_999])),
        ("priority", json!(1)),
        ("echo", json!(true)),
        ("kv_transfer_params", json!({ "do_remote_decode": true })),
        ("chat_template", json!("{{ messages }}")),
        ("typ_p", json!(0.5)),
        ("xtc_probability", json!(1.5)),
    ] {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
        body[field] = value;
        let refused = server.post(CHAT, &body).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!(field))
        );
    }
    let cut = server
        .post("/v1/responses", &json!({ "input": "Hi", "truncation": "auto" }))
        .await;
    assert_eq!(cut.json()["error"]["param"], "truncation");
    let kept = json!({ "input": "Hi", "truncation": "disabled", "max_output_tokens": 1 });
    server.post_ok("/v1/responses", &kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_address_works_in_any_form() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 });
    for path in [
        "/chat/completions",
        "/v1/v1/chat/completions",
        "//v1/chat/completions",
        "/v1/chat/completions/",
    ] {
        assert_eq!(server.post(path, &body).await.status, 200, "{path}");
    }
    assert_eq!(server.get("/models").await.status, 200);
    let unknown = server.post("/api/show", &json!({ "model": "gpt-4o" })).await;
    let message = unknown.json()["error"].to_string();
    assert!(
        unknown.status == 404 && message.contains("--served-model-name"),
        "{message}"
    );
    let ids = server
        .post("/v1/embeddings", &json!({ "input": [[99_999, 1]] }))
        .await;
    let error = ids.json()["error"].clone();
    assert_eq!(error["param"], "input");
    assert!(
        error["message"]
            .to_string()
            .contains("check_embedding_ctx_length"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_from_the_beginning_that_the_request_gives() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let user = json!({ "role": "user", "content": "Tell me a story." });
    let begun = json!({ "role": "assistant", "content": "Once upon a" });
    let open = json!({ "messages": [user, begun], "continue_final_message": true });
    let rendered = server.post_ok("/v1/chat/completions/render", &open).await;
    let ids = rendered["token_ids"].clone();
    let text = server.post_ok("/detokenize", &json!({ "tokens": ids })).await["content"].clone();
    assert!(text.as_str().expect("text").ends_with("Once upon a"), "{text}");
    let counted = server
        .post_ok("/v1/messages/count_tokens", &json!({ "messages": [user, begun] }))
        .await;
    assert_eq!(counted["input_tokens"], ids.as_array().expect("ids").len());

    // The same prompt as token ids is the same answer.
    let by_ids = json!({ "prompt": ids, "max_tokens": 12, "temperature": 0 });
    let expected = server.post_ok(COMPLETIONS, &by_ids).await["choices"][0]["text"].clone();
    let mut chat = open.clone();
    chat["max_tokens"] = json!(12);
    chat["temperature"] = json!(0);
    let answer = server.post_ok(CHAT, &chat).await;
    assert_eq!(answer["choices"][0]["message"]["content"], expected);
    let message = json!({ "messages": [user, begun], "max_tokens": 12, "temperature": 0 });
    let answer = server.post_ok("/v1/messages", &message).await;
    assert_eq!(answer["content"][0]["text"], expected);

    let spaced = json!({ "messages": [user, { "role": "assistant", "content": "Once " }], "max_tokens": 1 });
    let refused = server.post("/v1/messages", &spaced).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
    let nothing = json!({ "messages": [user], "continue_final_message": true });
    let refused = server.post(CHAT, &nothing).await;
    assert_eq!(refused.json()["error"]["param"], "continue_final_message");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_the_tokens_that_it_must_have() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "Hi" }], "temperature": 0, "max_tokens": 300 });
    let natural = server.post_ok(CHAT, &body).await;
    let n_natural = natural["usage"]["completion_tokens"].as_u64().expect("a count");
    assert_eq!(
        natural["choices"][0]["finish_reason"], "stop",
        "the model ends by itself"
    );
    body["min_tokens"] = json!(n_natural + 5);
    let longer = server.post_ok(CHAT, &body).await;
    assert!(
        longer["usage"]["completion_tokens"].as_u64() >= Some(n_natural + 5),
        "{longer}"
    );
    // Up to where the end was forbidden nothing changes.
    let text = |reply: &Value| {
        reply["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    assert!(text(&longer).starts_with(&text(&natural)), "{longer}");
    body["min_tokens"] = json!(301);
    assert_eq!(
        server.post(CHAT, &body).await.json()["error"]["param"],
        "min_tokens"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_tells_about_itself() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let load = server.get("/v1/loads").await.json()["loads"][0].clone();
    assert_eq!(
        (&load["num_running_reqs"], &load["num_waiting_reqs"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(
        server.get("/version").await.json()["version"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(load["gen_throughput"], 0.0, "nothing was generated");
    assert_eq!(server.get("/loads").await.json()["loads"][0]["dp_rank"], 0);
    for path in [
        "/get_model_info",
        "/model_info",
        "/server_info",
        "/get_server_info",
    ] {
        assert_eq!(
            server.get(path).await.json()["served_model_name"],
            "demo",
            "{path}"
        );
    }
    let info = server.get("/tokenizer_info").await.json();
    assert!(
        info["eos_token"].is_string() && info["chat_template"].is_string(),
        "{info}"
    );

    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let rendered = server
        .post_ok(
            "/v1/chat/completions/render",
            &json!({ "model": "demo", "messages": messages }),
        )
        .await;
    let tokenized = server
        .post_ok("/tokenize", &json!({ "messages": messages }))
        .await;
    assert_eq!(rendered["token_ids"], tokenized["tokens"]);
    let prompts = json!({ "prompt": ["Once", "upon a time"] });
    let rendered = server.post_ok("/v1/completions/render", &prompts).await;
    let counts: Vec<usize> = rendered
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["token_ids"].as_array().expect("ids").len())
        .collect();
    assert_eq!(counts.len(), 2);
    assert!(counts[0] < counts[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn priority_is_obeyed_where_the_server_says_so() {
    let mut setup = crate::server::Setup::default();
    setup.server.obeys_priority = true;
    let Some(server) = TestServer::start_with(setup).await else {
        return;
    };
    let body = json!({ "prompt": "One", "max_tokens": 1, "priority": -5 });
    server.post_ok(COMPLETIONS, &body).await;
    let wide = json!({ "prompt": "One", "max_tokens": 1, "priority": i64::MIN }).to_string();
    let reply = Exchange::send(&server.address, "POST", COMPLETIONS, &[], wide.as_bytes())
        .await
        .reply()
        .await;
    assert_eq!(reply.status, 400);
}
