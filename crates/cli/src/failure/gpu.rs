//! GPUs that cannot be used.
//!
//! Advice here depends on the command line and on the variable that hides GPUs.

use std::ffi::OsString;

use tokenmill::Error;
use tokenmill_backend::BackendError;

use super::Failure;

impl Failure {
    /// Creates the failure of a load on `n_gpus` GPUs together, for which no device is chosen automatically.
    pub(crate) fn of_group(error: Error, n_gpus: usize) -> Self {
        let failure = Self::from(error);
        if n_gpus > 1 && failure.lacks_gpu {
            return failure.hint("leave `--tensor-parallel-size` out to compute on the CPU");
        }
        failure
    }

    /// Names the flags that asked for a GPU, where none can be used.
    pub(crate) fn naming_gpu_flags(self, typed: &[OsString]) -> Self {
        let flags = gpu_flags(typed);
        let (asks, them) = match &flags[..] {
            [_] if self.lacks_gpu => ("asks", "it"),
            [_, ..] if self.lacks_gpu => ("ask", "them"),
            _ => return self,
        };
        let flags = flags.join("` and `");
        self.hint(format!(
            "`{flags}` {asks} for a GPU; without {them} the CPU computes where no GPU can be used"
        ))
    }

    /// Marks the failure of a GPU that cannot be used. `visible` is the variable that hides GPUs, and a better reason where it may hide this
    /// one.
    pub(super) fn of_gpu(mut self, error: &Error, visible: Option<&str>) -> Self {
        let hidden = visible.map(|visible| match visible {
            "" => "CUDA_VISIBLE_DEVICES is empty, which hides every GPU".to_owned(),
            _ => format!("CUDA_VISIBLE_DEVICES is `{visible}`, which hides every other GPU"),
        });
        match (error, hidden) {
            (Error::Gpu(BackendError::Unavailable { source }), Some(hidden)) if may_be_hidden(&**source) => {
                self.hint(hidden)
            }
            (Error::TooFewGpus { .. }, Some(hidden)) => {
                let more = self.hint.take().unwrap_or_default();
                self.hint(format!("{hidden}; {more}"))
            }
            (
                Error::Gpu(
                    BackendError::Unavailable { .. }
                    | BackendError::Unsupported { .. }
                    | BackendError::UnsupportedType { .. },
                ),
                _,
            ) => {
                self.lacks_gpu = true;
                self
            }
            _ => self,
        }
    }
}

/// The flags of a command line that ask for a GPU, with their values.
fn gpu_flags(typed: &[OsString]) -> Vec<String> {
    let words: Vec<&str> = (typed.iter())
        .map_while(|word| Some(word.to_str().unwrap_or_default()).filter(|&word| word != "--"))
        .collect();
    let flag = |idx: usize| {
        let (name, value) = match words[idx].split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (words[idx], words.get(idx + 1).copied()),
        };
        match name {
            "-cmoe" | "--cpu-moe" => Some(name.to_owned()),
            "-dev" | "--device" | "-ngl" | "--gpu-layers" | "--n-gpu-layers" if value == Some("auto") => None,
            "-dev" | "--device" | "-ngl" | "--gpu-layers" | "--n-gpu-layers" | "-ncmoe" | "--n-cpu-moe"
            | "--place" | "--gpu-batch" => Some(format!("{name} {}", value?)),
            _ => None,
        }
    };
    (0..words.len()).filter_map(flag).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_ask_for_a_gpu_are_named_as_typed() {
        let check = |line: &str, expected: &[&str]| {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(gpu_flags(&typed), expected, "{line}");
        };
        check("tokenmill run x y --device cuda", &["--device cuda"]);
        check("tokenmill run x y -ngl=99 --device auto", &["-ngl 99"]);
        check(
            "tokenmill run x y -cmoe --device cuda:1 -ngl auto",
            &["-cmoe", "--device cuda:1"],
        );
        check("tokenmill run x y --gpu-batch auto", &["--gpu-batch auto"]);
        check("tokenmill run x -n 2 -- --device cuda", &[]);
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_hidden_gpu_is_told_from_a_missing_one() {
        use tokenmill_cuda_exec::CudaExecError;

        let failure = |source: CudaExecError, visible: Option<&str>| {
            let source = Box::new(source);
            let error = Error::Gpu(BackendError::Unavailable { source });
            Failure::work("x").hint("y").of_gpu(&error, visible)
        };
        let no_device = || CudaExecError::NoDevice {
            reason: "none".to_owned(),
        };
        let check = |failure: &Failure, hint: &str, lacks_gpu: bool| {
            assert!(failure.line().contains(hint), "{}", failure.line());
            assert_eq!(failure.lacks_gpu, lacks_gpu, "{}", failure.line());
        };
        check(&failure(no_device(), Some("")), "is empty", false);
        check(&failure(no_device(), Some("3")), "`3`", false);
        check(&failure(no_device(), None), "(hint: y)", true);
        check(&failure(CudaExecError::NoDriver, Some("")), "(hint: y)", true);
    }
}
