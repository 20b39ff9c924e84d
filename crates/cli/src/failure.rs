//! [`Failure`]: why a command did not succeed, as the user is told and as the exit code says.
//!
//! Separate from the libraries' errors because hints speak of this program's options. Invariant: a failure prints one
//! line, what is wrong first and then what to do.

use std::{env, error::Error as _, fmt::Display, io, path::Path, process::ExitCode};

use tokenmill::Error;
use tokenmill_backend::{BackendError, MemoryPlan, RowError, StepError};
use tokenmill_convert::ConvertError;
use tokenmill_gguf::GgufError;
use tokenmill_model::LoadError;
use tokenmill_sched::EngineError;
use tokenmill_text::template::TemplateError;

use crate::{
    missing_model::{self, WHAT_MODEL_IS},
    note::note,
    numbers::size,
    visible::visible,
};

/// Exit code after Ctrl-C, as a shell reports it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: FailureKind,
    message: String,
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    /// The work itself failed.
    Work,
    /// A wrong option.
    Usage,
    /// Input that cannot be used.
    Input,
    /// Output that cannot be written.
    Output,
    /// A GPU that was asked for and cannot be used.
    Device,
    /// A device that was lost while it worked.
    DeviceLost,
    /// The reader of the output went away, which is its right.
    ReaderGone,
    /// Ctrl-C.
    Interrupted,
}

impl Failure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    /// The work failed.
    pub(crate) fn work(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Work, message)
    }

    /// An option or argument is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    /// The input cannot be used.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Input, message)
    }

    /// A file cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::input(format!("cannot read {}: {}", path.display(), reason(error)))
    }

    /// What was to be written cannot be; `target` names it.
    pub(crate) fn unwritable(target: impl Display, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(FailureKind::ReaderGone, "the reader went away");
        }
        Self::new(
            FailureKind::Output,
            format!("cannot write to {target}: {}", reason(error)),
        )
    }

    /// There is no room for what was to be written.
    pub(crate) fn output(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Output, message)
    }

    /// A GPU was asked for and cannot be used.
    pub(crate) fn device(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Device, message)
    }

    /// A device was lost while it worked.
    pub(crate) fn device_lost(message: impl Into<String>) -> Self {
        Self::new(FailureKind::DeviceLost, message)
    }

    /// Ctrl-C was pressed.
    pub(crate) fn interrupted() -> Self {
        Self::new(FailureKind::Interrupted, "interrupted")
    }

    /// Says what to do.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same kind of failure, in other words.
    pub(crate) fn retold(self, message: String) -> Self {
        Self {
            message,
            hint: None,
            ..self
        }
    }

    /// What is wrong, without what to do.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// What to do, where that is said.
    pub(crate) fn what_to_do(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The line that is printed.
    pub(crate) fn line(&self) -> String {
        let message = self.message_line();
        match &self.hint {
            Some(hint) => format!("error: {message} (hint: {})", visible(hint)),
            None => format!("error: {message}"),
        }
    }

    /// What failed, in one line without a hint.
    pub(crate) fn message_line(&self) -> String {
        // Some messages quote a file; a line break in it would make two lines of one error, and an escape would reach the
        // terminal.
        let message = self.message.replace(['\n', '\r'], " ");
        visible(&message).into()
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let code = match self.kind {
            FailureKind::ReaderGone => return ExitCode::SUCCESS,
            FailureKind::Interrupted => return ExitCode::from(INTERRUPTED),
            FailureKind::Work => 1,
            FailureKind::Usage => 2,
            FailureKind::Input => 3,
            FailureKind::Output => 4,
            FailureKind::Device => 5,
            FailureKind::DeviceLost => 6,
        };
        note!("{}", self.line());
        ExitCode::from(code)
    }
}

/// What the system said, without Rust's error number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

