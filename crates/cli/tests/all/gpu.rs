//! The program with a driver: the simulated one stands in for `libcuda.so.1`, so the whole CUDA path runs, kernels and captured
//! graphs included, and every failure of a driver can be tested.

use std::{env, os::unix::fs::symlink, process::Command, sync::OnceLock};

use serde_json::Value;
use tempfile::TempDir;
use tokenmill_testkit::{Comparisons, skip};

use crate::support::{Outcome, arg, command, tokenmill};

/// A folder that holds the simulated driver under the real one's name.
pub(crate) fn driver_folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut library = env::current_exe().expect("a test has a path");
        library.set_file_name("libtokenmill_sim_driver.so");
        assert!(library.is_file(), "{} was not built", library.display());
        let folder = tempfile::tempdir().expect("a folder");
        symlink(library, folder.path().join("libcuda.so.1")).expect("a link");
        folder
    })
}

/// The program on a machine with a driver, as `machine` describes it.
pub(crate) fn with_driver(machine: &str, args: &[&str]) -> Command {
    let mut command = command(args);
    command
        .env("LD_LIBRARY_PATH", driver_folder().path())
        .env("TOKENMILL_SIM_DRIVER", machine)
        // Measurements of a test must not reach the user's cache.
        .env("XDG_CACHE_HOME", driver_folder().path().join("cache"))
        // The check at first use has tests of its own.
        .env("TOKENMILL_CUDA_NO_CHECK", "1")
        .env_remove("CUDA_VISIBLE_DEVICES");
    command
}

pub(crate) fn run(mut command: Command) -> Outcome {
    Outcome::of(&command.output().expect("the program starts"))
}

/// Returns the error message of a run on a GPU of such a machine, and checks its exit code.
#[track_caller]
fn refused(machine: &str, extra: &[&str], code: i32) -> String {
    let device: &[&str] = if extra.contains(&"--device") {
        &[]
    } else {
        &["--device", "cuda"]
    };
    let args = [&["run", "--raw", "demo", "Once", "-n", "4"], device, extra].concat();
    run(with_driver(machine, &args)).failed(code)
}

/// A run whose answer is the same everywhere.
pub(crate) const GREEDY: [&str; 10] = [
    "run",
    "--raw",
    "demo",
    "Once upon a time",
    "--temp",
    "0",
    "-n",
    "12",
    "-c",
    "64",
];

/// Such a run of a model of the reference data.
pub(crate) fn greedy_of(model: &str) -> [&str; 10] {
    [
        "run", "--raw", model, "Once", "--temp", "0", "-n", "8", "-c", "64",
    ]
}

/// As [`GREEDY`], with another number of tokens.
pub(crate) fn of_length(n_tokens: &'static str) -> [&'static str; 10] {
    GREEDY.map(|arg| if arg == "12" { n_tokens } else { arg })
}

#[test]
fn the_gpu_continues_as_the_cpu_does() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let outcome = run(with_driver("", &[&GREEDY[..], &["--device", "auto"]].concat()));
    assert!(!outcome.stderr.contains("CPU"), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), expected);
    // All forms of the request are tried.
    for device in [["--device", "cuda"], ["--device", "cuda:0"], ["-ngl", "99"]] {
        let outcome = run(with_driver("", &[&GREEDY[..], &device].concat()));
        assert!(!outcome.stderr.contains("CPU"), "{device:?}: {}", outcome.stderr);
        assert_eq!(outcome.ok(), expected, "{device:?}");
    }
}

#[test]
fn keys_and_values_are_stored_in_the_types_asked_for() {
    // Seven tokens, up to a name: which one comes then is all but a tie, which rounding decides.
    let args = [&of_length("7")[..], &["-ctk", "q8_0", "-ctv", "f32"]].concat();
    let expected = tokenmill([&args[..], &["--device", "cpu"]].concat()).ok();
    let found = run(with_driver("", &[&args[..], &["--device", "cuda"]].concat())).ok();
    assert_eq!(found, expected);
}

#[test]
fn batch_invariance_is_had_on_the_gpu_and_is_nothing_new_on_the_cpu() {
    let args = [&GREEDY[..], &["--batch-invariant"]].concat();
    let on_cpu = tokenmill([&args[..], &["--device", "cpu"]].concat());
    assert!(
        on_cpu
            .stderr
            .contains("`--batch-invariant` changes nothing on the CPU"),
        "{}",
        on_cpu.stderr
    );
    let on_gpu = run(with_driver("", &[&args[..], &["--device", "cuda"]].concat()));
    assert!(!on_gpu.stderr.contains("batch-invariant"), "{}", on_gpu.stderr);
    assert_eq!(on_gpu.ok(), on_cpu.ok());
    let both = [&args[..], &["--gpu-batch", "4"]].concat();
    assert_eq!(run(with_driver("", &both)).code, 2);
}

