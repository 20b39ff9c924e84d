//! The program with several simulated GPUs that compute a model together.

use std::{
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;
use tokenmill_testkit::Comparisons;

use crate::{
    gpu::{GREEDY, driver_folder, greedy_of, run, with_driver},
    server::Server,
    support::{Outcome, arg, end_of, tokenmill},
};

/// A folder with the driver and an NCCL of the same simulated GPUs.
fn nccl_folder() -> TempDir {
    let driver = driver_folder().path();
    let folder = tempfile::tempdir().expect("a folder");
    // The same file by both names is loaded once, so that both have the same GPUs.
    for name in ["libcuda.so.1", "libnccl.so.2"] {
        let library = driver
            .join("libcuda.so.1")
            .canonicalize()
            .expect("the simulated driver");
        symlink(library, folder.path().join(name)).expect("a link");
    }
    folder
}

/// A machine whose simulated GPUs have an NCCL, too.
fn with_nccl(machine: &str, extra: &[&str]) -> Outcome {
    let folder = nccl_folder();
    let mut command = with_driver(machine, &[&GREEDY[..], extra].concat());
    command.env("LD_LIBRARY_PATH", folder.path());
    run(command)
}

fn with_gpus(machine: &str, extra: &[&str]) -> Outcome {
    run(with_driver(machine, &[&GREEDY[..], extra].concat()))
}

/// The notice that NCCL was looked for and is missing.
const SAYS_HOST: &str = "the GPUs add up in the host's memory";

#[test]
fn two_gpus_continue_as_the_cpu_does() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let outcome = with_gpus("devices=2", &["--tensor-parallel-size", "2"]);
    assert!(
        outcome.stderr.contains(SAYS_HOST) && outcome.stderr.contains("libnccl.so.2"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.ok(), expected);
    // The second and the third of three.
    let found = with_gpus("devices=3", &["-tp", "2", "--device", "cuda:1"]).ok();
    assert_eq!(found, expected);
    assert_eq!(with_gpus("", &["-tp", "1", "--device", "cuda"]).ok(), expected);
}

#[test]
fn gpus_add_up_by_nccl_where_it_is_installed() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    for (extra, on_host) in [
        (&["-tp", "2"][..], None),
        (
            &["-tp", "2", "--batch-invariant"],
            Some("results are not to depend on the batch, and the order in which NCCL adds may"),
        ),
    ] {
        let outcome = with_nccl("devices=2,capability=9.0", extra);
        assert_eq!(
            outcome.stderr.contains(SAYS_HOST),
            on_host.is_some(),
            "{extra:?}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains(on_host.unwrap_or_default()),
            "{extra:?}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.ok(), expected, "{extra:?}");
    }
    let outcome = with_gpus("devices=2", &["-tp", "2", "--all-reduce", "host"]);
    assert!(!outcome.stderr.contains(SAYS_HOST), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), expected);
    let line = with_gpus("devices=2", &["-tp", "2", "--all-reduce", "nccl"]).failed(5);
    assert!(
        line.contains("the GPU cannot be used: loading NCCL failed: libnccl.so.2"),
        "{line}"
    );
}

#[test]
fn a_gpu_that_is_lost_ends_a_program_that_adds_up_by_nccl() {
    let outcome = with_nccl("devices=2,lose=40", &["-tp", "2", "--all-reduce", "nccl"]);
    assert_eq!(outcome.code, 6, "{}", outcome.stderr);
    let line = outcome.stderr.lines().last().unwrap_or_default();
    assert!(
        line.starts_with("error: the device is lost") && line.contains(" of 2: "),
        "{line}"
    );
}

