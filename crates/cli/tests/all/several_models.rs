//! `serve` with several models: by name, from a folder, from a TOML file; and the errors for wrong ones.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    server::{Server, put},
    support::{DEMO_GGUF, arg, put_ollama_model, tokenmill},
};

#[test]
fn models_by_name_are_loaded_at_the_start_where_they_fit() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "tiny.gguf", DEMO_GGUF);
    let path = folder.path().join("tiny.gguf");
    let server = Server::start(&["demo", arg(&path), "-c", "64"]);
    server.wait_for("demo", "loaded");
    server.wait_for("tiny", "loaded");
    let (status, answer) = server.complete("tiny");
    assert_eq!((status, &answer["model"]), (200, &json!("tiny")), "{answer}");
    let (_, without_a_name) = server.ask("POST", "/v1/completions", r#"{"prompt":"Once","max_tokens":1}"#);
    assert_eq!(without_a_name["model"], "demo");
    let (status, unknown) = server.complete("tini");
    assert_eq!(status, 404);
    assert!(
        unknown["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("near it: tiny")),
        "{unknown}"
    );
    server.end();
}

#[test]
fn one_model_is_called_as_it_is_among_several() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "tiny-Q8_0.gguf", DEMO_GGUF);
    put_ollama_model(&folder.path().join("ollama"), "tiny", "latest");
    let path = folder.path().join("tiny-Q8_0.gguf");
    let first = |args: &[&str]| {
        let server = Server::start_with(&folder.path().join("ollama"), &[args, &["-c", "64"]].concat());
        let name = server.states()[0].0.clone();
        // As its file is called, as Ollama's clients call it, and as the server was told.
        for asked in [
            name.clone(),
            format!("{name}.gguf"),
            format!("{name}:latest"),
            args[0].to_owned(),
        ] {
            assert_eq!(server.complete(&asked).1["model"], name.as_str(), "{asked}");
        }
        let tagged = format!("{name}:latest");
        let (_, tags) = server.ask("GET", "/api/tags", "");
        assert_eq!(tags["models"][0]["name"], tagged.as_str(), "{tags}");
        let body =
            json!({ "model": tagged, "prompt": "Hi", "stream": false, "options": { "num_predict": 1 } });
        assert_eq!(server.ask("POST", "/api/generate", &body.to_string()).0, 200);
        server.end();
        name
    };
    for (model, name) in [
        (arg(&path), "tiny-Q8_0"),
        ("tiny:latest", "tiny"),
        ("demo", "demo"),
    ] {
        let other = if model == "demo" { "tiny:latest" } else { "demo" };
        assert_eq!(first(&[model]), name);
        assert_eq!(first(&[model, other]), name);
    }
}

#[test]
fn models_of_one_name_are_called_by_their_folders_too() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["x/hf.gguf", "y/hf.gguf"] {
        put(folder.path(), name, DEMO_GGUF);
    }
    let [x, y] = ["x/hf.gguf", "y/hf.gguf"].map(|name| folder.path().join(name));
    let server = Server::start(&[arg(&x), arg(&y), "-c", "64"]);
    let names: Vec<String> = server.states().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x/hf", "y/hf"]);
    assert_eq!(server.complete("y/hf").1["model"], "y/hf");
    assert_eq!(server.complete(arg(&y)).1["model"], "y/hf");
    assert_eq!(server.complete("hf").0, 404);
    server.end();
}

#[test]
fn a_model_that_cannot_be_loaded_is_warned_of_by_name_and_once() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "models/broken.gguf", &DEMO_GGUF[..1000]);
    put(folder.path(), "models/whole.gguf", DEMO_GGUF);
    let server = Server::start(&["--models-dir", arg(&folder.path().join("models")), "-c", "9999"]);
    for _ in 0..2 {
        assert_eq!(server.complete("broken").0, 503);
        assert_eq!(server.complete("whole").0, 200);
    }
    let (_, ordered) = server.ask("POST", "/models/load", r#"{"model":"broken"}"#);
    assert!(
        ordered["success"] == true && ordered["status"]["value"].is_string(),
        "{ordered}"
    );
    let warnings: Vec<String> = (server.log.lock().unwrap().iter())
        .filter(|line| line.contains("WARN"))
        .cloned()
        .collect();
    for (model, reason) in [
        ("broken", "the file ends inside"),
        ("whole", "longer than the 512"),
    ] {
        let of_it = |line: &&String| line.contains(&format!("model=\"{model}\""));
        let said: Vec<&String> = warnings.iter().filter(of_it).collect();
        assert!(said.len() == 1 && said[0].contains(reason), "{warnings:?}");
        assert!(!said[0].contains("error:"), "{said:?}");
    }
    server.end();
}

