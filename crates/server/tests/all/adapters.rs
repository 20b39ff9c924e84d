//! Adapters over HTTP: loaded, listed, named as models, scaled and unloaded.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use tokenmill_server::ServerConfig;
use tokenmill_testkit::adapter_files::wrong_adapters;

use crate::server::TestServer;

/// A folder of the core data.
fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data")
        .join(path)
}

/// A server whose clients may load the adapters of the core data.
async fn server() -> TestServer {
    let config = ServerConfig {
        adapter_folder: Some(data("parity2/lora")),
        ..ServerConfig::default()
    };
    TestServer::start_file(&data("parity/qwen3/model-F32.gguf"), "tiny", config).await
}

async fn load(server: &TestServer, name: &str, path: &str) -> u16 {
    let body = json!({ "lora_name": name, "lora_path": path });
    server.post("/v1/load_lora_adapter", &body).await.status
}

/// Returns the text that other software generates with a fixture's adapter, as far as rounding cannot change it.
fn expected(name: &str) -> (Value, Vec<u64>) {
    let json = std::fs::read(data(&format!("parity2/lora/{name}/ref.json"))).unwrap();
    let facts: Value = serde_json::from_slice(&json).unwrap();
    let n_safe = facts["greedy_safe_steps"]["0.02"][0].as_u64().unwrap() as usize;
    let greedy = facts["greedy"][0].as_array().unwrap();
    let greedy = greedy.iter().map(|id| id.as_u64().unwrap()).take(n_safe);
    (facts["prompts"][0].clone(), greedy.collect())
}

