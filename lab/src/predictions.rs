//! [`Predictions`]: the timing model's predictions for everything that a device pack measures, written to a file and read again.
//!
//! `kernel-bench` and `device-report` put them next to measurements. Making them takes minutes, so they are cached in `target/predictions` by a
//! hash of everything that they depend on: the kernels, the launching and the estimating code, and the request. Each is stored when it is made, so
//! that an interrupted run is resumed. Invariant: a file names its kernels, and is refused for others.

mod bar;

use std::{
    collections::BTreeMap,
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokenmill_cuda_exec::modules;
use tokenmill_ptx_sim::DeviceProfile;

use self::bar::Bar;
use crate::{
    kernel_bench::{self, Predictor},
    kernel_estimate,
    measure::record,
    ptx::hex,
};

/// Steps of a model after a prompt, as a part of the pack measures them.
#[derive(Clone, Copy, Debug)]
struct Steps {
    model: &'static str,
    recipe: &'static str,
    n_prompt: usize,
    /// Tokens that each sequence generates; the predicted step comes after half of them.
    n_gen: usize,
    seqs: &'static [usize],
    /// Whether the prompt is one step too, which is predicted as one.
    has_prompt: bool,
}

/// Measurements of `run.sh` that run one step at a time.
const STEPS: [Steps; 7] = [
    steps("llama-3-8b", "Q4_K_M", [512, 64], &[1, 4, 16, 64], true),
    steps("llama-3-8b", "Q8_0", [512, 64], &[1, 4, 16, 64], true),
    steps("llama-3.2-1b", "Q4_K_M", [512, 64], &[1, 4, 16, 64], true),
    steps("llama-3-8b", "BF16", [512, 64], &[1, 4, 16, 64], true),
    steps("llama-3-8b", "Q4_K_M", [128, 32], &[32, 64, 128, 256], false),
    steps("llama-3-8b", "Q4_K_M", [8192, 32], &[1, 8], false),
    steps("llama-3-8b", "Q4_K_M", [32768, 32], &[1], false),
];

const fn steps(
    model: &'static str,
    recipe: &'static str,
    [n_prompt, n_gen]: [usize; 2],
    seqs: &'static [usize],
    has_prompt: bool,
) -> Steps {
    Steps {
        model,
        recipe,
        n_prompt,
        n_gen,
        seqs,
        has_prompt,
    }
}

/// How much is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Extent {
    /// All that the pack measures.
    All,
    /// A few kernels, for a rehearsal of how files are made and read.
    Few,
}

/// Predictions for a GPU, as their file has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Predictions {
    /// Empty if there are no predictions.
    #[serde(default)]
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) device: String,
    #[serde(default)]
    pub(crate) commit: String,
    #[serde(default)]
    pub(crate) kernels_sha256: String,
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// Microseconds of the rows of `kernel-bench` and of steps, by their names.
    us: BTreeMap<String, f64>,
    /// Reasons why others have none, by their names.
    #[serde(default, rename = "not_predicted")]
    pub(crate) problems: BTreeMap<String, String>,
}

/// A unit of prediction.
#[derive(Clone, Copy, Debug)]
enum Job {
    Row(&'static str),
    /// A prompt if `n_seqs` is 0.
    Step {
        of: &'static Steps,
        n_seqs: usize,
    },
}

impl Job {
    /// Lists all of them, rows first, which take seconds each.
    fn all(extent: Extent) -> Vec<Self> {
        let (filter, of_steps): (_, &'static [Steps]) = match extent {
            Extent::All => ("", &STEPS),
            Extent::Few => ("o, 4 rows", &[]),
        };
        let steps = of_steps.iter().flat_map(|of| {
            let prompt = of.has_prompt.then_some(0);
            let n_seqs = prompt.into_iter().chain(of.seqs.iter().copied());
            n_seqs.map(move |n_seqs| Self::Step { of, n_seqs })
        });
        kernel_bench::predicted_rows(filter)
            .map(Self::Row)
            .chain(steps)
            .collect()
    }

