//! [`VisionTower`]: a loaded encoder of images: pixels in, rows for a model out.
//!
//! Separate from its file, which may be described without loading it. Invariant: an image's rows depend on its pixels alone, to
//! the bit, as everything does that the backend computes.

use tokenmill_backend::{
    Backend, BackendError, Executor, ForwardBatch, KvType, Linear, Memory, MemoryPlan, NormKind, PAGE_TOKENS,
    StepError, StepOutput, TokenSource,
};

use crate::{
    AttentionDescriptor, DenseDescriptor, Descriptor, FfnDescriptor, GateUpOrder, LayerDescriptor, LoadError,
    MixerDescriptor, ModelExecutor, ModelOptions, NormDescriptor, NormPlacement, OutputHead, Presence,
    Residual,
    loader::Loader,
    model::{build, plan},
};

use super::{
    VisionShape,
    gemma3::{self, Projector},
    tensors::TowerTensors,
};

/// A loaded encoder of images.
pub struct VisionTower<B: Backend> {
    shape: VisionShape,
    /// Makes an input of each patch, `[patch values, n_vision]`.
    patches: Linear<B::Matrix, B::Vector>,
    executor: ModelExecutor<B>,
    projector: Projector<B>,
    output: StepOutput,
}

/// Why an image could not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VisionError {
    /// The pixels are not those of an image of the right size.
    #[error("the image has {found} values, expected {expected}")]
    WrongSize {
        /// Values that the encoder takes.
        expected: usize,
        /// Values there are.
        found: usize,
    },
    /// A step of the tower failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// An operation around it failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl<B: Backend + Memory<Buffer = Vec<f32>>> VisionTower<B> {
    pub(super) fn load(
        source: &TowerTensors<'_>,
        shape: &VisionShape,
        backend: B,
    ) -> Result<Self, LoadError> {
        let descriptor = describe(shape);
        let mut executor = build(&descriptor, source, backend, &options_of(shape), &mut |_| {})?;
        let mut on_progress = |_| {};
        let n_ctx = shape.n_patches();
        let mut loader = Loader::new(
            &descriptor,
            source,
            n_ctx,
            executor.backend_mut(),
            &mut on_progress,
        );
        let n_values = 3 * shape.patch_size * shape.patch_size;
        let patches = loader.linear("v.patch_embd", shape.n_vision, n_values, Presence::Optional)?;
        let projector = Projector::load(shape, &mut loader)?;
        Ok(Self {
            shape: shape.clone(),
            patches,
            executor,
            projector,
            output: StepOutput::default(),
        })
    }

    /// What it takes and gives.
    pub fn shape(&self) -> &VisionShape {
        &self.shape
    }

    /// Makes the rows of an image, `[n_rows, n_embd]`, of its pixels: rows of three channels, with mean and deviation taken out,
    /// `pixels: [image_size, image_size, 3]`.
    ///
    /// # Errors
    /// [`VisionError`]: an image of another size, or a failed step.
    pub fn encode(&mut self, pixels: &[f32]) -> Result<Vec<f32>, VisionError> {
        let shape = &self.shape;
        if pixels.len() != shape.n_values() {
            return Err(VisionError::WrongSize {
                expected: shape.n_values(),
                found: pixels.len(),
            });
        }
        let n_patches = shape.n_patches();
        let patches = patches_of(pixels, shape);
        let mut inputs = vec![0.0; n_patches * shape.n_vision];
        let backend = self.executor.backend_mut();
        backend.linear(&self.patches, &patches, n_patches, &mut inputs)?;
        drop(patches);
        let mut batch = ForwardBatch::default();
        let pages: Vec<u32> = (0..n_patches.div_ceil(PAGE_TOKENS) as u32).collect();
        let rows = 0..n_patches as u32;
        batch.push_sequence(rows.clone().map(TokenSource::Row), 0, &pages);
        batch.input_rows = inputs;
        batch.see_each_other(rows.clone());
        batch.hidden_rows.extend(rows);
        let ticket = self.executor.submit(&batch)?;
        drop(batch);
        self.output.clear();
        self.executor.wait(ticket, &mut self.output)?;
        Ok(self
            .projector
            .run(self.executor.backend_mut(), &self.output.hidden)?)
    }
}

