//! The texts of `--help`, which teach the program.

use crate::support::tokenmill;

fn check(name: &str, args: &[&str]) {
    insta::assert_snapshot!(name, tokenmill(args).ok());
}

#[test]
fn the_program_explains_itself() {
    check("help", &["--help"]);
}

#[test]
fn without_a_command_the_same_text_is_shown() {
    let outcome = tokenmill([""; 0]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    assert_eq!(outcome.stderr, tokenmill(["--help"]).ok());
}

#[test]
fn every_command_explains_itself_with_examples() {
    for command in [
        "run",
        "chat",
        "serve",
        "pull",
        "list",
        "rm",
        "inspect",
        "tokenize",
        "detokenize",
        "apply-template",
        "batch",
        "decide",
        "perplexity",
        "compare",
        "convert",
        "quantize",
        "imatrix",
        "bench",
        "bench-serve",
        "devices",
        "doctor",
        "completions",
        "man",
    ] {
        let help = tokenmill([command, "--help"]).ok();
        assert!(help.contains("Examples:\n"), "{command} has no examples");
        check(
            &format!("help_{}", command.replace('-', "_")),
            &[command, "--help"],
        );
    }
}