#[test]
fn a_session_is_saved_and_restored_on_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("story.tms");
    let story =
        "Once upon a time there was a little girl who lived in a small house near the forest with her mother";
    let told = |prompt: &str, device: &str, with_session: bool| {
        let mut args = vec![
            "run", "--raw", "demo", prompt, "--temp", "0", "-n", "4", "-c", "96", "--json", "--device",
            device,
        ];
        if with_session {
            args.extend(["--session", arg(&session)]);
        }
        let outcome = run(with_driver("", &args));
        let stderr = outcome.stderr.clone();
        (serde_json::from_str::<Value>(&outcome.ok()).unwrap(), stderr)
    };
    let (first, _) = told(story, "cuda", true);
    assert_eq!(first["timings"]["cache_n"], 0);
    let longer = format!("{story}{} The next day", first["text"].as_str().unwrap());
    let (computed, _) = told(&longer, "cuda", false);
    let (again, stderr) = told(&longer, "cuda", true);
    assert!(stderr.contains("tokens restored from"), "{stderr}");
    assert!(again["timings"]["cache_n"].as_u64() >= Some(16), "{again}");
    assert_eq!(again["ids"], computed["ids"]);
    // The CPU keeps its memory otherwise: it computes, and the file stays.
    let kept = std::fs::read(&session).unwrap();
    let (on_cpu, stderr) = told(&longer, "cpu", true);
    assert!(stderr.contains("stays as it is"), "{stderr}");
    assert_eq!(on_cpu["timings"]["cache_n"], 0);
    assert_eq!(std::fs::read(&session).unwrap(), kept);
}

#[test]
fn devices_and_doctor_report_the_gpu() {
    let devices = run(with_driver("capability=9.0,cuda=12.8,devices=2", &["devices"])).ok();
    assert!(
        devices.contains(
            "GPU 0: simulated GPU, compute capability 9.0, 8.00 GiB of 8.00 GiB free, driver for CUDA 12.8\n"
        ),
        "{devices}"
    );
    // Only the first is opened to ask how much is free.
    assert!(
        devices.contains("GPU 1: simulated GPU, compute capability 9.0, 8.00 GiB, driver for CUDA 12.8\n"),
        "{devices}"
    );
    assert!(devices.contains("computes on GPU 0"), "{devices}");
    let doctor = run(with_driver("", &["doctor", "demo", "-c", "64", "--json"])).ok();
    let found: Value = serde_json::from_str(&doctor).unwrap();
    assert_eq!(found["self_test"]["passed"], true, "{found}");
    assert_eq!(found["kernels"]["problem"], Value::Null);
    assert_eq!(found["gpus"][0]["usable"], true);
    assert!(found["model"]["gpu"]["weights_bytes"].as_u64().unwrap() > 1 << 20);
    let text = run(with_driver("capability=9.0,cuda=12.4", &["doctor"])).ok();
    assert!(text.contains("self-test  ok"), "{text}");
    assert!(
        text.contains("launches   ok       launches that begin early\n"),
        "{text}"
    );
    let shared = "pages that sequences share, read once for all of them";
    assert!(
        text.contains(&format!("attention  ok       {shared}\n")),
        "{text}"
    );
    let family = (found["products"].as_array().unwrap().iter()).find(|family| family["family"] == shared);
    assert_eq!(family.unwrap()["kind"], "attention", "{found}");
    let mut apart = with_driver("capability=8.9", &["doctor"]);
    apart.env("TOKENMILL_CUDA_NO_SHARED", "1");
    let text = run(apart).ok();
    let off = format!("attention  none     {shared}: they are turned off (TOKENMILL_CUDA_NO_SHARED=1)\n");
    assert!(text.contains(&off), "{text}");
    let wgmma = "none     9 rows and more, matrix operations of warpgroups (wgmma): compute capability 8.9;";
    assert!(text.contains(wgmma), "{text}");
    let faulty = run(with_driver("lose=0", &["doctor"])).ok();
    assert!(faulty.contains("self-test  problem"), "{faulty}");
}

