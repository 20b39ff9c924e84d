//! The load: the workspace, the upload of weights, the KV store, and the sizes of all of them in advance.
//!
//! Nothing here runs after the load. Invariant: the planned sizes equal the allocations to the byte, so that a plan can be printed and
//! checked first.

use tokenmill_backend::{
    Backend, BackendError, ExecutorLimits, KvLayerShape, KvLayout, KvStores, MatrixData, MemoryPlan,
    NetworkShape, PAGE_TOKENS, StateLayout,
};

use super::{
    CudaBackend, CudaBuffer, HiddenInputs, PickedLayout, Results, StepInputs, Workspace,
    buffer::MAX_TWIN_WIDTH, input_rows::InputRows, planned::use_of,
};

/// Bounds of the driver's reserve, the memory for its modules, graphs and the local memory of kernels: a sixteenth of the GPU's memory,
/// within these bounds. This is an estimate that no GPU has confirmed.
const DRIVER_BYTES: [u64; 2] = [128 << 20, 512 << 20];

/// Returns the driver's reserve on a GPU with this much memory.
fn driver_bytes(total_bytes: u64) -> u64 {
    (total_bytes / 16).clamp(DRIVER_BYTES[0], DRIVER_BYTES[1])
}

impl CudaBackend {
    /// Returns the bytes of device memory that a plan may take now.
    ///
    /// # Errors
    /// The driver's.
    pub fn room_bytes(&self) -> Result<u64, crate::CudaExecError> {
        Ok(self.device.free_bytes()?.saturating_sub(self.left_to_driver()?))
    }

    /// Returns the unclaimed part of the driver's reserve. The driver took a part when the first model was loaded; later models do not pay
    /// for it again.
    fn left_to_driver(&self) -> Result<u64, crate::CudaExecError> {
        let driver_bytes = driver_bytes(self.device.info().total_bytes);
        Ok(driver_bytes.saturating_sub(self.device.taken_by_driver()?))
    }

    /// Allocates the planned memory in one piece, and makes everything that steps need besides weights, activations and KV.
    pub(super) fn make_workspace(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        self.epoch += 1;
        self.device
            .reserve("the model", self.check_fit(limits.n_pages, plan)?)?;
        self.make_sums(limits)?;
        self.ops.allow_splits()?;
        (self.ops).allow_halves(limits.max_batch_tokens, widest_input(network))?;
        let attention = attention_needs(network, limits);
        let device = &self.device;
        self.workspace = Some(Workspace {
            inputs: StepInputs::new(device, limits)?,
            results: Results::new(device, limits)?,
            attention: crate::AttentionScratch::new(
                device,
                limits.max_batch_tokens,
                limits.max_batch_seqs,
                attention,
            )?,
            argmax: crate::ArgmaxScratch::new(device, limits.max_logit_rows, limits.n_vocab)?,
            picked: device.upload("sampling", &vec![0; PickedLayout::new(limits).n_words()])?,
            picked_layout: PickedLayout::new(limits),
            previous: device.alloc("sampling", limits.max_logit_rows)?,
            sampling: crate::SampleScratch::new(device, limits.max_logit_rows, limits.n_vocab)?,
            hidden: if network.reads_hidden {
                Some(HiddenInputs::new(device, limits)?)
            } else {
                None
            },
            input_rows: InputRows::default(),
        });
        Ok(())
    }

