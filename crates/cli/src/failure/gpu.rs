//! GPUs that cannot be used.
//!
//! Separate because what to do depends on what hides a GPU and on what was asked for.

use std::ffi::OsString;

use tokenmill::Error;
use tokenmill_backend::BackendError;

use super::Failure;

/// A number of layers asks for a GPU as `--device cuda` does.
const HOW_TO_USE_THE_CPU: &str = "without `--device`, `-ngl` and other flags that ask for a GPU, the CPU computes where no GPU can be used";

impl Failure {
    /// Creates the failure of a load on `n_gpus` GPUs together, for which no device is chosen automatically.
    pub(crate) fn of_group(error: Error, n_gpus: usize) -> Self {
        let is_unusable = matches!(
            error,
            Error::Gpu(
                BackendError::Unavailable { .. }
                    | BackendError::Unsupported { .. }
                    | BackendError::UnsupportedType { .. }
            )
        );
        let failure = Self::from(error);
        if n_gpus > 1 && is_unusable && failure.what_to_do().is_none_or(|hint| hint == HOW_TO_USE_THE_CPU) {
            return failure.hint("leave `--tensor-parallel-size` out to compute on the CPU");
        }
        failure
    }

    /// Names the flags that asked for a GPU, where the hint speaks of them.
    pub(crate) fn naming_gpu_flags(self, typed: &[OsString]) -> Self {
        let flags = gpu_flags(typed);
        let (asks, them) = match &flags[..] {
            [] => return self,
            [_] => ("asks", "it"),
            _ => ("ask", "them"),
        };
        if self.what_to_do() != Some(HOW_TO_USE_THE_CPU) {
            return self;
        }
        let flags = flags.join("` and `");
        self.hint(format!(
            "`{flags}` {asks} for a GPU; without {them} the CPU computes where no GPU can be used"
        ))
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

/// Returns the hint for a GPU that cannot be used, if its message gives none. `visible` is the variable that
/// hides GPUs.
pub(super) fn gpu_hint(reason: &BackendError, visible: Option<&str>) -> Option<String> {
    match (reason, visible) {
        (BackendError::Unavailable { source }, Some(visible)) if may_be_hidden(&**source) => {
            Some(match visible {
                "" => "CUDA_VISIBLE_DEVICES is empty, which hides every GPU; unset it".to_owned(),
                _ => format!("CUDA_VISIBLE_DEVICES is `{visible}`, which hides every other GPU"),
            })
        }
        (BackendError::DoesNotFit { .. }, _) => {
            Some(
                "`-ngl auto` puts what fits on it, a smaller context is `-c N`, and `--device cpu` uses the machine's memory"
                    .to_owned(),
            )
        }
        (
            BackendError::Unavailable { .. }
            | BackendError::Unsupported { .. }
            | BackendError::UnsupportedType { .. },
            _,
        ) => Some(HOW_TO_USE_THE_CPU.to_owned()),
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
            assert_eq!(hint, HOW_TO_USE_THE_CPU);
        }
    }
}
