//! Names of models that are not loaded: they are found in each form in which a loaded model is.

use std::sync::Arc;

use serde_json::json;
use tokenmill_server::{ModelLimits, ModelSpec, ServerConfig};

use crate::{
    demo::demo_path,
    several::{CHAT, Several, Speaker, chat},
};

/// A server of two models that are not loaded; the second has an adapter.
async fn two() -> (Speaker, Several) {
    let n_alive = Arc::default();
    let [first, second] = ["First", "Tiny"].map(|says| Speaker::new(says, 4, &n_alive));
    let mut specs = vec![
        ModelSpec::new("first", first),
        ModelSpec::new("tiny", second.clone()),
    ];
    specs[1].adapters.push("pirate".to_owned());
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    (second, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_loaded_has_endings_and_tags() {
    if demo_path().is_none() {
        return;
    }
    for name in ["tiny", "tiny.gguf", "tiny:latest", "tiny.gguf:latest"] {
        let (_, server) = two().await;
        let body =
            json!({ "model": name, "messages": [{ "role": "user", "content": "Hi" }], "stream": false });
        let reply = server.post("/api/chat", &body).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        assert_eq!(reply.json()["message"]["content"], "Tiny", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_loaded_is_found_by_its_adapter() {
    if demo_path().is_none() {
        return;
    }
    for (name, n_loads) in [
        ("tiny:pirate", 1),
        ("tiny.gguf:pirate", 1),
        ("tiny:another-pirate", 0),
        ("tinypirate", 0),
    ] {
        let (tiny, server) = two().await;
        // It says itself, when it is loaded, that this one has none.
        assert_eq!(server.post(CHAT, &chat(name)).await.status, 404, "{name}");
        assert_eq!(tiny.n_loads(), n_loads, "{name}");
    }
}