#[test]
fn bench_names_the_device_it_measured() {
    let args = [
        "bench", "demo", "-p", "4", "-n", "2", "-r", "1", "-o", "csv", "--device", "cuda",
    ];
    let table = run(with_driver("", &args)).ok();
    assert!(
        table.lines().skip(1).all(|line| line.contains(",CUDA,")),
        "{table}"
    );
}

#[test]
fn bench_says_what_the_time_of_a_gpus_steps_goes_to() {
    let args = ["bench", "demo", "-p", "4", "-n", "2", "-r", "1", "--gpu-trace"];
    let output = run(with_driver("", &[&args[..], &["--device", "cuda"]].concat()));
    let text = output.stderr.clone();
    // A warm-up and a repetition: one step for the prompt, two for the generation.
    for claim in [
        "GPU time of a prompt step: ",
        " ms for the results; 2 steps with 8 tokens",
        "GPU time of a generation step: ",
        " ms for the results; 4 steps with 4 tokens",
    ] {
        assert!(text.contains(claim), "{claim}: {text}");
    }
    output.ok();
    let refusal = tokenmill([&args[..], &["--device", "cpu"]].concat()).failed(2);
    assert!(refusal.contains("`--gpu-trace` measures a GPU"), "{refusal}");
}

#[test]
fn a_gpu_with_room_computes_prompts_in_larger_steps() {
    let steps_of = |machine: &str, n_prompt: &str, extra: &[&str]| {
        let args = [
            "bench",
            "demo",
            "-p",
            n_prompt,
            "-n",
            "0",
            "-r",
            "1",
            "--no-warmup",
            "--gpu-trace",
        ];
        let output = run(with_driver(
            machine,
            &[&args[..], &["--device", "cuda"], extra].concat(),
        ));
        let text = output.stderr.clone();
        output.ok();
        let (_, rest) = text.split_once(" ms for the results; ").expect("a trace");
        rest.lines().next().expect("a line").to_owned()
    };
    assert_eq!(steps_of("", "520", &[]), "1 steps with 520 tokens");
    // As asked for, and where little would be left.
    assert_eq!(steps_of("", "20", &["-ub", "16"]), "2 steps with 20 tokens");
    assert_eq!(steps_of("mib=158", "640", &[]), "2 steps with 640 tokens");
}