#[test]
fn a_server_that_lost_a_gpu_among_several_answers_is_not_ready_and_ends() {
    let folder = nccl_folder();
    let cache = driver_folder().path().join("cache");
    let variables = [
        ("LD_LIBRARY_PATH", folder.path()),
        ("TOKENMILL_SIM_DRIVER", Path::new("devices=2,lose=150")),
        ("XDG_CACHE_HOME", cache.as_path()),
    ];
    let args = ["demo", "-c", "64", "-tp", "2", "--all-reduce", "nccl"];
    let mut server = Server::start_in(&variables, &args);
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0 }).to_string();
    let ask = || Server::ask_at(server.address(), "POST", "/v1/completions", &body);
    // The step in which it is lost may fail by the other one's error first; each answer says what happened.
    let started = Instant::now();
    let (status, text) = loop {
        match ask().expect("it answers the request that it was at") {
            (200, _) => assert!(started.elapsed() < Duration::from_mins(1), "none is lost"),
            failed => break failed,
        }
    };
    assert!(
        status >= 500 && text.contains("GPU ") && text.contains(" of 2: "),
        "{status} {text}"
    );
    // From then on no request is answered but with an error, and soon the program is gone.
    let deadline = Instant::now() + Duration::from_mins(1);
    while let Ok((status, text)) = ask() {
        assert!(status >= 500, "{status} {text}");
        assert!(Instant::now() < deadline, "it is still there: {status} {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = std::sync::Arc::clone(&server.log);
    let outcome = end_of(server.take());
    let log = log.lock().expect("no panic").join("\n");
    assert_eq!(outcome.code, 6, "{log}");
    assert!(
        log.contains("error: the engine has ended: the device is lost"),
        "{log}"
    );
}

#[test]
fn a_way_to_add_up_that_cannot_be_is_refused() {
    for (extra, expected) in [
        (
            &["--all-reduce", "host"][..],
            "error: `--all-reduce host` is for several GPUs: one has nothing to add up with (hint: `--tensor-parallel-size N` \
             takes N of them)",
        ),
        (
            &["-tp", "1", "--all-reduce", "host"],
            "error: `--all-reduce host` and `--tensor-parallel-size 1` contradict each other: one GPU has nothing to add up with",
        ),
        (
            &["-tp", "2", "--all-reduce", "ring"],
            "error: `--all-reduce`: `ring` is not an all-reduce method; use `auto`, `nccl` or `host`",
        ),
        (
            &["-tp", "2", "--all-reduce", "nccl", "--batch-invariant"],
            "error: `--all-reduce nccl` and `--batch-invariant` contradict each other: NCCL may add in an order that depends \
             on the batch",
        ),
    ] {
        assert_eq!(with_gpus("devices=2", extra).failed(2), expected);
    }
    // The default's name is not a demand.
    for extra in [
        &["--all-reduce", "auto"][..],
        &["-tp", "1", "--all-reduce", "auto"],
    ] {
        let outcome = tokenmill([&GREEDY[..], &["--device", "cpu"], extra].concat());
        outcome.ok();
    }
}

#[test]
fn what_several_gpus_do_not_do_is_told_before_they_are_looked_for() {
    // A machine with one GPU is told of the contradiction, not of the GPU that is missing.
    for (extra, expected) in [
        (
            &["-tp", "2", "--session", "x.tms"][..],
            "`--session` does not go with `--tensor-parallel-size 2`",
        ),
        (
            &["-tp", "2", "--lora", "x=none.gguf"],
            "adapters need all of the model",
        ),
        (
            &["--device", "cuda", "-ngl", "1", "--lora", "x=none.gguf"],
            "adapters need all of the model on the CPU or on one GPU",
        ),
        (
            &["--device", "cuda", "--place", "ffn=cpu", "--lora", "x=none.gguf"],
            "adapters need all of the model",
        ),
        (
            &["-tp", "2", "--draft", "demo"],
            "a draft model needs a model that is wholly on",
        ),
        (
            &["--device", "cuda", "-ngl", "2", "--draft", "demo"],
            "leave out `-ngl N`",
        ),
    ] {
        let line = tokenmill([&GREEDY[..], extra].concat()).failed(2);
        assert!(line.contains(expected), "{extra:?}: {line}");
    }
}

#[test]
fn files_of_several_architectures_are_divided() {
    let mut comparisons = Comparisons::of("models on several GPUs");
    for name in [
        "llama/model-F32",
        "llama/model-Q8_0",
        "qwen3/model-F32",
        "mixtral/model-F32",
        "gpt_oss/model-F32",
    ] {
        let Some(file) = comparisons.find(&format!("parity/{name}.gguf")) else {
            return;
        };
        let greedy = greedy_of(arg(&file));
        let expected = tokenmill([&greedy[..], &["--device", "cpu"]].concat()).ok();
        let found = run(with_driver("devices=2", &[&greedy[..], &["-tp", "2"]].concat())).ok();
        assert_eq!(found, expected, "{name}");
        comparisons.compared(1);
    }
}

#[test]
fn gpus_that_are_not_there_are_counted() {
    let line = with_gpus("devices=2", &["-tp", "4"]).failed(5);
    assert_eq!(
        line,
        "error: the model needs 4 GPUs from GPU 0 on, but the driver shows 2 in all (hint: `tokenmill devices` \
         lists them; from the first on there are 2 for `--tensor-parallel-size N`)"
    );
    let line = with_gpus("devices=2", &["-tp", "2", "--device", "cuda:1"]).failed(5);
    assert!(line.contains("2 GPUs from GPU 1 on"), "{line}");
}

#[test]
fn what_gpus_do_not_divide_is_named() {
    let line = with_gpus("devices=5", &["-tp", "5"]).failed(2);
    assert!(
        line.contains("heads of layer 0 cannot be divided among 5 devices, only among 1,"),
        "{line}"
    );
}

#[test]
fn several_gpus_and_a_part_for_the_cpu_contradict_each_other() {
    for extra in [
        &["-tp", "2", "--device", "cpu"][..],
        &["-tp", "2", "-ngl", "1"],
        &["-tp", "2", "-ngl", "auto"],
        &["-tp", "0"],
    ] {
        with_gpus("devices=2", extra).failed(2);
    }
    assert_eq!(
        with_gpus("devices=2", &["-tp", "2", "--place", "ffn=cpu"]).code,
        2
    );
}

#[test]
fn a_gpu_that_is_lost_ends_the_run_and_nothing_hangs() {
    for launch in ["0", "40", "400"] {
        let outcome = with_gpus(&format!("devices=2,lose={launch}"), &["-tp", "2"]);
        assert_eq!(outcome.code, 6, "{launch}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("lost"), "{}", outcome.stderr);
    }
}

#[test]
fn a_bench_says_that_gpus_computed_together() {
    let args = [
        "bench", "demo", "-p", "4", "-n", "2", "-r", "1", "-o", "csv", "-tp", "2",
    ];
    let table = run(with_driver("devices=2", &args)).ok();
    assert!(
        table.lines().skip(1).all(|line| line.contains(",CUDA group,")),
        "{table}"
    );
}
