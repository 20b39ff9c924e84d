//! [`VisionTower`]: a loaded image encoder: pixels in, rows for a model out.
//!
//! A file can be described without loading it. Invariant: an image's rows depend on its pixels alone, bit for
//! bit, like everything that the device computes.

use tokenmill_backend::{
    Activation, BackendError, Executor, ForwardBatch, KvType, Linear, MatrixUsage, Measure, MemoryPlan,
    NormKind, PAGE_TOKENS, RopeAxes, RopeStyle, Side, StepError, StepOutput, TokenSource, Weigh,
    program::{HostRows, LinearId, ProgramDevice, WeightStore, Weights},
};

use crate::{
    AttentionDescriptor, Descriptor, LayerDescriptor, LoadError, ModelExecutor, ModelOptions, NormDescriptor,
    OutputHead, Presence, RopeDescriptor, RopeScaling, TowerDescriptor, WeightSource as _, loader::Loader,
    model::build, plan::plan,
};

use super::{
    ImageGrid, VisionFamily, VisionShape, gemma3,
    qwen::{self, PatchOrder},
    tensors::TowerTensors,
};

/// A loaded image encoder.
pub struct VisionTower {
    shape: VisionShape,
    around: Around,
    executor: ModelExecutor,
    output: StepOutput,
}

/// The weights before and after the layers.
struct Around {
    /// Matrices that compute an input from each patch, `[patch values, n_vision]`: one per frame. A still
    /// image counts as two equal frames.
    frames: Vec<LinearId>,
    projector: Projector,
}

/// The projector after a tower.
enum Projector {
    Gemma3(gemma3::Projector),
    Qwen(qwen::Projector),
}

/// The reason why an image could not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VisionError {
    /// The number of pixels does not match the grid.
    #[error("the image has {found} values, expected {expected}")]
    WrongSize {
        /// Number of values that the encoder needs.
        expected: usize,
        /// Number of values given.
        found: usize,
    },
    /// A step of the tower failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// An operation outside the tower failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Around {
    /// Stores the weights after those of the layers.
    fn load(
        descriptor: &Descriptor,
        source: &TowerTensors<'_>,
        shape: &VisionShape,
        store: &mut dyn WeightStore,
        of_layers: &Weights,
    ) -> Result<Self, LoadError> {
        let mut on_progress = |_| {};
        let n_ctx = shape.max_patches();
        let mut loader = Loader::new(descriptor, source, n_ctx, store, &mut on_progress);
        loader.weights = of_layers.clone();
        let n_values = shape.patch_values();
        let mut frames = vec![loader.linear("v.patch_embd", shape.n_vision, n_values, Presence::Optional)?];
        if source.contains(SECOND_FRAME) {
            frames.push(Linear {
                matrix: loader.matrix(SECOND_FRAME, shape.n_vision, n_values, MatrixUsage::Linear)?,
                bias: None,
                n_out: shape.n_vision,
                n_in: n_values,
                adapter_place: None,
            });
        }
        let projector = match shape.family {
            VisionFamily::Gemma3 => Projector::Gemma3(gemma3::Projector::load(shape, &mut loader)?),
            VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl | VisionFamily::Qwen3Vl => {
                Projector::Qwen(qwen::Projector::load(shape, &mut loader)?)
            }
        };
        Ok(Self { frames, projector })
    }
}

impl VisionTower {
    pub(super) fn load(
        source: &TowerTensors<'_>,
        shape: &VisionShape,
        mut device: Box<dyn ProgramDevice>,
    ) -> Result<Self, LoadError> {
        // Refused before anything is loaded.
        host_rows(&mut *device)?;
        let descriptor = describe(shape);
        let mut executor = build(&descriptor, source, device, &options_of(shape), &mut |_| {})?;
        let ModelExecutor { device, network, .. } = &mut executor;
        let around = Around::load(&descriptor, source, shape, device.weights(), &network.weights)?;
        Ok(Self {
            shape: shape.clone(),
            around,
            executor,
            output: StepOutput::default(),
        })
    }

    /// Returns the encoder's input and output sizes.
    pub fn shape(&self) -> &VisionShape {
        &self.shape
    }

