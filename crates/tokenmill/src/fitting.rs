//! [`LoadOptions::fitted`] computes how many contexts the KV cache can hold in the free memory.
//!
//! The load only follows the options. Invariant: a load with the computed number needs no more memory than is
//! free now; a load of one context that does not fit reports the missing memory itself.

use tokenmill_backend::{BackendError, MemoryPlan};
use tokenmill_model::Model as Network;

use crate::{
    Device, Error, KvCache, LoadOptions,
    compute::Compute,
    device::check_load,
    gpu::has_gpu_driver,
    machine_memory::{available_bytes, machine_bytes},
};

impl LoadOptions {
    /// Replaces [`KvCache::Fitting`] by the number of contexts that fit into memory.
    ///
    /// # Errors
    /// Returns the errors of [`Self::network_options`], and threads that cannot be started.
    pub fn fitted(&self, network: &Network) -> Result<Self, Error> {
        let KvCache::Fitting(most) = self.kv_cache else {
            return Ok(self.clone());
        };
        let with = |n_contexts| Self {
            kv_cache: KvCache::Contexts(n_contexts),
            ..self.clone()
        };
        for n_contexts in (2..=most).rev() {
            let options = with(n_contexts);
            if options.fits(network)? {
                return Ok(options);
            }
        }
        Ok(with(1))
    }

    /// Says whether a load fits into memory, by the headers of the files. The load itself reports other faults.
    fn fits(&self, network: &Network) -> Result<bool, Error> {
        let options = self.network_options(network.descriptor())?;
        let ordinal = match self.compute.device {
            Device::Cpu => None,
            Device::Cuda { ordinal } => Some(ordinal),
            Device::Auto => has_gpu_driver().then_some(0),
        };
        if let Some(ordinal) = ordinal {
            let compute = Compute {
                device: Device::Cuda { ordinal },
                ..self.compute.clone()
            };
            match check_load(network, &options, &compute) {
                Ok(()) => return Ok(true),
                Err(Error::Gpu(BackendError::DoesNotFit { .. })) => return Ok(false),
                // The CPU computes.
                Err(_) => {}
            }
        }
        let backend = self.compute.cpu_backend()?;
        let plan = network.plan(&backend, &options);
        Ok(plan.is_ok_and(|plan| is_there(&plan, machine_bytes(), available_bytes())))
    }
}

/// Says whether the memory of a plan is free.
fn is_there(plan: &MemoryPlan, machine_bytes: Option<u64>, available_bytes: Option<u64>) -> bool {
    let needed_bytes = plan.total_bytes() as u64;
    [machine_bytes, available_bytes]
        .into_iter()
        .flatten()
        .all(|n_bytes| needed_bytes <= n_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, model_source::ModelSource};

    #[test]
    fn contexts_that_no_machine_has_memory_for_are_one() {
        let source = ModelSource::find("demo").expect("it is built in");
        let options = Model::options().threads(1).device(Device::Cpu);
        let contexts = |n_ctx: usize| {
            let options = LoadOptions {
                kv_cache: KvCache::Fitting(4),
                ..options.clone().context(n_ctx)
            };
            let network = options.open_network(&source).expect("it opens");
            options.fitted(&network).expect("it can be planned").kv_cache
        };
        assert_eq!(contexts(64), KvCache::Contexts(4));
        // Some petabytes.
        assert_eq!(contexts(1 << 40), KvCache::Contexts(1));
    }

    #[test]
    fn a_plan_fits_where_nothing_is_smaller() {
        let plan = MemoryPlan {
            weights_bytes: 60,
            kv_bytes: 40,
            ..MemoryPlan::default()
        };
        assert!(is_there(&plan, None, None));
        assert!(is_there(&plan, Some(100), Some(100)));
        assert!(!is_there(&plan, Some(99), None));
        assert!(!is_there(&plan, Some(200), Some(99)));
    }
}
