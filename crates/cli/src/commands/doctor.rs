//! `doctor`: tests whether this machine can do the work.
//!
//! `devices`, in contrast, only asks. Each check is a row with an outcome; a check that cannot be made says
//! why. Invariant: a finding is never an error of the command, unless a requested device cannot be used.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "doctor/without_cuda.rs"]
mod cuda;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tokenmill::{
    Device as DeviceChoice, Error,
    hub::HubSettings,
    load::{ModelSource, check_load, projector_beside},
    machine::{available_bytes, check_memory, fits_with_less_context, machine_bytes, memory_limit},
    speculation::mtp_plan,
};
use tokenmill_backend::MemoryPlan;
use tokenmill_gguf::free_bytes;
use tokenmill_model::Model;

use self::cuda::Gpu;
use crate::{
    commands::{
        devices::{Gpus, cpu_json, cpu_text},
        inspect::{file_name, mtp_json},
    },
    failure::Failure,
    load::{LoadArgs, about_long_context, about_threads},
    memory_words::{beyond_text, plan_text},
    numbers::size_of,
    output,
    serve_plan::ServePlan,
    visible::visible,
};

/// Check the devices of this machine, and say which one is used and why.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill doctor\n  \
    tokenmill doctor model.gguf -c 8192\n  \
    tokenmill doctor --device cuda:1 --json\n\n\
    With a model it says how much memory the model takes and whether it fits. With --device cuda it exits with code 5 \
    if the GPU cannot be used, as a run does. With -ngl and other GPU flags the CPU computes instead, with a note. Only a run \
    shows whether NCCL can join GPUs, and whether the host has memory for its part with -ngl auto.")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// The result of a check.
struct Row {
    what: String,
    outcome: Outcome,
    text: String,
    /// The hint for a problem.
    hint: Option<String>,
}

/// How a check ended.
#[derive(Clone, Copy)]
enum Outcome {
    Fine,
    /// There is nothing to check, which is no fault of the machine.
    Absent,
    /// It works, and perhaps not as expected.
    Warning,
    Problem,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Absent => "none",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl Row {
    fn new(what: impl Into<String>, outcome: Result<String, String>) -> Self {
        Self {
            what: what.into(),
            outcome: if outcome.is_ok() {
                Outcome::Fine
            } else {
                Outcome::Problem
            },
            text: outcome.unwrap_or_else(|problem| problem),
            hint: None,
        }
    }

    /// Creates the row of a missing thing, with the reason.
    fn absent(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            outcome: Outcome::Absent,
            text: reason.into(),
            hint: None,
        }
    }

    /// Creates the row of a warning.
    fn warning(what: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            outcome: Outcome::Warning,
            text: text.into(),
            hint: None,
        }
    }

    /// Adds a remedy if there is a fault.
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = matches!(self.outcome, Outcome::Problem).then(|| hint.into());
        self
    }
}

/// The results of the checks, for people and for programs.
struct Examination {
    rows: Vec<Row>,
    json: serde_json::Map<String, Value>,
    /// The failure of the requested GPU, if it cannot be used as requested.
    refused: Option<Failure>,
    /// The failure of the model, if no device can load it.
    unloadable: Option<Failure>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let found = examine(args)?;
    if args.json {
        let problems = found
            .rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Problem));
        let problems = problems
            .map(|row| json!({ "what": row.what, "problem": row.text, "hint": row.hint }))
            .collect();
        let mut report = found.json;
        report.insert("problems".to_owned(), problems);
        output::print_json(&Value::Object(report))?;
    } else {
        for Row {
            what,
            outcome,
            text,
            hint,
        } in &found.rows
        {
            let outcome = outcome.name();
            output::print_sentence(&format!("{what:<10} {outcome:<8} {}", visible(text)))?;
            if let Some(hint) = hint {
                output::print_sentence(&format!("{:<10} {:<8} {}", "", "to fix", visible(hint)))?;
            }
        }
    }
    found.refused.or(found.unloadable).map_or(Ok(()), Err)
}

