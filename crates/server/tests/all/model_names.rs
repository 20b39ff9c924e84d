//! Names of models: they are found in each form, by each API, loaded or not.

use std::sync::Arc;

use serde_json::json;
use tokenmill_server::{ModelLimits, ModelSpec, ServerConfig};

use crate::{
    demo::demo_path,
    server::{Setup, TestServer, served_again},
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
    for name in [
        "tiny",
        "tiny.gguf",
        "tiny:latest",
        "tiny.gguf:latest",
        "ollama:tiny",
    ] {
        let (_, server) = two().await;
        let body =
            json!({ "model": name, "messages": [{ "role": "user", "content": "Hi" }], "stream": false });
        let reply = server.post("/api/chat", &body).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        assert_eq!(reply.json()["message"]["content"], "Tiny", "{name}");
        // Before it is loaded, and when it is.
        let (_, server) = two().await;
        for _ in 0..2 {
            let reply = server.post(CHAT, &chat(name)).await;
            assert_eq!(reply.status, 200, "{name}: {}", reply.text());
            assert_eq!(reply.json()["model"], "tiny", "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_hub_is_found_without_its_type_where_it_is_the_only_one() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let names = [
        "org/one-GGUF:Q8_0",
        "org/two-GGUF:Q8_0",
        "org/two-GGUF:Q4_K_M",
        "plain:1b",
    ];
    let specs = names.map(|name| ModelSpec::new(name, Speaker::new("Hi", 4, &n_alive)));
    let server = Several::start(specs.into(), ModelLimits::default(), ServerConfig::default()).await;
    for (name, served) in [
        ("org/one-GGUF", Some("org/one-GGUF:Q8_0")),
        ("hf:org/one-GGUF", Some("org/one-GGUF:Q8_0")),
        ("org/two-GGUF:Q4_K_M", Some("org/two-GGUF:Q4_K_M")),
        // Which one?
        ("org/two-GGUF", None),
        ("org/one", None),
        // Ollama's names without a tag mean `latest`.
        ("plain", None),
    ] {
        let reply = server.post(CHAT, &chat(name)).await;
        match served {
            Some(served) => assert_eq!(reply.json()["model"], served, "{name}: {}", reply.text()),
            None => assert_eq!(reply.status, 404, "{name}: {}", reply.text()),
        }
    }
    let unknown = server.post(CHAT, &chat("org/two-GGUF")).await;
    assert!(
        unknown.text().contains("near it: org/two-GGUF:Q"),
        "{}",
        unknown.text()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_hub_is_found_by_its_type_that_was_not_written() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let mut specs: Vec<ModelSpec> = ["org/one-GGUF", "org/two-GGUF", "org/two-GGUF:Q8_0", "plain"]
        .map(|name| ModelSpec::new(name, Speaker::new("Hi", 4, &n_alive)))
        .into();
    for (spec, variant) in specs.iter_mut().zip(["Q4_K_M", "Q4_K_M", "Q8_0", "Q4_K_M"]) {
        spec.variants = vec![variant.to_owned(), format!("file-{variant}")];
    }
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    // Before they are loaded, and when they are.
    for _ in 0..2 {
        for (name, served) in [
            ("org/one-GGUF:Q4_K_M", Some("org/one-GGUF")),
            ("org/one-GGUF:q4_k_m", Some("org/one-GGUF")),
            ("hf:org/one-GGUF:Q4_K_M", Some("org/one-GGUF")),
            ("org/one-GGUF:file-Q4_K_M.gguf", Some("org/one-GGUF")),
            ("org/one-GGUF:Q8_0", None),
            ("org/two-GGUF:Q4_K_M", Some("org/two-GGUF")),
            ("org/two-GGUF:q8_0", Some("org/two-GGUF:Q8_0")),
            ("plain:Q4_K_M", None),
        ] {
            let reply = server.post(CHAT, &chat(name)).await;
            match served {
                Some(served) => assert_eq!(reply.json()["model"], served, "{name}: {}", reply.text()),
                None => assert_eq!(reply.status, 404, "{name}: {}", reply.text()),
            }
        }
    }
    // The one model of a server.
    let one = server.models.loaded().remove(0);
    let served = served_again(&one).with_variants(vec!["Q4_K_M".to_owned()]);
    let name = |asked: &str| served.choose(Some(asked)).map(|chosen| chosen.name).ok();
    assert_eq!(name("org/one-GGUF:q4_k_m").as_deref(), Some("org/one-GGUF"));
    assert_eq!(name("org/one-GGUF:Q8_0"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_found_by_what_it_was_given_as() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let mut specs: Vec<ModelSpec> = ["first", "tiny"]
        .map(|name| ModelSpec::new(name, Speaker::new("Hi", 4, &n_alive)))
        .into();
    specs[1].given = Some("models/tiny.gguf".to_owned());
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    for _ in 0..2 {
        let reply = server.post(CHAT, &chat("models/tiny.gguf")).await;
        assert_eq!(reply.json()["model"], "tiny", "{}", reply.text());
    }
    let listed = server.get("/v1/models").await;
    assert!(!listed.text().contains("models/tiny"), "{}", listed.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_model_of_a_server_is_found_in_each_form_by_each_api() {
    let setup = || Setup {
        alias: Some("org/demo-GGUF:Q8_0".to_owned()),
        ..Setup::default()
    };
    let Some(server) = TestServer::start_with(setup()).await else {
        return;
    };
    for name in [
        "demo:latest",
        "ollama:demo",
        "demo.gguf",
        "hf:org/demo-GGUF",
        "org/demo-GGUF",
    ] {
        for (path, body) in [
            (
                "/v1/completions",
                json!({ "model": name, "prompt": "Hi", "max_tokens": 1 }),
            ),
            (
                "/v1/messages/count_tokens",
                json!({ "model": name, "messages": [{ "role": "user", "content": "Hi" }] }),
            ),
            (
                "/v1/responses",
                json!({ "model": name, "input": "Hi", "max_output_tokens": 1 }),
            ),
            (
                "/completion",
                json!({ "model": name, "prompt": "Hi", "n_predict": 1 }),
            ),
            ("/tokenize", json!({ "model": name, "content": "Hi" })),
            ("/api/show", json!({ "model": name })),
            ("/api/generate", json!({ "model": name })),
        ] {
            let reply = server.post(path, &body).await;
            assert_eq!(reply.status, 200, "{name} {path}: {}", reply.text());
        }
        assert_eq!(
            server.get(&format!("/v1/models/{name}")).await.status,
            200,
            "{name}"
        );
    }
    let strict = ServerConfig {
        strict_model_names: true,
        ..ServerConfig::default()
    };
    let strict = Setup {
        server: strict,
        ..setup()
    };
    let strict = TestServer::start_with(strict).await.expect("it started before");
    for name in ["Demo", "dem", "org/demo", "demo:1b"] {
        let body = json!({ "model": name, "prompt": "Hi", "max_tokens": 1 });
        let reply = strict.post("/v1/completions", &body).await;
        assert_eq!(reply.status, 404, "{name}");
        assert!(reply.text().contains("near it: "), "{name}: {}", reply.text());
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