#[test]
fn models_without_room_are_warned_of_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "files/tiny.gguf", DEMO_GGUF);
    let toml = folder.path().join("models.toml");
    let text = "memory-budget = \"1MB\"\n[defaults]\nctx-size = 64\n\
        [models.writer]\nmodel = \"files/tiny.gguf\"\npin = true\n\
        [models.later]\nmodel = \"files/tiny.gguf\"\n";
    fs::write(&toml, text).unwrap();
    let server = Server::start(&["--models", arg(&toml)]);
    assert!(
        server.has_warned("`later` takes "),
        "a model that is loaded on demand"
    );
    let began = Instant::now();
    let is_warning = |line: &String| {
        line.contains("WARN") && line.contains("model=\"writer\"") && line.contains("not loaded: ")
    };
    while !server.log.lock().unwrap().iter().any(is_warning) {
        let log = server.log.lock().unwrap().clone();
        assert!(began.elapsed() < Duration::from_mins(1), "{log:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.end();
}

#[test]
fn a_budget_beyond_the_machines_memory_is_warned_of() {
    for (budget, is_too_much) in [("900TiB", true), ("1GiB", false)] {
        // A GPU's memory would count too.
        let hidden = [("CUDA_VISIBLE_DEVICES", std::ffi::OsStr::new(""))];
        let args = ["demo", "--memory-budget", budget, "-c", "64"];
        let server = Server::start_with_variables(&hidden, &args);
        assert_eq!(
            server.has_warned("the memory budget is 921600.00 GiB, and this machine has "),
            is_too_much
        );
        server.end();
    }
}

#[test]
fn models_of_the_command_line_and_of_a_folder_are_pinned() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.gguf", "b.gguf", "c.gguf"] {
        put(folder.path(), name, DEMO_GGUF);
    }
    let path = folder.path().join("c.gguf");
    let listed = [
        "demo",
        "--models-dir",
        arg(folder.path()),
        "-c",
        "64",
        "--max-num-seqs",
        "1",
    ];
    let pins = ["--pin", "a", "--pin", arg(&path), "--idle-unload", "1s"];
    let server = Server::start(&[&listed[..], &pins].concat());
    for name in ["a", "c"] {
        server.wait_for(name, "loaded");
    }
    assert_eq!(server.complete("b").0, 200);
    // Models that are not pinned are unloaded when no request uses them.
    for name in ["b", "demo"] {
        server.wait_for(name, "unloaded");
    }
    let loaded: Vec<String> = (server.states().into_iter())
        .filter_map(|(name, state)| (state == "loaded").then_some(name))
        .collect();
    assert_eq!(loaded, ["a", "c"]);
    server.end();
    let refused = |pin: &str| tokenmill([&["serve"][..], &listed, &["--pin", pin]].concat()).failed(2);
    assert_eq!(
        refused("demx"),
        "error: `--pin demx`: no model has this name (hint: near it: `demo`)"
    );
    assert_eq!(
        refused("nothing-here"),
        "error: `--pin nothing-here`: no model has this name (hint: the models are demo, a, b, c)"
    );
}

#[test]
fn an_encoder_next_to_others_gets_no_larger_context_than_its_own() {
    let encoder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/encoders/xlmr_rerank/model-Q4_K_M.gguf"
    );
    let server = Server::start(&["demo", encoder, "-c", "512"]);
    let ask = r#"{"query":"Hello","documents":["a","b"]}"#;
    let (status, ranked) = server.ask("POST", "/v1/rerank", ask);
    assert_eq!(status, 200, "{ranked}");
    let warned =
        |line: &String| line.contains("WARN") && line.contains("the context is 128 tokens instead of 512");
    let log = server.log.lock().unwrap().clone();
    assert!(log.iter().any(warned), "{log:?}");
    server.end();
}

/// Returns the bytes that model `a` of a server takes.
fn bytes_of_a(args: &[&str]) -> u64 {
    let server = Server::start(args);
    assert_eq!(server.complete("a").0, 200);
    let (_, figures) = server.ask_text("GET", "/metrics", "");
    let line = figures
        .lines()
        .find_map(|line| line.strip_prefix("tokenmill_model_bytes{model_name=\"a\"} "));
    server.end();
    line.and_then(|number| number.parse().ok())
        .expect("the server reports it")
}

