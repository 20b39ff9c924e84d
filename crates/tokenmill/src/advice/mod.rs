//! Advice about an [`Error`]: its kind, and a hint that says what to do.
//!
//! Each file gives hints for the errors of one layer. The program `tokenmill` prints an error with its hint and ends with the exit code of
//! its kind; it adds only what depends on its command line and the environment.

mod hint;
mod of_files;
#[cfg(feature = "hub")]
mod of_hub;
mod of_load;

use std::path::Path;

use tokenmill_backend::{BackendError, StepError};
use tokenmill_convert::ConvertError;
use tokenmill_model::LoadError;
use tokenmill_sched::EngineError;

use crate::{
    Error,
    machine::{MemoryLimit, fits_with_less_context},
    session_error::SessionError,
};
pub use hint::Hint;
pub use of_files::MAKE_ROOM;
#[cfg(feature = "hub")]
pub use of_hub::hint_for;

/// Where the cause of an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Options that cannot be granted.
    Options,
    /// A file, a model or a request that cannot be used.
    Input,
    /// Output that cannot be written.
    Output,
    /// The reader of the output went away.
    ReaderGone,
    /// A GPU that was requested and cannot be used.
    Device,
    /// A device that was lost while it worked.
    DeviceLost,
    /// The caller stopped the work.
    Stopped,
    /// The work failed for another reason.
    Failed,
}

const MODEL_FORMS: &str = "{model} is a .gguf file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY of the Hub, NAME:TAG of Ollama, or `demo`";
const OTHER_FILE: &str = "take the file that was made from the same model";
/// A hint for a load that must not be divided.
macro_rules! undivided {
    ($instead:literal) => {
        Hint::new(concat!(
            "leave out {layers} (except `all` or the model's number of layers), {gpus} and other options that divide the model, give {cpu} in their \
             place, or leave out ",
            $instead
        ))
    };
}

/// Most names of a list in a hint.
const MAX_SHOWN: usize = 5;

