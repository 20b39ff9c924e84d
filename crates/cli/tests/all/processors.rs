//! Options about processors: each instruction set by its name, and any number of threads, give the same text.

use crate::support::{command, tokenmill};

#[test]
fn every_instruction_set_generates_the_same_text() {
    let run = |features: &str, threads: &str| {
        let args = [
            "run",
            "--raw",
            "demo",
            "Once upon a time",
            "-n",
            "24",
            "--temp",
            "0",
        ];
        command(args)
            .args(["--cpu-features", features, "-t", threads])
            .output()
            .expect("the program starts")
    };
    let text = String::from_utf8(run("scalar", "1").stdout).unwrap();
    assert!(text.len() > 40, "{text}");
    for features in [
        "scalar",
        "avx2",
        "avxvnni",
        "avx512vnni",
        "neon",
        "dotprod",
        "i8mm",
    ] {
        let output = run(features, "2");
        let error = String::from_utf8(output.stderr).unwrap();
        // Machines differ in what they have.
        if output.status.success() {
            let found = String::from_utf8(output.stdout).unwrap();
            assert_eq!(found, text, "{features}");
        } else {
            assert!(error.contains(features) && features != "scalar", "{error}");
        }
    }
}

#[test]
fn prompts_may_be_computed_by_more_or_fewer_threads() {
    let run = |threads: [&str; 4]| {
        let args = [
            "run",
            "--raw",
            "demo",
            "Once upon a time, there was",
            "-n",
            "8",
            "--temp",
            "0",
        ];
        tokenmill(args.into_iter().chain(threads)).ok()
    };
    assert_eq!(run(["-t", "1", "-tb", "3"]), run(["-t", "3", "-tb", "1"]));
    for flag in ["-t", "-tb"] {
        let error = tokenmill(["run", "--raw", "demo", "Once", flag, "0"]).failed(2);
        assert!(error.contains(flag), "{error}");
    }
}

#[test]
fn the_environment_narrows_instruction_sets() {
    let run = |names: &str| {
        command(["run", "--raw", "demo", "Once", "-n", "1"])
            .env("TOKENMILL_CPU_FEATURES", names)
            .output()
            .expect("the program starts")
    };
    assert!(run("scalar").status.success());
    assert!(run("").status.success());
    let error = String::from_utf8(run("mmx").stderr).unwrap();
    assert!(
        error.contains("TOKENMILL_CPU_FEATURES") && error.contains("mmx"),
        "{error}"
    );
}
