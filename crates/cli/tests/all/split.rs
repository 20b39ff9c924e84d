//! Models that are split over the GPU and the CPU: the flags, the plan and the refusals. The GPU is the simulated one.

use tokenmill_testkit::Comparisons;

use crate::{
    gpu::{greedy_of, run, with_driver},
    support::{arg, tokenmill},
};

pub(crate) const GREEDY: [&str; 10] = [
    "run",
    "--raw",
    "demo",
    "Once upon a time",
    "--temp",
    "0",
    "-n",
    "8",
    "-c",
    "64",
];

#[test]
fn a_split_by_each_flag_continues_as_the_cpu_does() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    for flags in [
        &["-ngl", "1"][..],
        &["-ngl", "2", "--device", "cuda:0"],
        &["--place", "ffn=cpu,attn=gpu"],
        &["--place", "ffn=gpu,attn=cpu", "--gpu-batch", "4"],
    ] {
        let outcome = run(with_driver("", &[&GREEDY[..], flags].concat()));
        assert!(
            outcome.stderr.contains("split as requested; GPU 0 "),
            "{flags:?}: {}",
            outcome.stderr
        );
        if flags[1] == "2" {
            check_plan(&outcome.stderr);
        }
        assert_eq!(outcome.ok(), expected, "{flags:?}");
    }
}

/// The plan says before the load what is where.
#[track_caller]
fn check_plan(said: &str) {
    for row in ["token embedding", "keys and values", "steps", "all", "head"] {
        assert!(said.contains(row), "{row}: {said}");
    }
    let rows_on = |place: &str| {
        let place = format!("  {place}  ");
        said.lines().filter(|line| line.contains(&place)).count()
    };
    assert!(rows_on("GPU") >= 4 && rows_on("CPU") >= 4, "{said}");
}

#[test]
fn more_layers_than_there_are_are_all_of_them() {
    for flags in [
        &["-ngl", "98"][..],
        &["-ngl", "auto", "--device", "cuda"],
        &["--place", "ffn=gpu,attn=gpu"],
        &["--gpu-batch", "1"],
    ] {
        let outcome = run(with_driver("", &[&GREEDY[..], flags].concat()));
        assert!(!outcome.stderr.contains("split"), "{flags:?}: {}", outcome.stderr);
        outcome.ok();
    }
}

#[test]
fn what_cannot_be_split_is_refused_in_one_line() {
    let check = |machine: &str, flags: &[&str], code: i32, parts: &[&str]| {
        let line = run(with_driver(machine, &[&GREEDY[..], flags].concat())).failed(code);
        assert!(parts.iter().all(|part| line.contains(part)), "{flags:?}: {line}");
    };
    check(
        "",
        &["--cpu-moe"],
        2,
        &["the model has no experts that could be placed"],
    );
    check("", &["--n-cpu-moe", "1"], 2, &["the model has no experts"]);
    check(
        "",
        &["--place", "norm=gpu"],
        2,
        &["`norm` is not a part of a layer"],
    );
    check("", &["--place", "ffn=tpu"], 2, &["`tpu` is not a place"]);
    check(
        "",
        &["--place", "ffn=gpu", "--gpu-batch", "few"],
        2,
        &["`few` is not a value for `--gpu-batch`"],
    );
    check("", &["-ngl", "many"], 2, &["`many` is not a value for `-ngl`"]);
    check(
        "",
        &["-ngl", "0", "--place", "ffn=gpu"],
        2,
        &["`-ngl 0` and `--place` contradict each other"],
    );
    check(
        "",
        &["-ngl", "2", "--device", "cpu"],
        2,
        &["`-ngl 2` and `--device cpu` contradict each other"],
    );
    check(
        "",
        &["--gpu-batch", "0"],
        2,
        &["`0` is not a value for `--gpu-batch`"],
    );
    check(
        "",
        &["--gpu-batch", "4", "--place", "ffn=cpu"],
        2,
        &["`--gpu-batch` and `--place ffn=cpu` contradict each other"],
    );
    check(
        "",
        &["--cpu-moe", "--place", "experts=gpu"],
        2,
        &["`--cpu-moe` and `--place experts=gpu` contradict each other"],
    );
    check(
        "",
        &["--place", "attn=cpu,ffn=cpu"],
        2,
        &["leaves no part of any layer on the GPU", "`-ngl 0`"],
    );
    check(
        "mib=134",
        &["-ngl", "2"],
        5,
        &["MiB free", "are missing", "layer", "would fit"],
    );
}

#[test]
fn what_would_fit_does() {
    // The number of layers said to fit loads with the request's other flags; one layer more is refused.
    let mut n_tried = 0;
    for machine in ["mib=147", "mib=149"] {
        for parts in [&[][..], &["--place", "ffn=cpu"]] {
            let with_layers = |n: &str| {
                let flags = [&GREEDY[..], &["-ngl", n], parts].concat();
                run(with_driver(machine, &flags))
            };
            let outcome = with_layers("4");
            let Some((before, _)) = outcome.stderr.split_once(" of 4 layers would fit") else {
                continue;
            };
            let n: usize = before
                .rsplit(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .expect("a number");
            n_tried += 1;
            with_layers(&n.to_string()).ok();
            with_layers(&(n + 1).to_string()).failed(5);
        }
    }
    assert!(
        n_tried > 0,
        "one of the machines is too small for all layers and large enough for one"
    );
}

#[test]
fn experts_on_the_cpu_continue_as_without() {
    let mut comparisons = Comparisons::of("experts on a GPU and the CPU");
    // The second has a network that all tokens share next to the experts.
    for name in ["parity/mixtral/model-F32.gguf", "parity/qwen2_moe/model-F32.gguf"] {
        let Some(file) = comparisons.find(name) else {
            continue;
        };
        let greedy = greedy_of(arg(&file));
        let expected = tokenmill([&greedy[..], &["--device", "cpu"]].concat()).ok();
        for flags in [
            &["-cmoe"][..],
            &["-ncmoe", "1"],
            &["--place", "experts=cpu"],
            &["--place", "ffn=cpu,experts=gpu"],
        ] {
            let outcome = run(with_driver("", &[&greedy[..], flags].concat()));
            assert!(
                outcome.stderr.contains("experts"),
                "{name} {flags:?}: {}",
                outcome.stderr
            );
            assert_eq!(outcome.ok(), expected, "{name} {flags:?}");
            comparisons.compared(1);
        }
    }
}