impl Error {
    /// Returns where the cause is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::EncoderType { .. }
            | Self::AdaptersNotWhole
            | Self::GroupNotWhole
            | Self::NothingOnGpu
            | Self::NoExperts
            | Self::KvCacheTooSmall { .. }
            | Self::DraftNotWhole
            | Self::NoMtp
            | Self::MtpNotWhole
            | Self::NothingToShift
            | Self::KeepTooLong { .. } => ErrorKind::Options,
            Self::Gpu(BackendError::Lost { .. }) => ErrorKind::DeviceLost,
            Self::Gpu(_)
            | Self::SplitTooLarge { .. }
            | Self::TooFewGpus { .. }
            | Self::Calibration { .. }
            | Self::NoRoomToGuess { .. } => ErrorKind::Device,
            Self::MakeFolder { .. }
            | Self::Session {
                source:
                    SessionError::Unidentified
                    | SessionError::NotReadable
                    | SessionError::TooLarge { .. }
                    | SessionError::NoSpace { .. },
                ..
            } => ErrorKind::Output,
            Self::Write { source, .. } => of_files::kind_of_write(source),
            Self::Convert(error) => of_files::kind(error),
            #[cfg(feature = "hub")]
            Self::Hub(error) => of_hub::kind(error),
            Self::Load(error) | Self::AdapterFile { source: error, .. } => of_load::kind(error),
            Self::LoadOutOfMemory { source, .. } | Self::Mtp { source, .. } => of_load::kind(source),
            Self::Draft { source, .. } => source.kind(),
            Self::Engine(error) => engine_kind(error),
            _ => ErrorKind::Input,
        }
    }

    /// Returns the path of the model's file, if that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Self::Gguf(error)
            | Self::Load(LoadError::Gguf(error))
            | Self::Convert(ConvertError::Gguf(error)) => of_files::missing_file(error),
            _ => None,
        }
    }

    /// Returns a hint for the error, if there is a general one.
    ///
    /// ```
    /// use tokenmill::{Model, TextParams};
    ///
    /// let model = Model::options().context(16).load("demo")?;
    /// let error = model.complete(&"word ".repeat(50), &TextParams::new()).unwrap_err();
    /// let hint = error.hint().expect("a hint");
    /// assert_eq!(
    ///     hint.to_string(),
    ///     "shorten the prompt, or give more context with `LoadOptions::context`"
    /// );
    /// # Ok::<(), tokenmill::Error>(())
    /// ```
    pub fn hint(&self) -> Option<Hint> {
        let hint = match self {
            Self::NoModel { .. } => Hint::new(MODEL_FORMS),
            Self::OnlyPickles { .. } => Hint::new(
                "such files are programs and are not read: convert them to safetensors or GGUF, or fetch those",
            ),
            Self::SeveralModels { names, .. } => Hint::with("name one: {}", [first_few(names)]),
            Self::Read { path, .. } if of_files::is_tokenizer_json(path) => Hint::new(of_files::TOKENIZER),
            Self::Tokenizer { path, .. } if of_files::is_tokenizer_json(path) => {
                Hint::new(of_files::TOKENIZER)
            }
            Self::Tokenizer { .. } => {
                Hint::new("`tokenmill tokenize` also takes the tokenizer.json of the model")
            }
            Self::Write { source, .. } => return of_files::hint_of_write(source),
            Self::Gguf(error) => return of_files::hint_of_gguf(error),
            Self::Convert(error) => return of_files::hint(error),
            #[cfg(feature = "hub")]
            Self::Hub(error) => return of_hub::hint(error),
            Self::AdapterFile { .. } => Hint::new(
                "an adapter is a .gguf file, or a folder with adapter_config.json as PEFT writes it",
            ),
            Self::Load(error) => return of_load::hint(error),
            Self::LoadOutOfMemory { source, .. } | Self::Mtp { source, .. } => return of_load::hint(source),
            Self::Gpu(error) => return of_load::hint_of_gpu(error),
            Self::SplitTooLarge {
                fitting_layers: 0, ..
            } => Hint::new(
                "{step} and {context} make steps and context smaller, and {cpu} uses the machine's memory",
            ),
            Self::SplitTooLarge { fitting_layers, .. } => Hint::with(
                "{} layers fit with {layers}, and {layers-auto} takes the quickest that fits; a smaller context is {context}",
                [fitting_layers.to_string()],
            ),
            Self::TooFewGpus { n_found: 0 | 1, .. } => {
                Hint::new("`tokenmill devices` lists them, without {gpus} one computes the model")
            }
            Self::TooFewGpus { n_found, .. } => Hint::with(
                "`tokenmill devices` lists them; from the first on there are {} for {gpus}",
                [n_found.to_string()],
            ),
            Self::AdaptersNotWhole => {
                Hint::new("leave out {layers}, {gpus} and other options that divide the model, or give {cpu}")
            }
            Self::GroupNotWhole => Hint::new("leave out {gpus}, or the options that place parts on the CPU"),
            Self::NothingOnGpu => Hint::new("{layers-none} computes on the CPU alone"),
            Self::HostPartTooLarge {
                needed_bytes,
                kv_bytes,
                memory_bytes,
            } => Hint::new(if needed_bytes.saturating_sub(*kv_bytes) > *memory_bytes {
                "give the GPU more of it with a larger {layers}"
            } else {
                "give the GPU more of it with a larger {layers}, or a smaller context with {context}"
            }),
            Self::NoExperts => Hint::new("leave out {experts}"),
            Self::NotEnoughMemory { plan, limit } => {
                let is_context_enough = fits_with_less_context(plan, limit.n_bytes());
                Hint::new(match (limit, is_context_enough) {
                    (MemoryLimit::AddressSpace { .. }, true) => {
                        "raise `ulimit -v`, or take a smaller context with {context}"
                    }
                    (MemoryLimit::AddressSpace { .. }, false) => {
                        "raise `ulimit -v`, or take a model of fewer or smaller weights"
                    }
                    (_, true) => "give a smaller context with {context}",
                    (_, false) => "no context is small enough; take a model of fewer or smaller weights",
                })
            }
            Self::WeightsTooLarge { .. } => {
                Hint::new("end other programs, or take a model of fewer or smaller weights")
            }
            Self::KvCacheTooSmall { n_ctx, .. } => Hint::with(
                "give {} or more with {kv-tokens}, or a shorter context with {context}",
                [n_ctx.to_string()],
            ),
            Self::Draft { source, .. } => return source.hint(),
            Self::DraftVocabulary { .. } => Hint::new("a draft model is a smaller one of the same family"),
            Self::DraftTooLarge {
                needed_bytes,
                model_bytes,
                kv_bytes,
                limit,
                ..
            } => {
                let least_bytes = (needed_bytes + model_bytes).saturating_sub(*kv_bytes);
                Hint::new(if least_bytes as u64 > limit.n_bytes() {
                    "take a smaller one"
                } else {
                    "take a smaller one, or a smaller context with {context}"
                })
            }
            Self::DraftNotWhole => undivided!("{draft}"),
            Self::NoRoomToGuess { .. } => Hint::new(
                "a smaller context is {context}, {cpu} uses the machine's memory, and without {draft} and {spec-mtp} only the model is loaded",
            ),
            Self::MtpVocabulary { .. } => Hint::new(OTHER_FILE),
            Self::NoMtp => {
                Hint::new("{spec-auto} uses the available drafts, {draft} those of a second model")
            }
            Self::MtpNotWhole => undivided!("{spec-mtp} and {mtp}"),
            Self::NothingToShift => Hint::new("leave out {context-shift}"),
            Self::KeepTooLong { .. } => Hint::new("keep less, or give more context with {context}"),
            Self::NoVision => {
                Hint::new("give one with {projector}, or put it next to the model with mmproj in its name")
            }
            Self::Projector { source, .. } if matches!(**source, LoadError::UnknownArchitecture { .. }) => {
                Hint::new("{projector} takes the file with the encoder, which mostly has mmproj in its name")
            }
            Self::NoTemplate => Hint::new(
                "`--chat-template chatml` gives the most common one, {template} another, and {run} completes a text",
            ),
            Self::Engine(error) => return engine_hint(error),
            _ => return None,
        };
        Some(hint)
    }
}