fn examine(args: &Args) -> Result<Examination, Failure> {
    let choice = args.load.device()?;
    let gpus = Gpus::find();
    let settings = args.load.fetch.settings();
    let free_bytes = free_bytes(&settings.cache);
    let mut found = Examination {
        rows: vec![
            Row::new("program", Ok(format!("tokenmill {}", env!("CARGO_PKG_VERSION")))),
            Row::new("CPU", Ok(cpu_text())),
            memory_row(),
            models_row(&settings.cache, free_bytes),
        ],
        json: serde_json::Map::new(),
        refused: None,
        unloadable: None,
    };
    found.rows.extend(endpoint_row(&settings));
    found.rows.push(driver_row(&gpus));
    let models = json!({
        "cache": settings.cache.display().to_string(),
        "free_bytes": free_bytes,
        "endpoint": settings.shown_endpoint(),
    });
    found.json.insert("models".to_owned(), models);
    for gpu in &gpus.devices {
        let text = gpu.text.clone();
        let outcome = if gpu.is_usable { Ok(text) } else { Err(text) };
        let row = Row::new(format!("GPU {}", gpu.ordinal), outcome);
        found.rows.push(row.hint("`--device cpu` computes without it"));
    }
    found
        .json
        .insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
    found.json.insert("cpu".to_owned(), cpu_json());
    found.json.insert("gpus".to_owned(), json!(gpus.json()));

    let ordinal = match choice {
        DeviceChoice::Cuda { ordinal } => ordinal,
        DeviceChoice::Cpu | DeviceChoice::Auto => 0,
    };
    let gpu = match Gpu::open(ordinal, &args.load.gpu_options()?) {
        Ok(gpu) => {
            gpu.examine(&mut found);
            gpu.tell_first_use(ordinal, &args.load.gpu_options()?, &mut found);
            Some(gpu)
        }
        Err(error) => {
            if matches!(choice, DeviceChoice::Cuda { .. }) {
                found.refused = Some(error.into());
            }
            None
        }
    };
    if let Some(path) = &args.model {
        let source = ModelSource::find(args.load.fetch.resolve(path)?)?;
        let model = source.open_network()?;
        found.plan(&source, &model, args, gpu)?;
        found.look_for_encoder(&source, &model);
    }
    let preferred = gpus.preferred();
    let verdict = match (&found.refused, &found.unloadable) {
        (Some(failure), _) => Err(failure.message.clone()),
        (None, Some(_)) => Err("the model cannot be loaded with these options".to_owned()),
        (None, None) if args.model.is_some() => Ok("the model can be loaded with these options".to_owned()),
        (None, None) => Ok(format!("`--device auto` computes on {preferred}")),
    };
    found.rows.push(Row::new("verdict", verdict));
    found.json.insert("auto".to_owned(), json!(preferred));
    Ok(found)
}

/// Returns the row of the memory available for models.
fn memory_row() -> Row {
    const LITTLE_BYTES: u64 = 1 << 30;
    let (Some(machine), Some(available)) = (machine_bytes(), available_bytes()) else {
        return Row {
            what: "memory".to_owned(),
            outcome: Outcome::Absent,
            text: "this system does not report its memory".to_owned(),
            hint: None,
        };
    };
    let text = format!(
        "{}, of which {} are available",
        size_of(machine),
        size_of(available)
    );
    let outcome = if available < LITTLE_BYTES {
        Err(text)
    } else {
        Ok(text)
    };
    Row::new("memory", outcome).hint("end other programs; weights, keys and values all have to fit")
}

/// Where downloaded models go, whether they can, and how much room there is.
fn models_row(cache: &Path, free_bytes: Option<u64>) -> Row {
    const LITTLE_BYTES: u64 = 1 << 30;
    let place = cache.ancestors().find(|folder| folder.exists()).unwrap_or(cache);
    let probe = place.join(format!(".tokenmill-doctor-{}", std::process::id()));
    let tried = fs::write(&probe, "").and_then(|()| fs::remove_file(&probe));
    if let Err(error) = tried {
        let problem = format!("downloads cannot go to {}: {error}", cache.display());
        return Row::new("models", Err(problem)).hint("let HF_HOME name a folder that you can write to");
    }
    let room = free_bytes.map_or_else(String::new, |n_bytes| {
        format!(", where {} are free", size_of(n_bytes))
    });
    let text = format!(
        "downloads go to {}{room}",
        short(cache, env::home_dir().as_deref()).display()
    );
    let has_little = free_bytes.is_some_and(|n_bytes| n_bytes < LITTLE_BYTES);
    let outcome = if has_little { Err(text) } else { Ok(text) };
    Row::new("models", outcome)
        .hint("`tokenmill rm NAME` makes room, and HF_HUB_CACHE names a folder on another disk")
}