    /// Checks that the memory for a plan with `n_pages` pages is available; returns its size without the
    /// parts that are loaded later.
    ///
    /// # Errors
    /// [`BackendError::DoesNotFit`], and the driver's.
    pub fn check_fit(&self, n_pages: usize, plan: &MemoryPlan) -> Result<usize, BackendError> {
        let needed_bytes = plan.device_bytes();
        // The driver keeps modules in the same memory.
        self.planned.load(&self.device)?;
        let free_bytes = self.device.free_bytes()?;
        // A plan whose size overflows is `usize::MAX`.
        let driver_bytes = self.left_to_driver()?;
        let with_driver = |n_bytes: usize| (n_bytes as u64).saturating_add(driver_bytes);
        if with_driver(needed_bytes) <= free_bytes {
            return Ok(needed_bytes - plan.adapters_bytes);
        }
        let without_kv = needed_bytes - plan.kv_page_bytes * n_pages;
        let room = free_bytes.saturating_sub(with_driver(without_kv)) as usize;
        Err(BackendError::DoesNotFit {
            needed_bytes: with_driver(needed_bytes),
            free_bytes,
            weights_bytes: plan.weights_bytes as u64,
            states_bytes: plan.states_bytes as u64,
            kv_tokens: n_pages * PAGE_TOKENS,
            fitting_kv_tokens: room / plan.kv_page_bytes.max(1) * PAGE_TOKENS,
        })
    }

    /// Returns the device memory of the workspace.
    pub(super) fn size_of_workspace(&self, network: &NetworkShape, limits: &ExecutorLimits) -> usize {
        let attention = attention_needs(network, limits);
        let hidden = if network.reads_hidden {
            HiddenInputs::device_bytes(limits)
        } else {
            0
        };
        StepInputs::device_bytes(limits)
            + hidden
            + self.ops.split_bytes()
            + (self.ops).halves_bytes(limits.max_batch_tokens, widest_input(network))
            + crate::AttentionScratch::device_bytes(limits.max_batch_tokens, limits.max_batch_seqs, attention)
            + crate::ArgmaxScratch::device_bytes(limits.max_logit_rows, limits.n_vocab)
            + crate::buffer_bytes::<u32>(PickedLayout::new(limits).n_words())
            + crate::buffer_bytes::<u32>(limits.max_logit_rows)
            + crate::SampleScratch::device_bytes(limits.max_logit_rows, limits.n_vocab)
    }

    pub(super) fn load_matrix(&mut self, data: &MatrixData<'_>) -> Result<crate::Matrix, BackendError> {
        let usage = use_of(data.usage);
        if usage.is_factor && !self.factor_types.contains(&data.ty) {
            // All modules are loaded with the weights, since a capture can load none.
            for &other in &self.factor_types {
                self.ops.load_pair([other, data.ty])?;
                self.ops.load_pair([data.ty, other])?;
            }
            self.factor_types.push(data.ty);
        }
        let matrix = (self.uploader)
            .upload(data.ty, [data.n_out, data.n_in], data.bytes, usage)
            .map_err(|error| match error {
                crate::CudaExecError::Layout(crate::LayoutError::UnsupportedType { ty }) => {
                    BackendError::UnsupportedType {
                        tensor: data.name.to_owned(),
                        ty,
                        device: Self::NAME,
                    }
                }
                crate::CudaExecError::ReadWeights { reason } => BackendError::ReadTensor {
                    tensor: data.name.to_owned(),
                    source: reason.into(),
                },
                other => other.into(),
            })?;
        if usage.is_of_experts && !matrix.takes_quantized_input() {
            self.ops.expect_float_experts();
        }
        Ok(matrix)
    }

    pub(super) fn make_buffer(&mut self, max_rows: usize, width: usize) -> Result<CudaBuffer, BackendError> {
        self.epoch += 1;
        Ok(CudaBuffer::new(&self.device, max_rows, width)?)
    }

    pub(super) fn make_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<crate::DeviceRoutes, BackendError> {
        self.epoch += 1;
        Ok(crate::DeviceRoutes::new(
            &self.device,
            max_rows,
            n_experts,
            n_used,
        )?)
    }