fn engine_kind(error: &EngineError) -> ErrorKind {
    match error {
        EngineError::Step(StepError::DeviceLost { .. }) => ErrorKind::DeviceLost,
        EngineError::Sampling(_) | EngineError::SampleCount { .. } => ErrorKind::Options,
        EngineError::Step(StepError::WeightsChanged { .. })
        | EngineError::EmptyPrompt
        | EngineError::EmptyBatch
        | EngineError::UnknownToken { .. }
        | EngineError::PredictsNoTokens
        | EngineError::Adapter(_)
        | EngineError::TakesNoMedia
        | EngineError::MediaTooLong { .. }
        | EngineError::RowsOutOfRange { .. }
        | EngineError::ContextLimitExceeded { .. }
        | EngineError::PoolTooSmall { .. } => ErrorKind::Input,
        _ => ErrorKind::Failed,
    }
}

fn engine_hint(error: &EngineError) -> Option<Hint> {
    let hint = match error {
        EngineError::Row(_) => "the file's weights may be damaged; fetch the file again",
        EngineError::Step(StepError::WeightsChanged { .. }) => {
            "start the program again; to replace a file in use, rename another one to its name, and never write into it"
        }
        EngineError::PredictsNoTokens => {
            "`tokenmill serve` has /v1/embeddings and /v1/rerank for such a model"
        }
        EngineError::ContextLimitExceeded { .. } | EngineError::PoolTooSmall { .. } => {
            "shorten the prompt, or give more context with {context}"
        }
        _ => return None,
    };
    Some(Hint::new(hint))
}