/// Returns a path with `~` for the home folder: few columns have room for the whole of it.
fn short(path: &Path, home: Option<&Path>) -> PathBuf {
    let below = home.and_then(|home| path.strip_prefix(home).ok());
    below.map_or_else(|| path.to_owned(), |below| Path::new("~").join(below))
}

/// The server that models are downloaded from, where the environment names it; it is not asked.
fn endpoint_row(settings: &HubSettings) -> Option<Row> {
    let defaults = HubSettings::with_cache(&settings.cache);
    let is_named = settings.endpoint != defaults.endpoint;
    let checked = settings.check();
    let outcome = match checked {
        Ok(()) => Ok(format!(
            "HF_ENDPOINT names {}, not contacted here",
            settings.shown_endpoint()
        )),
        Err(error) => Err(error.to_string()),
    };
    let hint = "let HF_ENDPOINT be an address such as https://huggingface.co, or leave it unset";
    is_named.then(|| Row::new("endpoint", outcome).hint(hint))
}

fn driver_row(gpus: &Gpus) -> Row {
    match (gpus.cuda_version, &gpus.problem) {
        // Most machines have no NVIDIA GPU, and nothing is wrong with them.
        _ if gpus.is_absent => Row {
            what: "driver".to_owned(),
            outcome: Outcome::Absent,
            text: gpus.problem.clone().unwrap_or_default(),
            hint: None,
        },
        (_, Some(problem)) => Row::new("driver", Err(problem.clone()))
            .hint("`nvidia-smi` says whether the driver works; `--device cpu` computes without it"),
        (Some((major, minor)), None) => Row::new("driver", Ok(format!("for CUDA {major}.{minor}"))),
        (None, None) => Row::new("driver", Err("no driver found".to_owned())),
    }
}

impl Examination {
    /// Says of the image encoder that would be loaded with the model.
    fn look_for_encoder(&mut self, source: &ModelSource, model: &Model) {
        let encoder = projector_beside(source, model);
        if let Some(path) = &encoder {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let text = format!("{name} is next to the model and is its image encoder");
            self.rows.push(Row::new("images", Ok(text)));
        }
        let name = encoder.map(|path| path.display().to_string());
        self.json.insert("mmproj".to_owned(), json!(name));
    }