#[test]
fn a_model_that_comes_later_gets_the_contexts_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.gguf", DEMO_GGUF);
    let args = ["--models-dir", arg(folder.path()), "-c", "512"];
    let too_little = (bytes_of_a(&args) - 1).to_string();
    let server = Server::start(&[&args[..], &["--memory-budget", &too_little]].concat());
    put(folder.path(), "later.gguf", DEMO_GGUF);
    for model in ["a", "later"] {
        let (status, answer) = server.complete(model);
        assert_eq!(status, 200, "{answer}");
    }
    server.end();
}

#[test]
fn a_folders_models_come_and_go_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.gguf", "b.gguf", "c/c.gguf", "mmproj-a.gguf", "notes.txt"] {
        put(folder.path(), name, DEMO_GGUF);
    }
    let args = [
        "--models-dir",
        arg(folder.path()),
        "-c",
        "64",
        "--max-num-seqs",
        "1",
    ];
    let n_bytes = bytes_of_a(&args);
    assert!(n_bytes > 3_000_000, "{n_bytes}");

    let for_two = (2 * n_bytes + n_bytes / 2).to_string();
    let server = Server::start(&[&args[..], &["--memory-budget", &for_two]].concat());
    assert_eq!(
        server
            .states()
            .iter()
            .map(|(id, _)| id.as_str())
            .collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    for model in ["a", "b", "c", "a"] {
        let (status, answer) = server.complete(model);
        assert_eq!((status, &answer["model"]), (200, &json!(model)), "{answer}");
    }
    let n_loaded = server
        .states()
        .iter()
        .filter(|(_, state)| state == "loaded")
        .count();
    assert_eq!(n_loaded, 2, "{:?}", server.states());
    server.end();

    let server = Server::start(&[
        "--models-dir",
        arg(folder.path()),
        "--memory-budget",
        "1MB",
        "-c",
        "64",
    ]);
    assert!(server.has_warned("`a` takes "), "a model of a folder");
    assert!(!server.has_warned("error:"), "a warning is not an error");
    let (status, answer) = server.complete("a");
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("model_too_large")),
        "{answer}"
    );
    let text = answer["error"]["message"].as_str().expect("a text");
    assert!(
        text.ends_with("; its option `--memory-budget` sets the budget, and `-c` the context of each model"),
        "{text}"
    );
    server.end();
}

#[test]
fn a_file_says_how_each_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "files/tiny.gguf", DEMO_GGUF);
    let toml = folder.path().join("models.toml");
    let text = "idle-unload = \"1h\"\n[defaults]\nctx-size = 64\n\
        [models.writer]\nmodel = \"files/tiny.gguf\"\nalias = [\"gpt-4o\"]\npin = true\n\
        [models.short]\nmodel = \"demo\"\nctx-size = 32\nidle-unload = \"100ms\"\ncache-type-k = \"f32\"\n\
        [models.lost]\nmodel = \"files/none.gguf\"\n\
        [models.pair]\nmodel = \"files/tiny.gguf\"\ndraft = \"files/tiny.gguf\"\nspec = \"draft\"\n\
        [models.widow]\nmodel = \"files/tiny.gguf\"\ndraft = \"files/lost-draft.gguf\"\n";
    fs::write(&toml, text).unwrap();
    let server = Server::start(&["--models", arg(&toml)]);
    server.wait_for("writer", "loaded");
    assert_eq!(server.complete("gpt-4o").1["model"], "writer");
    assert_eq!(server.complete("short").0, 200);
    let (_, short) = server.ask("GET", "/v1/models/short", "");
    assert!(
        short["max_model_len"] == 32 || short["status"]["value"] == "unloaded",
        "{short}"
    );
    assert_eq!(server.ask("GET", "/v1/models/writer", "").1["max_model_len"], 64);
    server.wait_for("short", "unloaded");
    // Draft models stand next to the file too, and one that is missing keeps its own model alone from being loaded.
    assert_eq!(server.complete("pair").0, 200);
    let (status, answer) = server.complete("widow");
    assert_eq!(status, 503, "{answer}");
    assert!(answer.to_string().contains("lost-draft.gguf"), "{answer}");
    let (status, answer) = server.complete("lost");
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("model_failed")),
        "{answer}"
    );
    assert!(
        answer["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("none.gguf") && !text.contains("files")),
        "{answer}"
    );
    assert_eq!(
        server.ask("GET", "/v1/models/lost", "").1["status"]["failed"],
        true
    );
    server.end();
}