    /// Computes the rows of an image, `[grid.n_rows(), row_width]`, from its pixels at the grid's size:
    /// `pixels: [height, width, 3]`, normalized by mean and deviation.
    ///
    /// # Errors
    /// [`VisionError`], if the image has another size or a step failed.
    pub fn encode(&mut self, pixels: &[f32], grid: &ImageGrid) -> Result<Vec<f32>, VisionError> {
        let shape = &self.shape;
        let expected = 3 * grid.width * grid.height;
        if pixels.len() != expected || grid.n_rows() > shape.size.max_rows() {
            return Err(VisionError::WrongSize {
                expected,
                found: pixels.len(),
            });
        }
        let order = match shape.family {
            VisionFamily::Gemma3 => PatchOrder::by_rows(shape, grid),
            VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl | VisionFamily::Qwen3Vl => {
                PatchOrder::of(shape, grid)
            }
        };
        let inputs = self.inputs(pixels, grid, &order)?;
        let n_patches = order.patches.len() as u32;
        let mut batch = ForwardBatch::default();
        let pages: Vec<u32> = (0..n_patches.div_ceil(PAGE_TOKENS as u32)).collect();
        let rows = 0..n_patches;
        batch.push_sequence(rows.clone().map(TokenSource::Row), 0, &pages);
        batch.input_rows = inputs;
        batch.input_width = self.shape.n_vision;
        batch.see_each_other(rows.clone());
        if self.shape.family.has_plane() {
            batch.turn_by(|patch| {
                let [row, column] = order.patches[patch as usize];
                [0, row, column]
            });
        }
        batch.window_seen.clone_from(&order.windows);
        batch.hidden_rows.extend(rows);
        let ticket = self.executor.submit(&batch)?;
        drop(batch);
        self.output.clear();
        self.executor.wait(ticket, &mut self.output)?;
        let hidden = &self.output.hidden;
        let device = host_rows(&mut *self.executor.device)?;
        Ok(match &self.around.projector {
            Projector::Gemma3(projector) => projector.run(device, grid, hidden)?,
            Projector::Qwen(projector) => projector.run(device, &order, hidden)?,
        })
    }

    /// Computes the inputs of the layers, `[n_patches, n_vision]`.
    fn inputs(
        &mut self,
        pixels: &[f32],
        grid: &ImageGrid,
        order: &PatchOrder,
    ) -> Result<Vec<f32>, BackendError> {
        let shape = &self.shape;
        let n_patches = order.patches.len();
        let patches = patches_of(pixels, grid.width, shape.patch_size, &order.patches);
        let mut inputs = vec![0.0; n_patches * shape.n_vision];
        let device = host_rows(&mut *self.executor.device)?;
        let (first, others) = (self.around.frames)
            .split_first()
            .expect("an encoder has a matrix of patches");
        device.linear(*first, &patches, n_patches, &mut inputs)?;
        for frame in others {
            let mut of_frame = vec![0.0; inputs.len()];
            device.linear(*frame, &patches, n_patches, &mut of_frame)?;
            device.add(n_patches, shape.n_vision, &mut inputs, &of_frame)?;
        }
        if let Projector::Qwen(projector) = &self.around.projector {
            projector.add_positions(grid, shape.n_merged, order, &mut inputs);
        }
        Ok(inputs)
    }
}

/// Returns the device's operations on rows of the host.
fn host_rows(device: &mut dyn ProgramDevice) -> Result<&mut dyn HostRows, BackendError> {
    let name = device.weigh().device();
    device.host_rows().ok_or_else(|| BackendError::Unsupported {
        feature: "an image encoder, which needs a backend with rows in the host's memory".to_owned(),
        device: name,
    })
}

/// The matrix of the second of two frames.
const SECOND_FRAME: &str = "v.patch_embd.weight.1";

/// Returns the memory plan of a tower's layers, without the parts before and after them.
pub(super) fn plan_of(
    source: &TowerTensors<'_>,
    shape: &VisionShape,
    backend: &dyn Weigh,
) -> Result<MemoryPlan, LoadError> {
    plan(&describe(shape), source, backend, &options_of(shape))
}

/// Does a dry run of a load, of the layers and of the parts around them.
pub(super) fn check(
    source: &TowerTensors<'_>,
    shape: &VisionShape,
    backend: &dyn Weigh,
) -> Result<(), LoadError> {
    plan_of(source, shape, backend)?;
    let mut memory = Measure::new(backend, Side::Device);
    let around = Around::load(&describe(shape), source, shape, &mut memory, &Weights::default());
    around.map(drop).map_err(|error| error.with_own_name(source))
}

