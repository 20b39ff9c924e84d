//! The generating endpoints, whole and streamed.

use serde_json::{Value, json};

use crate::{
    server::TestServer,
    wire::{Streamed, read_stream},
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat_text(choice: &Value) -> &Value {
    &choice["delta"]["content"]
}

fn completion_text(choice: &Value) -> &Value {
    &choice["text"]
}

fn ask(content: &str) -> Value {
    json!({ "model": "demo", "messages": [{ "role": "user", "content": content }], "temperature": 0, "max_tokens": 24 })
}

fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

async fn stream_chat(server: &TestServer, body: Value) -> Streamed {
    let n = body["n"].as_u64().unwrap_or(1) as usize;
    let body = with(body, &json!({ "stream": true }));
    read_stream(server.post_stream(CHAT, &body).await, n, chat_text).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_chat_equals_the_whole_one() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = ask("Tell me a story.");
    let whole = server.post_ok(CHAT, &body).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let text = message["content"].as_str().expect("text");
    assert!(!text.is_empty());
    assert_eq!(whole["model"], "demo");
    let streamed = stream_chat(&server, body.clone()).await;
    assert_eq!(streamed.texts, [text]);
    assert_eq!(
        streamed.reasons[0].as_deref(),
        whole["choices"][0]["finish_reason"].as_str()
    );
    assert_eq!(streamed.chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(streamed.chunks.iter().all(|chunk| chunk.get("usage").is_none()));

    let options = json!({ "stream_options": { "include_usage": true } });
    let streamed = stream_chat(&server, with(body, &options)).await;
    let last = streamed.chunks.last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    let usage = |of: &Value| {
        [
            &of["prompt_tokens"],
            &of["completion_tokens"],
            &of["total_tokens"],
        ]
        .map(Value::as_u64)
    };
    assert_eq!(usage(&last["usage"]), usage(&whole["usage"]));
    // A repeated prompt comes from the prefix cache, but for its last page.
    let n_prompt = whole["usage"]["prompt_tokens"].as_u64().expect("a count");
    let n_cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .expect("a count");
    assert_eq!(n_cached, (n_prompt - 1) / 16 * 16);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_choices_and_prompts_are_numbered_through() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let sampled = json!({ "n": 3, "temperature": 1.0, "seed": 11 });
    let body = with(ask("Tell me a story."), &sampled);
    let whole = server.post_ok(CHAT, &body).await;
    let texts: Vec<&str> = whole["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|choice| choice["message"]["content"].as_str().expect("text"))
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(
        texts[0] != texts[1] || texts[1] != texts[2],
        "samples differ: {texts:?}"
    );
    assert_eq!(stream_chat(&server, body.clone()).await.texts, texts);
    // The first sample of a seed is the only sample of that seed, and the next seed's the second.
    let alone = server
        .post_ok(CHAT, &with(body, &json!({ "n": 1, "seed": 12 })))
        .await;
    assert_eq!(alone["choices"][0]["message"]["content"], texts[1]);

    let prompts =
        json!({ "prompt": ["Once upon a time", "The cat"], "n": 2, "temperature": 0, "max_tokens": 5 });
    let whole = server.post_ok(COMPLETIONS, &prompts).await;
    let choices = whole["choices"].as_array().expect("choices");
    assert_eq!(
        choices.iter().map(|c| c["index"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), Some(3)]
    );
    assert_eq!(choices[0]["text"], choices[1]["text"]);
    assert_ne!(choices[0]["text"], choices[2]["text"]);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_answer_and_never_shows() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 40 });
    let whole = server.post_ok(COMPLETIONS, &body).await;
    let text = whole["choices"][0]["text"].as_str().expect("text");
    // A stop string that begins and ends inside words, and so inside tokens.
    let at = text.char_indices().nth(30).expect("a long text").0;
    let stop: String = text[at..].chars().take(7).collect();
    let stopping = with(body, &json!({ "stop": ["never said", stop] }));
    let cut = server.post_ok(COMPLETIONS, &stopping).await;
    let expected = &text[..text.find(&stop).expect("it is there")];
    assert_eq!(cut["choices"][0]["text"], expected);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    let streaming = with(stopping, &json!({ "stream": true }));
    let exchange = server.post_stream(COMPLETIONS, &streaming).await;
    assert_eq!(read_stream(exchange, 1, completion_text).await.texts, [expected]);

    let message = json!({ "model": "demo", "max_tokens": 40, "temperature": 0, "stop_sequences": ["e"],
                          "messages": [{ "role": "user", "content": "Tell me a story." }] });
    let reply = server.post_ok("/v1/messages", &message).await;
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("stop_sequence"), &json!("e"))
    );
    assert!(!reply["content"][0]["text"].as_str().expect("text").contains('e'));
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_those_of_the_tokens_sent() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = with(
        ask("Tell me a story."),
        &json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 8 }),
    );
    let whole = server.post_ok(CHAT, &body).await;
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("log-probabilities");
    let spelled: String = content
        .iter()
        .map(|token| token["token"].as_str().expect("a token"))
        .collect();
    assert_eq!(whole["choices"][0]["message"]["content"], spelled);
    for token in content {
        let top = token["top_logprobs"].as_array().expect("alternatives");
        assert_eq!(top.len(), 3);
        // Greedy: the token taken is the likeliest.
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&token["token"], &token["logprob"])
        );
        assert!(token["logprob"].as_f64().expect("a number") <= 0.0);
    }
    let streamed = stream_chat(&server, body).await;
    let streamed: Vec<&Value> = streamed
        .chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
}

