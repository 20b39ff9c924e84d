//! Adapters on a GPU, the simulated one: what they compute is what they compute on the CPU, in one batch and while the server runs.

use std::{fs, path::PathBuf, thread};

use serde_json::{Value, json};
use tokenmill_testkit::adapter_files::{PairShapes, gguf_adapter};

use crate::{
    gpu::{driver_folder, run, with_driver},
    server::Server,
    support::{arg, tokenmill},
};

/// The core data's tiny model, and the folder of its adapters.
fn model_and_adapters() -> [PathBuf; 2] {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    ["parity/qwen3/model-F32.gguf", "parity2/lora"].map(|path| data.join(path))
}

fn greedy<'a>(model: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "run", model, "once", "--temp", "0", "-n", "12", "-c", "64", "--json",
    ];
    [&args, extra].concat()
}

fn ids(json: &str) -> Value {
    let json: Value = serde_json::from_str(json).expect("one JSON object");
    json["ids"].clone()
}

#[test]
fn the_gpu_continues_with_adapters_as_the_cpu_does() {
    let [model, folder] = model_and_adapters();
    let [a, b] =
        ["qwen3-a/adapter-F32.gguf", "qwen3-b"].map(|adapter| format!("x={}", arg(&folder.join(adapter))));
    let half = format!("{a}:0.5");
    let mut all = Vec::new();
    for extra in [&[][..], &["--lora", &a], &["--lora", &half], &["--lora", &b]] {
        let args = greedy(arg(&model), extra);
        let expected = ids(&tokenmill([&args[..], &["--device", "cpu"]].concat()).ok());
        for flags in [&["--device", "cuda"][..], &["--device", "auto"], &["-ngl", "99"]] {
            let outcome = run(with_driver("", &[&args[..], flags].concat()));
            assert!(!outcome.stderr.contains("CPU"), "{flags:?}: {}", outcome.stderr);
            assert_eq!(ids(&outcome.ok()), expected, "{extra:?} {flags:?}");
        }
        all.push(expected);
    }
    assert!(
        all[0] != all[1] && all[0] != all[3] && all[1] != all[3],
        "{all:?}"
    );
}

#[test]
fn a_model_that_is_divided_has_no_adapters() {
    let [model, folder] = model_and_adapters();
    let lora = format!("x={}", arg(&folder.join("qwen3-b")));
    for (machine, flags) in [
        ("", &["-ngl", "1"][..]),
        ("", &["--place", "ffn=cpu"]),
        ("devices=2", &["-tp", "2"]),
    ] {
        let args = greedy(arg(&model), &[&["--lora", &lora], flags].concat());
        let line = run(with_driver(machine, &args)).failed(2);
        assert!(
            line.contains("adapters are computed where the CPU or one GPU has all of the model"),
            "{line}"
        );
    }
}

#[test]
fn adapters_for_which_a_gpu_has_no_room_count_before_the_load() {
    let [model, _] = model_and_adapters();
    let folder = tempfile::tempdir().unwrap();
    let large = write_large(folder.path());
    let lora = format!("x={}", arg(&large));
    let args = greedy(arg(&model), &["--lora", &lora]);
    let on_gpu = |device| {
        run(with_driver(
            "mib=192",
            &[&args[..], &["--device", device]].concat(),
        ))
    };
    let line = on_gpu("cuda").failed(5);
    assert!(line.contains("MiB are missing"), "{line}");
    // Where the choice is free, the CPU computes them.
    let outcome = on_gpu("auto");
    assert!(outcome.stderr.contains("MiB are missing"), "{}", outcome.stderr);
    outcome.ok();
    // The model alone has room there.
    let alone = [&greedy(arg(&model), &[])[..], &["--device", "cuda"]].concat();
    run(with_driver("mib=192", &alone)).ok();
}

