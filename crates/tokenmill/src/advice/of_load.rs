//! Advice for networks that cannot be loaded, and for GPUs that cannot be used.

use tokenmill_backend::BackendError;
use tokenmill_model::LoadError;

use super::{ErrorKind, Hint, OTHER_FILE, of_files::hint_of_gguf};
use crate::machine::lacks_memory;

/// The operation of a backend that starts threads.
const STARTING_THREADS: &str = "starting threads";

pub(super) fn kind(error: &LoadError) -> ErrorKind {
    match error.without_own_name() {
        LoadError::NotDivisible { .. }
        | LoadError::NotWholeBlocks { .. }
        | LoadError::BadOption { .. }
        | LoadError::Backend(BackendError::Failed {
            operation: STARTING_THREADS,
            ..
        }) => ErrorKind::Options,
        _ => ErrorKind::Input,
    }
}

pub(super) fn hint(error: &LoadError) -> Option<Hint> {
    let hint = match error.without_own_name() {
        LoadError::Gguf(error) => return hint_of_gguf(error),
        LoadError::UnknownArchitecture { found, .. } if found == "clip" => {
            "give it with {projector} and the file of its model"
        }
        LoadError::IsImportanceMatrix => "`quantize` and `convert` take it with {importance}",
        LoadError::IsAdapter => "give it with {adapter} and the file of its model",
        LoadError::IsNextnAlone => "give it with {mtp} and the model's own file, or put it next to that one",
        LoadError::NoNextn => "such files are mostly called mtp-*.gguf; {draft} takes a second model",
        LoadError::NextnOfOther { .. } => OTHER_FILE,
        LoadError::UnknownArchitecture { .. } => {
            "`tokenmill inspect` shows the file's metadata and tensors all the same"
        }
        LoadError::MissingTensor { name } if name == "token_embd.weight" => {
            "the file has only a vocabulary; it works with {tokenize} only"
        }
        LoadError::NotDivisible { .. } => "{gpus} is the number of GPUs",
        LoadError::NotWholeBlocks { .. } => {
            "take fewer GPUs, or a file with weights of another type, such as Q8_0"
        }
        LoadError::BadOption { option, .. } => match *option {
            "n_ctx" => "{context} is the number of tokens of one sequence",
            "n_pages" => "give a smaller context with {context}, or fewer sequences",
            "max_batch_tokens" => {
                "{step} is that number, and so is the number of sequences side by side where that is larger"
            }
            _ => return None,
        },
        LoadError::Backend(BackendError::Failed {
            operation: STARTING_THREADS,
            ..
        }) => "{threads} say how many compute, {places} where",
        LoadError::Backend(_) if lacks_memory(error) => {
            "{context} and {kv-types} reduce the memory of keys and values, {step} that of a step, and a file of a smaller type that of the weights"
        }
        LoadError::Backend(BackendError::Failed { operation, .. }) if operation.starts_with("allocating") => {
            "a smaller context, {context}, takes less memory"
        }
        _ => return None,
    };
    Some(Hint::new(hint))
}

pub(super) fn hint_of_gpu(error: &BackendError) -> Option<Hint> {
    let hint = match error {
        BackendError::DoesNotFit {
            fitting_kv_tokens: 0, ..
        } => "{layers-auto} puts what fits on it, and {cpu} uses the machine's memory",
        BackendError::DoesNotFit { .. } => {
            "{layers-auto} puts what fits on it, a smaller context is {context}, and {cpu} uses the machine's memory"
        }
        BackendError::Unavailable { .. }
        | BackendError::Unsupported { .. }
        | BackendError::UnsupportedType { .. } => {
            "without {device}, {layers} and other flags that ask for a GPU, the CPU computes where no GPU can be used"
        }
        _ => return None,
    };
    Some(Hint::new(hint))
}
