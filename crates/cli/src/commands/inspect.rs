//! `inspect`: the contents of a model file, and the memory that the model will take.
//!
//! It shows files that cannot be run, too: then the plan says why.

mod values;

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use serde_json::{Value as Json, json};
use tokenmill::{
    Error,
    load::{ModelSource, Task, check_load},
    speculation::{MtpPlan, mtp_plan},
};
use tokenmill_backend::MemoryPlan;
use tokenmill_gguf::{GgufFile, Value};
use tokenmill_model::{LoadError, Model, ModelOptions, WeightInfo};

use crate::{
    failure::Failure,
    load::{LoadArgs, about_long_context},
    model_name::ollama_name,
    numbers::size,
    output,
    serve_plan::ServePlan,
    visible::visible,
};

use values::{count, shown, value_json};

/// Show the contents of a model file and the memory it needs.
#[derive(clap::Args)]
#[command(
    visible_alias = "show",
    after_help = "Examples:\n  \
    tokenmill inspect demo\n  \
    tokenmill inspect model.gguf --summary -c 8192\n  \
    tokenmill inspect model.gguf --json | jq .metadata\n  \
    tokenmill inspect model.gguf --program | less"
)]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// Leave out the lists of metadata and tensors
    #[arg(long, conflicts_with = "json")]
    summary: bool,
    /// Print JSON, with arrays and texts in full
    #[arg(long)]
    json: bool,
    /// Print the network's operations, one a line, with names and sizes
    #[arg(long, conflicts_with_all = ["json", "summary"])]
    program: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// The facts about a file.
struct Inspection {
    name: String,
    n_parts: usize,
    file_bytes: u64,
    /// Keys with types and values.
    metadata: Vec<(String, String, Json)>,
    tensors: Vec<WeightInfo>,
    /// The task that it was made for; `None` if unknown.
    kind: Option<Kind>,
    /// The plan and its options, or why there is none.
    plan: Result<Plan, String>,
    /// The failure of the given options, if the file can be run with others.
    refused: Option<Failure>,
}

/// The task that a model was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To continue texts.
    Base,
    /// To answer messages, through its chat template.
    Chat,
    /// To make vectors of texts.
    Embeddings,
    /// To rank documents.
    Ranks,
    /// To answer typed questions.
    Decisions,
}

