//! Networks that cannot be loaded.
//!
//! Separate because the options that are at fault have other names on the command line.

use tokenmill::machine::lacks_memory;
use tokenmill_backend::BackendError;
use tokenmill_model::LoadError;

use super::{Failure, memory::HOW_TO_TAKE_LESS};

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        if let LoadError::Gguf(error) = error {
            return error.into();
        }
        match *error.without_own_name() {
            LoadError::UnknownArchitecture { ref found, .. } if found == "clip" => {
                Self::input("this file is an encoder of images, not a model")
                    .hint("give it with `--mmproj FILE` and the file of its model")
            }
            LoadError::IsImportanceMatrix => {
                Self::input(error.to_string()).hint("`quantize` and `convert` take it with `--imatrix FILE`")
            }
            LoadError::IsAdapter => {
                Self::input(error.to_string()).hint("give it with `--lora FILE` and the file of its model")
            }
            LoadError::IsNextnAlone => Self::input(error.to_string())
                .hint("give it with `--mtp FILE` and the model's own file, or put it next to that one"),
            LoadError::NoNextn => Self::input(error.to_string())
                .hint("such files are mostly called mtp-*.gguf; `--draft MODEL` takes a second model"),
            LoadError::NextnOfOther { .. } => {
                Self::input(error.to_string()).hint("take the file that was made of the same model")
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
            }) => Self::usage(source.to_string())
                .hint("`-t N` and `-tb N` say how many compute, `--cpu-range` and `--numa` where"),
            LoadError::Backend(ref reason) => {
                let failure = Self::input(format!("cannot load the model: {error}"));
                let is_of_gpu = || matches!(reason, BackendError::Failed { operation, .. } if operation.starts_with("allocating"));
                if lacks_memory(&error) {
                    failure.hint(HOW_TO_TAKE_LESS)
                } else if is_of_gpu() {
                    failure.hint("a smaller context, `-c N`, takes less memory")
                } else {
                    failure
                }
            }
            _ => Self::input(error.to_string()),
        }
    }
}

/// Names an option of a load in its command-line form.
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

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use tokenmill::Error;
    use tokenmill_backend::MemoryPlan;
    use tokenmill_cpu_exec::CpuExecError;

    use super::*;

    #[test]
    fn memory_that_the_system_refuses_says_what_takes_less() {
        let source = || {
            let source = CpuExecError::OutOfMemory {
                what: "weights",
                n_bytes: 9_437_184,
            };
            Box::new(LoadError::Backend(BackendError::Failed {
                operation: "loading weights",
                source: source.into(),
            }))
        };
        let plan = MemoryPlan {
            weights_bytes: 250 << 20,
            kv_bytes: 8 << 20,
            ..MemoryPlan::default()
        };
        let error = |mtp_bytes: usize| Error::LoadOutOfMemory {
            plan: Box::new(plan.clone()),
            mtp_bytes,
            n_ctx: 64,
            source: source(),
        };
        // The reason is the error's source: a program that prints all sources says it once.
        let all = [
            error(0).to_string(),
            error(0).source().expect("a reason").to_string(),
        ];
        assert_eq!(
            all,
            [
                "the system has too little memory for the load, which takes 270532608 bytes",
                "loading weights failed: 9437184 bytes of memory could not be allocated for weights"
            ]
        );
        let with_mtp = error(1 << 20);
        assert!(
            with_mtp.to_string().ends_with("takes 271581184 bytes"),
            "{with_mtp}"
        );
        let line = Failure::from(with_mtp).line();
        assert!(
            line.contains("; its MTP layer takes 1.0 MiB more (hint"),
            "{line}"
        );
        insta::assert_snapshot!(
            Failure::from(error(0)).line(),
            @"error: cannot load the model: loading weights failed: 9437184 bytes of memory could not be allocated for weights; the whole load takes 258.0 MiB with a context of 64 tokens: weights 250.0 MiB, keys and values 8.0 MiB, activations 0 B, workspace 0 B (hint: `-c N` and `-ctk q8_0 -ctv q8_0` take less for keys and values, `-ub N` less for a step, and a file of a smaller type less for the weights)"
        );
    }
}