#[test]
fn one_model_with_a_time_is_unloaded_and_comes_back() {
    let server = Server::start(&[
        "demo",
        "--idle-unload",
        "100ms",
        "-c",
        "64",
        "--served-model-name",
        "me",
        "--tags",
        "small, chat,,small",
    ]);
    let check_tags = || {
        let (_, list) = server.ask("GET", "/v1/models", "");
        assert_eq!(
            list["data"][0]["tags"],
            serde_json::json!(["small", "chat"]),
            "{list}"
        );
    };
    assert_eq!(server.complete("me").0, 200);
    check_tags();
    server.wait_for("me", "unloaded");
    check_tags();
    assert_eq!(server.complete("me").0, 200);
    server.end();
}

#[test]
fn wrong_models_are_refused_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let toml = folder.path().join("models.toml");
    let refused = |args: &[&str], code: i32, expected: &str| {
        let line = tokenmill([&["serve", "--port", "0"][..], args].concat()).error_line(code);
        assert!(line.contains(expected), "{args:?}: {line}");
    };
    for (text, expected) in [
        (
            "[models.a]\nmodel = \"demo\"\nctx-sise = 3\n",
            "[models.a]: unknown key `ctx-sise`; near it: `ctx-size`",
        ),
        (
            "[models.a]\nmodel = \"demo\"\nctx-size = \"many\"\n",
            "[models.a]: invalid value 'many'",
        ),
        ("[models.a\n", "line 1"),
        (
            "[models.a]\nmodel = \"demo\"\n[models.b]\nmodel = \"demo\"\nalias = \"a\"\n",
            "two models are called `a`",
        ),
        ("", "it lists no model"),
    ] {
        fs::write(&toml, text).unwrap();
        let code = if expected.starts_with("two models") { 2 } else { 3 };
        refused(&["--models", arg(&toml)], code, expected);
    }
    for option in ["--models", "--models-dir", "--api-key-file"] {
        let expected = format!("error: `{option}`: cannot read no-such: ");
        refused(&[option, "no-such"], 3, &expected);
    }
    refused(&["--models-dir", arg(folder.path())], 3, "there is no model in");
    refused(&["demo", "no-such.gguf"], 3, "no-such.gguf");
    refused(
        &["demo", "demo"],
        2,
        "two models are called `demo`: demo and demo",
    );
    refused(
        &["demo", "--embedding-model", "none.gguf", "-c", "64"],
        3,
        "none.gguf",
    );
    fs::write(
        &toml,
        "[models.a]\nmodel = \"demo\"\n[models.b]\nmodel = \"demo\"\n",
    )
    .unwrap();
    let file = arg(&toml);
    refused(
        &["--models", file, "--served-model-name", "x"],
        2,
        "`--served-model-name` is for a server of one model",
    );
    refused(
        &["--models", file, "--tags", "x"],
        2,
        "`--tags` is for a server of one model",
    );
    refused(
        &["--models", file, "--lora", "x=y.gguf"],
        2,
        "`--lora` is for a server of one model",
    );
    refused(
        &["demo", "--embedding-model", "demo", "--mmproj", "m.gguf"],
        2,
        "`--mmproj` is for a server of one model",
    );
    refused(
        &["--models", file, "--draft", "demo"],
        2,
        "`--draft` is for a server of one model",
    );
    refused(&["demo", "--memory-budget", "much"], 2, "expected a size");
    refused(
        &["demo", "--memory-budget", "16"],
        2,
        "is too small for any model",
    );
    for (args, expected) in [
        (
            &["demo", "--memory-budget", "1MB"][..],
            "tokens, and the memory budget is 976.6 KiB (hint: no context is small enough: give a larger `--memory-budget`, or take a \
             smaller model)",
        ),
        (
            &["demo", "-c", "100000", "--memory-budget", "20MB"],
            "(hint: give a smaller context with `-c N`, or a larger `--memory-budget`)",
        ),
        (
            &["demo", "--kv-cache-tokens", "100000", "--memory-budget", "20MB"],
            "(hint: give fewer tokens with `--kv-cache-tokens N`, or a larger `--memory-budget`)",
        ),
    ] {
        refused(args, 3, expected);
    }
    refused(&["demo", "--idle-unload", "soon"], 2, "expected a time");
    refused(
        &["demo", "--media-path", "no-such-folder"],
        2,
        "`--media-path no-such-folder` is not a folder",
    );
    refused(
        &["demo", "--allowed-local-media-path", file],
        2,
        "is not a folder",
    );
    refused(&[], 2, "no model is given");
}
