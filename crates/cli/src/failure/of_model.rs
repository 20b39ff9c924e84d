//! Models that cannot be opened, loaded or asked.
//!
//! Separate because the library's error stands for all of its parts. Invariant: what a part has words for is said in its words.

use std::{env, error::Error as _, path::Path};

use tokenmill::Error;
use tokenmill_backend::BackendError;
use tokenmill_model::LoadError;

use super::{
    Failure,
    gpu::gpu_hint,
    memory::{not_enough_memory, weights_too_large},
};
use crate::{
    memory_words::{limit_text, plan_text},
    missing_model::WHAT_MODEL_IS,
    numbers::size,
};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NoModel { .. } => Self::input(error.to_string()).hint(WHAT_MODEL_IS),
            Error::Convert(error) => error.into(),
            Error::EncoderType { .. } => Self::usage(error.to_string()),
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
            Error::MakeFolder { path, source } => Self::no_folder(&path, &source),
            Error::Write { path, source } => Self::unwritable(path.display(), &source),
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
            Error::LoadOutOfMemory {
                plan,
                mtp_bytes,
                n_ctx,
                source,
            } => {
                let plan = plan_text(&plan, n_ctx);
                Self::from(*source).add(&match mtp_bytes {
                    0 => format!("the whole load takes {plan}"),
                    n_bytes => format!("the model takes {plan}; its MTP layer takes {} more", size(n_bytes)),
                })
            }
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
                .hint("`--ubatch-size N` and `-c N` make steps and context smaller, and `--device cpu` uses the machine's memory"),
            Error::SplitTooLarge { fitting_layers, .. } => Self::device(error.to_string()).hint(format!(
                "say `-ngl {fitting_layers}`, or `-ngl auto` for the quickest that fits; a smaller context is `-c N`"
            )),
            Error::TooFewGpus { n_found, .. } => {
                let hidden = match env::var("CUDA_VISIBLE_DEVICES") {
                    Ok(visible) => format!("CUDA_VISIBLE_DEVICES is `{visible}`, which hides every other GPU; "),
                    Err(_) => String::new(),
                };
                let instead = match n_found {
                    0 | 1 => "without `--tensor-parallel-size` one computes the model".to_owned(),
                    _ => format!("`--tensor-parallel-size {n_found}` takes all from the first on"),
                };
                Self::device(error.to_string())
                    .hint(format!("{hidden}`tokenmill devices` lists them, {instead}"))
            }
            Error::AdaptersNotWhole => Self::usage(error.to_string())
                .hint("leave out `-ngl`, `--tensor-parallel-size` and what else divides it, or give `--device cpu`"),
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
            Error::NotEnoughMemory { plan, limit } => not_enough_memory(&plan, limit),
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
                limit,
            } => Self::input(format!(
                "draft model {}: it needs {} of memory next to the model's {}, and {}",
                path.display(),
                size(needed_bytes),
                size(model_bytes),
                limit_text(limit)
            ))
            .hint("take a smaller one, or a smaller context with -c"),
            Error::DraftNotWhole => Self::usage(error.to_string())
                .hint("leave out `-ngl N` (`all`, or as many layers as the model has, is no division), `--tensor-parallel-size` and what else divides it, give `--device cpu` in their place, or leave out `--draft`"),
            Error::NoRoomToGuess {
                needed_bytes,
                model_bytes,
                room_bytes,
            } => Self::device(format!(
                "what guesses tokens ahead needs {} of the GPU's memory next to the model's {}, and both may take {}",
                size(needed_bytes),
                size(model_bytes),
                size(room_bytes as usize)
            ))
            .hint("a smaller context is `-c N`, `--device cpu` uses the machine's memory, and without `--draft` and `--spec mtp` only the model is loaded"),
            Error::Mtp { path, source } => {
                let mut failure = Self::from(*source);
                failure.message = format!("{}: {}", path.display(), failure.message);
                failure
            }
            Error::MtpVocabulary { .. } => {
                Self::input(error.to_string()).hint("take the file that was made of the same model")
            }
            Error::NoMtp => Self::usage(error.to_string())
                .hint("`--spec auto` guesses with what there is, `--draft MODEL` with a second model"),
            Error::MtpNotWhole => Self::usage(error.to_string())
                .hint("leave out `-ngl N` (`all`, or as many layers as the model has, is no division), `--tensor-parallel-size` and what else divides it, give `--device cpu` in their place, or leave out `--spec mtp` and `--mtp`"),
            Error::NothingToShift => Self::usage("`--context-shift` is for models that continue texts, and this one makes vectors or scores")
                .hint("leave it out"),
            Error::KeepTooLong { keep, maximum, n_ctx } => Self::usage(format!(
                "`--keep {keep}` is more than can be kept of a context of {n_ctx} tokens, which is {maximum}"
            ))
            .hint("keep less, or give more context with -c"),
            Error::NoVision => Self::input(error.to_string())
                .hint("give one with `--mmproj FILE`, or put it next to the model with mmproj in its name"),
            Error::Projector { ref path, ref source } => match &**source {
                LoadError::UnknownArchitecture { found, .. } => Self::input(format!(
                    "{} is no encoder of images but a model of the architecture `{found}`",
                    path.display()
                ))
                .hint("`--mmproj FILE` takes the file with the encoder, which mostly has mmproj in its name"),
                _ => Self::input(error.to_string()),
            },
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
pub(crate) fn first_few(names: &[String]) -> String {
    const MAX_SHOWN: usize = 5;
    let rest = names.len().saturating_sub(MAX_SHOWN);
    if rest == 0 {
        names.join(", ")
    } else {
        format!("{} and {rest} more", names[..MAX_SHOWN].join(", "))
    }
}
