//! Adapters on the simulated GPU: results equal the CPU's, and their memory counts before the load.

use std::{fs, path::PathBuf};

use serde_json::Value;
use tokenmill_testkit::adapter_files::{PairShapes, gguf_adapter};

use crate::{
    gpu::{run, with_driver},
    support::{arg, tokenmill},
};

/// The core data's tiny model, and the folder of its adapters.
fn model_and_adapters() -> [PathBuf; 2] {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    ["parity/qwen3/model-F32.gguf", "parity2/lora"].map(|path| data.join(path))
}

fn greedy<'a>(model: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "run", "--raw", model, "once", "--temp", "0", "-n", "12", "-c", "64", "--json",
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
    // One of them by all ways to ask for the GPU.
    let ways = [&["--device", "cuda"][..], &["--device", "auto"], &["-ngl", "99"]];
    for (extra, n_ways) in [
        (&[][..], 1),
        (&["--lora", &a], ways.len()),
        (&["--lora", &half], 1),
        (&["--lora", &b], 1),
    ] {
        let args = greedy(arg(&model), extra);
        let expected = ids(&tokenmill([&args[..], &["--device", "cpu"]].concat()).ok());
        for flags in &ways[..n_ways] {
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