/// What the layers of a tower will take; what stands before and behind them is not a part of it.
pub(super) fn plan_of<B: Backend>(
    source: &TowerTensors<'_>,
    shape: &VisionShape,
    backend: &B,
) -> Result<MemoryPlan, LoadError> {
    plan(&describe(shape), source, backend, &options_of(shape))
}

/// How the layers of a tower are loaded: for one image at a time.
fn options_of(shape: &VisionShape) -> ModelOptions {
    let n_patches = shape.n_patches();
    ModelOptions {
        n_ctx: Some(n_patches),
        max_batch_tokens: n_patches,
        max_batch_seqs: 1,
        max_logit_rows: 1,
        n_pages: Some(n_patches.div_ceil(PAGE_TOKENS)),
        // Keys and values live for one step only, and nothing is gained by rounding them.
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// The tower as a network: its inputs are rows, and it predicts nothing.
fn describe(shape: &VisionShape) -> Descriptor {
    let head_dim = shape.n_vision / shape.n_heads;
    let layer = LayerDescriptor {
        mixer: MixerDescriptor::Attention(AttentionDescriptor {
            n_heads: shape.n_heads,
            n_kv_heads: shape.n_heads,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            rope: None,
            // The step says that its rows see each other.
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: None,
            has_sinks: false,
            alibi: None,
            temperature: None,
            qk_norm: None,
            is_normed_after_rope: false,
            takes_keys_as_values: false,
            has_v_norm: false,
            shares_kv_of: None,
            output_gate: None,
            qkv_bias: Presence::Required,
            output_bias: Presence::Required,
        }),
        ffn: FfnDescriptor::Dense(DenseDescriptor {
            n_ff: shape.n_ff,
            activation: gemma3::ACTIVATION,
            xielu: None,
            cutoff: None,
            is_gated: false,
            joined: GateUpOrder::GateFirst,
            bias: Presence::Required,
        }),
        norms: NormPlacement::Pre,
        residual: Residual::Sequential,
        has_output_scale: false,
    };
    Descriptor {
        arch: format!("clip ({})", shape.family.name()),
        n_vocab: 1,
        n_embd: shape.n_vision,
        n_ctx_train: shape.n_patches(),
        embedding_scale: 1.0,
        reads_hidden: false,
        token_types: Presence::Absent,
        n_learned_positions: Some(shape.n_patches()),
        embedding_norm: None,
        norm: NormDescriptor {
            kind: NormKind::Layer,
            eps: shape.eps,
            bias: Presence::Required,
        },
        post_norm_eps: None,
        layer_embeddings: None,
        alt_up: None,
        ropes: Vec::new(),
        layers: vec![layer; shape.n_layers],
        tensor_names: &[],
        residual_scale: 1.0,
        has_output_norm: true,
        pooling: None,
        head: OutputHead::None,
        head_bias: Presence::Absent,
        logit_scale: 1.0,
        logit_softcap: None,
        row_factors: Vec::new(),
        control: Vec::new(),
        ignorable: Vec::new(),
    }
}

/// The patches of an image, row after row: each the values of its first channel, then those of the others.
fn patches_of(pixels: &[f32], shape: &VisionShape) -> Vec<f32> {
    let (size, patch) = (shape.image_size, shape.patch_size);
    let n_side = shape.n_side();
    let mut patches = Vec::with_capacity(pixels.len());
    for first in 0..n_side * n_side {
        let (top, left) = (first / n_side * patch, first % n_side * patch);
        for channel in 0..3 {
            for y in top..top + patch {
                let row = &pixels[3 * (y * size + left)..][..3 * patch];
                patches.extend(row.iter().skip(channel).step_by(3));
            }
        }
    }
    patches
}
