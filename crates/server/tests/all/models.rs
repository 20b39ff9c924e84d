//! Several models in one server: loads, unloads, waiting requests, and the answers to all of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokenmill::{Device, Model};
use tokenmill_server::{
    Drained, KeepAlive, ModelLimits, ModelSpec, Models, ServerConfig, models::FileLoader,
};

use crate::{
    demo::demo_path,
    server::wait_until,
    several::{CHAT, Several, Speaker, chat, said, send},
    wire::Exchange,
};

/// Three models of 4 bytes each.
fn three(n_alive: &Arc<AtomicUsize>) -> ([Speaker; 3], Vec<ModelSpec>) {
    let speakers = ["Anna", "Berta", "Clara"].map(|says| Speaker::new(says, 4, n_alive));
    let names = ["anna", "berta", "clara"];
    let specs = names
        .iter()
        .zip(&speakers)
        .map(|(name, speaker)| ModelSpec::new(*name, speaker.clone()));
    let specs = specs.collect();
    (speakers, specs)
}

/// A budget for two of them.
fn for_two() -> ModelLimits {
    ModelLimits {
        budget_bytes: Some(8),
        ..ModelLimits::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_finds_its_model_and_lists_say_what_each_is_doing() {
    if demo_path().is_none() {
        return;
    }
    let (_, mut specs) = three(&Arc::default());
    specs[1].names.push("gpt-4o".to_owned());
    let server = Several::start(specs, for_two(), ServerConfig::default()).await;
    assert_eq!(server.status("anna").await, json!({ "value": "unloaded" }));
    assert_eq!(server.says("anna").await, "Anna");
    let aliased = server.post(CHAT, &chat("gpt-4o")).await.json();
    assert_eq!(
        (said(&aliased).as_str(), &aliased["model"]),
        ("Berta", &json!("berta"))
    );
    assert_eq!(server.status("berta").await, json!({ "value": "loaded" }));
    // Other APIs.
    let ollama =
        json!({ "model": "anna:latest", "messages": [{ "role": "user", "content": "Hi" }], "stream": false });
    assert_eq!(
        server.post("/api/chat", &ollama).await.json()["message"]["content"],
        "Anna"
    );
    let anthropic =
        json!({ "model": "berta", "max_tokens": 20, "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(
        server.post("/v1/messages", &anthropic).await.json()["content"][0]["text"],
        "Berta"
    );
    assert_eq!(
        server.get("/props?model=berta").await.json()["model_alias"],
        "berta"
    );
    assert_eq!(server.get("/props").await.json()["model_alias"], "anna");
    // The third takes the place of the one that was used longest ago.
    assert_eq!(server.says("clara").await, "Clara");
    assert_eq!(server.status("anna").await["value"], "unloaded");
    let running = server.get("/api/ps").await.json();
    let running: Vec<&str> = (running["models"].as_array().expect("a list").iter())
        .filter_map(|model| model["name"].as_str())
        .collect();
    assert_eq!(running, ["berta:latest", "clara:latest"]);
    let all = server.get("/api/tags").await.json();
    assert_eq!(all["models"].as_array().map(Vec::len), Some(4));
    let one = server.get("/v1/models/anna").await.json();
    assert_eq!(
        (&one["id"], &one["status"]["value"], &one["max_model_len"]),
        (&json!("anna"), &json!("unloaded"), &Value::Null)
    );
    // A look at no model in particular is a look at one that is there, and loads none.
    assert_eq!(server.get("/props").await.json()["model_alias"], "berta");
    // Asking what there is loaded nothing.
    assert_eq!(server.status("anna").await["value"], "unloaded");
    let metrics = server.get("/metrics").await;
    for line in [
        "tokenmill_model_state{model_name=\"anna\",state=\"unloaded\"} 1",
        "tokenmill_model_state{model_name=\"clara\",state=\"loaded\"} 1",
        "tokenmill_model_loads_total{model_name=\"anna\"} 1",
        "tokenmill_model_unloads_total{model_name=\"anna\"} 1",
        "tokenmill_memory_budget_bytes 8",
        "tokenmill_requests_finished_total{finished_reason=\"stop\",model_name=\"clara\"} 1",
    ] {
        let is_there = metrics.text().lines().any(|found| {
            found == line
                || found.replace(
                    "model_name=\"clara\",finished_reason=\"stop\"",
                    "finished_reason=\"stop\",model_name=\"clara\"",
                ) == line
        });
        assert!(is_there, "{line} is not in\n{}", metrics.text());
    }
    let declared = metrics
        .text()
        .matches("# TYPE tokenmill_requests_running gauge")
        .count();
    assert_eq!(declared, 1, "a figure of two models is declared once");
    for path in ["/livez", "/readyz", "/health"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_for_three_models_under_a_budget_for_two_are_all_answered() {
    const N_CLIENTS: usize = 20;
    const N_REQUESTS: usize = 1000;
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let (speakers, specs) = three(&n_alive);
    let server = Several::start(specs, for_two(), ServerConfig::default()).await;
    let most_alive = Arc::new(AtomicUsize::new(0));
    let watcher = {
        let (n_alive, most_alive) = (Arc::clone(&n_alive), Arc::clone(&most_alive));
        tokio::spawn(async move {
            loop {
                most_alive.fetch_max(n_alive.load(Ordering::SeqCst), Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let clients = (0..N_CLIENTS).map(|client| {
        let address = server.address.clone();
        tokio::spawn(async move {
            let mut waits = Vec::new();
            for request in 0..N_REQUESTS / N_CLIENTS {
                // A well-mixed order that is the same each time.
                let draw = ((client * 7919 + request) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
                let (model, expected) =
                    [("anna", "Anna"), ("berta", "Berta"), ("clara", "Clara")][draw as usize % 3];
                let begun = Instant::now();
                let reply = send(&address, CHAT, &chat(model)).await.reply().await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                assert_eq!(said(&reply.json()), expected);
                waits.push(begun.elapsed());
            }
            waits
        })
    });
    let mut waits = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        waits.extend(client.await.expect("no request is lost"));
    }
    watcher.abort();
    waits.sort_unstable();
    let n_loads: usize = speakers.iter().map(Speaker::n_loads).sum();
    println!(
        "{} requests, {n_loads} loads; waits: median {:?}, p99 {:?}, longest {:?}",
        waits.len(),
        waits[waits.len() / 2],
        waits[waits.len() * 99 / 100],
        waits[waits.len() - 1]
    );
    assert_eq!(waits.len(), N_REQUESTS);
    assert!(n_loads >= 4, "models were switched");
    assert!(
        most_alive.load(Ordering::SeqCst) <= 2,
        "never more than two are in memory"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_their_model_while_others_answer() {
    if demo_path().is_none() {
        return;
    }
    let ([anna, berta, _], specs) = three(&Arc::default());
    let server = Several::start(specs, for_two(), ServerConfig::default()).await;
    assert_eq!(server.says("anna").await, "Anna");
    berta.load_takes(Duration::from_secs(3));
    let waiting = [
        server.send(CHAT, &chat("berta")).await,
        server.send(CHAT, &chat("berta")).await,
    ];
    server.wait_for("berta", "loading").await;
    let begun = Instant::now();
    assert_eq!(server.says("anna").await, "Anna");
    assert_eq!(
        server.status("berta").await["value"],
        "loading",
        "after {:?}",
        begun.elapsed()
    );
    for exchange in waiting {
        let reply = exchange.reply().await;
        assert_eq!((reply.status, said(&reply.json()).as_str()), (200, "Berta"));
    }
    assert_eq!(berta.n_loads(), 1, "one load is for all who wait");
    // Next to a model that may answer a load is quiet.
    let quiet = |speaker: &Speaker| speaker.0.quiet_loads.load(Ordering::SeqCst);
    assert_eq!((quiet(&anna), quiet(&berta)), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_in_use_is_not_unloaded_and_its_stream_is_whole() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let mut long = Speaker::new(&"Anna ".repeat(60), 4, &n_alive);
    Arc::get_mut(&mut long.0).expect("no one else has it").step_time = Duration::from_millis(10);
    let other = Speaker::new("Berta", 4, &n_alive);
    let specs = vec![ModelSpec::new("anna", long), ModelSpec::new("berta", other)];
    let limits = ModelLimits {
        budget_bytes: Some(4),
        ..ModelLimits::default()
    };
    let server = Several::start(specs, limits, ServerConfig::default()).await;
    let mut body = chat("anna");
    body["stream"] = true.into();
    let mut stream = server.send(CHAT, &body).await;
    assert_eq!(stream.head().await.0, 200);
    let waiting = server.send(CHAT, &chat("berta")).await;
    let told = server.post("/models/unload", &json!({ "model": "anna" })).await;
    assert_eq!(told.json()["status"]["value"], "unloading", "{}", told.text());
    let mut text = String::new();
    while let Some(event) = stream.event().await {
        if let Ok(chunk) = serde_json::from_str::<Value>(&event) {
            text += chunk["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default();
        }
    }
    assert_eq!(text.matches("Anna").count(), 60);
    assert_eq!(said(&waiting.reply().await.json()), "Berta");
    assert_eq!(server.status("anna").await["value"], "unloaded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_fails_is_told_with_its_reason_and_tried_again() {
    if demo_path().is_none() {
        return;
    }
    let ([anna, berta, _], specs) = three(&Arc::default());
    let server = Several::start(specs, for_two(), ServerConfig::default()).await;
    assert_eq!(server.says("anna").await, "Anna");
    berta.fail(Some("tensor blk.7.ffn_up.weight cannot be read"));
    let failed = server.post(CHAT, &chat("berta")).await;
    assert_eq!(
        (failed.status, &failed.json()["error"]["code"]),
        (503, &json!("model_failed"))
    );
    assert!(
        failed.text().contains("`berta` cannot be loaded: tensor blk.7"),
        "{}",
        failed.text()
    );
    assert!(failed.header("retry-after").is_some());
    let status = server.status("berta").await;
    assert_eq!(
        (&status["value"], &status["failed"]),
        (&json!("unloaded"), &json!(true))
    );
    assert!(
        status["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("blk.7")),
        "{status}"
    );
    assert_eq!(server.says("anna").await, "Anna");
    berta.fail(None);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(server.says("berta").await, "Berta");
    assert_eq!(server.status("berta").await, json!({ "value": "loaded" }));
    // A panic is a failure of that model alone.
    anna.0.panics.store(true, Ordering::SeqCst);
    server.post("/models/unload", &json!({ "model": "anna" })).await;
    server.wait_for("anna", "unloaded").await;
    let failed = server.post(CHAT, &chat("anna")).await;
    assert_eq!(failed.status, 503, "{}", failed.text());
    assert_eq!(server.says("berta").await, "Berta");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_refused_with_what_is_wrong() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let specs = vec![
        ModelSpec {
            is_pinned: true,
            ..ModelSpec::new("small", Speaker::new("Small", 3 << 20, &n_alive))
        },
        ModelSpec::new("large", Speaker::new("Large", 6 << 20, &n_alive)),
        ModelSpec::new("huge", Speaker::new("Huge", 3 << 30, &n_alive)),
    ];
    let limits = ModelLimits {
        budget_bytes: Some(8 << 20),
        ..ModelLimits::default()
    };
    let server = Several::start(specs, limits, ServerConfig::default()).await;
    // A pinned model is loaded without a request.
    server.wait_for("small", "loaded").await;
    let refused = server.post(CHAT, &chat("huge")).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (503, &json!("model_too_large"))
    );
    assert!(
        refused
            .text()
            .contains("needs 3.00 GiB, and the server's memory budget is 8.00 MiB"),
        "{}",
        refused.text()
    );
    let refused = server.post(CHAT, &chat("large")).await;
    assert_eq!(refused.status, 503);
    assert!(
        refused.text().contains("of which models that stay take 3.00 MiB"),
        "{}",
        refused.text()
    );
    let unknown = server.post(CHAT, &chat("smal")).await;
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    assert!(unknown.text().contains("near it: small"), "{}", unknown.text());
    assert!(
        unknown.text().contains("available: small, large, huge"),
        "{}",
        unknown.text()
    );
    let garbled = Exchange::send(&server.address, "POST", CHAT, &[], b"{\"model\": \"small\"")
        .await
        .reply()
        .await;
    assert_eq!(
        (garbled.status, &garbled.json()["error"]["code"]),
        (400, &json!("malformed_json"))
    );
    assert_eq!(server.says("small").await, "Small");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_a_model_are_bounded_in_number_and_time() {
    if demo_path().is_none() {
        return;
    }
    let ([anna, berta, _], specs) = three(&Arc::default());
    let limits = ModelLimits {
        max_waiting: 2,
        ..for_two()
    };
    let config = ServerConfig {
        queue_timeout: Some(Duration::from_millis(1500)),
        ..ServerConfig::default()
    };
    let server = Several::start(specs, limits, config).await;
    anna.load_takes(Duration::from_secs(4));
    let first = server.send(CHAT, &chat("anna")).await;
    server.wait_for("anna", "loading").await;
    // Its turn comes after the first model's, and no request waits for it then.
    let second = server.send(CHAT, &chat("berta")).await;
    server.wait_for("berta", "loading").await;
    let third = server.post(CHAT, &chat("berta")).await;
    assert_eq!(
        (third.status, &third.json()["error"]["code"]),
        (429, &json!("queue_full"))
    );
    assert_eq!(server.get("/readyz").await.status, 503);
    for late in [first, second] {
        let reply = late.reply().await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (504, &json!("deadline_exceeded"))
        );
    }
    server.wait_for("anna", "loaded").await;
    server.wait_for("berta", "unloaded").await;
    assert_eq!(
        berta.n_loads(),
        0,
        "a load that no request waits for is not begun"
    );
    assert_eq!(server.says("anna").await, "Anna");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_go_when_they_are_idle_told_to_or_kept_for_no_time() {
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let (_, mut specs) = three(&n_alive);
    specs[1].keep_alive = Some(KeepAlive::For(Duration::from_millis(150)));
    let server = Several::start(specs, ModelLimits::default(), ServerConfig::default()).await;
    for (model, says) in [("anna", "Anna"), ("berta", "Berta"), ("clara", "Clara")] {
        assert_eq!(server.says(model).await, says);
    }
    server.wait_for("berta", "unloaded").await;
    assert_eq!(server.status("anna").await["value"], "loaded");
    // llama.cpp's paths.
    let told = server.post("/models/unload", &json!({ "model": "clara" })).await;
    assert_eq!((told.status, &told.json()["success"]), (200, &json!(true)));
    let value = &told.json()["status"]["value"];
    assert!(value == "unloading" || value == "unloaded", "{}", told.text());
    server.wait_for("clara", "unloaded").await;
    let told = server.post("/models/load", &json!({ "model": "clara" })).await;
    assert_eq!(told.json()["success"], true);
    server.wait_for("clara", "loaded").await;
    assert_eq!(
        server
            .post("/models/load", &json!({ "model": "clar" }))
            .await
            .status,
        404
    );
    assert_eq!(
        server
            .post("/models/load", &json!({ "modle": "clara" }))
            .await
            .status,
        400
    );
    // Ollama's field: a request may set its own time, or ask for nothing but the end.
    let body = |keep_alive: Value| json!({ "model": "anna", "messages": [{ "role": "user", "content": "Hi" }], "stream": false, "keep_alive": keep_alive });
    assert_eq!(server.post("/api/chat", &body(json!("10m"))).await.status, 200);
    let running = server.get("/api/ps").await.json();
    let anna = running["models"]
        .as_array()
        .and_then(|all| all.iter().find(|model| model["name"] == "anna:latest"));
    let expires = anna.expect("it runs")["expires_at"].as_str().expect("a time");
    assert!(!expires.starts_with("9999"), "{expires}");
    assert_eq!(server.post("/api/chat", &body(json!(0))).await.status, 200);
    server.wait_for("anna", "unloaded").await;
    let wrong = server.post("/api/chat", &body(json!("soon"))).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    let dismissed = server
        .post("/api/generate", &json!({ "model": "clara", "keep_alive": 0 }))
        .await;
    assert_eq!(
        (dismissed.status, &dismissed.json()["done_reason"]),
        (200, &json!("unload"))
    );
    server.wait_for("clara", "unloaded").await;
    // And a request for nothing loads.
    let loaded = server
        .post("/api/generate", &json!({ "model": "clara" }))
        .await
        .json();
    assert_eq!(loaded["done_reason"], "load");
    assert_eq!(server.status("clara").await["value"], "loaded");
    wait_until("only one is in memory", || n_alive.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_missing_damaged_or_deleted_fail_for_their_model_alone() {
    let Some(demo) = demo_path() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(&demo, at("good.gguf")).expect("a copy");
    std::fs::copy(&demo, at("gone.gguf")).expect("a copy");
    let whole = std::fs::read(&demo).expect("the demo model");
    std::fs::write(at("short.gguf"), &whole[..whole.len() / 2]).expect("half a file");
    let names = ["good", "gone", "short", "missing"];
    let specs = names.map(|name| {
        let options = Model::options().threads(1).device(Device::Cpu);
        ModelSpec::new(
            name,
            FileLoader {
                path: at(&format!("{name}.gguf")),
                options,
            },
        )
    });
    let server = Several::start(specs.into(), ModelLimits::default(), ServerConfig::default()).await;
    // A missing file is noticed before the first request.
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.status("missing").await["failed"] != true {
        assert!(Instant::now() < deadline, "the missing file is not noticed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ask = async |model: &str| {
        let body = json!({ "model": model, "prompt": "One", "max_tokens": 2 });
        server.post("/v1/completions", &body).await
    };
    assert_eq!(ask("good").await.status, 200);
    assert_eq!(ask("gone").await.status, 200);
    for model in ["short", "missing"] {
        let failed = ask(model).await;
        assert_eq!(
            (failed.status, &failed.json()["error"]["code"]),
            (503, &json!("model_failed")),
            "{model}"
        );
        assert!(
            failed.text().contains(&format!("{model}.gguf")),
            "{}",
            failed.text()
        );
    }
    // Facts of the files stand in the lists before the load.
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["details"]["format"], "gguf", "{tags}");
    server.post("/models/unload", &json!({ "model": "gone" })).await;
    server.wait_for("gone", "unloaded").await;
    std::fs::remove_file(at("gone.gguf")).expect("it can be deleted");
    assert_eq!(ask("gone").await.status, 503);
    assert_eq!(ask("good").await.status, 200);
    std::fs::copy(&demo, at("gone.gguf")).expect("a copy");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(ask("gone").await.status, 200, "it is tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_what_runs_and_what_loads_finish() {
    if demo_path().is_none() {
        return;
    }
    let ([_, berta, _], specs) = three(&Arc::default());
    let server = Several::start(specs, for_two(), ServerConfig::default()).await;
    assert_eq!(server.says("anna").await, "Anna");
    berta.load_takes(Duration::from_millis(300));
    let waiting = server.send(CHAT, &chat("berta")).await;
    while berta.n_loads() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.models.shutdown().begin();
    assert_eq!(said(&waiting.reply().await.json()), "Berta");
    assert_eq!(server.run.await.expect("it ends in order"), Drained::Whole);
}

#[test]
fn two_models_of_one_name_are_refused() {
    let (_, mut specs) = three(&Arc::default());
    specs[2].names.push("anna".to_owned());
    let error = Models::new(specs, ModelLimits::default(), ServerConfig::default())
        .expect_err("a name is there twice");
    assert_eq!(
        error.to_string(),
        "two models are called `anna`: anna and clara; an alias tells them apart"
    );
}
