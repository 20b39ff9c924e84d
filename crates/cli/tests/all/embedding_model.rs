//! `serve` with `--embedding-model`: one address for chat and for vectors, each from its own model.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{
    server::Server,
    support::{DEMO_GGUF, arg},
};

/// An encoder that was made for 2,048 tokens.
fn encoder() -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    data.join("encoders/nomic_bert/model-Q4_K_M.gguf")
}

#[test]
fn vectors_come_from_the_embedding_model_and_answers_from_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let [chat, embed] = ["chat", "embed"].map(|name| folder.path().join(name).with_extension("gguf"));
    std::fs::write(&chat, DEMO_GGUF).unwrap();
    std::fs::copy(encoder(), &embed).unwrap();
    // The roles come from what was said, not from the order of the arguments.
    for args in [
        [arg(&chat), "--embedding-model", arg(&embed)],
        ["--embedding-model", arg(&embed), arg(&chat)],
    ] {
        let server = Server::start(&[&args[..], &["-c", "64"]].concat());
        server.wait_for("chat", "loaded");
        server.wait_for("embed", "loaded");
        let mut listed: Vec<String> = server.states().into_iter().map(|(name, _)| name).collect();
        listed.sort();
        assert_eq!(listed, ["chat", "embed"]);

        let embedding = |body: &Value| server.ask("POST", "/v1/embeddings", &body.to_string());
        let (status, vectors) = embedding(&json!({ "input": ["the cat sat", "a dog"] }));
        assert_eq!(status, 200, "{vectors}");
        assert_eq!(vectors["model"], "embed", "{vectors}");
        for item in vectors["data"].as_array().unwrap() {
            let numbers = item["embedding"].as_array().unwrap();
            let norm: f64 = numbers.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
            assert_eq!(numbers.len(), 64);
            assert!((norm - 1.0).abs() < 1e-4, "{norm}");
        }
        let (_, named) = embedding(&json!({ "model": "embed", "input": ["the cat sat", "a dog"] }));
        assert_eq!(named["data"], vectors["data"]);

        let messages = json!([{ "role": "user", "content": "What is 3 + 4?" }]);
        let chat = |extra: &Value| {
            let mut body = json!({ "messages": messages, "max_tokens": 8, "temperature": 0 });
            for (key, value) in extra.as_object().unwrap() {
                body[key] = value.clone();
            }
            server.ask("POST", "/v1/chat/completions", &body.to_string())
        };
        let (status, answer) = chat(&json!({}));
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["model"], "chat", "{answer}");
        let content = &answer["choices"][0]["message"]["content"];
        assert!(
            content.as_str().is_some_and(|text| text.contains('7')),
            "{answer}"
        );
        // An encoder does not write, also where it is asked by name.
        let (status, refused) = chat(&json!({ "model": "embed" }));
        assert_eq!(status, 400, "{refused}");
        server.end();
    }
}