impl From<GgufError> for Failure {
    fn from(error: GgufError) -> Self {
        let hint = gguf_hint(&error);
        let message = match &error {
            GgufError::Io { path, reason } => {
                format!("cannot open {}: {}", path.display(), self::reason(reason))
            }
            _ => error.to_string(),
        };
        let failure = Self::input(message);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn gguf_hint(error: &GgufError) -> Option<String> {
    match error {
        GgufError::Io { path, reason } if reason.kind() == io::ErrorKind::NotFound => {
            Some(missing_model::hint(path))
        }
        // For formats that are known the message itself says what to do.
        GgufError::NotGguf { looks_like, .. } if !looks_like.contains(';') => Some(WHAT_MODEL_IS.to_owned()),
        GgufError::InFile { reason, .. } => gguf_hint(reason),
        _ => None,
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        let message = error.to_string();
        match error {
            ConvertError::Gguf(error) => error.into(),
            ConvertError::Io {
                what: "read",
                path,
                source,
            } => Self::unreadable(&path, &source),
            ConvertError::Io { path, source, .. } => Self::unwritable(path.display(), &source),
            ConvertError::Stopped => Self::interrupted(),
            ConvertError::UnknownPreset { .. }
            | ConvertError::BadPattern { .. }
            | ConvertError::ImportanceUnused { .. }
            | ConvertError::SameFile { .. } => Self::usage(message),
            ConvertError::Requantized { .. } => Self::input(message).hint("--allow-requantize allows it"),
            ConvertError::NeedsImportance { .. } => Self::input(message).hint("--imatrix FILE gives one"),
            _ => Self::input(message),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NoModel { .. } => Self::input(error.to_string()).hint(WHAT_MODEL_IS),
            Error::Convert(error) => error.into(),
            Error::OnlyPickles { .. } => Self::input(error.to_string()).hint(
                "such files are programs and are not read: convert them to safetensors or GGUF, or fetch those",
            ),
            Error::SeveralModels { folder, names } => {
                Self::input(format!("folder {} holds several models", folder.display()))
                    .hint(format!("name one: {}", first_few(&names)))
            }
            Error::Read { path, source } => {
                let failure = Self::unreadable(&path, &source);
                if is_tokenizer_json(&path) {
                    failure.hint(TOKENIZER_HINT)
                } else {
                    failure
                }
            }
            Error::Tokenizer { path, source } if is_tokenizer_json(&path) => {
                let reason = match source.source() {
                    Some(below) => format!("{source}: {below}"),
                    None => source.to_string(),
                };
                Self::input(format!("{}: {reason}", path.display())).hint(TOKENIZER_HINT)
            }
            Error::Tokenizer { .. } => Self::input(error.to_string())
                .hint("`tokenmill tokenize` also takes the tokenizer.json of the model"),
            Error::Gguf(error) => error.into(),
            Error::AdapterFile { name, source } => {
                let message = Self::from(source).message;
                Self::input(format!("adapter `{name}`: {message}"))
                    .hint("an adapter is a .gguf file, or a folder with adapter_config.json as PEFT writes it")
            }
            Error::Load(error) => error.into(),
            Error::Gpu(BackendError::Lost { .. }) => Self::device_lost(error.to_string()),
            Error::Gpu(ref reason) => {
                let failure = Self::device(error.to_string());
                let hidden = env::var("CUDA_VISIBLE_DEVICES").ok();
                match gpu_hint(reason, hidden.as_deref()) {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            }
            Error::SplitTooLarge { fitting_layers: 0, .. } => Self::device(error.to_string())
                .hint("a smaller context is `-c N`, and `--device cpu` uses the machine's memory"),
            Error::SplitTooLarge { fitting_layers, .. } => Self::device(error.to_string()).hint(format!(
                "say `-ngl {fitting_layers}`, or `-ngl auto` for as many as fit; a smaller context is `-c N`"
            )),
            Error::TooFewGpus { n_found, .. } => {
                let hidden = match env::var("CUDA_VISIBLE_DEVICES") {
                    Ok(visible) => format!("CUDA_VISIBLE_DEVICES is `{visible}`, which hides every other GPU; "),
                    Err(_) => String::new(),
                };
                Self::device(error.to_string()).hint(format!(
                    "{hidden}`tokenmill devices` lists them, `--tensor-parallel-size {n_found}` takes all from the first on"
                ))
            }
            Error::GroupNotWhole => {
                Self::usage(error.to_string()).hint("leave out --tensor-parallel-size, or what is the CPU's")
            }
            Error::NothingOnGpu => {
                Self::usage(error.to_string()).hint("`-ngl 0` computes on the CPU alone")
            }
            Error::HostPartTooLarge { .. } => Self::input(error.to_string())
                .hint("give the GPU more of it with a larger `-ngl`, or a smaller context with -c"),
            Error::Calibration { .. } => Self::device(error.to_string()),
            Error::NoExperts => {
                Self::usage(error.to_string()).hint("leave out --cpu-moe, --n-cpu-moe and --place experts")
            }
            Error::NotEnoughMemory { plan, machine_bytes } => not_enough_memory(&plan, machine_bytes),
            Error::WeightsTooLarge {
                weights_bytes,
                available_bytes,
            } => weights_too_large(weights_bytes, available_bytes),
            Error::KvCacheTooSmall { kv_tokens, n_ctx } => Self::usage(format!(
                "`--kv-cache-tokens {kv_tokens}` is less than one context of {n_ctx} tokens"
            ))
            .hint(format!("give {n_ctx} or more, or a shorter context with -c")),
            Error::Draft { source, .. } => {
                let mut failure = Self::from(*source);
                failure.message = format!("draft model: {}", failure.message);
                failure
            }
            Error::DraftVocabulary { .. } => {
                Self::input(error.to_string()).hint("a draft model is a smaller one of the same family")
            }
            Error::DraftTooLarge {
                path,
                needed_bytes,
                model_bytes,
                machine_bytes,
            } => Self::input(format!(
                "draft model {}: it needs {} of memory next to the model's {}, and this machine has {} in all",
                path.display(),
                size(needed_bytes),
                size(model_bytes),
                size(machine_bytes as usize)
            ))
            .hint("take a smaller one, or a smaller context with -c"),
            Error::DraftOffCpu => {
                Self::usage(error.to_string()).hint("add `--device cpu`, or leave `--draft` out")
            }
            Error::NoMtp => Self::usage(error.to_string())
                .hint("`--spec auto` guesses with what there is, `--draft MODEL` with a second model"),
            Error::MtpOffCpu => {
                Self::usage(error.to_string()).hint("add `--device cpu`, or leave `--spec mtp` out")
            }
            Error::NothingToShift => Self::usage("`--context-shift` is for models that continue texts, and this one makes vectors or scores")
                .hint("leave it out"),
            Error::KeepTooLong { keep, maximum, n_ctx } => Self::usage(format!(
                "`--keep {keep}` is more than can be kept of a context of {n_ctx} tokens, which is {maximum}"
            ))
            .hint("keep less, or give more context with -c"),
            Error::NoTemplate => Self::input("the model has no chat template")
                .hint("give one with --template, or continue texts with `tokenmill run`"),
            Error::Template(error) => error.into(),
            Error::Engine(error) => error.into(),
            _ => Self::input(error.to_string()),
        }
    }
}

const TOKENIZER_HINT: &str =
    "a Hugging Face folder has its tokenizer in tokenizer.json; a .gguf file holds its own";

/// Whether a path that was to be read as a tokenizer is no GGUF file.
fn is_tokenizer_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// The first few names of a list.
fn first_few(names: &[String]) -> String {
    const MAX_SHOWN: usize = 5;
    let rest = names.len().saturating_sub(MAX_SHOWN);
    if rest == 0 {
        names.join(", ")
    } else {
        format!("{} and {rest} more", names[..MAX_SHOWN].join(", "))
    }
}

/// Says what the weights take that do not fit now.
fn weights_too_large(weights_bytes: usize, available_bytes: u64) -> Failure {
    let failure = Failure::input(format!(
        "the model's weights take {} of memory, and {} are available now",
        size(weights_bytes),
        size(available_bytes as usize)
    ));
    failure.hint("end other programs, or take a model of fewer or smaller weights")
}

/// Says what a load takes that is larger than the machine's memory.
fn not_enough_memory(plan: &MemoryPlan, machine_bytes: u64) -> Failure {
    let needed_bytes = plan.total_bytes();
    let hint = if needed_bytes.saturating_sub(plan.kv_bytes) as u64 > machine_bytes {
        "no context is small enough; take a model of fewer or smaller weights"
    } else {
        "give a smaller context with -c, or a smaller --kv-cache-tokens where that is given"
    };
    let failure = Failure::input(format!(
        "the model needs {} of memory, {} of it for keys and values, and this machine has {} in all",
        size(needed_bytes),
        size(plan.kv_bytes),
        size(machine_bytes as usize)
    ));
    failure.hint(hint)
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Gguf(error) => error.into(),
            LoadError::UnknownArchitecture { ref found, .. } if found == "clip" => {
                Self::input("this file is an encoder of images, not a model")
                    .hint("give it with `--mmproj FILE` and the file of its model")
            }
            LoadError::UnknownArchitecture { .. } => Self::input(error.to_string())
                .hint("`tokenmill inspect` shows the file's metadata and tensors all the same"),
            LoadError::MissingTensor { ref name } if name == "token_embd.weight" => {
                Self::input(error.to_string())
                    .hint("a file with a vocabulary only works with `tokenize`, not with `run`")
            }
            LoadError::NotDivisible { .. } => {
                Self::usage(error.to_string()).hint("`--tensor-parallel-size N` is the number of GPUs")
            }
            LoadError::NotWholeBlocks { .. } => Self::usage(error.to_string())
                .hint("take fewer GPUs, or a file with weights of another type, such as Q8_0"),
            LoadError::BadOption {
                option,
                found,
                ref expected,
            } => bad_option(option, found, expected),
            LoadError::Backend(BackendError::Failed {
                operation: "starting threads",
                ref source,
            }) => Self::usage(source.to_string()).hint("`-t N` and `-tb N` say how many compute"),
            LoadError::Backend(ref reason) => {
                let failure = Self::input(format!("cannot load the model: {error}"));
                match reason {
                    BackendError::Failed { operation, .. } if operation.starts_with("allocating") => {
                        failure.hint("a smaller context, `-c N`, takes less memory")
                    }
                    _ => failure,
                }
            }
            _ => Self::input(error.to_string()),
        }
    }
}

/// Says an option of a load as it is given on the command line.
fn bad_option(option: &'static str, found: usize, expected: &str) -> Failure {
    let (what, hint) = match option {
        "n_ctx" => (
            "the size of the context",
            "`-c N` is the number of tokens of one sequence",
        ),
        "n_pages" => (
            "the size of all contexts together, in pages of 16 tokens,",
            "give a smaller context with -c, or fewer sequences",
        ),
        "max_batch_tokens" => (
            "the number of tokens in a step",
            "`-ub N` is that number, and so is the number of sequences side by side where that is larger",
        ),
        option => return Failure::usage(format!("`{option}` is {found}, expected {expected}")),
    };
    Failure::usage(format!("{what} is {found}, expected {expected}")).hint(hint)
}

/// What to do about a GPU that cannot be used, where its message does not say it. `visible` is the variable that hides GPUs.
pub(crate) fn gpu_hint(reason: &BackendError, visible: Option<&str>) -> Option<String> {
    match (reason, visible) {
        (BackendError::Unavailable { source }, Some(visible)) if may_be_hidden(&**source) => {
            Some(match visible {
                "" => "CUDA_VISIBLE_DEVICES is empty, which hides every GPU; unset it".to_owned(),
                _ => format!("CUDA_VISIBLE_DEVICES is `{visible}`, which hides every other GPU"),
            })
        }
        (BackendError::DoesNotFit { .. }, _) => {
            Some(
                "`-ngl auto` puts as many layers on it as fit, a smaller context is `-c N`, and `--device cpu` uses the machine's memory"
                    .to_owned(),
            )
        }
        (BackendError::Unsupported { .. } | BackendError::UnsupportedType { .. }, _) => {
            Some("`--device auto` would take the CPU".to_owned())
        }
        (BackendError::Unavailable { .. }, _) => {
            Some("`--device auto` takes the CPU where no GPU can be used".to_owned())
        }
        _ => None,
    }
}

/// Whether the driver works but does not show the GPU.
#[cfg(feature = "cuda")]
fn may_be_hidden(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    use tokenmill_cuda_exec::CudaExecError;
    matches!(
        error.downcast_ref(),
        Some(CudaExecError::NoDevice { .. } | CudaExecError::NoSuchDevice { .. })
    )
}

#[cfg(not(feature = "cuda"))]
fn may_be_hidden(_: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    false
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self::input(error.to_string())
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        match error {
            StepError::DeviceLost { .. } => Self::device_lost(error.to_string()),
            _ => Self::work(error.to_string()),
        }
    }
}

