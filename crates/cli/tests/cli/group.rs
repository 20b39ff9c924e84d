//! The program with several simulated GPUs that compute a model together.

use tokenmill_testkit::Comparisons;

use crate::{
    gpu::{GREEDY, run, with_driver},
    support::{Outcome, arg, tokenmill},
};

fn with_gpus(machine: &str, extra: &[&str]) -> Outcome {
    run(with_driver(machine, &[&GREEDY[..], extra].concat()))
}

#[test]
fn two_gpus_continue_as_the_cpu_does() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    assert_eq!(
        with_gpus("devices=2", &["--tensor-parallel-size", "2"]).ok(),
        expected
    );
    // The second and the third of three.
    let found = with_gpus("devices=3", &["-tp", "2", "--device", "cuda:1"]).ok();
    assert_eq!(found, expected);
    assert_eq!(with_gpus("", &["-tp", "1", "--device", "cuda"]).ok(), expected);
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
        let greedy = ["run", arg(&file), "Once", "--temp", "0", "-n", "8", "-c", "64"];
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
        "error: 4 GPUs from GPU 0 on are to compute the model, and the driver shows 2 in all (hint: `tokenmill devices` \
         lists them, `--tensor-parallel-size 2` takes all from the first on)"
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
