//! [`AllReduce`]: how GPUs that compute a model together sum their results.
//!
//! A build without CUDA names it too.

use std::str::FromStr;

/// How GPUs that compute a model together sum their partial results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllReduce {
    /// By NCCL where the machine has it and it joins the GPUs, else in the host's memory. With
    /// [`is_batch_invariant`](crate::gpu::GpuOptions::is_batch_invariant) in the host's memory: in which order NCCL adds may depend on the batch.
    #[default]
    Auto,
    /// By NCCL, or the load is refused.
    Nccl,
    /// In the host's memory.
    Host,
}

/// The error for a text that names no way to add up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not an all-reduce method; use `auto`, `nccl` or `host`")]
pub struct AllReduceError {
    found: String,
}

impl FromStr for AllReduce {
    type Err = AllReduceError;

    fn from_str(text: &str) -> Result<Self, AllReduceError> {
        match text {
            "auto" => Ok(Self::Auto),
            "nccl" => Ok(Self::Nccl),
            "host" => Ok(Self::Host),
            _ => Err(AllReduceError {
                found: text.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_named() {
        assert_eq!("nccl".parse(), Ok(AllReduce::Nccl));
        assert_eq!("auto".parse(), Ok(AllReduce::default()));
        let error = "ring".parse::<AllReduce>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`ring` is not an all-reduce method; use `auto`, `nccl` or `host`"
        );
    }
}
