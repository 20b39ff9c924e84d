//! The rehearsal of a device pack: both calls, over the simulated driver, in the form in which they travel.
//!
//! A GPU is available only for minutes, so the script, the programs' options, the archive and the report are tried together before. The files for a
//! machine are copied, the calls' commands run among these copies, and the returned files are counted; other programs have stand-ins. Then a run is
//! stopped while its server works, and both calls run over a GPU with one wrong kernel. Invariant: every part passes, except torch if there is no
//! python; a part without enough time is an error unless late parts are allowed; the wrong kernel is named, and its launch repeated. A rehearsal is
//! labelled as one, and none of its times is reported.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use tokenmill_cuda_exec::{
    Cubins,
    modules::{self, Entry, Target},
};
use tokenmill_gguf::TensorType;

use super::{
    cut_off, others_tools,
    results::{self, Expected, Late, check_tables, late_parts, row_of},
    travel,
};
use crate::{
    device_report::{self, Figures},
    measure::record,
    ptx,
};

/// Name under which the program finds the driver, and its name among the binaries.
const DRIVER: [&str; 2] = ["libcuda.so.1", "libtokenmill_sim_driver.so"];
/// The simulated machine: a GPU of the expected kind.
const MACHINE: &str = "capability=9.0,mib=16384";
/// The kind by which precompiled kernels are found.
const CODE: &str = "sm_90";

/// Settings that make the parts short enough for an interpreter.
const SHORT: [(&str, &str); 25] = [
    ("NEEDS_PERCENT", "20"),
    ("RED_PARTS", "bisect"),
    ("BENCH_PRESETS", "tiny-llama:Q4_K_M tiny-llama:Q8_0"),
    ("SMALL_PRESET", "tiny-llama:Q8_0"),
    ("CHECK_ARGS", "--slice 512 --filter 4"),
    ("JIT_ARGS", "--slice 512 --filter norm"),
    ("BENCH_ARGS", "--n-prompt 16 --n-gen 3 --batches 1,2"),
    ("BATCHES_ARGS", "--n-prompt 16 --n-gen 3 --batches 1,4 --once"),
    ("PREFILL_ARGS", "--n-prompt 24 --n-gen 2 --batches 1 --once"),
    ("DEPTH_ARGS", "--n-prompt 32 --n-gen 2 --batches 1,2 --once"),
    ("SWITCH_ARGS", "--n-prompt 8 --n-gen 3 --batches 1 --once"),
    (
        "SAMPLED_ARGS",
        "--n-prompt 8 --n-gen 3 --batches 1,2 --sampled --once",
    ),
    ("DEPTH_32K_ARGS", "--n-prompt 48 --n-gen 2 --batches 1 --once"),
    ("MANY_ARGS", "--n-prompt 8 --n-gen 3 --batches 1,4"),
    ("MORE_ARGS", "--n-prompt 8 --n-gen 3 --batches 1,2"),
    ("SERVE_ARGS", "-c 256 --parallel 2"),
    (
        "LOAD_ARGS",
        "--concurrency 2 --requests 2 --warmup 0 --prompt-words 2 --max-tokens 2 --ignore-eos",
    ),
    ("PREDICTIONS", "h200"),
    ("KERNEL_ARGS", "--slice 512 --filter 4"),
    ("NCU_FILTER", "o, 4 rows"),
    ("NCU_ARGS", "--slice 512"),
    ("SANITIZER_TOOLS", "racecheck"),
    ("PARITY_ARGS", "--filter llama/Q4_K_M"),
    ("CONFORMANCE_ARGS", "--filter copied_pages"),
    ("BISECT_ARGS", "--slice 512"),
];

/// Load that keeps the server of the interrupted run busy until then.
const LONG_LOAD: &str =
    "--concurrency 2 --requests 1000 --warmup 0 --prompt-words 2 --max-tokens 100 --ignore-eos";