    /// Adds the memory that a model takes on each device.
    fn plan(
        &mut self,
        source: &ModelSource,
        model: &Model,
        args: &Args,
        gpu: Option<Gpu>,
    ) -> Result<(), Failure> {
        let choices = args.load.options()?;
        if choices.quantize.is_some() {
            return Err(Failure::usage(
                "`--quantize` does nothing here: the memory is that of the model as it is",
            )
            .hint("`tokenmill inspect FOLDER --quantize TYPE` shows its memory after quantization"));
        }
        let options = choices.network_options(model.descriptor())?;
        if let Err(error) = check_load(model, &options, &choices.compute) {
            self.refused = Some(error.into());
        }
        let cpu = (choices.compute.cpu_backend())
            .and_then(|backend| model.plan(&backend, &options))
            .map_err(Error::from);
        let n_ctx = options.n_ctx.unwrap_or(model.descriptor().n_ctx_train);
        let limit = memory_limit();
        let too_large = (cpu.as_ref().ok())
            .and_then(|plan| check_memory(plan, limit).err())
            .map(Failure::from);
        let row = Row::new(
            "model, CPU",
            match &cpu {
                Ok(plan) => {
                    let text = plan_text(plan, n_ctx);
                    match limit.filter(|_| too_large.is_some()) {
                        Some(limit) => Err(format!("{text}, {}", beyond_text(limit))),
                        None => Ok(text),
                    }
                }
                Err(error) => Err(error.to_string()),
            },
        );
        let hint = too_large.as_ref().and_then(|failure| failure.hint.clone());
        self.rows.push(match hint {
            Some(hint) => row.hint(hint),
            None => row,
        });
        let serve = ServePlan::of(model, &args.load)?;
        if let Ok(text) = serve.text() {
            let outcome = if serve.is_too_large() { Err(text) } else { Ok(text) };
            let row = Row::new("serve, CPU", outcome);
            self.rows.push(row.hint(serve.what_helps()));
        }
        if let Some(text) = about_threads(&choices.compute) {
            self.rows.push(Row::warning("threads", text));
        }
        let n_ctx_train = model.descriptor().n_ctx_train;
        if let Some(text) = about_long_context(n_ctx, n_ctx_train) {
            self.rows.push(Row::warning("context", text));
        }
        let mtp = mtp_plan(source, model, &options, &choices.compute)
            .map_err(|error| error.to_string())
            .transpose();
        if let Some(mtp) = &mtp {
            let taken = mtp.as_ref().map(|plan| {
                let size = size_of(plan.memory.total_bytes() as u64);
                let lies = (plan.file.as_deref()).map_or_else(String::new, |file| {
                    format!("{} is next to the model; it ", file_name(file))
                });
                format!("{lies}drafts tokens (--spec mtp), and takes {size} more")
            });
            // The model runs without it, as one that has none.
            self.rows.push(match taken {
                Ok(text) => Row::new("MTP layer", Ok(text)),
                Err(reason) => Row::absent("MTP layer", format!("is left out: {reason}")),
            });
        }
        let mut plans = serde_json::Map::new();
        plans.insert("mtp".to_owned(), json!(mtp.as_ref().map(mtp_json)));
        plans.insert("n_ctx".to_owned(), json!(n_ctx));
        plans.insert("n_ctx_train".to_owned(), json!(n_ctx_train));
        plans.insert("serve".to_owned(), serve.json());
        let mut cpu_plan = plan_json(cpu.as_ref());
        if let Some(failure) = &too_large {
            cpu_plan["problem"] = json!(failure.message);
        }
        plans.insert("cpu".to_owned(), cpu_plan);
        self.unloadable = too_large.or_else(|| cpu.err().map(Failure::from));
        if let Some(gpu) = gpu {
            let (room_bytes, gpu) = gpu.plan(model, &options);
            let is_chosen = !matches!(args.load.device()?, DeviceChoice::Cpu);
            // Where it does not fit whole, a load splits it between the two.
            if is_chosen && gpu.is_ok() {
                self.unloadable = None;
            }
            let outcome = match &gpu {
                Ok(plan) if plan.device_bytes() as u64 > room_bytes => Err(format!(
                    "{}, which does not fit into the {} that it may take",
                    plan_text(plan, n_ctx),
                    size_of(room_bytes)
                )),
                Ok(plan) => Ok(plan_text(plan, n_ctx)),
                Err(error) => Err(error.to_string()),
            };
            let row = Row::new("model, GPU", outcome);
            let is_context_enough = (gpu.as_ref()).is_ok_and(|plan| fits_with_less_context(plan, room_bytes));
            self.rows.push(row.hint(if is_context_enough {
                "`-ngl auto` gives the GPU the layers that fit, and `-c N` takes a smaller context"
            } else {
                "`-ngl auto` gives the GPU the layers that fit"
            }));
            plans.insert("gpu".to_owned(), plan_json(gpu.as_ref()));
        }
        self.json.insert("model".to_owned(), Value::Object(plans));
        Ok(())
    }
}

fn plan_json(plan: Result<&MemoryPlan, &Error>) -> Value {
    match plan {
        Ok(plan) => json!({
            "weights_bytes": plan.weights_bytes,
            "kv_bytes": plan.kv_bytes,
            "activations_bytes": plan.activations_bytes,
            "workspace_bytes": plan.workspace_bytes,
            "total_bytes": plan.total_bytes(),
        }),
        Err(error) => json!({ "problem": error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_the_home_folder_is_short() {
        let check = |path: &str, expected: &str| {
            assert_eq!(
                short(Path::new(path), Some(Path::new("/home/me"))),
                Path::new(expected)
            );
        };
        check("/home/me/.cache/hub", "~/.cache/hub");
        check("/home/mean/hub", "/home/mean/hub");
    }
}
