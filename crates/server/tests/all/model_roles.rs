//! The model for a request without a name, by the options of its start or by the purpose in its files.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tokenmill::{Device, Model};
use tokenmill_server::{
    ModelLimits, ModelSpec, ServerConfig,
    models::{FileLoader, Role},
};

use crate::{
    demo::demo_path,
    several::{CHAT, Several, Speaker, said},
};

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_without_a_name_are_for_the_model_that_makes_them() {
    if demo_path().is_none() {
        return;
    }
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/encoders");
    let encoders = std::fs::read_dir(data)
        .expect("the tiny encoders")
        .filter_map(Result::ok);
    let mut encoders: Vec<PathBuf> = encoders
        .map(|entry| entry.path().join("model-Q4_K_M.gguf"))
        .collect();
    encoders.sort();
    let path = encoders
        .into_iter()
        .find(|path| path.exists() && path.to_string_lossy().contains("bert"));
    let options = Model::options().threads(1).device(Device::Cpu);
    let encoder = FileLoader {
        path: path.expect("an encoder"),
        options,
    };
    let specs = vec![
        ModelSpec::new("anna", Speaker::new("Anna", 4, &Arc::default())),
        ModelSpec {
            role: Role::Embedding,
            ..ModelSpec::new("embed", encoder)
        },
    ];
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    let embedded = server.post("/v1/embeddings", &json!({ "input": "Hello" })).await;
    assert_eq!(embedded.status, 200, "{}", embedded.text());
    assert_eq!(embedded.json()["model"], "embed");
    let old = server.post("/api/embed", &json!({ "input": "Hello" })).await;
    assert_eq!(old.json()["model"], "embed");
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(said(&server.post(CHAT, &chat).await.json()), "Anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_name_find_the_model_whose_files_are_made_for_them() {
    if demo_path().is_none() {
        return;
    }
    // More than either was made for, as a value for all models may be.
    let encoder = |name: &str| FileLoader {
        path: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/encoders"))
            .join(name)
            .join("model-Q4_K_M.gguf"),
        options: Model::options().threads(1).device(Device::Cpu).context(4096),
    };
    let decider = FileLoader {
        path: PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/decisions/laya.gguf"
        )),
        options: Model::options().threads(1).device(Device::Cpu),
    };
    let specs = vec![
        ModelSpec::new("bert", encoder("nomic_bert")),
        ModelSpec::new("laya", decider),
        ModelSpec::new("ranker", encoder("xlmr_rerank")),
        ModelSpec::new("anna", Speaker::new("Anna", 4, &Arc::default())),
    ];
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    // At once, before the files were read.
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(said(&server.post(CHAT, &chat).await.json()), "Anna");
    let embedded = server.post("/v1/embeddings", &json!({ "input": "Hello" })).await;
    assert_eq!(embedded.status, 200, "{}", embedded.text());
    assert_eq!(embedded.json()["model"], "bert");
    let ranked = json!({ "query": "Hello", "documents": ["a", "b"] });
    let ranked = server.post("/v1/rerank", &ranked).await;
    assert_eq!(ranked.status, 200, "{}", ranked.text());
    assert_eq!(ranked.json()["model"], "ranker");
    let asked = json!({ "state": "a", "questions": { "q": { "type": "noul", "instructions": "Is it?" } } });
    let decided = server.post("/v1/systemone", &asked).await;
    assert_eq!(decided.status, 200, "{}", decided.text());
    assert_eq!(decided.json()["model"], "laya");
    assert_eq!(server.get("/props").await.json()["model_alias"], "anna");
    let of_bert = server.get("/v1/models/bert").await.json();
    assert_eq!(of_bert["max_model_len"], 2048, "{of_bert}");
    assert_eq!(
        of_bert["architecture"],
        json!({ "input_modalities": ["text"], "output_modalities": ["embeddings"] }),
    );
}

/// It writes text too, so chats without a name would be for it if it were the first.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_without_a_name_are_for_a_model_trained_for_them() {
    if demo_path().is_none() {
        return;
    }
    let decider = FileLoader {
        path: PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/decisions/openjev.gguf"
        )),
        options: Model::options().threads(1).device(Device::Cpu).context(512),
    };
    let specs = vec![
        ModelSpec::new("anna", Speaker::new("Anna", 4, &Arc::default())),
        ModelSpec::new("openjev", decider),
    ];
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    let questions = json!([{ "type": "predicate", "instructions": "Is it?" }]);
    let asked = json!({ "input": "a", "questions": questions });
    let decided = server.post("/v1/decisions", &asked).await;
    assert_eq!(decided.status, 200, "{}", decided.text());
    assert_eq!(decided.json()["model"], "openjev");
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(said(&server.post(CHAT, &chat).await.json()), "Anna");
    // Before it is loaded and afterwards.
    let capabilities = || async { server.get("/v1/models/openjev").await.json()["capabilities"].clone() };
    let has = |capabilities: &serde_json::Value, name: &str| {
        let list = capabilities.as_array().expect("a list");
        list.iter().any(|capability| capability == name)
    };
    let of_loaded = capabilities().await;
    let unloaded = server
        .post("/models/unload", &json!({ "model": "openjev" }))
        .await;
    assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    server.wait_for("openjev", "unloaded").await;
    for found in [of_loaded, capabilities().await] {
        assert!(has(&found, "completion") && has(&found, "decision"), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_say_which_models_have_a_chat_template_before_they_are_loaded() {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data"));
    let options = || Model::options().threads(1).device(Device::Cpu);
    let base = |options| FileLoader {
        path: data.join("networks/minicpm/model-BF16.gguf"),
        options,
    };
    let demo = FileLoader {
        path: PathBuf::from("demo"),
        options: options(),
    };
    let absent = FileLoader {
        path: data.join("absent.gguf"),
        options: options(),
    };
    let specs = vec![
        ModelSpec::new("base", base(options())),
        ModelSpec::new(
            "templated",
            base(options().chat_template("{{ messages[0].content }}")),
        ),
        ModelSpec::new("demo", demo),
        ModelSpec::new("absent", absent),
    ];
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    let told = || async {
        let listed = server.get("/v1/models").await.json();
        let entries = listed["data"].as_array().expect("a list").clone();
        entries
            .into_iter()
            .map(|entry| {
                (
                    entry["has_chat_template"].clone(),
                    entry["status"]["value"].clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    let expected = [json!(false), json!(true), json!(true), json!(null)].map(|has| (has, json!("unloaded")));
    let until = Instant::now() + Duration::from_secs(30);
    while told().await != expected && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(told().await, expected);
    let completion = json!({ "model": "base", "prompt": "Hi", "max_tokens": 1 });
    assert_eq!(server.post("/v1/completions", &completion).await.status, 200);
    assert_eq!(told().await[0], (json!(false), json!("loaded")));
}
