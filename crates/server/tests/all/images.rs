//! Images by each API, on a tiny model that sees: the same answer, and one line for what cannot be seen.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenmill::decide::{Question, State};
use tokenmill_server::ServerConfig;
use tokenmill_testkit::png_header;

use crate::server::TestServer;

/// The model of a family.
pub(crate) fn data(family: &str) -> PathBuf {
    let vision = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vision");
    Path::new(vision).join(family)
}

async fn start() -> TestServer {
    start_family("gemma3").await
}

async fn start_family(family: &str) -> TestServer {
    let path = data(family).join("model.gguf");
    TestServer::start_file(&path, "eye", ServerConfig::default()).await
}

/// An image as a `data:` URL.
pub(crate) fn url(name: &str) -> String {
    let file = std::fs::read(data("gemma3").join(name)).expect("an image of the core data");
    let part = tokenmill::images::image_part(&file);
    let url = part["image_url"]["url"].as_str().expect("a URL");
    url.replacen("data:", "data:image/png", 1)
}

fn base64(name: &str) -> String {
    url(name).split_once(',').expect("data").1.to_owned()
}

/// The greedy text of a family's first reference, which looks at `0.png`.
pub(crate) fn expected(family: &str, n: usize) -> String {
    let reference = std::fs::read(data(family).join("ref.json")).expect("the reference");
    let reference: Value = serde_json::from_slice(&reference).expect("JSON");
    let greedy = reference["cases"][0]["greedy"].as_array().expect("ids");
    // Ids from 0 on are the printing characters.
    let text = greedy[..n]
        .iter()
        .filter_map(|id| char::from_u32(b'!' as u32 + id.as_u64()? as u32));
    text.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_api_shows_the_model_the_same_image() {
    // The images of all families are the same files.
    for family in ["gemma3", "qwen2vl", "qwen3vl"] {
        check_every_api(family).await;
    }
}

async fn check_every_api(family: &str) {
    let server = start_family(family).await;
    // Clients that ask first are told that it sees.
    let props = server.get("/props").await.json();
    assert_eq!(props["modalities"]["vision"], true, "{props}");
    let listed = server.get("/v1/models").await.json();
    assert_eq!(
        listed["data"][0]["architecture"],
        json!({ "input_modalities": ["text", "image"], "output_modalities": ["text"] }),
    );
    let shown = server.post_ok("/api/show", &json!({ "model": "eye" })).await;
    let capabilities = shown["capabilities"].as_array().expect("a list");
    assert!(capabilities.contains(&json!("vision")), "{shown}");
    // Its template does not know of tools.
    assert!(!capabilities.contains(&json!("tools")), "{shown}");
    let expected = expected(family, 6);
    let chat = |part: Value| {
        json!({
            "messages": [{ "role": "user", "content": [part, { "type": "text", "text": "What is it?" }] }],
            "max_tokens": 6, "temperature": 0, "ignore_eos": true,
        })
    };
    let of_object = json!({ "type": "image_url", "image_url": { "url": url("0.png"), "detail": "auto" } });
    let reply = server.post_ok("/v1/chat/completions", &chat(of_object)).await;
    assert_eq!(
        reply["choices"][0]["message"]["content"],
        expected.as_str(),
        "{reply}"
    );
    let n_prompt = &reply["usage"]["prompt_tokens"];
    let as_string = json!({ "type": "image_url", "image_url": url("0.png") });
    let again = server.post_ok("/v1/chat/completions", &chat(as_string)).await;
    assert_eq!(again["choices"][0]["message"]["content"], expected.as_str());
    // The second finds the first one's pages.
    assert!(
        again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0),
        "{again}"
    );

    let body = json!({
        "input": [{ "role": "user", "content": [
            { "type": "input_image", "image_url": url("0.png"), "detail": "low" },
            { "type": "input_text", "text": "What is it?" },
        ] }],
        "max_output_tokens": 6, "temperature": 0,
    });
    let reply = server.post_ok("/v1/responses", &body).await;
    let said = &reply["output"][0]["content"][0]["text"];
    assert_eq!(said, expected.as_str(), "{reply}");
    // A conversation continues behind its image.
    let next = json!({ "input": "And?", "previous_response_id": reply["id"], "max_output_tokens": 1 });
    let next = server.post_ok("/v1/responses", &next).await;
    assert!(
        next["usage"]["input_tokens"].as_u64() > n_prompt.as_u64(),
        "{next}"
    );

    let source = json!({ "type": "base64", "media_type": "image/png", "data": base64("0.png") });
    let messages = json!([{ "role": "user", "content": [
        { "type": "image", "source": source }, { "type": "text", "text": "What is it?" },
    ] }]);
    let body = json!({ "messages": messages, "max_tokens": 6, "temperature": 0 });
    let reply = server.post_ok("/v1/messages", &body).await;
    assert_eq!(reply["content"][0]["text"], expected.as_str(), "{reply}");
    let counted = server
        .post_ok(
            "/v1/messages/count_tokens",
            &json!({ "messages": messages, "max_tokens": 1 }),
        )
        .await;
    assert_eq!(&counted["input_tokens"], n_prompt);

    let options = json!({ "num_predict": 6, "temperature": 0, "repeat_penalty": 1 });
    let body = json!({
        "messages": [{ "role": "user", "content": "What is it?", "images": [base64("0.png")] }],
        "stream": false, "options": options,
    });
    let reply = server.post_ok("/api/chat", &body).await;
    let said = reply["message"]["content"].as_str().expect("a text");
    assert!(expected.starts_with(said) && !said.is_empty(), "{reply}");
    let body = json!({
        "prompt": "What is it?", "images": [base64("0.png")], "stream": false, "options": options,
    });
    let reply = server.post_ok("/api/generate", &body).await;
    assert_eq!(reply["response"], said, "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_400_in_one_line() {
    let server = start().await;
    let ask = |url: String| {
        json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [
            { "type": "image_url", "image_url": { "url": url } },
        ] }] })
    };
    let text = "data:text/plain;base64,T25jZSB1cG9uIGEgdGltZQ==";
    let [wide, high] = [(100_000, 3), (3, 100_000)].map(|(width, height)| {
        let part = tokenmill::images::image_part(&png_header(width, height));
        part["image_url"]["url"].as_str().expect("a URL").to_owned()
    });
    for (url, expected) in [
        ("data:image/png;base64,", "the image is empty"),
        (text, "this is not a supported image"),
        (&wide, "the image is 100000 x 3; at most 16384 pixels to a side"),
        (&high, "the image is 3 x 100000; at most 16384 pixels to a side"),
        ("data:image/png;base64,iVBORw0KGgo=", "damaged"),
        ("data:image/png;base64,%%%%", "not base64"),
        ("data:image/png,abc", "base64"),
        ("http://127.0.0.1:1/a.png", "only `data:` URLs"),
        ("https://example.org/a.png", "only `data:` URLs"),
        ("file:///etc/passwd", "`--media-path DIR`"),
        ("file://a.png", "`--media-path DIR`"),
        ("file:a.png", "only `data:` URLs"),
        ("", "only `data:` URLs"),
    ] {
        let reply = server.post("/v1/chat/completions", &ask(url.to_owned())).await;
        assert_eq!(reply.status, 400, "{url}: {}", reply.text());
        let message = reply.json()["error"]["message"]
            .as_str()
            .expect("a message")
            .to_owned();
        assert!(
            message.contains(expected) && !message.contains('\n'),
            "{url}: {message}"
        );
    }
    // More images than the context holds, of which none is decoded.
    let part = json!({ "type": "image_url", "image_url": { "url": text } });
    let many = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": vec![part; 100] }] });
    let reply = server.post("/v1/chat/completions", &many).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(
        reply.json()["error"]["code"],
        "context_length_exceeded",
        "{}",
        reply.text()
    );
    // The server has lost nothing by it.
    let reply = server.post_ok("/v1/chat/completions", &ask(url("1.png"))).await;
    assert_eq!(reply["usage"]["completion_tokens"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_an_encoder_names_the_flag_where_it_would_help() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = folder.path().join("model.gguf");
    std::fs::copy(data("gemma3").join("model.gguf"), &alone).expect("a copy");
    let alone = TestServer::start_file(&alone, "eye", ServerConfig::default()).await;
    let content = json!([{ "type": "image_url", "image_url": { "url": url("0.png") } }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }] });
    let reply = alone.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("--mmproj FILE"), "{}", reply.text());
    let Some(blind) = TestServer::start().await else {
        return;
    };
    let reply = blind.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 400);
    assert!(
        reply
            .text()
            .contains("a model of the architecture `llama` takes no images"),
        "{}",
        reply.text()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_see_images_on_both_paths() {
    let server = TestServer::start_file(
        &data("qwen2vl").join("model.gguf"),
        "eye",
        ServerConfig::default(),
    )
    .await;
    let file = std::fs::read(data("gemma3").join("0.png")).expect("an image of the core data");
    let questions =
        json!({ "q": { "type": "choice", "instructions": "Who?", "criteria": { "c": null, "d": null } } });
    let asked = [Question::choice("Who?", ["c", "d"])];
    let expected = |state: State| {
        let decisions = server.app.model.model().decide(state, &asked).expect("it sees");
        decisions[0].probabilities[0]
    };
    let system_one = async |state: Value, images: Value| {
        let body = json!({ "state": state, "images": images, "questions": questions });
        let reply = server.post_ok("/v1/systemone", &body).await;
        reply["answers"]["q"]["probabilities"]["c"].as_f64()
    };
    let image = || State::default().image(&file[..]);
    // A parser of JSON may read a number that is next to the written one.
    let is_near = |found: Option<f64>, expected: f64| {
        assert!(
            found.is_some_and(|found| (found - expected).abs() < 1e-12),
            "{found:?}, expected {expected}"
        );
    };
    let first = expected(image().text("a"));
    is_near(system_one(json!("a"), json!([url("0.png")])).await, first);
    let part = json!({ "type": "image_url", "image_url": { "url": url("0.png") } });
    let found = system_one(json!([{ "content": [part] }]), Value::Null).await;
    let state = State::from(r#"[{"content":["#).then(image()).text("]}]");
    is_near(found, expected(state));

    let own = json!([{ "id": "q", "type": "choice", "question": "Who?", "options": [{ "name": "c" }, { "name": "d" }] }]);
    let body = json!({ "input": "a", "images": [url("0.png")], "questions": own });
    let reply = server.post_ok("/v1/decisions", &body).await;
    is_near(reply["answers"]["q"]["probabilities"]["c"].as_f64(), first);

    let choices = json!([{ "value": "c" }, { "value": "d" }]);
    let own = json!([{ "type": "choice", "instructions": "Who?", "choices": choices }]);
    let parts = json!([
        { "type": "input_text", "text": "a" }, { "type": "input_image", "image_url": url("0.png"), "detail": "auto" },
    ]);
    let body = json!({ "input": [{ "role": "user", "content": parts }], "questions": own });
    let reply = server.post_ok("/v1/decisions", &body).await;
    let found = &reply["answers"][0]["probabilities"][0]["probability"];
    is_near(found.as_f64(), expected(State::from("a\n").then(image())));

    for (body, param) in [
        (
            json!({ "input": "a", "images": [url("0.png")], "questions": own }),
            "images",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": "https://example.org" }] }],
                "questions": own }),
            "input[0].content[0].image_url",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": "data:;base64,aGk=" }] }],
                "questions": own }),
            "input",
        ),
    ] {
        let reply = server.post("/v1/decisions", &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{body}: {}", reply.text());
    }
    // Too many images are refused by the field that has them.
    let part = |kind: &str, url: &str| json!({ "type": kind, "image_url": url });
    let parts =
        |kind: &str, n: usize| json!([{ "role": "user", "content": vec![part(kind, &url("0.png")); n] }]);
    let images = |n: usize| vec![url("0.png"); n];
    for (state, n_images, field) in [
        (json!("a"), 9, "images"),
        (parts("image_url", 9), 0, "state"),
        (parts("image_url", 5), 4, "state"),
        (parts("image_url", 1), 9, "images"),
    ] {
        let body = json!({ "state": state, "images": images(n_images), "questions": questions });
        let reply = server.post("/v1/systemone", &body).await;
        assert_eq!(
            (reply.status, &reply.json()["detail"][0]["loc"]),
            (422, &json!(["body", field])),
            "{}",
            reply.text()
        );
    }
    let yes_no = json!([{ "id": "q", "type": "yes_no", "question": "Is it?" }]);
    for (body, field) in [
        (
            json!({ "input": parts("input_image", 9), "questions": own }),
            "input",
        ),
        (
            json!({ "input": "a", "images": images(9), "questions": yes_no }),
            "images",
        ),
    ] {
        let reply = server.post("/v1/decisions", &body).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["param"], field, "{}", reply.text());
    }
    server.assert_idle().await;
}