    fn name(self) -> String {
        match self {
            Self::Row(name) => name.to_owned(),
            Self::Step { of, n_seqs } => step_name(&of.file(), of.n_prompt, n_seqs),
        }
    }
}

/// Names a step of so many sequences after a prompt, or the prompt if that is 0, of a model's file without its ending.
fn step_name(model: &str, n_prompt: usize, n_seqs: usize) -> String {
    match n_seqs {
        0 => format!("{model}, prompt of {n_prompt}"),
        _ => format!("{model}, {n_seqs} behind {n_prompt}"),
    }
}

impl Steps {
    /// Returns the model's file without its ending.
    fn file(&self) -> String {
        format!("{}-{}", self.model, self.recipe)
    }

    /// Returns the microseconds of one step of `n_seqs` sequences, or of the prompt if that is 0.
    fn us(&self, n_seqs: usize, profile: &'static DeviceProfile) -> anyhow::Result<f64> {
        let n_ctx = if n_seqs == 0 {
            self.n_prompt
        } else {
            self.n_prompt + self.n_gen / 2
        };
        kernel_estimate::predict([self.model, self.recipe], n_seqs, n_ctx, profile)
    }
}

impl Predictions {
    /// Begins predictions of this program's kernels.
    fn of_this_program(device: &str, commit: &str) -> Self {
        Self {
            source: "the timing model of ptx-sim; not measured".to_owned(),
            device: device.to_owned(),
            commit: commit.to_owned(),
            kernels_sha256: kernels_sha256(),
            assumptions: assumptions(device),
            ..Self::default()
        }
    }

    /// Makes the predictions that `self` lacks, on all cores. Shows the progress, and passes the predictions so far to `keep` after each
    /// one. A prediction that fails is recorded with its reason; the others continue.
    ///
    /// # Errors
    /// Nothing could be predicted, with one of the reasons, or nothing can be stored.
    fn make(
        self,
        profile: &'static DeviceProfile,
        extent: Extent,
        keep: impl Fn(&Self) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<Self> {
        let jobs = Job::all(extent);
        let is_missing = |job: &Job| !self.us.contains_key(&job.name());
        let missing: Vec<Job> = jobs.into_iter().filter(is_missing).collect();
        let bar = Mutex::new(Bar::new(profile.name, missing.len()));
        let made = Mutex::new(self);
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<()> {
            let mut predictor = Predictor::new(profile);
            while let Some(&job) = missing.get(next.fetch_add(1, Relaxed)) {
                let name = job.name();
                bar.lock().unwrap_or_else(PoisonError::into_inner).show(&name);
                let us = match job {
                    Job::Row(name) => predictor.us(name),
                    Job::Step { of, n_seqs } => of.us(n_seqs, profile),
                };
                let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                made.note(name, us);
                keep(&made)?;
            }
            Ok(())
        };
        let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..n_threads.min(missing.len()))
                .map(|_| scope.spawn(work))
                .collect();
            let ended = workers.into_iter().map(|worker| {
                let ended = worker.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            ended.collect::<anyhow::Result<()>>()
        })?;
        bar.into_inner().unwrap_or_else(PoisonError::into_inner).end();
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some((name, problem))) = (made.us.is_empty(), made.problems.first_key_value()) {
            bail!("nothing can be predicted for {}: {name}: {problem}", profile.name);
        }
        Ok(made)
    }

    /// Adds the microseconds of a job, or the reason for their absence.
    fn note(&mut self, name: String, us: anyhow::Result<f64>) {
        match us {
            Ok(us) => {
                self.us.insert(name, us);
            }
            Err(error) => {
                self.problems.insert(name, format!("{error:#}"));
            }
        }
    }

