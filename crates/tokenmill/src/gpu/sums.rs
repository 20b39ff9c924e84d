//! The choice of how GPUs that compute a model together sum their results.
//!
//! The load is the same either way. Invariant: the choice is made once, before anything is planned, since
//! NCCL takes memory of the GPUs; if it falls on the host although NCCL was not excluded, the reason is kept.

use tokenmill_backend::{BackendError, HostGroup};
use tokenmill_cuda_exec::{CudaExecError, Device, NcclApi, NcclRank};

use crate::{Error, compute::Compute, gpu::AllReduce};

/// How the GPUs of a group will add up.
pub(super) enum Sums {
    Nccl(Vec<NcclRank>),
    /// With the reason, where NCCL was not excluded.
    Host(Option<String>),
}

/// Chooses how GPUs add up, and joins them where that is by NCCL.
pub(super) fn choose(
    compute: &Compute,
    devices: &[Device],
    group: &HostGroup,
    nccl: impl FnOnce() -> Result<NcclApi, CudaExecError>,
) -> Result<Sums, Error> {
    let is_invariant = compute.gpu.is_batch_invariant;
    let join = || NcclRank::join(&nccl()?, devices, group);
    match compute.all_reduce {
        AllReduce::Host => Ok(Sums::Host(None)),
        AllReduce::Auto if is_invariant => Ok(Sums::Host(Some(
            "results are not to depend on the batch, and the order in which NCCL adds may".to_owned(),
        ))),
        AllReduce::Nccl if is_invariant => Err(contradiction()),
        AllReduce::Auto => Ok(join().map_or_else(|error| Sums::Host(Some(error.to_string())), Sums::Nccl)),
        AllReduce::Nccl => join().map(Sums::Nccl).map_err(unavailable),
    }
}

/// Makes the refusals of [`choose`] that come before it joins the GPUs, and returns whether the GPUs may sum by NCCL.
pub(super) fn check(
    compute: &Compute,
    nccl: impl FnOnce() -> Result<NcclApi, CudaExecError>,
) -> Result<bool, Error> {
    match (compute.all_reduce, compute.gpu.is_batch_invariant) {
        (AllReduce::Host, _) | (AllReduce::Auto, true) => Ok(false),
        (AllReduce::Nccl, true) => Err(contradiction()),
        (AllReduce::Auto, false) => Ok(nccl().is_ok()),
        (AllReduce::Nccl, false) => nccl().map(|_| true).map_err(unavailable),
    }
}

fn contradiction() -> Error {
    Error::Gpu(BackendError::Unsupported {
        feature: "results by NCCL that do not depend on the batch".to_owned(),
        device: "CUDA",
    })
}

fn unavailable(error: CudaExecError) -> Error {
    Error::Gpu(BackendError::Unavailable {
        source: Box::new(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the choice, and asserts that [`check`] reports the same refusal.
    fn chosen(all_reduce: AllReduce, is_batch_invariant: bool) -> Result<Sums, Error> {
        let mut compute = Compute {
            all_reduce,
            ..Compute::default()
        };
        compute.gpu.is_batch_invariant = is_batch_invariant;
        let nccl = || {
            Err(CudaExecError::Failed {
                operation: "loading NCCL",
                reason: "it is not there".to_owned(),
            })
        };
        let chosen = choose(&compute, &[], &HostGroup::new(1), nccl);
        match (check(&compute, nccl), &chosen) {
            (Ok(may_be_nccl), Ok(Sums::Host(_))) => assert!(!may_be_nccl),
            (Err(checked), Err(error)) => assert_eq!(checked.to_string(), error.to_string()),
            (checked, _) => panic!("{checked:?}"),
        }
        chosen
    }

    #[test]
    fn without_nccl_the_host_adds_up_where_it_may() {
        let Ok(Sums::Host(Some(reason))) = chosen(AllReduce::Auto, false) else {
            panic!("the host may")
        };
        assert_eq!(reason, "loading NCCL failed: it is not there");
        assert!(matches!(chosen(AllReduce::Host, false), Ok(Sums::Host(None))));
        let error = chosen(AllReduce::Nccl, false).err().expect("NCCL or nothing");
        assert_eq!(
            error.to_string(),
            "the GPU cannot be used: loading NCCL failed: it is not there"
        );
    }

    #[test]
    fn results_that_do_not_depend_on_the_batch_are_not_left_to_nccl() {
        assert!(matches!(chosen(AllReduce::Auto, true), Ok(Sums::Host(Some(_)))));
        let error = chosen(AllReduce::Nccl, true).err().expect("a contradiction");
        assert!(
            error.to_string().contains("do not depend on the batch"),
            "{error}"
        );
    }
}
