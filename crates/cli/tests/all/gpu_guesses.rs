//! Guesses next to a model on the GPU of the simulated driver: a draft model and the model's own layer. They come out, change no token, and
//! share the GPU's memory with the model.

use serde_json::Value;

use crate::{
    gpu::{run, with_driver},
    mtp::with_layer,
    support::{Outcome, arg},
};

/// Returns the JSON report of a run on the GPU with an answer of 12 tokens.
#[track_caller]
fn told(model: &str, extra: &[&str]) -> Value {
    let args = [
        "run",
        "--raw",
        model,
        "Tell me a story.",
        "--temp",
        "0",
        "-n",
        "12",
        "-c",
        "64",
        "--json",
        "--device",
        "cuda",
    ];
    let outcome = run(with_driver("", &[&args[..], extra].concat()));
    serde_json::from_str(&outcome.ok()).unwrap()
}

/// The smallest GPU of so many MiB for which something holds, as it does for each larger one.
fn smallest(mut mib: std::ops::Range<u32>, holds: impl Fn(u32) -> bool) -> u32 {
    while !mib.is_empty() {
        let middle = mib.start.midpoint(mib.end);
        if holds(middle) {
            mib.end = middle;
        } else {
            mib.start = middle + 1;
        }
    }
    mib.start
}

#[test]
fn layers_that_all_are_on_the_gpu_are_no_division() {
    let folder = tempfile::tempdir().unwrap();
    let with_layer = with_layer(folder.path(), "nothing");
    let draft = ["--spec", "draft", "--draft", "demo", "--spec-max", "4"];
    let mtp = ["--spec", "mtp", "--spec-max", "2"];
    let plain = told("demo", &["--spec", "off"]);
    // A draft that is the model is right; the copied layer need not be.
    for (model, guesses, layers, figure, least) in [
        ("demo", &draft[..], "99", "draft_n_accepted", 6),
        ("demo", &draft, "auto", "draft_n_accepted", 6),
        (arg(&with_layer), &mtp, "99", "draft_n", 1),
    ] {
        let guessed = told(model, &[guesses, &["-ngl", layers]].concat());
        assert_eq!(guessed["ids"], plain["ids"], "{layers} {guesses:?}");
        assert!(
            guessed["timings"][figure].as_u64() >= Some(least),
            "{layers}: {guessed}"
        );
    }
    // Where not all layers fit, the model is divided.
    for (model, guesses) in [("demo", &draft[..]), (arg(&with_layer), &mtp)] {
        let args = [
            "run", "--raw", model, "Once", "-n", "2", "-c", "64", "-ngl", "auto", "--device", "cuda",
        ];
        let line = run(with_driver("mib=147", &[&args[..], guesses].concat())).failed(2);
        assert!(
            line.contains("wholly on the CPU or on one GPU"),
            "{guesses:?}: {line}"
        );
    }
}

#[test]
fn a_draft_model_that_does_not_fit_next_to_the_model_is_refused() {
    // Room for the driver's part, the model, and less than the model once more.
    let run_on = |mib: u32, device: &[&str]| {
        let machine = format!("mib={mib}");
        let args = [
            "run", "--raw", "demo", "Once", "-n", "2", "-c", "64", "--draft", "demo",
        ];
        run(with_driver(&machine, &[&args[..], device].concat()))
    };
    let cuda = ["--device", "cuda"];
    run_on(2048, &cuda).ok();
    let says_guesses = |outcome: &Outcome| outcome.stderr.contains("the draft model or MTP layer needs");
    let mib = smallest(128..200, |mib| {
        let outcome = run_on(mib, &cuda);
        outcome.code == 0 || says_guesses(&outcome)
    });
    let outcome = run_on(mib, &cuda);
    assert!(
        says_guesses(&outcome),
        "with some size only the model fits: {}",
        outcome.stderr
    );
    let line = outcome.failed(5);
    assert!(
        line.contains("next to the model's") && line.contains("--device cpu"),
        "{line}"
    );
    // Without a device that is asked for, both are on the CPU.
    let outcome = run_on(mib, &["--device", "auto"]);
    assert!(outcome.stderr.contains("CPU"), "{}", outcome.stderr);
    outcome.ok();
}

#[test]
fn what_the_driver_takes_is_left_to_it_once() {
    // The smallest GPU on which both fit by the plan. Loading the model's kernels takes some of what is left to the driver, and the
    // draft model is not refused for that.
    let run_on = |mib: u32| {
        let machine = format!("mib={mib},module_kib=1024");
        let args = [
            "run", "--raw", "demo", "Once", "-n", "2", "-c", "64", "--draft", "demo", "--device", "cuda",
        ];
        run(with_driver(&machine, &args))
    };
    let mib = smallest(160..260, |mib| {
        let said = run_on(mib).stderr;
        let is_planned =
            said.contains("the draft model or MTP layer needs") || said.contains("the model needs");
        !is_planned || said.contains("draft model demo")
    });
    run_on(mib).ok();
}
