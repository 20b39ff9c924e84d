//! Tests images on a machine with a GPU: it computes them as the CPU does, unless it computes only a part of the model.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::{
    gpu::{driver_folder, run, with_driver},
    server::Server,
    support::{Outcome, arg},
};

fn data(family: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/vision")
        .join(family)
        .join(name)
}

/// Asks about an image, or without one if `extra` names none.
fn run_on(family: &str, device: &str, extra: &[&str]) -> Outcome {
    let model = data(family, "model.gguf");
    let args = [
        "run",
        arg(&model),
        "What is it?",
        "--temp",
        "0",
        "-n",
        "8",
        "-c",
        "512",
        "--device",
        device,
    ];
    run(with_driver("", &[&args[..], extra].concat()))
}

#[test]
fn gpu_and_cpu_describe_images_alike() {
    for family in ["gemma3", "qwen2.5vl"] {
        let picture = data(family, "0.png");
        let shown = ["--image", arg(&picture)];
        let expected = run_on(family, "cpu", &shown).ok();
        for device in ["auto", "cuda"] {
            let found = run_on(family, device, &shown);
            let said = found.stderr.clone();
            assert!(said.contains("computing on GPU 0"), "{family}: {said}");
            assert_eq!(found.ok(), expected, "{family} on {device}");
        }
    }
}

#[test]
fn cpu_computes_images_if_the_model_would_be_divided() {
    let [encoder, picture] = ["mmproj-model.gguf", "0.png"].map(|name| data("gemma3", name));
    let shown = ["--image", arg(&picture), "--mmproj", arg(&encoder)];
    let parts = [&shown[..], &["-ngl", "1"]].concat();
    let expected = run_on("gemma3", "cpu", &shown).ok();
    let found = run_on("gemma3", "auto", &parts);
    let said = found.stderr.clone();
    assert!(
        said.contains("computing on the CPU: a model that a GPU and the CPU share takes no images"),
        "{said}"
    );
    assert_eq!(found.ok(), expected);
    // A requested GPU takes no images if it computes only a part of the model.
    let refused = run_on("gemma3", "cuda", &parts);
    assert!(
        refused.stderr.contains("compute on the CPU with `--device cpu`"),
        "{}",
        refused.stderr
    );
    assert_eq!(refused.code, 3);
}

#[test]
fn a_server_with_a_gpu_lists_images_and_answers_them() {
    let model = data("gemma3", "model.gguf");
    let folder = data("gemma3", "");
    let body = json!({ "temperature": 0, "max_tokens": 8, "messages": [{ "role": "user", "content": [
        { "type": "text", "text": "What is it?" },
        { "type": "image_url", "image_url": { "url": "file://0.png" } },
    ] }] });
    let answers = ["cpu", "cuda"].map(|device| {
        let variables = [
            ("LD_LIBRARY_PATH", driver_folder().path()),
            ("TOKENMILL_SIM_DRIVER", Path::new("")),
            ("TOKENMILL_CUDA_NO_CHECK", Path::new("1")),
        ];
        let args = [
            arg(&model),
            "--device",
            device,
            "-c",
            "512",
            "--media-path",
            arg(&folder),
        ];
        let server = Server::start_in(&variables, &args);
        let (_, models) = server.ask("GET", "/v1/models", "");
        assert_eq!(
            models["data"][0]["architecture"]["input_modalities"],
            json!(["text", "image"]),
            "{device}: {models}"
        );
        let (status, reply) = server.ask("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!(status, 200, "{device}: {reply}");
        reply["choices"][0]["message"]["content"].clone()
    });
    assert_eq!(answers[0], answers[1]);
}
