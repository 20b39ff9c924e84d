//! Choices of `-ngl auto` and `--gpu-batch auto` on a machine, by figures that are given, measured or
//! remembered. The GPU is the simulated one, so its measurements mean nothing; every choice computes the
//! same.

use std::{fs, path::Path};

use crate::{
    gpu::{run, with_driver},
    split::GREEDY,
    support::{Outcome, tokenmill},
};

/// A machine with room for a part of the demo model: the driver keeps 128 MiB.
const SMALL: &str = "mib=149";

/// A GPU far faster than the CPU, behind a usual link.
pub(crate) const FAST: [&str; 2] = ["--bandwidths", "gpu=900,cpu=40,link=25,crossing=15"];

/// One that is slower.
const SLOW: [&str; 2] = ["--bandwidths", "gpu=4,cpu=40,link=25,crossing=15"];

fn on(machine: &str, flags: &[&[&str]]) -> Outcome {
    run(with_driver(machine, &[&GREEDY[..], &flags.concat()].concat()))
}

/// The files of a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("a file").path()).collect()
}

#[test]
fn auto_takes_the_quickest_that_fits_and_computes_the_same() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    for (machine, flags) in [
        (SMALL, &["-ngl", "auto", "--device", "cuda"][..]),
        (SMALL, &["-ngl", "auto"]),
        (SMALL, &[]),
        ("mib=147", &[]),
    ] {
        let outcome = on(machine, &[flags, &FAST]);
        assert!(
            outcome.stderr.contains("split since GPU 0 "),
            "{machine} {flags:?}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.ok(), expected, "{machine} {flags:?}");
    }
}

#[test]
fn the_plan_says_by_what_it_was_chosen() {
    let outcome = on(SMALL, &[&["-ngl", "auto", "-t", "1"], &FAST]);
    let reason: Vec<&str> = (outcome.stderr.lines())
        .skip_while(|line| !line.starts_with("bandwidths "))
        .take(3)
        .collect();
    insta::assert_snapshot!(reason.join("\n"));
    outcome.ok();
}

#[test]
fn a_gpu_that_is_slower_is_passed_over_unless_it_was_asked_for() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let left_open = on(SMALL, &[&["-ngl", "auto"], &SLOW]);
    assert!(
        left_open
            .stderr
            .contains("computing on the CPU: by bandwidths (GPU 4.0 GB/s, CPU 40.0 GB/s, "),
        "{}",
        left_open.stderr
    );
    assert_eq!(left_open.ok(), expected);
    let asked_for = on(SMALL, &[&["-ngl", "auto", "--device", "cuda"], &SLOW]);
    assert!(
        asked_for.stderr.contains("split since GPU 0 "),
        "{}",
        asked_for.stderr
    );
    assert_eq!(asked_for.ok(), expected);
    // A model that fits the GPU is placed there whole.
    let whole = on("", &[&["-ngl", "auto"], &SLOW]);
    assert!(!whole.stderr.contains("CPU"), "{}", whole.stderr);
    assert_eq!(whole.ok(), expected);
}

#[test]
fn bandwidths_are_measured_once_for_a_card_and_its_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let check = |device: &str, more: &[&str], when: &str| {
        let flags = [&["-ngl", "auto", "--device", device], more].concat();
        let mut command = with_driver(&format!("devices=2,{SMALL}"), &[&GREEDY[..], &flags].concat());
        command.env("XDG_CACHE_HOME", cache);
        let outcome = run(command);
        assert!(
            outcome.stderr.contains(&format!("bandwidths {when}: GPU ")),
            "{flags:?} {when}: {}",
            outcome.stderr
        );
        assert!(!outcome.stderr.contains("changed nothing"), "{}", outcome.stderr);
        assert_eq!(outcome.ok(), expected, "{flags:?} {when}");
    };
    check("cuda:0", &[], "measured now");
    check("cuda:1", &[], "measured now");
    check("cuda:0", &[], "measured before");
    // Other threads read at another speed.
    check("cuda:0", &["-t", "1"], "measured now");
    check("cuda:0", &["--measure-again"], "measured now");
    let kept = files(&cache.join("tokenmill"));
    assert_eq!(kept.len(), 3);
    for file in kept {
        let kept = fs::read_to_string(file).expect("a file");
        assert!(kept.contains("UUID 000000000000000000000000000000"), "{kept}");
    }
}

#[test]
fn the_steps_of_the_gpu_are_measured_once_for_a_model_and_a_placement() {
    let folder = tempfile::tempdir().expect("a folder");
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let check = |flags: &[&str], when: &str| {
        let mut command = with_driver("", &[&GREEDY[..], &["--gpu-batch", "auto"], flags].concat());
        command.env("XDG_CACHE_HOME", folder.path());
        let outcome = run(command);
        assert!(
            outcome.stderr.contains(when),
            "{flags:?} {when}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.ok(), expected, "{flags:?} {when}");
    };
    check(&["--place", "attn=cpu"], "(measured now)");
    check(&["--place", "attn=cpu"], "(measured before; ");
    check(&["--place", "attn=cpu", "--measure-again"], "(measured now)");
    check(&["-ngl", "2"], "(measured now)");
}

#[test]
fn measurements_that_nothing_asks_for_are_refused() {
    let check = |flags: &[&str], expected: &str| {
        let line = on("", &[flags]).failed(2);
        assert!(line.contains(expected), "{flags:?}: {line}");
    };
    check(
        &["-ngl", "2", "--measure-again"],
        "`--measure-again` does nothing here",
    );
    check(
        &[&FAST[..], &["-ngl", "2"]].concat(),
        "`--bandwidths` does nothing here",
    );
    check(&["-ngl", "auto", "--bandwidths", "gpu=900"], "`cpu` is missing");
}