    /// Reads a file of predictions for this program's kernels.
    ///
    /// # Errors
    /// A file that cannot be read, is invalid, or has predictions of other kernels.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let predictions: Self = record::read(path)?;
        ensure!(
            predictions.kernels_sha256 == kernels_sha256(),
            "{} has predictions of other kernels than this program's",
            path.display()
        );
        Ok(predictions)
    }

    /// Returns the microseconds of a row of `kernel-bench`.
    pub(crate) fn kernel_us(&self, name: &str) -> Option<f64> {
        self.us.get(name).copied()
    }

    /// Returns the tokens a second for a model's file: of `n_seqs` sequences after a prompt, or of the prompt if that is 0.
    pub(crate) fn tokens_per_s(&self, file: &str, n_prompt: usize, n_seqs: usize) -> Option<f64> {
        let model = file.strip_suffix(".gguf").unwrap_or(file);
        let n_tokens = if n_seqs == 0 { n_prompt } else { n_seqs };
        let us = self.us.get(&step_name(model, n_prompt, n_seqs))?;
        Some(n_tokens as f64 * 1e6 / us)
    }
}

/// Returns the assumptions of the timing model about a device.
fn assumptions(device: &str) -> Vec<String> {
    let mut lines = vec![
        "launches begin early, as from compute capability 9.0 on; a row is one of many in a graph, with what launching takes".to_owned(),
        "a decode step is one behind the prompt and half of what is generated, by the likeliest token; without the host's time".to_owned(),
        "half as long or twice as long for one launch is within what to expect (decision 30)".to_owned(),
        "simulated: a card may give 20 to 40 % less".to_owned(),
        "rows of experts go to experts that are made up, all as likely".to_owned(),
    ];
    if let Some(profile) = DeviceProfile::find(device) {
        lines.push(format!(
            "{} multiprocessors at {} GHz, device memory {:.2} TB/s, L2 {} bytes a clock, a launch {} us, one that begins early {} us",
            profile.n_multiprocessors,
            profile.clock_ghz,
            profile.dram_bytes_per_s / 1e12,
            profile.l2_bytes_per_clock,
            profile.launch_us,
            profile.dependent_us
        ));
    }
    lines
}

/// Returns the hash that identifies the kernels of a program.
pub(crate) fn kernels_sha256() -> String {
    let kernels: String = modules::names().filter_map(modules::ptx).collect();
    crate::ptx::hash(&kernels)
}

/// Writes the predictions for a device to a file, from the cache if they are there.
///
/// # Errors
/// An unknown device, one whose registers are not known, or files that cannot be read or written.
pub(crate) fn write(device: &str, extent: Extent, commit: &str, to: &Path) -> anyhow::Result<()> {
    let profile = kernel_estimate::device(device)?;
    let folder = crate::workspace_root().join("target/predictions");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let cached = folder.join(format!("{device}-{}.json", &key(extent)?[..16]));
    let mut predictions = if cached.is_file() {
        Predictions::read(&cached)?
    } else {
        // Failed predictions are tried again. The others stay in a separate file until all are there.
        let part = cached.with_extension("part");
        let begun = Predictions::read(&part).map(|begun| Predictions {
            problems: BTreeMap::new(),
            ..begun
        });
        let begun = begun.unwrap_or_else(|_| Predictions::of_this_program(device, commit));
        let made = begun.make(profile, extent, |made| record::write(&part, made))?;
        record::write(&part, &made)?;
        if made.problems.is_empty() {
            fs::rename(&part, &cached).with_context(|| format!("cannot write {}", cached.display()))?;
        }
        made
    };
    for (name, problem) in &predictions.problems {
        println!("device-pack: not predicted for {device}: {name}: {problem}");
    }
    // Another commit may have made the same.
    commit.clone_into(&mut predictions.commit);
    record::write(to, &predictions)
}