/// Limit until the server of the interrupted run works.
const LONG_LOAD_LIMIT: Duration = Duration::from_mins(1);

/// The parts of the calls, in the order in which the script runs them.
#[rustfmt::skip]
const FIRST_PARTS: [&str; 14] = [
    "facts", "self-test", "kernel-checks", "jit", "ways", "compare", "compare-small", "parity", "cubins",
    "compare-big", "bench-tiny-llama-Q4_K_M", "kernel-bench", "synth-tiny-llama-Q8_0", "synth-tiny-llama-Q4_K_M",
];
#[rustfmt::skip]
const SECOND_PARTS: [&str; 23] = [
    "bench-tiny-llama-Q4_K_M-batches", "bench-tiny-llama-Q4_K_M-pp2048", "bench-tiny-llama-Q4_K_M-pp2048-no-wide",
    "bench-tiny-llama-Q4_K_M-depth8k", "bench-tiny-llama-Q4_K_M-plain", "bench-tiny-llama-Q4_K_M-in-order",
    "bench-tiny-llama-Q4_K_M-eager", "bench-tiny-llama-Q4_K_M-no-carveout", "serving", "bench-tiny-llama-Q8_0",
    "bench-tiny-llama-Q4_K_M-sampled", "conformance", "ncu", "baseline-llama.cpp", "baseline-torch",
    "sanitizer-memcheck", "sanitizer-racecheck", "doctor", "bench-tiny-llama-Q4_K_M-depth32k",
    "bench-tiny-llama-Q4_K_M-many", "bench-tiny-llama-Q8_0-more", "conformance-cpu", "parity-cpu",
];
/// Number of parts that have enough time in any rehearsal, for each call.
const N_FIRST: [usize; 2] = [4, 1];

/// The kernel of which a red device writes wrong bits, its place, and the parts of the first call that find it.
const WRONG_KERNEL: [&str; 2] = ["matvec_gated_m8", "matvec_q4_k/matvec_gated_m8"];
const RED_FIRST: &str = "self-test kernel-checks";
/// Limit of each call over a red device, in seconds; on an idle machine it takes a fraction of that.
const RED_S: u64 = 120;

/// The places of a rehearsal.
struct Stage {
    /// The folder that represents the machine's copy of the work tree, and the pack's path in it.
    machine: PathBuf,
    carried: PathBuf,
    folder: PathBuf,
    driver: PathBuf,
    cubins: PathBuf,
    tools: others_tools::Stands,
}