impl Kind {
    /// Returns the task of a model; `None` if its tokenizer, which goes with the template, cannot be read.
    fn of(source: &ModelSource, model: &Model) -> Option<Self> {
        Some(match Task::of(model) {
            Task::Embeddings => Self::Embeddings,
            Task::Ranks => Self::Ranks,
            Task::Decisions => Self::Decisions,
            Task::Text => {
                let tokenizer = source.tokenizer_of(model).ok()?;
                let files = source.chat_files(model.gguf(), &tokenizer).ok()?;
                if files.template.is_some() {
                    Self::Chat
                } else {
                    Self::Base
                }
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Chat => "chat",
            Self::Embeddings => "embeddings",
            Self::Ranks => "ranks",
            Self::Decisions => "decisions",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Base => "base model: it has no chat template, continues texts (`run`) and cannot chat",
            Self::Chat => "chat model: it has a chat template",
            Self::Embeddings => "embedding model: it turns texts into vectors",
            Self::Ranks => "ranking model: it scores how well documents answer a query",
            Self::Decisions => "decision model: it answers typed questions (`decide`) and writes nothing",
        }
    }
}

/// Whether a file is not a model, but one that an option takes.
fn is_for_an_option(error: &LoadError) -> bool {
    match error {
        LoadError::IsImportanceMatrix | LoadError::IsAdapter | LoadError::IsNextnAlone => true,
        LoadError::UnknownArchitecture { found, .. } => found == "clip",
        _ => false,
    }
}

/// The memory that a model will take.
struct Plan {
    memory: MemoryPlan,
    options: ModelOptions,
    /// Tokens of the longest context that the model was made for.
    n_ctx_train: usize,
    /// Its own MTP layer, or why that cannot be used.
    mtp: Option<Result<MtpPlan, String>>,
    serve: ServePlan,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let source = ModelSource::find(args.load.fetch.resolve(&args.model)?)?;
    if args.program {
        let choices = args.load.options()?;
        let model = choices.open_network(&source)?;
        let options = choices.network_options(model.descriptor())?;
        return output::print(&model.program(&options)?.to_string());
    }
    let mut inspection = match source.open_gguf()? {
        Some(file) => Inspection::of_gguf(&source, file, &args.load)?,
        None => Inspection::of_folder(&source, &args.load)?,
    };
    if let Some(name) = ollama_name(&args.model) {
        inspection.name = name;
    }
    if args.json {
        output::print_json(&inspection.to_json())?;
    } else {
        output::print_wrapped(&inspection.to_text(args.summary, &args.load))?;
    }
    inspection.refused.map_or(Ok(()), Err)
}

impl Inspection {
    fn of_gguf(source: &ModelSource, file: GgufFile, load: &LoadArgs) -> Result<Self, Failure> {
        if load.options()?.quantize.is_some() {
            return Err(Error::QuantizesFile.into());
        }
        let metadata = file.metadata().iter();
        let metadata = metadata
            .map(|(key, value)| {
                let ty = match value {
                    Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
                    _ => value.value_type().to_string(),
                };
                (key.to_owned(), ty, value_json(value))
            })
            .collect();
        let tensors = file.tensors().map(WeightInfo::from).collect();
        let (n_parts, file_bytes) = (file.n_parts(), file.n_bytes());
        let (mut refused, mut kind) = (None, None);
        let plan = match Model::from_gguf(file) {
            Ok(model) => {
                refused = refused_of(&model, load)?;
                kind = Kind::of(source, &model);
                plan(source, &model, load)?
            }
            Err(error) if is_for_an_option(&error) => {
                let failure = Failure::from(error);
                let hint = failure.hint.unwrap_or_default();
                Err(format!("{}; {hint}", failure.message))
            }
            Err(error) => Err(error.to_string()),
        };
        Ok(Self {
            name: source.name(),
            n_parts,
            file_bytes,
            metadata,
            tensors,
            kind,
            plan,
            refused,
        })
    }

    /// Inspects a Hugging Face folder; its configuration takes the place of the metadata.
    fn of_folder(source: &ModelSource, load: &LoadArgs) -> Result<Self, Failure> {
        let model = load.options()?.open_network(source)?;
        let mut tensors = model.weights().infos();
        // Errors in these tensors are shown with the memory of their layer.
        tensors.extend(model.nextn_infos().unwrap_or_default());
        let config = source.config_json()?;
        let metadata = config.as_object().into_iter().flatten().map(|(key, value)| {
            let ty = match value {
                Json::Null => "null",
                Json::Bool(_) => "bool",
                Json::Number(_) => "number",
                Json::String(_) => "string",
                Json::Array(_) => "array",
                Json::Object(_) => "object",
            };
            (key.clone(), ty.to_owned(), value.clone())
        });
        Ok(Self {
            name: source.name(),
            n_parts: 1,
            file_bytes: tensors.iter().map(|info| info.stored_form().n_bytes as u64).sum(),
            metadata: metadata.collect(),
            kind: Kind::of(source, &model),
            plan: plan(source, &model, load)?,
            refused: refused_of(&model, load)?,
            tensors,
        })
    }

    fn n_params(&self) -> usize {
        self.tensors.iter().map(n_elements).sum()
    }

    /// For each type in the files, and the one that it is loaded as: tensors, elements, bytes; the most bytes first.
    fn types(&self) -> Vec<([&'static str; 2], [usize; 3])> {
        let mut types: BTreeMap<[&'static str; 2], [usize; 3]> = BTreeMap::new();
        for tensor in &self.tensors {
            let stored = tensor.stored_form();
            let row = types.entry([stored.type_name, tensor.ty.name()]).or_default();
            row[0] += 1;
            row[1] += n_elements(tensor);
            row[2] += stored.n_bytes;
        }
        let mut types: Vec<_> = types.into_iter().collect();
        types.sort_by_key(|(_, row)| std::cmp::Reverse(row[2]));
        types
    }

    fn to_json(&self) -> Json {
        let metadata: serde_json::Map<String, Json> = self
            .metadata
            .iter()
            .map(|(key, _, value)| (key.clone(), value.clone()))
            .collect();
        let tensors: Vec<Json> = self
            .tensors
            .iter()
            .map(|tensor| {
                let stored = tensor.stored_form();
                let mut row = json!({
                    "name": tensor.name,
                    "type": stored.type_name,
                    "dims": tensor.dims,
                    "bytes": stored.n_bytes,
                });
                if tensor.stored.is_some() {
                    row["loaded_as"] = tensor.ty.name().into();
                }
                row
            })
            .collect();
        let types: Vec<Json> = self
            .types()
            .into_iter()
            .map(|([name, loaded_as], [n_tensors, n_elements, n_bytes])| {
                let mut row =
                    json!({"type": name, "tensors": n_tensors, "elements": n_elements, "bytes": n_bytes});
                if loaded_as != name {
                    row["loaded_as"] = loaded_as.into();
                }
                row
            })
            .collect();
        let memory = match &self.plan {
            Ok(Plan {
                memory,
                options,
                n_ctx_train,
                serve,
                ..
            }) => json!({
                "serve": serve.json(),
                "n_ctx": options.n_ctx,
                "n_ctx_train": n_ctx_train,
                "weights_bytes": memory.weights_bytes,
                "kv_bytes": memory.kv_bytes,
                "states_bytes": memory.states_bytes,
                "activations_bytes": memory.activations_bytes,
                "workspace_bytes": memory.workspace_bytes,
                "total_bytes": memory.total_bytes(),
            }),
            Err(reason) => json!({"error": reason}),
        };
        json!({
            "name": self.name,
            "kind": self.kind.map(Kind::name),
            "parts": self.n_parts,
            "file_bytes": self.file_bytes,
            "parameters": self.n_params(),
            "metadata": metadata,
            "tensors": tensors,
            "types": types,
            "memory": memory,
            "runs": self.runs(),
            "refused": self.refused.as_ref().map(|failure| &failure.message),
            "mtp": self.plan.as_ref().ok().and_then(|plan| plan.mtp.as_ref()).map(mtp_json),
        })
    }

    fn to_text(&self, is_summary: bool, load: &LoadArgs) -> String {
        let mut text = String::new();
        let parts = match self.n_parts {
            1 => String::new(),
            n => format!(" in {n} parts"),
        };
        line(
            &mut text,
            format_args!(
                "{}: {}{parts}, {} parameters, {} tensors, {} metadata keys",
                visible(&self.name),
                size(self.file_bytes as usize),
                count(self.n_params()),
                self.tensors.len(),
                self.metadata.len()
            ),
        );
        if let Some(kind) = self.kind {
            line(&mut text, format_args!("{}", kind.sentence()));
        }
        if !is_summary {
            self.metadata_text(&mut text);
            self.tensors_text(&mut text);
        }
        if !self.tensors.is_empty() {
            line(&mut text, format_args!("\nTypes"));
        }
        for ([name, loaded_as], [n_tensors, n_elements, n_bytes]) in self.types() {
            let conversion = if loaded_as == name {
                String::new()
            } else {
                format!(", loaded as {loaded_as}")
            };
            line(
                &mut text,
                format_args!(
                    "  {name:<8} {n_tensors:>5} tensors  {:>9} elements  {:>10}  {:.2} bits each{conversion}",
                    count(n_elements),
                    size(n_bytes),
                    n_bytes as f64 * 8.0 / n_elements as f64
                ),
            );
        }
        self.plan_text(&mut text, load);
        text
    }

    /// Returns whether a load with these options would be tried.
    fn runs(&self) -> bool {
        self.plan.is_ok() && self.refused.is_none()
    }

    fn metadata_text(&self, text: &mut String) {
        line(text, format_args!("\nMetadata"));
        for (key, ty, value) in &self.metadata {
            line(
                text,
                format_args!("  {:<42} {ty:<12} {}", visible(key), visible(&shown(value))),
            );
        }
    }

    fn tensors_text(&self, text: &mut String) {
        line(text, format_args!("\nTensors"));
        for tensor in &self.tensors {
            let dims: Vec<String> = tensor.dims.iter().map(usize::to_string).collect();
            let stored = tensor.stored_form();
            line(
                text,
                format_args!(
                    "  {:<32} {:<8} {:>20}  {:>10}",
                    visible(&tensor.name),
                    stored.type_name,
                    dims.join(" x "),
                    size(stored.n_bytes)
                ),
            );
        }
    }

    fn plan_text(&self, text: &mut String, load: &LoadArgs) {
        match &self.plan {
            Ok(Plan {
                memory,
                options,
                n_ctx_train,
                mtp,
                serve,
            }) => {
                line(
                    text,
                    format_args!(
                        "\nMemory with a context of {} tokens, keys in {:?}, values in {:?}",
                        options.n_ctx.unwrap_or(0),
                        load.cache_types().0,
                        load.cache_types().1,
                    ),
                );
                for (what, n_bytes) in [
                    ("weights", memory.weights_bytes),
                    ("keys and values", memory.kv_bytes),
                    ("states", memory.states_bytes),
                    ("activations", memory.activations_bytes),
                    ("workspace", memory.workspace_bytes),
                    ("in all", memory.total_bytes()),
                ] {
                    // Few networks are recurrent.
                    if what != "states" || n_bytes > 0 {
                        line(text, format_args!("  {what:<15} {:>10}", size(n_bytes)));
                    }
                }
                if let Ok(serve) = serve.text() {
                    // The size ends where those above end.
                    let (size, rest) = serve.split_once(" in all").unwrap_or(("", &serve));
                    line(
                        text,
                        format_args!("  {:<15} {size:>10} in all{}", "serve", visible(rest)),
                    );
                }
                match mtp {
                    Some(Ok(layer)) => line(
                        text,
                        format_args!(
                            "  {:<15} {:>10} more, with its MTP layer (--spec mtp){}",
                            "MTP layer",
                            size(layer.memory.total_bytes()),
                            (layer.file.as_deref()).map_or_else(String::new, |file| {
                                format!(", from {}", visible(&file_name(file)))
                            })
                        ),
                    ),
                    Some(Err(reason)) => line(
                        text,
                        format_args!("  {:<15} cannot be used: {}", "MTP layer", visible(reason)),
                    ),
                    None => {}
                }
                if let Some(warning) = about_long_context(options.n_ctx.unwrap_or(0), *n_ctx_train) {
                    line(text, format_args!("\nWarning: {warning}"));
                }
            }
            Err(reason) => line(
                text,
                format_args!("\nThis file cannot be run: {}", visible(reason)),
            ),
        }
        if self.runs() {
            line(text, format_args!("\nIt can be run with these options"));
        }
        if let Some(failure) = &self.refused {
            let reason = &failure.message;
            line(
                text,
                format_args!("\nWith these options it cannot be run: {}", visible(reason)),
            );
        }
    }
}

/// The plan of a load, or why there is none.
///
/// # Errors
/// Options that cannot be granted.
fn plan(source: &ModelSource, model: &Model, load: &LoadArgs) -> Result<Result<Plan, String>, Failure> {
    let choices = load.options()?;
    let options = choices.network_options(model.descriptor())?;
    let plan = (choices.compute.cpu_backend()).and_then(|backend| model.plan(&backend, &options));
    let serve = ServePlan::of(model, load)?;
    Ok(plan
        .map(|memory| Plan {
            memory,
            mtp: mtp_plan(source, model, &options, &choices.compute)
                .map_err(|error| error.to_string())
                .transpose(),
            options,
            n_ctx_train: model.descriptor().n_ctx_train,
            serve,
        })
        .map_err(|error| error.to_string()))
}

/// Why a load with these options would be refused.
///
/// # Errors
/// Options that cannot be granted.
fn refused_of(model: &Model, load: &LoadArgs) -> Result<Option<Failure>, Failure> {
    let choices = load.options()?;
    let options = choices.network_options(model.descriptor())?;
    Ok(check_load(model, &options, &choices.compute)
        .err()
        .map(Failure::from))
}

/// A file's name, for people.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// Returns the memory of an MTP layer, for programs.
pub(super) fn mtp_json(plan: &Result<MtpPlan, String>) -> Json {
    match plan {
        Ok(MtpPlan { memory, file, .. }) => json!({
            "weights_bytes": memory.weights_bytes,
            "total_bytes": memory.total_bytes(),
            "file": file.as_ref().map(|file| file.display().to_string()),
        }),
        Err(problem) => json!({ "problem": problem }),
    }
}

fn n_elements(info: &WeightInfo) -> usize {
    info.dims.iter().product()
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments)
        .expect("writing to a string does not fail");
    text.push('\n');
}