/// An adapter of some 80 MB for the tiny model.
fn write_large(folder: &std::path::Path) -> PathBuf {
    let (rank, n_in, n_out) = (100_000, 64, 128);
    let shapes = PairShapes {
        a: [rank, n_in],
        b: [n_out, rank],
    };
    let path = folder.join("large.gguf");
    fs::write(&path, gguf_adapter("qwen3", shapes)).unwrap();
    path
}

#[test]
fn a_server_on_a_gpu_mixes_adapters_and_takes_and_loses_them_while_it_runs() {
    let [model, folder] = model_and_adapters();
    let adapters = tempfile::tempdir().unwrap();
    let place = |name: &str, from: &str| {
        fs::copy(folder.join(from), adapters.path().join(name)).unwrap();
    };
    place("a.gguf", "qwen3-a/adapter-F32.gguf");
    place("b.gguf", "qwen3-b/adapter-F32.gguf");
    write_large(adapters.path());
    let a = format!("a={}", arg(&adapters.path().join("a.gguf")));
    let start = |device: &str, machine: &str| {
        let variables = [
            ("LD_LIBRARY_PATH", driver_folder().path()),
            ("TOKENMILL_SIM_DRIVER", machine.as_ref()),
        ];
        let args = [
            arg(&model),
            "--served-model-name",
            "tiny",
            "--lora",
            &a,
            "--lora-dir",
            arg(adapters.path()),
            "--device",
            device,
            "-c",
            "64",
            "--parallel",
            "6",
        ];
        Server::start_in(&variables, &args)
    };
    let [on_gpu, on_cpu] = [start("cuda", "mib=192"), start("cpu", "")];
    let load = |server: &Server, name: &str| {
        let body = json!({ "lora_name": name, "lora_path": format!("{name}.gguf") });
        server.ask_text("POST", "/v1/load_lora_adapter", &body.to_string())
    };
    let text = |server: &Server, model: &str, prompt: &str| {
        let body = json!({ "model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
        let (status, reply) = server.ask("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{model}: {reply}");
        reply["choices"][0]["text"].clone()
    };
    for server in [&on_gpu, &on_cpu] {
        assert_eq!(load(server, "b").0, 200);
    }
    // All at once on the GPU, the same prompt with one adapter, another, and none: pages of the cache are each adapter's own.
    let asked = ["tiny", "a", "b", "tiny:a", "b", "tiny"];
    for prompt in ["once", "the quick brown fox jumps over the lazy dog"] {
        let found: Vec<Value> = thread::scope(|scope| {
            let threads = asked.map(|model| {
                let (on_gpu, text) = (&on_gpu, &text);
                scope.spawn(move || text(on_gpu, model, prompt))
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (model, found) in asked.iter().zip(&found) {
            assert_eq!(*found, text(&on_cpu, model, prompt), "{model}: {prompt}");
        }
        assert!(found[0] != found[1] && found[1] != found[2], "{found:?}");
    }
    // One that does not fit is refused, and the others are still there.
    let expected = text(&on_gpu, "a", "once");
    let (status, reply) = load(&on_gpu, "large");
    assert!(
        status >= 400 && reply.contains("adapters") && reply.contains("free"),
        "{status} {reply}"
    );
    assert_eq!(text(&on_gpu, "a", "once"), expected);
    let scales = json!([{ "id": 0, "scale": 0.0 }, { "id": 1, "scale": 1.0 }]).to_string();
    assert_eq!(on_gpu.ask("POST", "/lora-adapters", &scales).0, 200);
    assert_eq!(text(&on_gpu, "a", "once"), text(&on_gpu, "tiny", "once"));
    let body = json!({ "lora_name": "b" }).to_string();
    assert_eq!(on_gpu.ask_text("POST", "/v1/unload_lora_adapter", &body).0, 200);
    assert_eq!(on_gpu.complete("b").0, 404);
    assert_eq!(load(&on_gpu, "b").0, 200);
    assert_eq!(text(&on_gpu, "b", "once"), text(&on_cpu, "b", "once"));
}
