//! Images that are files of the server's folder: by each API the same answer as with their bytes, and nothing from outside.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tokenmill_server::ServerConfig;

use crate::{
    images::{data, expected, url},
    server::TestServer,
    wire::Reply,
};

const CHAT: &str = "/v1/chat/completions";

/// The refusal of every path that is not a file of the folder, whether it exists or not.
const NOT_THERE: &str = "is not a file below the server's `--media-path`";

/// A model that sees, and a folder with the image of its first reference.
async fn start(home: &Path, config: ServerConfig) -> TestServer {
    fs::create_dir_all(home).expect("a folder");
    fs::copy(data("gemma3").join("0.png"), home.join("0.png")).expect("a copy");
    let config = ServerConfig {
        media_folder: Some(home.to_owned()),
        ..config
    };
    TestServer::start_file(&data("gemma3").join("model.gguf"), "eye", config).await
}

fn chat(url: &str) -> Value {
    json!({
        "messages": [{ "role": "user", "content": [
            { "type": "image_url", "image_url": { "url": url } }, { "type": "text", "text": "What is it?" },
        ] }],
        "max_tokens": 6, "temperature": 0, "ignore_eos": true,
    })
}

fn message(reply: &Reply) -> String {
    let json = reply.json();
    json["error"]["message"].as_str().expect("a message").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_api_reads_the_same_file() {
    let outer = tempfile::tempdir().expect("a folder");
    let home = outer.path().join("media");
    let server = start(&home, ServerConfig::default()).await;
    fs::create_dir(home.join("of mine")).expect("a folder");
    fs::copy(home.join("0.png"), home.join("of mine/a.png")).expect("a copy");
    let expected = expected("gemma3", 6);
    let absolute = format!("file://{}", home.join("0.png").display());
    let of_bytes = server.post_ok(CHAT, &chat(&url("0.png"))).await;
    assert_eq!(of_bytes["choices"][0]["message"]["content"], expected.as_str());
    for url in [
        "file://0.png",
        "FILE://./0.png",
        &absolute,
        "file://of%20mine/a.png",
    ] {
        let reply = server.post_ok(CHAT, &chat(url)).await;
        assert_eq!(
            reply["choices"][0]["message"], of_bytes["choices"][0]["message"],
            "{url}"
        );
        assert_eq!(
            reply["usage"]["prompt_tokens"], of_bytes["usage"]["prompt_tokens"],
            "{url}"
        );
    }
    let n_prompt = &of_bytes["usage"]["prompt_tokens"];
    let rendered = server
        .post_ok("/v1/chat/completions/render", &chat("file://0.png"))
        .await;
    assert_eq!(json!(rendered["token_ids"].as_array().map(Vec::len)), *n_prompt);
    let body = json!({ "messages": chat("file://0.png")["messages"] });
    assert_eq!(server.post_ok("/tokenize", &body).await["count"], *n_prompt);
    let said = server.post_ok("/apply-template", &body).await["prompt"].to_string();
    assert!(said.contains("What is it?") && !said.contains("file:"), "{said}");

    let source = json!({ "type": "url", "url": "file://0.png" });
    let messages = json!([{ "role": "user", "content": [
        { "type": "image", "source": source }, { "type": "text", "text": "What is it?" },
    ] }]);
    let body = json!({ "messages": messages, "max_tokens": 6, "temperature": 0 });
    let reply = server.post_ok("/v1/messages", &body).await;
    assert_eq!(reply["content"][0]["text"], expected.as_str(), "{reply}");
    let counted = server.post_ok("/v1/messages/count_tokens", &body).await;
    assert_eq!(counted["input_tokens"], *n_prompt);

    let body = json!({
        "input": [{ "role": "user", "content": [
            { "type": "input_image", "image_url": absolute },
            { "type": "input_text", "text": "What is it?" },
        ] }],
        "max_output_tokens": 6, "temperature": 0,
    });
    let reply = server.post_ok("/v1/responses", &body).await;
    assert_eq!(
        reply["output"][0]["content"][0]["text"],
        expected.as_str(),
        "{reply}"
    );
    // The image is stored, not the name of its file.
    fs::remove_file(home.join("0.png")).expect("it is there");
    let next = json!({ "input": "And?", "previous_response_id": reply["id"], "max_output_tokens": 1 });
    let next = server.post_ok("/v1/responses", &next).await;
    assert!(
        next["usage"]["input_tokens"].as_u64() > n_prompt.as_u64(),
        "{next}"
    );
    let gone = server.post("/v1/responses", &body).await;
    assert_eq!(gone.status, 400, "{}", gone.text());
    assert_eq!(gone.json()["error"]["param"], "input[0].content[0].image_url");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_outside_is_not_told_from_what_is_not_there() {
    let outer = tempfile::tempdir().expect("a folder");
    let home = outer.path().join("media");
    let server = start(&home, ServerConfig::default()).await;
    fs::copy(home.join("0.png"), outer.path().join("secret.png")).expect("a copy");
    fs::create_dir(home.join("folder")).expect("a folder");
    let mut outside = vec![
        "file://none.png".to_owned(),
        "file://".to_owned(),
        "file://folder".to_owned(),
        "file://../secret.png".to_owned(),
        "file://../none.png".to_owned(),
        "file://%2e%2e%2fsecret.png".to_owned(),
        "file:///etc/passwd".to_owned(),
        format!("file://{}", outer.path().join("secret.png").display()),
        format!("file://{}/../secret.png", home.display()),
    ];
    #[cfg(unix)]
    {
        use std::{os::unix::fs::symlink, process::Command};
        symlink(outer.path().join("secret.png"), home.join("link.png")).expect("a link");
        symlink(outer.path().join("none.png"), home.join("dangling.png")).expect("a link");
        symlink(outer.path(), home.join("up")).expect("a link");
        let made = Command::new("mkfifo").arg(home.join("pipe.png")).status();
        assert!(made.expect("the system has mkfifo").success());
        symlink("/dev/zero", home.join("zero.png")).expect("a link");
        for name in [
            "link.png",
            "dangling.png",
            "up/secret.png",
            "pipe.png",
            "zero.png",
        ] {
            outside.push(format!("file://{name}"));
        }
    }
    let mut said = Vec::new();
    for url in &outside {
        let reply = server.post(CHAT, &chat(url)).await;
        assert_eq!(reply.status, 400, "{url}: {}", reply.text());
        assert_eq!(
            reply.json()["error"]["param"],
            "messages[0].content[0].image_url.url",
            "{url}"
        );
        said.push(message(&reply));
    }
    assert!(said[0].contains(NOT_THERE), "{}", said[0]);
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
    let reply = server.post_ok(CHAT, &chat("file://0.png")).await;
    assert_eq!(reply["usage"]["completion_tokens"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_the_size_of_a_body_together() {
    let outer = tempfile::tempdir().expect("a folder");
    let config = ServerConfig {
        max_body_bytes: 64 << 10,
        ..ServerConfig::default()
    };
    let home = outer.path().join("media");
    let server = start(&home, config).await;
    fs::write(home.join("empty.png"), b"").expect("a file");
    fs::write(home.join("large.png"), vec![0; 48 << 10]).expect("a file");
    fs::write(home.join("larger.png"), vec![0; (48 << 10) + 1]).expect("a file");
    let reply = server.post(CHAT, &chat("file://empty.png")).await;
    assert!(message(&reply).contains("the image is empty"), "{}", reply.text());
    // Read, and then no image.
    let reply = server.post(CHAT, &chat("file://large.png")).await;
    assert!(
        message(&reply).contains("this is not a supported image"),
        "{}",
        reply.text()
    );
    let limit = "more than the 65536 bytes";
    let reply = server.post(CHAT, &chat("file://larger.png")).await;
    assert_eq!(reply.status, 400);
    assert!(message(&reply).contains(limit), "{}", reply.text());
    // Each alone would do.
    fs::write(home.join("third.png"), vec![0; 17 << 10]).expect("a file");
    let part = json!({ "type": "image_url", "image_url": { "url": "file://third.png" } });
    let three = json!({ "messages": [{ "role": "user", "content": vec![part; 3] }] });
    let reply = server.post(CHAT, &three).await;
    assert!(message(&reply).contains(limit), "{}", reply.text());
    let reply = server.post_ok(CHAT, &chat("file://0.png")).await;
    assert_eq!(reply["usage"]["completion_tokens"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_refused_before_a_file_is_read() {
    let outer = tempfile::tempdir().expect("a folder");
    let home = outer.path().join("media");
    let server = start(&home, ServerConfig::default()).await;
    // There is no such file, which would be said if it were looked for.
    let image = json!({ "type": "image_url", "image_url": { "url": "file://none.png" } });
    let n_ctx = server.get("/v1/models").await.json()["data"][0]["max_model_len"].clone();
    let n_images = usize::try_from(n_ctx.as_u64().expect("a number")).expect("it fits") + 1;
    let body = json!({ "messages": [{ "role": "user", "content": vec![image; n_images] }], "max_tokens": 1 });
    let refused = server.post(CHAT, &body).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(
        refused.json()["error"]["code"],
        "context_length_exceeded",
        "{}",
        refused.text()
    );

    let config = ServerConfig {
        media_folder: Some(home),
        ..ServerConfig::default()
    };
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokenmill/assets/tokenmill-demo-Q8_0.gguf");
    let blind = TestServer::start_file(&demo, "demo", config).await;
    for path in [CHAT, "/tokenize", "/apply-template"] {
        let body = json!({ "messages": chat("file://none.png")["messages"] });
        let refused = blind.post(path, &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        let said = message(&refused);
        assert!(
            said.contains("takes no images") || said.contains("without an encoder"),
            "{path}: {said}"
        );
    }
}