impl From<RowError> for Failure {
    fn from(error: RowError) -> Self {
        Self::work(error.to_string()).hint("the file's weights may be damaged; fetch the file again")
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Row(error) => error.into(),
            EngineError::Step(error) => error.into(),
            EngineError::Sampling(_) | EngineError::SampleCount { .. } => Self::usage(error.to_string()),
            EngineError::EmptyPrompt
            | EngineError::EmptyBatch
            | EngineError::UnknownToken { .. }
            | EngineError::PredictsNoTokens
            | EngineError::Adapter(_)
            | EngineError::TakesNoMedia
            | EngineError::MediaTooLong { .. }
            | EngineError::RowsOutOfRange { .. } => Self::input(error.to_string()),
            EngineError::ContextLimitExceeded { .. } | EngineError::PoolTooSmall { .. } => {
                Self::input(error.to_string()).hint("shorten the prompt, or give more context with -c")
            }
            _ => Self::work(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::input("a\nb").hint("do c");
        assert_eq!(failure.line(), "error: a b (hint: do c)");
    }

    #[test]
    fn what_a_message_quotes_does_not_reach_the_terminal_as_an_escape() {
        let failure = Failure::input("tensor `\u{1b}[2J\u{9b}x` is missing").hint("name one: a\u{7}.gguf");
        assert_eq!(
            failure.line(),
            r"error: tensor `\u{1b}[2J\u{9b}x` is missing (hint: name one: a\u{7}.gguf)"
        );
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_hidden_gpu_is_told_from_a_missing_one() {
        use tokenmill_cuda_exec::CudaExecError;

        let no_device = BackendError::Unavailable {
            source: Box::new(CudaExecError::NoDevice {
                reason: "none".to_owned(),
            }),
        };
        let no_driver = BackendError::Unavailable {
            source: Box::new(CudaExecError::NoDriver),
        };
        let empty = gpu_hint(&no_device, Some("")).expect("a hint");
        assert!(empty.contains("is empty"), "{empty}");
        assert!(gpu_hint(&no_device, Some("3")).is_some_and(|hint| hint.contains("`3`")));
        for (reason, visible) in [(&no_device, None), (&no_driver, Some(""))] {
            let hint = gpu_hint(reason, visible).expect("a hint");
            assert!(hint.starts_with("`--device auto`"), "{hint}");
        }
    }

    #[test]
    fn a_load_beyond_the_whole_memory_says_what_to_do() {
        let plan = MemoryPlan {
            weights_bytes: 1 << 20,
            kv_bytes: 6 << 20,
            kv_page_bytes: 1 << 20,
            n_pages: 6,
            window_page_bytes: 0,
            n_window_pages: 0,
            host_tier_bytes: 0,
            states_bytes: 0,
            state_bytes: 0,
            n_states: 0,
            activations_bytes: 1 << 20,
            workspace_bytes: 0,
            on_host: None,
        };
        insta::assert_snapshot!(
            not_enough_memory(&plan, (8 << 20) - 1).line(),
            @"error: the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and this machine has 8.0 MiB in all (hint: give a smaller context with -c, or a smaller --kv-cache-tokens where that is given)"
        );
        insta::assert_snapshot!(
            not_enough_memory(&plan, 1 << 20).line(),
            @"error: the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and this machine has 1.0 MiB in all (hint: no context is small enough; take a model of fewer or smaller weights)"
        );
    }

    #[test]
    fn weights_beyond_what_is_available_say_what_to_do() {
        insta::assert_snapshot!(
            weights_too_large(2 << 20, 1 << 20).line(),
            @"error: the model's weights take 2.0 MiB of memory, and 1.0 MiB are available now (hint: end other programs, or take a model of fewer or smaller weights)"
        );
    }

    #[test]
    fn the_system_reason_has_no_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(
            Failure::unreadable(Path::new("x"), &error).line(),
            "error: cannot read x: No such file or directory"
        );
    }
}
