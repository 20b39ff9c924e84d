//! Memory that a model takes, as the program reports it before a load.

use std::fs;

use tokenmill_gguf::TensorType;
use tokenmill_testkit::{TinyModel, tiny_llama};

use crate::support::{arg, tokenmill};
#[cfg(target_os = "linux")]
use crate::{
    server::Server,
    support::{Outcome, command},
};

#[test]
fn a_large_table_stays_in_its_file_unless_all_is_to_be_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.gguf");
    // A table of 64 MiB: 262,144 rows of 64 numbers, and a head of its own.
    let mut model = TinyModel::random(tiny_llama(), TensorType::F32, 3);
    for table in ["token_embd.weight", "output.weight"] {
        model.add_zeros(table, &[64, 1 << 18]);
    }
    fs::write(&path, model.to_gguf().unwrap()).unwrap();
    let weights = |extra: &[&str]| {
        let args = ["inspect", arg(&path), "--device", "cpu"];
        let text = tokenmill(args.iter().chain(extra)).ok();
        let line = text.lines().find(|line| line.trim_start().starts_with("weights"));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    };
    assert_eq!(weights(&[]), "weights           64.2 MiB");
    assert_eq!(weights(&["--no-mmap"]), "weights          128.2 MiB");
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_takes_the_memory_that_doctor_and_inspect_tell() {
    for (options, contexts) in [
        (&["-c", "512"][..], "4 contexts of 512 tokens"),
        (
            &["-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0"],
            "4 contexts of 8192 tokens",
        ),
        (&["-c", "64", "-ub", "32"], "4 contexts of 64 tokens"),
    ] {
        let options = [&["demo", "--device", "cpu"][..], options].concat();
        let told = |command: &str| {
            let text = tokenmill([&[command, "-t", "1"][..], &options].concat()).ok();
            let row = text.lines().find(|row| row.contains(" in all for "));
            let row = row.unwrap_or_else(|| panic!("{text}"));
            let (before, after) = row.split_once(" in all for ").expect("it was found by this");
            assert!(
                after.starts_with(&format!("{contexts} and 16 sequences;")),
                "{row}"
            );
            let words: Vec<&str> = before.split_whitespace().collect();
            words[words.len() - 2..].join(" ")
        };
        let size = told("doctor");
        assert_eq!(told("inspect"), size);
        let server = Server::start(&options);
        let log = server.log.lock().unwrap().join("\n");
        assert!(
            log.contains(&format!("memory: {size} with {contexts} each: weights ")),
            "{size} in {log}"
        );
        server.end();
    }
}

/// Runs the program with so many KiB of address space.
#[cfg(target_os = "linux")]
fn limited(kib: usize, args: &[&str]) -> Outcome {
    let inner = command(args);
    let mut outer = std::process::Command::new("sh");
    outer
        .args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")])
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    Outcome::of(&outer.output().expect("there is a shell"))
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_the_address_space_refuses_a_load_that_cannot_fit() {
    let line = limited(400_000, &["run", "demo", "Hi", "-c", "1000000"]).failed(3);
    assert!(line.contains("the limit of `ulimit -v` leaves "), "{line}");
    assert!(
        line.contains("raise `ulimit -v`, or take a smaller context with `-c N`"),
        "{line}"
    );
    let told = limited(400_000, &["doctor", "demo", "--device", "cpu", "-c", "1000000"]);
    let row = told.stdout.lines().find(|row| row.starts_with("model, CPU"));
    assert!(
        row.is_some_and(|row| row.ends_with("which is more than the limit of `ulimit -v` leaves")),
        "{}",
        told.stdout
    );
    // The memory of a server is too much as well.
    let row = told.stdout.lines().find(|row| row.starts_with("serve, CPU"));
    assert!(
        row.is_some_and(|row| row.starts_with("serve, CPU problem  ")
            && row.contains(
                " in all, which is more than the limit of `ulimit -v` leaves, for 1 context of 1000000 tokens"
            )),
        "{}",
        told.stdout
    );
}

#[test]
fn a_context_beyond_what_the_model_was_made_for_is_a_warning() {
    const WARNING: &str = "the context of 4096 tokens is longer than the 512 that the model was trained for; beyond them its text may \
                           make no sense";
    let told = |args: &[&str]| tokenmill([args, &["demo", "--device", "cpu", "-t", "1"]].concat()).ok();
    for (command, row) in [
        ("doctor", format!("context    warning  {WARNING}")),
        ("inspect", format!("Warning: {WARNING}")),
    ] {
        let text = told(&[command, "-c", "4096"]);
        assert!(text.lines().any(|line| line == row), "{text}");
        let text = told(&[command, "-c", "512"]);
        assert!(!text.to_lowercase().contains("warning"), "{text}");
    }
}