/// Returns a hash of everything that predictions depend on.
fn key(extent: Extent) -> anyhow::Result<String> {
    let root = crate::workspace_root();
    let mut files: Vec<PathBuf> = vec![
        root.join("kernels/ptx.lock"),
        root.join("lab/src/predictions.rs"),
        root.join("lab/src/kernel_bench.rs"),
        root.join("lab/src/kernel_estimate.rs"),
    ];
    for folder in [
        "crates/ptx-sim/src",
        "crates/sim-driver/src",
        "crates/cuda-exec/src",
        "crates/backend/src",
        "crates/model/src",
        "lab/src/synth",
        "lab/src/kernel_bench",
        "lab/src/kernel_estimate",
        "lab/src/measure",
    ] {
        files.extend(record::files_below(&root.join(folder))?);
    }
    files.sort();
    let mut hasher = Sha256::new();
    hasher.update(format!("{extent:?} {}", kernels_sha256()));
    for file in files {
        hasher.update(format!(
            "{}\n",
            file.strip_prefix(root).unwrap_or(&file).display()
        ));
        hasher.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_says_what_it_rests_on() {
        let named = |name: &str, us| (name.to_owned(), us);
        let predicted = Predictions {
            us: BTreeMap::from([
                named("o", 4.5),
                named("llama-3-8b-Q4_K_M, 4 behind 512", 2000.0),
                named("llama-3-8b-Q4_K_M, prompt of 512", 51_200.0),
            ]),
            problems: BTreeMap::from([("down".to_owned(), "no registers".to_owned())]),
            ..Predictions::of_this_program("h200", "abc")
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("predictions-h200.json");
        record::write(&path, &predicted).unwrap();
        let found = Predictions::read(&path).unwrap();
        assert_eq!(found, predicted);
        assert_eq!((found.kernel_us("o"), found.kernel_us("q")), (Some(4.5), None));
        let rate = |n_prompt, n_seqs| found.tokens_per_s("llama-3-8b-Q4_K_M.gguf", n_prompt, n_seqs);
        assert_eq!(
            (rate(512, 4), rate(512, 0), rate(512, 1)),
            (Some(2000.0), Some(10_000.0), None)
        );
        assert_eq!(rate(128, 4), None);
        assert_eq!(found.commit, "abc");
        let assumptions = found.assumptions.join("; ");
        assert!(assumptions.contains("4.30 TB/s"), "{assumptions}");
    }

    #[test]
    fn predictions_of_other_kernels_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("predicted.json");
        let others = Predictions {
            kernels_sha256: "00".to_owned(),
            ..Predictions::of_this_program("h200", "a commit")
        };
        record::write(&path, &others).unwrap();
        let error = Predictions::read(&path).unwrap_err().to_string();
        assert!(error.contains("other kernels"), "{error}");
    }

    #[test]
    fn one_that_cannot_be_predicted_says_why_and_leaves_the_others() {
        let jobs = Job::all(Extent::All);
        let (rows, steps): (Vec<Job>, Vec<Job>) = jobs.iter().partition(|job| matches!(job, Job::Row(_)));
        assert_eq!(rows.len(), kernel_bench::predicted_rows("").count());
        assert!(steps.len() >= 20 && jobs[..rows.len()].iter().all(|job| matches!(job, Job::Row(_))));
        let mut predicted = Predictions::default();
        predicted.note(rows[0].name(), Ok(3.0));
        let lost = anyhow::anyhow!("lost").context("it cannot be launched");
        predicted.note(rows[1].name(), Err(lost));
        predicted.note(steps[0].name(), Err(anyhow::anyhow!("no room")));
        predicted.note(steps[1].name(), Ok(5.0));
        // Finished predictions are not computed again.
        let has = |job: &Job| predicted.us.contains_key(&job.name());
        assert_eq!(
            [&rows[0], &rows[1], &steps[0], &steps[1]].map(has),
            [true, false, false, true]
        );
        let said: Vec<String> = (predicted.problems.iter())
            .map(|(name, problem)| format!("{name}: {problem}"))
            .collect();
        assert_eq!(
            said,
            [
                "llama-3-8b-Q4_K_M, prompt of 512: no room",
                "turned attention, context 512: it cannot be launched: lost"
            ]
        );
    }

    #[test]
    fn few_kernels_are_predicted_once_and_then_copied() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a.json", "b.json"].map(|name| folder.path().join(name));
        for path in [&first, &second] {
            write("h200", Extent::Few, "abc", path).unwrap();
        }
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let found = Predictions::read(&first).unwrap();
        let us = found.kernel_us("o, 4 rows").unwrap();
        // 9.4 MB of weights take 2.2 us from device memory.
        assert!((2.2..10.0).contains(&us), "{us}");
        let error = write("h9000", Extent::Few, "abc", &first)
            .unwrap_err()
            .to_string();
        assert!(error.contains("known are h100"), "{error}");
    }
}
