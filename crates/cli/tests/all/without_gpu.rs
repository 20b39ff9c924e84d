//! Options for GPUs on a machine without one, or with one that is too small: commands that only look at a
//! model report them as a run does.

use serde_json::Value;

use crate::{
    gpu::{GREEDY, of_length, run, with_driver},
    split_choice::FAST,
    support::{Outcome, tokenmill},
};

fn without_gpu(args: &[&str]) -> Outcome {
    run(with_driver("devices=0", args))
}

/// The last line on standard error.
fn last_line(outcome: &Outcome) -> String {
    outcome.stderr.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn inspect_and_doctor_refuse_what_a_run_refuses_in_its_words() {
    let check = |machine: &str, flags: &[&str], code: i32| {
        let at = |command: &[&str]| run(with_driver(machine, &[command, flags].concat()));
        let expected = at(&["run", "--raw", "demo", "Once", "-n", "1"]).failed(code);
        let reason = expected.strip_prefix("error: ").unwrap();
        let reason = reason.split(" (hint: ").next().unwrap();
        let inspect = at(&["inspect", "demo", "--summary"]);
        assert_eq!(
            (inspect.code, last_line(&inspect)),
            (code, expected.clone()),
            "{flags:?}"
        );
        let told = format!("With these options it cannot be run: {reason}\n");
        assert!(inspect.stdout.contains(&told), "{flags:?}: {}", inspect.stdout);
        // It has its verdict from where `inspect` has it. It tests the GPU before, which takes longest here, so one GPU suffices.
        if !(machine.starts_with("devices=0") || flags.contains(&"auto")) {
            return;
        }
        let doctor = at(&["doctor", "demo"]);
        assert_eq!(
            (doctor.code, last_line(&doctor)),
            (code, expected.clone()),
            "{flags:?}"
        );
        let verdict = format!("verdict    problem  {reason}\n");
        assert!(doctor.stdout.contains(&verdict), "{flags:?}: {}", doctor.stdout);
    };
    for flags in [&["--device", "cuda"][..], &["-tp", "2"]] {
        check("devices=0", flags, 5);
    }
    // On a machine with a GPU too: one with room for a part, and one that suffices.
    check("mib=151", &["-ngl", "99"], 5);
    check("mib=151", &["--place", "attn=gpu"], 5);
    check("", &["--cpu-moe"], 2);
    check("", &["--place", "attn=cpu,ffn=cpu"], 2);
    check("mib=129", &["-ngl", "auto", "--device", "cuda"], 5);
    check("", &["-tp", "2"], 5);
    check("devices=2", &["-tp", "2", "--all-reduce", "nccl"], 5);
    check("devices=2,mib=140", &["-tp", "2", "--all-reduce", "host"], 5);
    check("devices=3", &["-tp", "3"], 2);
    let json = without_gpu(&["inspect", "demo", "--json", "--device", "cuda"]).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let refused = json["refused"].as_str().unwrap();
    assert!(refused.starts_with("the GPU cannot be used: "), "{refused}");
}

#[test]
fn what_a_run_takes_is_no_problem() {
    for (machine, flags) in [
        ("devices=0", &[][..]),
        ("devices=0", &["-ngl", "auto"]),
        ("devices=0", &["-ngl", "0"]),
        // Command lines are copied between machines; only `--device cuda` insists.
        ("devices=0", &["-ngl", "99"]),
        ("devices=0", &["-ngl", "all"]),
        ("devices=0", &["--place", "attn=cpu"]),
        ("devices=0", &["--n-cpu-moe", "0"]),
        ("devices=0", &["--gpu-batch", "auto"]),
        ("", &["-ngl", "2"]),
        ("", &["--place", "attn=cpu"]),
    ] {
        let doctor = run(with_driver(
            machine,
            &[&["doctor", "demo", "-c", "64"], flags].concat(),
        ));
        assert!(
            doctor.stdout.contains("verdict    ok "),
            "{flags:?}: {}",
            doctor.stdout
        );
        doctor.ok();
        let inspect = run(with_driver(
            machine,
            &[&["inspect", "demo", "--json"], flags].concat(),
        ))
        .ok();
        let json: Value = serde_json::from_str(&inspect).unwrap();
        assert_eq!(json["refused"], Value::Null, "{flags:?}");
    }
}

#[test]
fn layers_for_a_gpu_are_computed_without_one() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    for flags in [
        &["-ngl", "99"][..],
        &["--gpu-layers", "all"],
        &["--n-cpu-moe", "1"],
    ] {
        let asked = without_gpu(&[&GREEDY[..], flags].concat());
        let told = " asks for a GPU, but no usable one was found: computing on the CPU";
        assert_eq!(asked.stderr.matches(told).count(), 1, "{}", asked.stderr);
        assert_eq!(asked.ok(), expected);
    }
}

#[test]
fn layers_that_were_left_open_are_told_to_be_on_the_cpu() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let asked = without_gpu(&[&GREEDY[..], &["-ngl", "auto"]].concat());
    assert!(
        asked
            .stderr
            .starts_with("computing on the CPU: the GPU cannot be used: "),
        "{}",
        asked.stderr
    );
    assert_eq!(asked.ok(), expected);
    if !tokenmill_cuda_exec::has_driver() {
        // Without a driver, a run without GPU flags prints no message.
        let asked = tokenmill([&GREEDY[..], &["-ngl", "auto"]].concat());
        let told = "computing on the CPU: the GPU cannot be used: no NVIDIA driver found";
        assert!(asked.stderr.starts_with(told), "{}", asked.stderr);
        let open = tokenmill(GREEDY);
        assert!(!open.stderr.contains("CPU"), "{}", open.stderr);
    }
}

#[test]
fn flags_of_measurements_that_a_machine_leaves_without_effect_are_told() {
    let check = |machine: &str, flags: &[&str], reason: &str| {
        for flag in [&FAST[..], &["--measure-again"]] {
            let outcome = run(with_driver(machine, &[&of_length("1")[..], flags, flag].concat()));
            let told = format!("`{}` changed nothing: {reason}\n", flag[0]);
            assert!(
                outcome.stderr.contains(&told),
                "{flags:?} {flag:?}: {}",
                outcome.stderr
            );
            outcome.ok();
        }
    };
    check("devices=0", &[], "the CPU computes all of the model");
    check(
        "devices=0",
        &["-ngl", "auto"],
        "the CPU computes all of the model",
    );
    check("", &["-ngl", "auto"], "all of the model is on the GPU");
    check(
        "",
        &["-ngl", "auto", "--place", "attn=cpu"],
        "the requested split fits, so nothing was chosen by bandwidths",
    );
    // The first run measures steps, whose figures have nothing to do with bandwidths.
    let cache = tempfile::tempdir().expect("a folder");
    let fits = ["-ngl", "auto", "--place", "attn=cpu", "--gpu-batch", "auto"];
    for when in ["measured now", "measured before"] {
        let mut command = with_driver("", &[&of_length("1")[..], &fits, &FAST].concat());
        command.env("XDG_CACHE_HOME", cache.path());
        let outcome = run(command);
        let told = "`--bandwidths` changed nothing: the requested split fits";
        assert!(outcome.stderr.contains(when), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(told), "{when}: {}", outcome.stderr);
        outcome.ok();
    }
}