    pub(super) fn make_kv_store(&mut self, layout: &KvLayout) -> Result<(), BackendError> {
        // The weights are complete when the KV store is allocated.
        self.uploader.finish()?;
        self.epoch += 1;
        self.kv_heads.clone_from(&layout.layers);
        let device = &self.device;
        let kv = KvStores::new(layout, |layout| crate::KvStore::new(device, &layout))?;
        for (_, store) in kv.iter() {
            let types = store.types();
            self.ops.load_store(types)?;
            // Compiling the kernels for runs takes a while, and latent rows and the widest heads do not use them.
            let attends_by_runs = |shape: KvLayerShape| {
                let dim = shape.head_dim_k.max(shape.head_dim_v);
                !shape.has_values_in_keys && crate::PrefillTiles::of(types, dim).is_some()
            };
            if store.shapes().any(attends_by_runs) {
                self.ops.load_runs(types)?;
            }
            if store.shapes().any(|shape| crate::Ops::can_share(shape, types)) {
                self.ops.load_shared()?;
            }
        }
        self.kv = Some(kv);
        Ok(())
    }

    pub(super) fn make_states(&mut self, layout: &StateLayout) -> Result<(), BackendError> {
        self.epoch += 1;
        // Before the first step, since a capture can load no kernel.
        self.ops.load_recurrence()?;
        self.states = Some(crate::StateSlots::new(&self.device, layout)?);
        Ok(())
    }
}

/// Checks that the device supports everything that a network needs, so that a load is refused before anything is uploaded.
pub(super) fn check(network: &NetworkShape) -> Result<(), BackendError> {
    for layer in &network.layers {
        if let Some(state) = layer.state {
            crate::StateSlots::check(state)?;
        }
        let Some(heads) = layer.heads else {
            continue;
        };
        crate::ops::check_heads(heads.n_heads)?;
        // Quantized matrices of heads read the quantized form of the rows of all heads.
        let width = heads.n_heads.saturating_mul(heads.widest_input);
        if width > MAX_TWIN_WIDTH {
            return Err(BackendError::Unsupported {
                feature: format!(
                    "matrices of {} heads that read rows of {} values (at most {MAX_TWIN_WIDTH} values together)",
                    heads.n_heads, heads.widest_input
                ),
                device: CudaBackend::NAME,
            });
        }
    }
    Ok(())
}

/// Returns the width of the widest row that a matrix of the network reads.
fn widest_input(network: &NetworkShape) -> usize {
    let widths = network.layers.iter().map(|layer| layer.widest_input);
    widths.fold(network.n_embd, usize::max)
}

/// Returns the scratch memory that the network's attention needs.
fn attention_needs(network: &NetworkShape, limits: &ExecutorLimits) -> crate::ScratchNeeds {
    let layers = (network.layers.iter()).filter_map(|layer| Some((layer.attention?, layer.has_latent_rows)));
    crate::ScratchNeeds::of(layers, limits.n_ctx.div_ceil(PAGE_TOKENS))
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{HeadsShape, LayerShape};

    use super::*;

    #[test]
    fn a_large_gpu_leaves_half_a_gibibyte_to_its_driver() {
        let check = |total_mib: u64, expected_mib: u64| {
            assert_eq!(
                driver_bytes(total_mib << 20) >> 20,
                expected_mib,
                "{total_mib} MiB"
            );
        };
        check(512, 128);
        check(4096, 256);
        check(8192, 512);
        check(80 << 10, 512);
    }

    #[test]
    fn heads_that_a_step_could_not_multiply_are_refused_at_load() {
        let load = |n_heads, widest_input| {
            let layer = LayerShape {
                attention: None,
                heads: Some(HeadsShape {
                    n_heads,
                    widest_input,
                    widest_output: 1,
                }),
                widest_input: 64,
                has_latent_rows: true,
                kv: None,
                state: None,
                experts: None,
            };
            let network = NetworkShape {
                n_embd: 64,
                layers: vec![layer],
                has_streams: false,
                reads_hidden: false,
            };
            check(&network).map_err(|error| error.to_string())
        };
        assert_eq!(load(128, 512), Ok(()));
        assert_eq!(load(65_535, 1), Ok(()));
        let refused = |n_heads, widest_input, expected: &str| {
            let error = load(n_heads, widest_input).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        refused(129, 512, "matrices of 129 heads that read rows of 512 values");
        refused(65_536, 1, "matrices of 65536 heads");
    }
}
