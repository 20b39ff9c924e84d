//! Choices of `-ngl auto` and `--gpu-batch auto` on a machine, by figures that are given, measured or
//! remembered. The GPU is the simulated one, so its measurements mean nothing; every choice computes the
//! same.

use std::{fs, path::Path};

use crate::{
    gpu::{run, with_driver},
    split::GREEDY,
    support::{Outcome, arg, tokenmill},
};

/// A machine with room for a part of the demo model: the driver keeps 128 MiB.
const SMALL: &str = "mib=151";

/// A GPU far faster than the CPU, behind a usual link.
pub(crate) const FAST: [&str; 2] = ["--bandwidths", "gpu=900,cpu=40,link=25,crossing=15"];

/// One that is slower.
const SLOW: [&str; 2] = ["--bandwidths", "gpu=4,cpu=40,link=25,crossing=15"];

fn on(machine: &str, flags: &[&[&str]]) -> Outcome {
    run(with_driver(machine, &[&GREEDY[..], &flags.concat()].concat()))
}

/// As [`on`] the small machine, with a cache folder.
fn with_cache(cache: &Path, flags: &[&str]) -> Outcome {
    let mut command = with_driver(SMALL, &[&GREEDY[..], flags].concat());
    command.env("XDG_CACHE_HOME", cache);
    run(command)
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
        ("mib=149", &[]),
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
fn a_border_that_costs_more_has_fewer_crossings() {
    let crossings = |bandwidths: &str| {
        let outcome = on(
            SMALL,
            &[&["-ngl", "auto", "--device", "cuda", "--bandwidths", bandwidths]],
        );
        let (_, behind) = outcome.stderr.split_once("crosses ").expect("a reason");
        let n: usize = behind
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        outcome.ok();
        n
    };
    let dear = crossings("gpu=900,cpu=40,link=25,crossing=10000");
    let cheap = crossings("gpu=900,cpu=1,link=2000,crossing=0.001");
    assert!(dear == 1 && cheap > 4, "{dear} and {cheap}");
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
fn bandwidths_are_measured_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    let auto = ["-ngl", "auto", "--device", "cuda"];
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let check = |flags: &[&str], when: &str| {
        let outcome = with_cache(cache, flags);
        assert!(
            outcome.stderr.contains(&format!("bandwidths {when}: GPU ")),
            "{flags:?} {when}: {}",
            outcome.stderr
        );
        assert!(!outcome.stderr.contains("changed nothing"), "{}", outcome.stderr);
        assert_eq!(outcome.ok(), expected, "{flags:?} {when}");
    };
    check(&auto, "measured now");
    check(&auto, "measured before");
    // Other threads read at another speed.
    check(&[&auto[..], &["-t", "1"]].concat(), "measured now");
    check(&[&auto[..], &["--measure-again"]].concat(), "measured now");
    assert_eq!(files(&cache.join("tokenmill")).len(), 2);
}

#[test]
fn bandwidths_are_those_of_one_card() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |device: &str, when: &str| {
        let flags = ["-ngl", "auto", "--device", device];
        let mut command = with_driver(&format!("devices=2,{SMALL}"), &[&GREEDY[..], &flags].concat());
        command.env("XDG_CACHE_HOME", folder.path());
        let outcome = run(command);
        let told = format!("bandwidths {when}: GPU ");
        assert!(
            outcome.stderr.contains(&told),
            "{device} {when}: {}",
            outcome.stderr
        );
        outcome.ok();
    };
    check("cuda:0", "measured now");
    check("cuda:1", "measured now");
    check("cuda:0", "measured before");
    check("cuda:1", "measured before");
    for file in files(&folder.path().join("tokenmill")) {
        let kept = fs::read_to_string(file).expect("a file");
        assert!(kept.contains("UUID 000000000000000000000000000000"), "{kept}");
    }
}

#[test]
fn a_cache_folder_that_cannot_be_written_to_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let outcome = with_cache(&file, &["-ngl", "auto", "--device", "cuda"]);
    let told = format!("measured now and not kept: cannot write {}", arg(&file));
    assert!(outcome.stderr.contains(&told), "{}", outcome.stderr);
    outcome.ok();
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