/// Returns the options for loading the layers of a tower: for one image at a time.
fn options_of(shape: &VisionShape) -> ModelOptions {
    let n_patches = shape.max_patches();
    ModelOptions {
        n_ctx: Some(n_patches),
        max_batch_tokens: n_patches,
        max_batch_seqs: 1,
        max_logit_rows: 1,
        n_pages: Some(n_patches.div_ceil(PAGE_TOKENS)),
        // Keys and values live for one step only, so rounding them would gain nothing.
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// Describes the tower as a network: its inputs are rows, and it predicts nothing.
fn describe(shape: &VisionShape) -> Descriptor {
    let is_qwen25 = shape.family == VisionFamily::Qwen25Vl;
    let head_dim = shape.n_vision / shape.n_heads;
    let norm = NormDescriptor {
        kind: if is_qwen25 { NormKind::Rms } else { NormKind::Layer },
        eps: shape.eps,
        bias: if is_qwen25 {
            Presence::Absent
        } else {
            Presence::Required
        },
    };
    let learned = (shape.family == VisionFamily::Gemma3).then(|| shape.max_patches());
    let layers = (0..shape.n_layers).map(|layer_idx| layer_of(shape, layer_idx));
    let sizes = [1, shape.n_vision, shape.max_patches()];
    let mut descriptor = Descriptor::plain(sizes, plane_rope(head_dim), layers.collect());
    descriptor.arch = format!("clip ({})", shape.family.name());
    descriptor.n_learned_positions = learned;
    descriptor.norm = norm;
    if !shape.family.has_plane() {
        descriptor.ropes.clear();
    }
    descriptor.head = OutputHead::None;
    descriptor.tower = Some(TowerDescriptor {
        taps: (shape.qwen.as_ref()).map_or_else(Vec::new, |qwen| qwen.taps.clone()),
    });
    descriptor
}

/// Describes a layer of the tower.
fn layer_of(shape: &VisionShape, layer_idx: usize) -> LayerDescriptor {
    let is_qwen25 = shape.family == VisionFamily::Qwen25Vl;
    let head_dim = shape.n_vision / shape.n_heads;
    let window_period = shape.qwen.as_ref().and_then(|qwen| qwen.window_period);
    let sees_window = window_period.is_some_and(|period| !(layer_idx + 1).is_multiple_of(period));
    // The step itself marks its rows as visible to each other.
    let attention = AttentionDescriptor {
        rope: shape.family.has_plane().then_some(0),
        window: shape.window_patches().filter(|_| sees_window),
        qkv_bias: Presence::Required,
        output_bias: Presence::Required,
        ..AttentionDescriptor::plain(shape.n_heads, shape.n_heads, [head_dim; 2])
    };
    let mut layer = LayerDescriptor::plain(attention, shape.n_ff);
    let dense = layer.dense_mut();
    dense.activation = match shape.family {
        VisionFamily::Gemma3 | VisionFamily::Qwen3Vl => Activation::GeluTanh,
        VisionFamily::Qwen2Vl => Activation::GeluQuick,
        VisionFamily::Qwen25Vl => Activation::Silu,
    };
    dense.is_gated = is_qwen25;
    dense.bias = Presence::Required;
    layer
}

/// Returns a rope that rotates the first half of the pairs by row and the second by column.
fn plane_rope(head_dim: usize) -> RopeDescriptor {
    RopeDescriptor {
        scaling: RopeScaling::Plane,
        axes: RopeAxes::Sections([0, head_dim / 4, head_dim / 4]),
        ..RopeDescriptor::plain(RopeStyle::Neox, head_dim, 10_000.0)
    }
}

/// Returns the patches of an image at some places, concatenated: each with the values of its first channel,
/// then those of the others.
fn patches_of(pixels: &[f32], width: usize, patch: usize, places: &[[u32; 2]]) -> Vec<f32> {
    let mut patches = Vec::with_capacity(pixels.len());
    for &[row, column] in places {
        let (top, left) = (row as usize * patch, column as usize * patch);
        for channel in 0..3 {
            for y in top..top + patch {
                let row = &pixels[3 * (y * width + left)..][..3 * patch];
                patches.extend(row.iter().skip(channel).step_by(3));
            }
        }
    }
    patches
}