async fn greedy(server: &TestServer, model: &str, prompt: &Value, n: usize) -> Vec<u64> {
    let body = json!({
        "model": model, "prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": true, "return_tokens": true,
    });
    let reply = server.post_ok("/completion", &body).await;
    let tokens = reply["tokens"].as_array().expect("the tokens");
    tokens.iter().map(|id| id.as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_come_and_go_and_answer_as_other_software_does() {
    let server = server().await;
    assert_eq!(load(&server, "a", "qwen3-a/adapter-F32.gguf").await, 200);
    assert_eq!(load(&server, "b", "qwen3-b").await, 200);
    let models = server.get("/v1/models").await.json();
    let listed: Vec<(&str, &Value)> = (models["data"].as_array().unwrap().iter())
        .map(|model| (model["id"].as_str().unwrap(), &model["parent"]))
        .collect();
    assert_eq!(
        listed,
        [
            ("tiny", &Value::Null),
            ("a", &json!("tiny")),
            ("b", &json!("tiny"))
        ]
    );
    assert_eq!(server.get("/v1/models/a").await.json()["parent"], "tiny");

    let (prompt, of_a) = expected("qwen3-a");
    let (_, of_b) = expected("qwen3-b");
    for name in ["a", "tiny:a"] {
        assert_eq!(greedy(&server, name, &prompt, of_a.len()).await, of_a, "{name}");
    }
    assert_eq!(greedy(&server, "b", &prompt, of_b.len()).await, of_b);
    let base = greedy(&server, "tiny", &prompt, of_a.len()).await;
    assert_ne!(base, of_a);

    let body = json!({ "model": "tiny:a", "prompt": "x", "max_tokens": 2 });
    assert_eq!(server.post_ok("/v1/completions", &body).await["model"], "tiny:a");

    // Scales: those that are left out get 0.
    let list = server.get("/lora-adapters").await.json();
    assert_eq!(
        [&list[0]["name"], &list[1]["name"], &list[1]["scale"]],
        [&json!("a"), &json!("b"), &json!(1.0)]
    );
    let scaled = server
        .post("/lora-adapters", &json!([{ "id": 1, "scale": 0.5 }]))
        .await;
    assert_eq!(scaled.status, 200, "{}", scaled.text());
    assert_eq!(greedy(&server, "a", &prompt, of_a.len()).await, base);
    assert_eq!(server.get("/lora-adapters").await.json()[1]["scale"], 0.5);
    server
        .post_ok(
            "/lora-adapters",
            &json!([{ "id": 0, "scale": 1 }, { "id": 1, "scale": 1 }]),
        )
        .await;
    assert_eq!(greedy(&server, "a", &prompt, of_a.len()).await, of_a);

    let unload = |name: &'static str| {
        let server = &server;
        async move {
            server
                .post("/v1/unload_lora_adapter", &json!({ "lora_name": name }))
                .await
        }
    };
    assert_eq!(unload("a").await.status, 200);
    let unknown = unload("a").await;
    assert_eq!(
        (unknown.status, unknown.json()["error"]["code"].as_str()),
        (404, Some("adapter_not_found"))
    );
    assert!(
        unknown.text().contains("there is no adapter `a` here; "),
        "{}",
        unknown.text()
    );
    let gone = server
        .post("/completion", &json!({ "model": "a", "prompt": "x" }))
        .await;
    assert_eq!(
        (gone.status, gone.json()["error"]["code"].as_str()),
        (404, Some("model_not_found"))
    );
    // The name is free again.
    assert_eq!(load(&server, "a", "qwen3-a").await, 200);
    assert_eq!(greedy(&server, "a", &prompt, of_a.len()).await, of_a);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_ends_with_the_adapter_that_it_began_with() {
    let server = server().await;
    assert_eq!(load(&server, "a", "qwen3-a").await, 200);
    let (prompt, _) = expected("qwen3-a");
    let body =
        json!({ "model": "a", "prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": true });
    let whole = server.post_ok("/v1/completions", &body).await["choices"][0]["text"].clone();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let engine = server.app.model.engine();
    // On a busy machine a request may have ended before it is seen or the metrics are read.
    let mut attempts = 0;
    let (stream, line) = loop {
        let stream = server.post_stream("/v1/completions", &streamed).await;
        for _ in 0..1000 {
            if engine.stats().n_running == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let metrics = server.get("/metrics").await;
        let line = (metrics.text().lines())
            .find(|line| line.starts_with("vllm:lora_requests_info{"))
            .expect("the metric of adapters")
            .to_owned();
        attempts += 1;
        if line.contains("running_lora_adapters=\"a\"") || attempts == 10 {
            break (stream, line);
        }
        stream.reply().await;
    };
    for part in [
        "max_lora=\"64\"",
        "running_lora_adapters=\"a\"",
        "waiting_lora_adapters=\"\"",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let removed = server
        .post("/v1/unload_lora_adapter", &json!({ "lora_name": "a" }))
        .await;
    assert_eq!(removed.status, 200);
    assert_eq!(server.post("/v1/completions", &body).await.status, 404);
    let reply = stream.reply().await;
    let text: String = (reply.text().lines())
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter_map(|chunk| Some(chunk["choices"][0]["text"].as_str()?.to_owned()))
        .collect();
    assert_eq!(text, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_that_cannot_be_are_refused_and_nothing_is_lost() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("adapters");
    for name in ["qwen3-a", "qwen3-b"] {
        copy(&data(&format!("parity2/lora/{name}")), &folder.join(name));
    }
    let model = data("parity/qwen3/model-F32.gguf");
    std::fs::copy(&model, outer.path().join("model.gguf")).unwrap();
    let config = ServerConfig {
        adapter_folder: Some(folder.clone()),
        ..ServerConfig::default()
    };
    let server = TestServer::start_file(&model, "tiny", config).await;
    assert_eq!(load(&server, "a", "qwen3-a").await, 200);
    let refuse = async |name: &str, path: &str, part: &str| {
        let body = json!({ "lora_name": name, "lora_path": path });
        let reply = server.post("/v1/load_lora_adapter", &body).await;
        let error = reply.json();
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(reply.status, 400, "{path}: {message}");
        assert!(
            message.contains(part) && !message.contains('\n'),
            "{path}: {message}"
        );
        assert!(
            !message.contains(outer.path().to_str().unwrap()),
            "it tells where the folder lies: {message}"
        );
    };
    refuse("a", "qwen3-b", "is that of an adapter that is loaded").await;
    refuse("tiny", "qwen3-b", "name of the model").await;
    refuse("", "qwen3-b", "is empty").await;
    for path in ["../model.gguf", "/etc/passwd", "no-such"] {
        refuse("b", path, "below").await;
    }
    refuse("b", "qwen3-a/ref.json", "ref.json").await;
    let n_in = server.app.model.engine().limits().n_embd;
    for wrong in wrong_adapters("qwen3", n_in, 2 * n_in) {
        wrong.write(&folder);
        refuse("b", &wrong.name, wrong.part).await;
        // In the place of one that is loaded, too.
        assert_eq!(load(&server, "a", &wrong.name).await, 400, "{}", wrong.name);
    }
    let unknown = json!([{ "id": 7, "scale": 1 }]);
    assert_eq!(server.post("/lora-adapters", &unknown).await.status, 400);
    let embedding = server
        .post("/v1/embeddings", &json!({ "model": "a", "input": "x" }))
        .await;
    assert_eq!(embedding.status, 400);
    let (prompt, of_a) = expected("qwen3-a");
    assert_eq!(greedy(&server, "a", &prompt, of_a.len()).await, of_a);

    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"].as_array().unwrap().len(), 2, "{models}");
    assert_eq!(load(&server, "b", "qwen3-b").await, 200, "the name is free");
    server.assert_idle().await;

    let closed = TestServer::start_file(
        &data("parity/qwen3/model-F32.gguf"),
        "tiny",
        ServerConfig::default(),
    )
    .await;
    for (path, body) in [
        (
            "/v1/load_lora_adapter",
            json!({ "lora_name": "a", "lora_path": "qwen3-a" }),
        ),
        ("/v1/unload_lora_adapter", json!({ "lora_name": "a" })),
        ("/lora-adapters", json!([])),
    ] {
        let reply = closed.post(path, &body).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.text().contains("--lora-dir"), "{path}: {}", reply.text());
    }
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn links_out_of_an_adapters_folder_are_not_followed() {
    use std::os::unix::fs::symlink;

    let outer = tempfile::tempdir().unwrap();
    let [folder, outside] = ["adapters", "outside"].map(|name| outer.path().join(name));
    copy(&data("parity2/lora/qwen3-a"), &outside);
    let files = ["adapter_config.json", "adapter_model.safetensors"];
    // One of both files, or both; and the folder itself.
    for (name, linked) in [
        ("first", &files[..1]),
        ("second", &files[1..]),
        ("both", &files[..]),
    ] {
        copy(&outside, &folder.join(name));
        for file in linked {
            std::fs::remove_file(folder.join(name).join(file)).unwrap();
            symlink(outside.join(file), folder.join(name).join(file)).unwrap();
        }
    }
    symlink(&outside, folder.join("folder")).unwrap();
    // A link inside the folder is a file like any other.
    copy(&outside, &folder.join("inside"));
    let config = folder.join("inside").join(files[0]);
    std::fs::rename(&config, folder.join("inside/real.json")).unwrap();
    symlink("real.json", &config).unwrap();
    let config = ServerConfig {
        adapter_folder: Some(folder),
        ..ServerConfig::default()
    };
    let server = TestServer::start_file(&data("parity/qwen3/model-F32.gguf"), "tiny", config).await;
    for name in ["first", "second", "both", "folder"] {
        let body = json!({ "lora_name": "a", "lora_path": name });
        let reply = server.post("/v1/load_lora_adapter", &body).await;
        assert_eq!(reply.status, 400, "{name}: {}", reply.text());
        assert!(!reply.text().contains("outside/"), "{}", reply.text());
    }
    assert_eq!(load(&server, "a", "inside").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_adapter_is_a_404_of_each_api() {
    let server = server().await;
    assert_eq!(load(&server, "a", "qwen3-a").await, 200);
    let messages = json!([{ "role": "user", "content": "x" }]);
    for name in ["tiny:nope", "nope", "a:nope"] {
        for (path, body) in [
            ("/v1/completions", json!({ "prompt": "x", "max_tokens": 2 })),
            (
                "/v1/chat/completions",
                json!({ "messages": messages, "max_tokens": 2 }),
            ),
            ("/v1/responses", json!({ "input": "x", "max_output_tokens": 16 })),
            ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
            ("/v1/messages/count_tokens", json!({ "messages": messages })),
            ("/completion", json!({ "prompt": "x", "n_predict": 2 })),
            ("/v1/embeddings", json!({ "input": "x" })),
            ("/api/generate", json!({ "prompt": "x", "stream": false })),
            ("/api/chat", json!({ "messages": messages, "stream": false })),
            ("/api/show", json!({})),
        ] {
            for is_stream in [false, true] {
                let mut body = body.clone();
                body["model"] = json!(name);
                if is_stream && !path.contains("count") && !path.contains("embed") && path != "/api/show" {
                    body["stream"] = json!(true);
                }
                let reply = server.post(path, &body).await;
                assert_eq!(reply.status, 404, "{path} of {name}: {}", reply.text());
                assert!(reply.text().contains(name), "{path} of {name}: {}", reply.text());
            }
        }
        let reply = server.get(&format!("/v1/models/{name}")).await;
        assert_eq!(reply.status, 404, "{}", reply.text());
    }
    // None of it kept the right names from working.
    let (prompt, of_a) = expected("qwen3-a");
    assert_eq!(greedy(&server, "tiny:a", &prompt, of_a.len()).await, of_a);
}