/// Lists the first few of these names.
pub fn first_few(names: &[String]) -> String {
    match names.len().saturating_sub(MAX_SHOWN) {
        0 => names.join(", "),
        rest => format!("{} and {} more", names[..MAX_SHOWN].join(", "), rest),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use tokenmill_backend::MemoryPlan;
    use tokenmill_cpu_exec::CpuExecError;

    use super::*;

    fn out_of_memory(mtp_bytes: usize) -> Error {
        let source = CpuExecError::OutOfMemory {
            what: "weights",
            n_bytes: 9_437_184,
        };
        Error::LoadOutOfMemory {
            plan: Box::new(MemoryPlan {
                weights_bytes: 250 << 20,
                kv_bytes: 8 << 20,
                ..MemoryPlan::default()
            }),
            mtp_bytes,
            n_ctx: 64,
            source: Box::new(LoadError::Backend(BackendError::Failed {
                operation: "loading weights",
                source: source.into(),
            })),
        }
    }

    #[test]
    fn memory_that_the_system_refuses_says_what_takes_less() {
        let error = out_of_memory(0);
        // The reason is the error's source: a program that prints all sources says it once.
        assert_eq!(
            error.to_string(),
            "the system has too little memory for the load, which takes 258.0 MiB with a context of 64 tokens: weights 250.0 MiB, keys and \
             values 8.0 MiB, activations 0 B, workspace 0 B"
        );
        assert_eq!(
            error.source().expect("a reason").to_string(),
            "loading weights failed: 9437184 bytes of memory could not be allocated for weights"
        );
        let hint = error.hint().expect("a hint");
        assert_eq!(
            hint.to_string(),
            "`LoadOptions::context` and `LoadOptions::kv_type` reduce the memory of keys and values, `LoadOptions::max_step_tokens` that of a step, \
             and a file of a smaller type that of the weights"
        );
        assert_eq!(
            hint.for_program(),
            "`-c N` and `-ctk q8_0 -ctv q8_0` reduce the memory of keys and values, `-ub N` that of a step, and a file of a smaller type that of the \
             weights"
        );
        let with_mtp = out_of_memory(1 << 20).to_string();
        assert!(
            with_mtp.ends_with("; its MTP layer takes 1.0 MiB more"),
            "{with_mtp}"
        );
    }

    #[test]
    fn a_load_beyond_the_whole_memory_says_what_to_do() {
        let error = |limit| Error::NotEnoughMemory {
            plan: Box::new(MemoryPlan {
                weights_bytes: 1 << 20,
                kv_bytes: 6 << 20,
                activations_bytes: 1 << 20,
                ..MemoryPlan::default()
            }),
            limit,
        };
        let check = |limit, end: &str, hint: &str| {
            let error = error(limit);
            let expected =
                format!("the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and {end}");
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.hint().expect("a hint").for_program(), hint);
        };
        check(
            MemoryLimit::Machine {
                n_bytes: (8 << 20) - 1,
            },
            "this machine has 8.0 MiB in all",
            "give a smaller context with `-c N`",
        );
        check(
            MemoryLimit::AddressSpace { n_bytes: 1 << 20 },
            "the limit of `ulimit -v` leaves 1.0 MiB",
            "raise `ulimit -v`, or take a model of fewer or smaller weights",
        );
        check(
            MemoryLimit::AddressSpace { n_bytes: 2 << 20 },
            "the limit of `ulimit -v` leaves 2.0 MiB",
            "raise `ulimit -v`, or take a smaller context with `-c N`",
        );
        check(
            MemoryLimit::Machine { n_bytes: 1 << 20 },
            "this machine has 1.0 MiB in all",
            "no context is small enough; take a model of fewer or smaller weights",
        );
    }
}