impl Stage {
    /// Returns the command of a call, with an empty `OUT`.
    fn call(&self, call: u8, seconds: u64, out: &str, gpu: &str) -> anyhow::Result<(Command, PathBuf)> {
        let out = self.folder.join(out);
        record::empty_folder(&out)?;
        let mut command = Command::new("bash");
        command
            .arg("-c")
            .arg(travel::command(&self.carried, call, seconds))
            .current_dir(&self.machine)
            .envs(SHORT)
            .env("OUT", &out)
            .env("WORK_FOLDER", self.work())
            .env("CUBINS", &self.cubins)
            .env("LD_LIBRARY_PATH", &self.driver)
            .env("PATH", &self.tools.path)
            .env("PYTHONPATH", &self.tools.python_path)
            .env("TOKENMILL_SIM_DRIVER", gpu)
            .env_remove("CUDA_VISIBLE_DEVICES");
        Ok((command, out))
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Runs a call and checks the files that it leaves; returns the names of its late parts.
    fn rehearse(&self, pack: &Path, call: u8, expected: Expected) -> anyhow::Result<Vec<String>> {
        let name = format!("call-{call}");
        let (mut command, out) = self.call(call, expected.seconds, &name, MACHINE)?;
        let status = timed(&mut command, expected.seconds)?;
        ensure!(status.success(), "the command of call {call} ends with {status}");
        let unpacked = self.folder.join(format!("{name}-unpacked"));
        let summary = results::check(&out, &unpacked, expected)?;
        ensure!(
            summary["verdict"] == "green",
            "the verdict of call {call} is {}",
            summary["verdict"]
        );
        let tables = device_report::tables(&unpacked, Figures::Rehearsed)?;
        check_tables(&summary, &tables, pack.join("predictions-h200.json").is_file())?;
        let (n_files, n_bytes) = travel::come_back(&out)?;
        println!(
            "device-pack: call {call} ended after {} s of {} s and gives {n_files} files back, {:.2} MiB",
            summary["seconds"],
            expected.seconds,
            n_bytes as f64 / f64::from(1 << 20)
        );
        Ok(late_parts(&summary).into_iter().map(str::to_owned).collect())
    }

    /// Runs both calls over a GPU with one kernel that writes wrong bits.
    fn rehearse_red(&self) -> anyhow::Result<()> {
        let [wrong, expected] = WRONG_KERNEL;
        let gpu = format!("{MACHINE},wrong={wrong}");
        let (mut command, out) = self.call(1, RED_S, "red-1", &gpu)?;
        // Other parts take time without further information.
        command
            .env("PARTS", RED_FIRST)
            .env("CHECK_ARGS", "--slice 512 --filter 8");
        let status = timed(&mut command, RED_S)?;
        ensure!(status.code() == Some(1), "a red device ends call 1 with {status}");
        ensure!(
            results::summary_of(&out, &self.folder.join("red-1-unpacked"))?["verdict"] == "red",
            "a red device is not red"
        );
        let (mut command, out) = self.call(2, RED_S, "red-2", &gpu)?;
        command.env("BISECT_ARGS", "--slice 512 --filter rows");
        let status = timed(&mut command, RED_S)?;
        ensure!(status.code() == Some(1), "a red device ends call 2 with {status}");
        let summary = results::summary_of(&out, &self.folder.join("red-2-unpacked"))?;
        let row = row_of(&summary, "bisect").context("call 2 did not look for the wrong kernel")?;
        let reason = row["reason"].as_str().unwrap_or_default();
        ensure!(
            row["status"] == "failed" && reason.contains(&format!("the wrong kernel is {expected} ")),
            "{expected} is wrong, and the search ended so: {}, {reason}",
            row["status"]
        );
        ensure!(
            row_of(&summary, "bench-tiny-llama-Q4_K_M-batches").is_none(),
            "call 2 measured a red device"
        );
        travel::come_back(&out)?;
        // The launch comes back whole, and is recognized as wrong here.
        let found = crate::device_bisect::repeat_dump(&out.join("failing-launch.bin"));
        let found = found
            .err()
            .context("the launch that came back is right")?
            .to_string();
        ensure!(
            found.starts_with(expected),
            "the launch that came back is another: {found}"
        );
        println!("device-pack: a red device ended red, {reason}");
        Ok(())
    }
}

/// Runs a command, which may end a little after its deadline.
fn timed(command: &mut Command, seconds: u64) -> anyhow::Result<ExitStatus> {
    let begun = Instant::now();
    let status = command.status().context("cannot run the pack's script")?;
    let took = begun.elapsed().as_secs();
    ensure!(took <= seconds, "a call of {seconds} s took {took} s");
    Ok(status)
}

/// Runs the pack in `pack` with the driver that was built with `binaries`, in the form in which it travels with the work tree of `root`: both calls
/// within so many seconds together. Checks the files that they leave and prints which parts were late. Then stops a run early, and runs over a red
/// device.
///
/// # Errors
/// Fails if something is wrong with them, and on late parts, unless these are allowed.
pub(super) fn run(root: &Path, pack: &Path, binaries: &Path, seconds: u64, late: Late) -> anyhow::Result<()> {
    // Next to the pack, so that it can be inspected.
    let folder = pack.with_extension("rehearsal");
    record::empty_folder(&folder)?;
    let machine = folder.join("machine");
    travel::send(root, pack, &machine)?;
    let stage = Stage {
        carried: travel::carried(root, pack).to_owned(),
        driver: driver_folder(&folder, binaries)?,
        cubins: ptx_as_cubins(&folder)?,
        tools: others_tools::write(&folder)?,
        machine,
        folder,
    };
    let all_s: u64 = travel::CALLS.iter().map(|(_, seconds)| seconds).sum();
    let mut late_ones = Vec::new();
    for ((call, of_call), parts, n_first) in [
        (travel::CALLS[0], FIRST_PARTS.as_slice(), N_FIRST[0]),
        (travel::CALLS[1], SECOND_PARTS.as_slice(), N_FIRST[1]),
    ] {
        let expected = Expected {
            parts,
            n_first,
            seconds: seconds * of_call / all_s,
            late,
        };
        late_ones.extend(stage.rehearse(pack, call, expected)?);
    }
    let (mut serving, out) = stage.call(2, seconds, "cut-off", MACHINE)?;
    serving.env("PARTS", "serving").env("LOAD_ARGS", LONG_LOAD);
    rehearse_cut_off(serving, &out, &stage.work().join("tokenmill-pack"))?;
    stage.rehearse_red()?;
    println!("device-pack: rehearsed on the simulated driver, nothing was measured");
    if !late_ones.is_empty() {
        println!(
            "device-pack: these were late and are not rehearsed: {}",
            late_ones.join(", ")
        );
    }
    Ok(())
}

/// Stops a run while its server works.
fn rehearse_cut_off(mut serving: Command, results: &Path, work: &Path) -> anyhow::Result<()> {
    // The previous run has left one.
    let log = work.join("parts/serving.log");
    if log.exists() {
        fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
    }
    let run = serving.spawn().context("cannot run the pack's script")?;
    let is_listening = || fs::read_to_string(&log).is_ok_and(|log| log.contains("listening"));
    let summary = cut_off::end(run, results, LONG_LOAD_LIMIT, is_listening)?;
    let row = row_of(&summary, "serving").context("what was cut off is not in the summary")?;
    ensure!(
        row["status"] == "late" && row["reason"] == "cut off by SIGTERM",
        "what was cut off is {}, {}",
        row["status"],
        row["reason"]
    );
    let left = cut_off::processes_with(&work.display().to_string())?;
    ensure!(
        left.is_empty(),
        "a run that was cut off left these: {}",
        left.join("; ")
    );
    Ok(())
}

/// Makes an archive of stand-ins for precompiled code, which a simulated GPU cannot run. It has the modules of the self-test's model.
fn ptx_as_cubins(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut archive = Cubins::header();
    for module in modules::all() {
        let is_needed = module.types.is_empty() || module.types == [TensorType::Q8_0];
        if module.target == Target::All && is_needed {
            let name = module.name.as_str();
            let ptx = modules::ptx(name).with_context(|| format!("the archive has no PTX of {name}"))?;
            let text =
                ptx::text_for(&module, &ptx, CODE).with_context(|| format!("{name} is not for {CODE}"))?;
            let code = ["\x7fELF", &*text].concat();
            Entry::append(&mut archive, &format!("{CODE}/{name}"), code.as_bytes());
        }
    }
    let path = folder.join("cubins.z");
    fs::write(&path, archive).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Makes a folder with the simulated driver under the real one's name.
fn driver_folder(folder: &Path, binaries: &Path) -> anyhow::Result<PathBuf> {
    let [name, file] = DRIVER;
    let built = [binaries.join("deps").join(file), binaries.join(file)];
    let built = built
        .iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{} was not built", built[0].display()))?;
    let driver = folder.join("driver");
    fs::create_dir_all(&driver).with_context(|| format!("cannot create {}", driver.display()))?;
    fs::copy(built, driver.join(name)).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(driver)
}