/// As vLLM does: ids of the prompt and of what was sampled, and a chunk for each token, also where its text is held back.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_tokens_come_as_they_are_sampled() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let asked = with(
        ask("Tell me a story."),
        &json!({ "return_token_ids": true, "max_tokens": 12 }),
    );
    let whole = server.post_ok(CHAT, &asked).await;
    let ids = whole["choices"][0]["token_ids"].as_array().expect("ids").clone();
    assert_eq!(ids.len(), 12);
    let spelled = server.post_ok("/detokenize", &json!({ "tokens": ids })).await;
    let text = whole["choices"][0]["message"]["content"].clone();
    assert_eq!(spelled["content"], text);
    // The prompt's are those that the render endpoint gives.
    let rendered = server
        .post_ok("/v1/chat/completions/render", &ask("Tell me a story."))
        .await;
    assert_eq!(whole["prompt_token_ids"], rendered["token_ids"]);

    // A stop string that is not there after all holds back all text from where it could begin.
    let text = text.as_str().expect("text");
    let stop = format!("{text} and no more");
    let held = with(asked.clone(), &json!({ "stop": [stop] }));
    let streamed = stream_chat(&server, held).await;
    assert_eq!(streamed.chunks[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    let of_chunks: Vec<&Vec<Value>> = (streamed.chunks.iter())
        .filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array())
        .collect();
    assert!(of_chunks.iter().all(|ids| ids.len() <= 1), "{of_chunks:?}");
    assert_eq!(of_chunks.into_iter().flatten().cloned().collect::<Vec<_>>(), ids);
    let has_text = |chunk: &&Value| {
        chunk["choices"][0]["delta"]["content"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    };
    let n_with_text = streamed.chunks.iter().filter(has_text).count();
    assert!(
        n_with_text < 12,
        "text was held back, and its tokens were told: {n_with_text}"
    );
    // Nothing is told where nothing was asked for.
    let silent = server.post_ok(CHAT, &ask("Hi")).await;
    assert!(silent["prompt_token_ids"].is_null() && silent["choices"][0]["token_ids"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echoed_prompt_is_scored_as_it_would_be_generated() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 6, "logprobs": 2 });
    let first = server.post_ok(COMPLETIONS, &body).await;
    let text = first["choices"][0]["text"].as_str().expect("text");
    let longer = json!({ "prompt": format!("Once upon a time{text}"), "temperature": 0, "max_tokens": 0, "logprobs": 2, "echo": true });
    let echoed = server.post_ok(COMPLETIONS, &longer).await;
    assert_eq!(echoed["choices"][0]["text"], format!("Once upon a time{text}"));
    let scores = |of: &Value| -> Vec<Option<f64>> {
        let list = of["choices"][0]["logprobs"]["token_logprobs"]
            .as_array()
            .expect("scores");
        list.iter().map(Value::as_f64).collect()
    };
    let (generated, prompt) = (scores(&first), scores(&echoed));
    assert_eq!(prompt[0], None, "nothing stands before the first token");
    let tail = &prompt[prompt.len() - generated.len()..];
    for (generated, scored) in generated.iter().zip(tail) {
        // The model's steps are bit-exact whatever the chunking, but the two are summed up in different orders.
        let difference = (generated.expect("a score") - scored.expect("a score")).abs();
        assert!(difference < 1e-4, "{generated:?} and {scored:?}");
    }
    let offsets = &echoed["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(
        offsets[1], 0,
        "the token that begins the text has no characters in it"
    );
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newer_endpoints_say_the_same() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let chat = server.post_ok(CHAT, &ask("Tell me a story.")).await;
    let text = &chat["choices"][0]["message"]["content"];

    let body =
        json!({ "model": "demo", "input": "Tell me a story.", "temperature": 0, "max_output_tokens": 24 });
    let response = server.post_ok("/v1/responses", &body).await;
    assert_eq!(&response["output"][0]["content"][0]["text"], text);
    assert_eq!(
        response["usage"]["output_tokens"],
        chat["usage"]["completion_tokens"]
    );
    let events = named_events(&server, "/v1/responses", &body).await;
    assert_eq!(events.first().expect("events")["type"], "response.created");
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(
        &deltas
            .map(|event| event["delta"].as_str().expect("text"))
            .collect::<String>(),
        text
    );
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["sequence_number"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(
        &events.last().expect("events")["response"]["output"][0]["content"][0]["text"],
        text
    );

    let body = json!({ "model": "demo", "max_tokens": 24, "temperature": 0,
                       "messages": [{ "role": "user", "content": "Tell me a story." }] });
    let message = server.post_ok("/v1/messages", &body).await;
    assert_eq!(&message["content"][0]["text"], text);
    let events = named_events(&server, "/v1/messages", &body).await;
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "content_block_delta");
    assert_eq!(
        &deltas
            .map(|event| event["delta"]["text"].as_str().expect("text"))
            .collect::<String>(),
        text
    );
    let last: Vec<_> = events
        .iter()
        .rev()
        .take(3)
        .map(|event| event["type"].as_str().expect("a type"))
        .collect();
    assert_eq!(last, ["message_stop", "message_delta", "content_block_stop"]);
    let counting =
        json!({ "model": "demo", "messages": [{ "role": "user", "content": "Tell me a story." }] });
    let counted = server.post_ok("/v1/messages/count_tokens", &counting).await;
    assert_eq!(counted["input_tokens"], chat["usage"]["prompt_tokens"]);
    server.assert_idle().await;
}

async fn named_events(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let mut exchange = server
        .post_stream(path, &with(body.clone(), &json!({ "stream": true })))
        .await;
    assert_eq!(exchange.head().await.0, 200);
    let mut events = Vec::new();
    while let Some(data) = exchange.event().await {
        events.push(serde_json::from_str(&data).expect("an event"));
    }
    events
}
