//! Hints about GPUs that cannot be used.
//!
//! They depend on the command line and on the variable that hides GPUs, which the library does not read.

use std::ffi::OsString;

use tokenmill::Error;
use tokenmill_backend::BackendError::{Unavailable, Unsupported, UnsupportedType};
#[cfg(feature = "cuda")]
use tokenmill_cuda_exec::CudaExecError::{NoDevice, NoSuchDevice};

/// Returns the hint about a GPU that cannot be used, if `typed`, the command line, or `visible`, the variable that hides GPUs, has a better
/// one than the library.
pub(super) fn hint(error: &Error, typed: &[OsString], visible: Option<&str>) -> Option<String> {
    let hidden = visible.map(|visible| match visible {
        "" => "CUDA_VISIBLE_DEVICES is empty, which hides every GPU".to_owned(),
        _ => format!("CUDA_VISIBLE_DEVICES is `{visible}`, which hides every other GPU"),
    });
    match (error, hidden) {
        // The driver works but does not show the GPU.
        #[cfg(feature = "cuda")]
        (Error::Gpu(Unavailable { source }), Some(hidden))
            if matches!(source.downcast_ref(), Some(NoDevice { .. } | NoSuchDevice { .. })) =>
        {
            Some(hidden)
        }
        (Error::TooFewGpus { .. }, Some(hidden)) => {
            Some(format!("{hidden}; {}", error.hint()?.for_program()))
        }
        (Error::Gpu(Unavailable { .. } | Unsupported { .. } | UnsupportedType { .. }), _) => {
            without_flags(typed)
        }
        _ => None,
    }
}

/// Says what leaving out the flags that ask for a GPU does.
fn without_flags(typed: &[OsString]) -> Option<String> {
    let words: Vec<&str> = (typed.iter())
        .map_while(|word| Some(word.to_str().unwrap_or_default()).filter(|&word| word != "--"))
        .collect();
    let flag = |idx: usize| {
        let (name, value) = match words[idx].split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (words[idx], words.get(idx + 1).copied()),
        };
        let asks = match name {
            "-cmoe" | "--cpu-moe" => return Some(name.to_owned()),
            "-dev" | "--device" | "-ngl" | "--gpu-layers" | "--n-gpu-layers" => value? != "auto",
            "-tp" | "--tensor-parallel-size" => value? != "1",
            _ => ["-ncmoe", "--n-cpu-moe", "--place", "--gpu-batch"].contains(&name),
        };
        value.filter(|_| asks).map(|value| format!("{name} {value}"))
    };
    let (group, flags): (Vec<String>, Vec<String>) = (0..words.len())
        .filter_map(flag)
        .partition(|flag| flag.starts_with("-tp ") || flag.starts_with("--tensor"));
    let (asks, them) = match (&flags[..], &group[..]) {
        ([], []) => return None,
        ([], _) => return Some("leave `--tensor-parallel-size` out to compute on the CPU".to_owned()),
        ([_], _) => ("asks", "it"),
        _ => ("ask", "them"),
    };
    let flags = flags.join("` and `");
    Some(format!(
        "`{flags}` {asks} for a GPU; without {them} the CPU computes where no GPU can be used"
    ))
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use tokenmill_cuda_exec::CudaExecError::{self, NoDriver};

    use super::*;

    #[test]
    fn flags_that_ask_for_a_gpu_are_named_unless_it_is_hidden() {
        let check = |source: CudaExecError, visible: Option<&str>, line: &str, expected: &str| {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let source = Box::new(source);
            let hint = hint(&Error::Gpu(Unavailable { source }), &typed, visible).unwrap_or_default();
            assert!(hint.starts_with(expected), "{hint}");
            assert_eq!(hint.is_empty(), expected.is_empty(), "{hint}");
        };
        for (line, expected) in [
            ("--device cuda", "`--device cuda` asks for a GPU; without it "),
            ("-ngl=99 --device auto", "`-ngl 99` asks"),
            (
                "-cmoe -dev cuda:1 -ngl auto -tp 2",
                "`-cmoe` and `-dev cuda:1` ask",
            ),
            ("--gpu-batch auto", "`--gpu-batch auto` asks"),
            ("--tensor-parallel-size=2", "leave `--tensor-parallel-size`"),
            ("-tp 1 -- --device cuda", ""),
        ] {
            check(NoDriver, Some(""), line, expected);
        }
        let unseen = || NoDevice {
            reason: String::new(),
        };
        check(unseen(), Some(""), "-ngl 9", "CUDA_VISIBLE_DEVICES is empty");
        check(unseen(), Some("3"), "-ngl 9", "CUDA_VISIBLE_DEVICES is `3`");
        check(unseen(), None, "-ngl 9", "`-ngl 9` asks");
    }
}
