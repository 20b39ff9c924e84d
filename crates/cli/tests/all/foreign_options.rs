//! Options and commands of llama.cpp and other programs, as people type them.

use crate::{options::refused, support::tokenmill};

#[test]
fn minus_one_means_what_it_means_in_llama_cpp() {
    let run = |extra: &[&str]| {
        let args = [
            "run",
            "--raw",
            "demo",
            "Once upon a time",
            "-n",
            "40",
            "--temp",
            "0",
            "--no-echo",
        ];
        tokenmill(args.iter().chain(extra)).ok()
    };
    let penalized = |last_n| run(&["--presence-penalty", "30", "--repeat-last-n", last_n]);
    assert_eq!(penalized("-1"), penalized("512"), "the context has 512 tokens");
    assert_ne!(penalized("-1"), penalized("5"));
    assert_eq!(penalized("0"), run(&[]), "nothing is looked at");
}

#[test]
fn flags_of_llama_cpp_are_answered_by_name() {
    let lines: Vec<String> = [
        "serve demo -p hello",
        "run demo x -mli",
        "run demo x -fit off",
        "run demo x --in-prefix a",
        "run demo x --format json",
        "run demo x --think=false",
        "run demo x -e",
        "run demo x --chat-template llama3",
        "list foo",
        "run demo x -sm none",
        "serve demo --grammar root",
        "bench demo -pg 512,128",
        "serve demo -sys y",
        "tokenize demo x -ngl 99",
        "run demo x --max-tokens 5",
        "serve demo --max-model-len 4096",
        "serve demo --gpu-memory-utilization 0.9",
        "serve demo --pipeline-parallel-size 2",
        "serve demo --dtype auto",
        "serve demo --reasoning-format none",
        "serve demo --audio x",
        "bench demo --chat-template x",
    ]
    .iter()
    .map(|line| format!("{line}\n  {}", refused(line, 2)))
    .collect();
    insta::assert_snapshot!(lines.join("\n"));
    // A flag of the command itself is not taken for llama.cpp's.
    let system = ["run", "demo", "Hi", "-sys", "Be kind.", "-n", "1"];
    assert_eq!(tokenmill(system).code, 0);
    assert!(
        tokenmill(["bench", "demo", "-p", "4", "-n", "0", "-r", "1"])
            .ok()
            .contains("pp4")
    );
    let args = [
        "run",
        "--raw",
        "demo",
        "-p",
        "Once",
        "-n",
        "1",
        "--n-gpu-layers",
        "0",
        "-dev",
        "none",
        "-st",
        "--trust-remote-code",
    ];
    let outcome = tokenmill(args);
    assert!(outcome.stdout.starts_with("Once"), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with(
            "ignored: `-st` (`run` answers one message), `--trust-remote-code` (code of a model is never executed)"
        ),
        "{}",
        outcome.stderr
    );
}

#[test]
fn flags_of_other_programs_tools_are_answered_by_name() {
    let lines: Vec<String> = [
        "perplexity demo text.txt -f text.txt",
        "perplexity demo text.txt --hellaswag",
        "perplexity demo text.txt --kl-divergence",
        "perplexity demo text.txt --ppl-stride 4 --temp 1",
        "imatrix demo text.txt out.gguf -o out.gguf",
        "imatrix demo text.txt out.gguf -ofreq 10",
        "imatrix demo text.txt out.gguf --process-output",
        "imatrix demo text.txt out.gguf --in-file a.gguf --parse-special",
        "quantize in.gguf out.gguf q8_0 --include-weights attn_v",
        "quantize in.gguf out.gguf q8_0 --prune-layers 3",
        "quantize in.gguf out.gguf q8_0 --override-kv a=int:1",
        "quantize in.gguf out.gguf q8_0 8",
        "convert folder --outfile out.gguf",
        "convert folder out.gguf --vocab-only",
        "convert folder out.gguf --bigendian --split-max-size 2G",
        "bench-serve http://127.0.0.1:1 --num-prompts 9",
        "bench-serve http://127.0.0.1:1 --dataset-name random --request-rate 4",
        "bench-serve http://127.0.0.1:1 --temperature 0",
    ]
    .iter()
    .map(|line| format!("{line}\n  {}", refused(line, 2)))
    .collect();
    insta::assert_snapshot!(lines.join("\n"));
    // Flags that change nothing are left out.
    let line = refused(
        "convert no-folder out.gguf --no-lazy --verbose --use-temp-file",
        3,
    );
    assert!(
        line.starts_with("ignored: `--no-lazy` (nothing to set), "),
        "{line}"
    );
}

#[test]
fn commands_of_other_programs_are_answered_by_name() {
    let lines: Vec<String> = [
        "pull llama3",
        "download llama3",
        "models",
        "rm llama3",
        "remove llama3",
        "no-owner/model-GGUF",
        "ps",
        "llama3",
        "no-such-file.gguf",
        "demo",
        "-m no-such-file.gguf",
    ]
    .iter()
    .map(|line| format!("{line}\n  {}", refused(line, 2)))
    .collect();
    insta::assert_snapshot!(lines.join("\n"));
    assert!(refused("chta demo", 2).contains("near it: `chat`"));
}

#[test]
fn numbers_of_llama_cpp_are_told_what_stands_for_them() {
    for (line, expected) in [
        (
            "run demo x -t -1",
            "(hint: without the option each processor has a thread)",
        ),
        (
            "run demo x -ngl -1",
            "(hint: `-ngl auto` puts as many layers there as fit, and `-ngl all` puts all there)",
        ),
        (
            "run demo x -n -2",
            "(hint: `-n -1` continues until the model ends or the context is full)",
        ),
    ] {
        let line = refused(line, 2);
        assert!(line.ends_with(expected), "{line}");
    }
}