#[test]
fn without_a_driver_the_program_says_so_and_computes_on_the_cpu() {
    // An empty folder comes first, but a real driver is still found after it.
    if tokenmill_cuda_exec::has_driver() {
        skip("a machine without a driver", "this machine has one");
        return;
    }
    let devices = tokenmill(["devices"]).ok();
    assert!(devices.contains("GPU: none; no NVIDIA driver here"), "{devices}");
    let doctor = tokenmill(["doctor"]).ok();
    assert!(
        doctor.contains("driver     none     no NVIDIA driver here"),
        "{doctor}"
    );
    let line = tokenmill([&GREEDY[..], &["--device", "cuda"]].concat()).failed(5);
    assert_eq!(
        line,
        "error: the GPU cannot be used: no NVIDIA driver found; install one, or use the CPU (hint: \
         `--device cuda` asks for a GPU; without it the CPU computes where no GPU can be used)"
    );
    let line = tokenmill(["doctor", "--device", "cuda", "--json"]);
    assert_eq!(line.code, 5, "{}", line.stderr);
    let outcome = tokenmill([&GREEDY[..], &["--device", "auto"]].concat());
    assert!(
        outcome
            .stderr
            .starts_with("computing on the CPU: the GPU cannot be used: no NVIDIA driver found"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.ok(), tokenmill(GREEDY).ok());
}

#[test]
fn a_gpu_that_cannot_be_used_is_refused_with_its_reason() {
    let check = |machine: &str, extra: &[&str], parts: &[&str]| {
        let line = refused(machine, extra, 5);
        assert!(parts.iter().all(|part| line.contains(part)), "{machine}: {line}");
    };
    check(
        "devices=0",
        &[],
        &["the NVIDIA driver shows no GPU", "nvidia-smi"],
    );
    check(
        "",
        &["--device", "cuda:3"],
        &["there is no GPU 3; the driver shows 1"],
    );
    check(
        "capability=7.5",
        &[],
        &["compute capability 7.5, at least 8.0 is needed"],
    );
    check(
        "cuda=11.2",
        &[],
        &["supports CUDA 11.2", "CUDA 11.4 or newer is needed"],
    );
    check(
        "ptx=refused",
        &[],
        &["does not load the kernels", "UNSUPPORTED_PTX_VERSION"],
    );
    check(
        "compiler=missing",
        &[],
        &["cannot compile the kernels", "libnvidia-ptxjitcompiler.so.1"],
    );
    check(
        "",
        &["-ctk", "q4_0", "-ctv", "q4_0"],
        &[
            "does not support q4_0 keys",
            "f16, f32, q8_0 and e4m3 can be stored",
        ],
    );
    check(
        "",
        &["-ctk", "fp8"],
        &[
            "does not support e4m3 keys with f16 values",
            "e4m3 is stored of both or of neither",
        ],
    );
    check(
        "mib=230",
        &["-c", "60000"],
        &["229 MiB free", "missing", "tokens would fit instead of"],
    );
    check(
        "mib=130",
        &[],
        &["are missing", "no context would fit", "--device cpu"],
    );
}

#[test]
fn hidden_gpus_are_told_from_missing_ones() {
    let mut command = with_driver("", &["run", "--raw", "demo", "Once", "--device", "cuda"]);
    command.env("CUDA_VISIBLE_DEVICES", "");
    let line = run(command).failed(5);
    assert!(line.contains("CUDA_VISIBLE_DEVICES is empty"), "{line}");
}

#[test]
fn a_device_that_is_lost_ends_the_run_with_its_own_code() {
    for launch in ["0", "40", "400"] {
        let args = [&GREEDY[..], &["--device", "cuda", "--json"]].concat();
        let outcome = run(with_driver(&format!("lose={launch}"), &args));
        assert_eq!(outcome.code, 6, "{launch}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
        assert!(
            outcome.stderr.contains("the device is lost"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn auto_goes_on_with_the_cpu_and_says_why() {
    let expected = tokenmill([&GREEDY[..], &["--device", "cpu"]].concat()).ok();
    let auto = &["--device", "auto"][..];
    for (machine, extra, reason) in [
        ("devices=0", auto, "shows no GPU"),
        ("capability=7.5", auto, "compute capability 7.5"),
        ("ptx=refused", auto, "does not load the kernels"),
        ("mib=130", auto, "are missing"),
        // Without the option it is the same: a driver is there.
        ("mib=130", &[], "are missing"),
    ] {
        let outcome = run(with_driver(machine, &[&GREEDY[..], extra].concat()));
        let first = outcome.stderr.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("computing on the CPU: ") && first.contains(reason),
            "{machine}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.ok(), expected);
    }
}

#[test]
fn a_network_with_experts_continues_as_on_the_cpu() {
    let mut comparisons = Comparisons::of("experts on a GPU");
    for name in ["mixtral", "gpt_oss"] {
        let Some(file) = comparisons.find(&format!("parity/{name}/model-F32.gguf")) else {
            return;
        };
        let greedy = greedy_of(arg(&file));
        let expected = tokenmill([&greedy[..], &["--device", "cpu"]].concat()).ok();
        let found = run(with_driver("", &[&greedy[..], &["--device", "cuda"]].concat())).ok();
        assert_eq!(found, expected, "{name}");
        comparisons.compared(1);
    }
}

#[test]
fn a_network_with_recurrent_layers_continues_as_on_the_cpu() {
    let mut comparisons = Comparisons::of("recurrent layers on a GPU");
    for name in ["lfm2", "mamba", "mamba2", "qwen3_5"] {
        let Some(file) = comparisons.find(&format!("parity/{name}/model-F32.gguf")) else {
            return;
        };
        let greedy = greedy_of(arg(&file));
        let expected = tokenmill([&greedy[..], &["--device", "cpu"]].concat()).ok();
        let found = run(with_driver("", &[&greedy[..], &["--device", "cuda"]].concat())).ok();
        assert_eq!(found, expected, "{name}");
        comparisons.compared(1);
    }
}

#[test]
fn the_program_is_linked_to_no_cuda_library() {
    let Ok(listed) = Command::new("ldd").arg(env!("CARGO_BIN_EXE_tokenmill")).output() else {
        skip("libraries of the program", "this machine has no ldd");
        return;
    };
    let listed = String::from_utf8_lossy(&listed.stdout).to_lowercase();
    assert!(listed.contains("libc"), "{listed}");
    for library in ["cuda", "nvidia", "cublas", "nvrtc"] {
        assert!(!listed.contains(library), "{listed}");
    }
}
