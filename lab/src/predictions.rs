//! [`Predicted`] and [`Predictions`]: the timing model's predictions for everything that a device pack measures, written to a file and read again.
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
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokenmill_cuda_exec::modules;
use tokenmill_ptx_sim::DeviceProfile;

use self::bar::Bar;
use crate::{
    kernel_bench::{self, Predictor},
    kernel_estimate,
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

/// A predicted step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepPredicted {
    /// The model's file without its ending.
    pub(crate) model: String,
    pub(crate) n_prompt: usize,
    /// 0 for the prompt itself.
    pub(crate) n_seqs: usize,
    pub(crate) us: f64,
}

impl StepPredicted {
    /// Tokens a second.
    pub(crate) fn tokens_per_s(&self) -> f64 {
        let n_tokens = if self.n_seqs == 0 {
            self.n_prompt
        } else {
            self.n_seqs
        };
        n_tokens as f64 * 1e6 / self.us
    }
}

/// Predictions for a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Predicted {
    pub(crate) kernels: BTreeMap<String, f64>,
    pub(crate) steps: Vec<StepPredicted>,
    /// Reasons why others have none, by their names.
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
            Self::Step { of, n_seqs: 0 } => format!("{}, prompt of {}", of.file(), of.n_prompt),
            Self::Step { of, n_seqs } => format!("{}, {n_seqs} behind {}", of.file(), of.n_prompt),
        }
    }

    /// Returns whether it is this step.
    fn is_of(self, step: &StepPredicted) -> bool {
        matches!(self, Self::Step { of, n_seqs }
            if of.file() == step.model && of.n_prompt == step.n_prompt && n_seqs == step.n_seqs)
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

impl Predicted {
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
        let missing: Vec<Job> = jobs.iter().copied().filter(|job| !self.has(*job)).collect();
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
                made.note(job, us);
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
        let mut made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let (true, true, Some((name, problem))) = (
            made.kernels.is_empty(),
            made.steps.is_empty(),
            made.problems.first_key_value(),
        ) {
            bail!("nothing can be predicted for {}: {name}: {problem}", profile.name);
        }
        // In the order of the requests, whichever was done first.
        made.steps
            .sort_by_key(|step| jobs.iter().position(|job| job.is_of(step)));
        Ok(made)
    }

    /// Returns whether it was predicted.
    fn has(&self, job: Job) -> bool {
        match job {
            Job::Row(name) => self.kernels.contains_key(name),
            Job::Step { .. } => self.steps.iter().any(|step| job.is_of(step)),
        }
    }

    /// Adds the result of a job, in microseconds, or the reason for its absence.
    fn note(&mut self, job: Job, us: anyhow::Result<f64>) {
        match (us, job) {
            (Err(error), _) => {
                self.problems.insert(job.name(), format!("{error:#}"));
            }
            (Ok(us), Job::Row(name)) => {
                self.kernels.insert(name.to_owned(), us);
            }
            (Ok(us), Job::Step { of, n_seqs }) => self.steps.push(StepPredicted {
                model: of.file(),
                n_prompt: of.n_prompt,
                n_seqs,
                us,
            }),
        }
    }

    /// Returns the contents of the file, with its device and its assumptions.
    pub(crate) fn to_json(&self, device: &str, commit: &str) -> Value {
        let steps: Vec<Value> = (self.steps.iter())
            .map(|step| {
                json!({
                    "model": step.model,
                    "n_prompt": step.n_prompt,
                    "sequences": step.n_seqs,
                    "us": step.us,
                    "tokens_per_s": step.tokens_per_s(),
                })
            })
            .collect();
        json!({
            "source": "the timing model of ptx-sim; not measured",
            "device": device,
            "commit": commit,
            "kernels_sha256": kernels_sha256(),
            "assumptions": assumptions(device),
            "kernels": self.kernels,
            "steps": steps,
            "not_predicted": self.problems,
        })
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
    let profile = DeviceProfile::find(device).with_context(|| {
        let known = DeviceProfile::ALL.map(|device| device.name).join(", ");
        format!("no predictions for `{device}`: known are {known}")
    })?;
    let folder = crate::workspace_root().join("target/predictions");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let cached = folder.join(format!("{device}-{}.json", &key(extent)?[..16]));
    let write = |to: &Path, json: &Value| {
        fs::write(to, format!("{json:#}\n")).with_context(|| format!("cannot write {}", to.display()))
    };
    let mut predicted = if cached.is_file() {
        let text =
            fs::read_to_string(&cached).with_context(|| format!("cannot read {}", cached.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", cached.display()))?
    } else {
        // Failed predictions are tried again. The others stay in a separate file until all are there.
        let part = cached.with_extension("part");
        let begun = Predictions::read(&part).map(|begun| Predicted {
            problems: BTreeMap::new(),
            ..begun.all
        });
        let keep = |made: &Predicted| write(&part, &made.to_json(device, commit));
        let made = begun.unwrap_or_default().make(profile, extent, keep)?;
        let is_whole = made.problems.is_empty();
        let made = made.to_json(device, commit);
        write(&part, &made)?;
        if is_whole {
            fs::rename(&part, &cached).with_context(|| format!("cannot write {}", cached.display()))?;
        }
        made
    };
    for (name, problem) in predicted["not_predicted"].as_object().into_iter().flatten() {
        let problem = problem.as_str().unwrap_or_default();
        println!("device-pack: not predicted for {device}: {name}: {problem}");
    }
    // Another commit may have made the same.
    predicted["commit"] = commit.into();
    write(to, &predicted)
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
        list(&root.join(folder), &mut files)?;
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

/// Lists all files below a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Predictions of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Predictions {
    /// The whole file.
    pub(crate) file: Value,
    pub(crate) all: Predicted,
}

impl Predictions {
    /// Reads a file of predictions for this program's kernels.
    ///
    /// # Errors
    /// A file that cannot be read, is invalid, or has predictions of other kernels.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let predictions = Self::read_any(path)?;
        ensure!(
            predictions.file["kernels_sha256"] == kernels_sha256(),
            "{} has predictions of other kernels than this program's",
            path.display()
        );
        Ok(predictions)
    }

    /// Reads a file of predictions, whatever its kernels are.
    ///
    /// # Errors
    /// A file that cannot be read or is invalid.
    pub(crate) fn read_any(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let wrong = || format!("{} has no predictions", path.display());
        let file: Value = serde_json::from_str(&text).with_context(wrong)?;
        let kernels = serde_json::from_value(file["kernels"].clone()).with_context(wrong)?;
        let steps = file["steps"].as_array().with_context(wrong)?.iter().map(|step| {
            Some(StepPredicted {
                model: step["model"].as_str()?.to_owned(),
                n_prompt: step["n_prompt"].as_u64()? as usize,
                n_seqs: step["sequences"].as_u64()? as usize,
                us: step["us"].as_f64()?,
            })
        });
        let steps = steps.collect::<Option<Vec<_>>>().with_context(wrong)?;
        let problems = match &file["not_predicted"] {
            Value::Null => BTreeMap::new(),
            listed => serde_json::from_value(listed.clone()).with_context(wrong)?,
        };
        Ok(Self {
            file,
            all: Predicted {
                kernels,
                steps,
                problems,
            },
        })
    }

    /// Returns the microseconds of a row of `kernel-bench`.
    pub(crate) fn kernel_us(&self, name: &str) -> Option<f64> {
        self.all.kernels.get(name).copied()
    }

    /// Returns the tokens a second for a model's file: of `n_seqs` sequences after a prompt, or of the prompt if that is 0.
    pub(crate) fn tokens_per_s(&self, file: &str, n_prompt: usize, n_seqs: usize) -> Option<f64> {
        let model = file.strip_suffix(".gguf").unwrap_or(file);
        let is_it =
            |step: &&StepPredicted| step.model == model && step.n_prompt == n_prompt && step.n_seqs == n_seqs;
        self.all.steps.iter().find(is_it).map(StepPredicted::tokens_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_says_what_it_rests_on() {
        let step = |n_seqs, us| StepPredicted {
            model: "llama-3-8b-Q4_K_M".to_owned(),
            n_prompt: 512,
            n_seqs,
            us,
        };
        let predicted = Predicted {
            kernels: BTreeMap::from([("o".to_owned(), 4.5)]),
            steps: vec![step(4, 2000.0), step(0, 51_200.0)],
            problems: BTreeMap::from([("down".to_owned(), "no registers".to_owned())]),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("predictions-h200.json");
        fs::write(&path, predicted.to_json("h200", "abc").to_string()).unwrap();
        let found = Predictions::read(&path).unwrap();
        assert_eq!(found.all, predicted);
        assert_eq!((found.kernel_us("o"), found.kernel_us("q")), (Some(4.5), None));
        let rate = |n_prompt, n_seqs| found.tokens_per_s("llama-3-8b-Q4_K_M.gguf", n_prompt, n_seqs);
        assert_eq!(
            (rate(512, 4), rate(512, 0), rate(512, 1)),
            (Some(2000.0), Some(10_000.0), None)
        );
        assert_eq!(rate(128, 4), None);
        assert_eq!(found.file["commit"], "abc");
        let assumptions = found.file["assumptions"].to_string();
        assert!(assumptions.contains("4.30 TB/s"), "{assumptions}");
    }

    #[test]
    fn one_that_cannot_be_predicted_says_why_and_leaves_the_others() {
        let jobs = Job::all(Extent::All);
        let (rows, steps): (Vec<Job>, Vec<Job>) = jobs.iter().partition(|job| matches!(job, Job::Row(_)));
        assert_eq!(rows.len(), kernel_bench::predicted_rows("").count());
        assert!(steps.len() >= 20 && jobs[..rows.len()].iter().all(|job| matches!(job, Job::Row(_))));
        let mut predicted = Predicted::default();
        predicted.note(rows[0], Ok(3.0));
        predicted.note(
            rows[1],
            Err(anyhow::anyhow!("lost").context("it cannot be launched")),
        );
        predicted.note(steps[0], Err(anyhow::anyhow!("no room")));
        predicted.note(steps[1], Ok(5.0));
        assert_eq!((predicted.kernels.len(), predicted.steps.len()), (1, 1));
        // Finished predictions are not computed again.
        let has = |job: &Job| predicted.has(*job);
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
