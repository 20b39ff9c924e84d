//! [`NaiveBackend`]: every operation as its formula, in plain loops over f32.
//!
//! Other backends are compared with it, so it is written to be read: weights are dequantized at upload,
//! nothing is fused, nothing is parallel. Invariant: each row of a result is computed separately, so it
//! cannot depend on the rest of a batch.

mod activation;
mod adapters;
mod experts;
mod kv;
mod latent;
mod layers;
mod program_device;
mod rounding;
mod router;
mod states;
mod streams;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokenmill_backend::{
    Activation, Allocation, Attention, Backend, BackendError, Collective, ForwardBatch, HostStep, KvLayout,
    KvType, Linear, MatrixData, Memory, Norm, NormKind, PageCopy, PageGroup, Rope, RopeStyle, RowSet,
    SequenceMemory, StateLayout, StepOutput, StepShape, Temperature,
};
use tokenmill_gguf::TensorType;
use tokenmill_quant::{dequantize_row, format};

pub use activation::erf;

use activation::{activate, other_factor};
use adapters::NaiveAdapter;
use kv::NaiveKv;
use router::Choice;
use states::NaiveStates;

/// Plain loops over f32.
#[derive(Default)]
pub struct NaiveBackend {
    step: HostStep,
    kv: NaiveKv,
    states: NaiveStates,
    adapters: Vec<NaiveAdapter>,
    /// Choices of routers that replace its own, layer by layer.
    given_routes: VecDeque<Vec<u32>>,
    /// Receives the choices of each router, `[n_rows, n_used]`.
    route_log: Option<RouteLog>,
    /// Its end of a group, if it is a rank of one.
    collective: Option<Box<dyn Collective>>,
}

/// The experts of each row of a router, `[n_rows, n_used]`, best first; one router after the other.
pub type RouteLog = Arc<Mutex<Vec<Vec<u32>>>>;

/// A dequantized matrix, `[n_out, n_in]`.
#[derive(Clone)]
pub struct NaiveMatrix {
    values: Vec<f32>,
    n_out: usize,
    n_in: usize,
}

impl NaiveMatrix {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.n_in..][..self.n_in]
    }
}

impl NaiveBackend {
    /// Makes a backend without weights.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes the choices between experts to a log, and follows the given ones, one router after the other, before it makes its
    /// own. It computes the weights itself.
    pub fn with_routes(given: Vec<Vec<u32>>, log: RouteLog) -> Self {
        Self {
            given_routes: given.into(),
            route_log: Some(log),
            ..Self::default()
        }
    }

    /// Makes a rank of a group, which sums through this end.
    pub fn of_group(collective: Box<dyn Collective>) -> Self {
        Self {
            collective: Some(collective),
            ..Self::default()
        }
    }
}

impl Memory for NaiveBackend {
    type Matrix = NaiveMatrix;
    type Vector = Vec<f32>;
    type Buffer = Vec<f32>;
    type Routes = Vec<Choice>;

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<NaiveMatrix, BackendError> {
        let unsupported = || BackendError::UnsupportedType {
            tensor: data.name.to_owned(),
            ty: data.ty.name(),
            device: Self::NAME,
        };
        let row_bytes = data.ty.row_bytes(data.n_in).ok_or_else(unsupported)?;
        let file_bytes = data.bytes.to_vec().map_err(|error| BackendError::ReadTensor {
            tensor: data.name.to_owned(),
            source: error.into(),
        })?;
        let mut values = vec![0.0; data.n_out * data.n_in];
        for (row, bytes) in values
            .chunks_exact_mut(data.n_in)
            .zip(file_bytes.chunks_exact(row_bytes))
        {
            dequantize_row(data.ty, bytes, row).map_err(|_| unsupported())?;
        }
        Ok(NaiveMatrix {
            values,
            n_out: data.n_out,
            n_in: data.n_in,
        })
    }

    fn share_matrix(matrix: &NaiveMatrix) -> Option<NaiveMatrix> {
        Some(matrix.clone())
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Vec<f32>, BackendError> {
        // NaN, so that a read of unwritten memory shows.
        Ok(vec![f32::NAN; max_rows * width])
    }

    fn alloc_routes(&mut self, _: usize, _: usize, _: usize) -> Result<Vec<Choice>, BackendError> {
        Ok(Vec::new())
    }
}

/// Its memory never moves.
impl SequenceMemory for NaiveBackend {}

impl Backend for NaiveBackend {
    const NAME: &'static str = "the naive backend";

    fn supports(&self, ty: TensorType) -> bool {
        format(ty).is_some()
    }

    fn bytes_of(&self, allocation: &Allocation<'_>) -> usize {
        let n_values = match *allocation {
            Allocation::Matrix { n_out, n_in, .. } => n_out * n_in,
            Allocation::Vector { len } => len,
            Allocation::Buffer { max_rows, width } => max_rows * width,
            Allocation::KvPage(layout) => {
                let exact = KvLayout {
                    key_type: KvType::F32,
                    value_type: KvType::F32,
                    ..layout.clone()
                };
                return exact.page_bytes();
            }
            Allocation::State(layout) => return layout.state_bytes(),
            Allocation::Workspace(..) | Allocation::Routes { .. } => 0,
        };
        n_values * size_of::<f32>()
    }

    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<(), BackendError> {
        self.kv = NaiveKv::new(layout, Self::NAME)?;
        Ok(())
    }

    fn alloc_states(&mut self, layout: &StateLayout) -> Result<(), BackendError> {
        self.states = NaiveStates::new(layout);
        Ok(())
    }

    fn takes_rows(&self) -> bool {
        true
    }

    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        Ok(self.step.begin(batch))
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.step.read(output);
        Ok(())
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError> {
        self.kv.copy_pages(group, copies, Self::NAME)
    }

    fn embed(
        &mut self,
        table: &NaiveMatrix,
        scale: f32,
        n_tokens: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let tokens = &self.step.tokens()[..n_tokens];
        for (out, &token) in output.chunks_exact_mut(table.n_in).zip(tokens) {
            for (out, x) in out.iter_mut().zip(table.row(token as usize)) {
                *out = scale * x;
            }
        }
        self.step.take_input_rows(table.n_in, output);
        Ok(())
    }

    fn take_hidden_inputs(
        &mut self,
        n_tokens: usize,
        width: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n_values = n_tokens * width;
        output[..n_values].copy_from_slice(&self.step.batch().hidden_inputs[..n_values]);
        Ok(())
    }

    fn add_input_rows(
        &mut self,
        part: usize,
        _: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.step.add_input_rows(part, width, rows);
        Ok(())
    }

    fn add_row(
        &mut self,
        row: &Vec<f32>,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (i, x) in rows[..n_rows * width].iter_mut().enumerate() {
            *x += row[i % width];
        }
        Ok(())
    }

    fn mean_of_sequences(
        &mut self,
        _: &StepShape,
        width: usize,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let batch = self.step.batch();
        for (seq_idx, mean) in (0..batch.n_seqs()).zip(output.chunks_exact_mut(width)) {
            let tokens = batch.tokens_of(seq_idx);
            for (column, mean) in mean.iter_mut().enumerate() {
                let sum: f32 = tokens.clone().map(|token| input[token * width + column]).sum();
                *mean = sum / tokens.len() as f32;
            }
        }
        Ok(())
    }

    fn add_positions(
        &mut self,
        table: &Vec<f32>,
        n_tokens: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let positions = &self.step.batch().positions[..n_tokens];
        for (row, &position) in rows.chunks_exact_mut(width).zip(positions) {
            for (x, y) in row.iter_mut().zip(&table[position as usize * width..]) {
                *x += y;
            }
        }
        Ok(())
    }

    fn scale_by_position(
        &mut self,
        temperature: Temperature,
        n_tokens: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let positions = &self.step.batch().positions[..n_tokens];
        for (row, &position) in rows.chunks_exact_mut(width).zip(positions) {
            let factor = temperature.factor(position as usize);
            for x in row {
                *x *= factor;
            }
        }
        Ok(())
    }

    fn norm(
        &mut self,
        norm: &Norm<Vec<f32>>,
        input: &Vec<f32>,
        n_rows: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n = n_rows * norm.width;
        output[..n].copy_from_slice(&input[..n]);
        normalize(norm, &mut output[..n]);
        Ok(())
    }

    fn norm_in_place(
        &mut self,
        norm: &Norm<Vec<f32>>,
        n_rows: usize,
        row_width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        normalize(norm, &mut rows[..n_rows * row_width]);
        Ok(())
    }

    fn linear(
        &mut self,
        linear: &Linear<NaiveMatrix, Vec<f32>>,
        input: &Vec<f32>,
        n_rows: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let matrix = &linear.matrix;
        let inputs = input.chunks_exact(matrix.n_in).take(n_rows);
        for (x, out) in inputs.zip(output.chunks_exact_mut(matrix.n_out)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = dot(matrix.row(i), x) + linear.bias.as_ref().map_or(0.0, |bias| bias[i]);
            }
        }
        self.adapt(linear, input, n_rows, output);
        Ok(())
    }

    fn rope(
        &mut self,
        rope: &Rope<Vec<f32>>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let batch = self.step.batch();
        let positions = &batch.positions[..n_tokens];
        for (token_idx, (row, &own)) in heads.chunks_exact_mut(row_width).zip(positions).enumerate() {
            for head in row.chunks_exact_mut(rope.head_dim) {
                for (pair, freq) in rope.inv_freqs.iter().enumerate() {
                    let (a, b) = match rope.style {
                        RopeStyle::Norm => (2 * pair, 2 * pair + 1),
                        RopeStyle::Neox => (pair, pair + rope.n_dims / 2),
                    };
                    let place = (rope.axes.of_pair(pair)).zip(batch.rope_positions.get(token_idx));
                    let position = place.map_or(own, |(axis, places)| places[axis]);
                    let (sin, cos) = (position as f32 * freq).sin_cos();
                    let (x, y) = (head[a], head[b]);
                    head[a] = rope.magnitude * (x * cos - y * sin);
                    head[b] = rope.magnitude * (x * sin + y * cos);
                }
            }
        }
        Ok(())
    }

    fn store_kv(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        k: &Vec<f32>,
        v: &Vec<f32>,
    ) -> Result<(), BackendError> {
        self.kv.store(layer_idx, self.step.batch(), n_tokens, [k, v]);
        Ok(())
    }

    fn attention(
        &mut self,
        attention: &Attention<Vec<f32>>,
        _: &StepShape,
        q: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.kv.attend(attention, self.step.batch(), q, output);
        Ok(())
    }

    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
        up: Option<&Vec<f32>>,
    ) -> Result<(), BackendError> {
        for (i, x) in rows[..n_rows * width].iter_mut().enumerate() {
            *x = activate(activation, *x) * up.map_or(1.0, |up| other_factor(activation, up[i]));
        }
        Ok(())
    }

    fn add(
        &mut self,
        scale: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
        delta: &Vec<f32>,
    ) -> Result<(), BackendError> {
        for (x, delta) in rows[..n_rows * width].iter_mut().zip(delta) {
            *x += scale * delta;
        }
        Ok(())
    }

    fn all_reduce(&mut self, n_rows: usize, width: usize, rows: &mut Vec<f32>) -> Result<(), BackendError> {
        match &mut self.collective {
            Some(collective) => collective.all_reduce(&mut rows[..n_rows * width]),
            None => Ok(()),
        }
    }

    fn gather(
        &mut self,
        rows: RowSet,
        _: &StepShape,
        width: usize,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (out, &row) in output.chunks_exact_mut(width).zip(self.step.rows(rows)) {
            out.copy_from_slice(&input[row as usize * width..][..width]);
        }
        Ok(())
    }

    fn scale_logits(
        &mut self,
        scale: f32,
        cap: Option<f32>,
        n_rows: usize,
        width: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for x in &mut logits[..n_rows * width] {
            *x *= scale;
            if let Some(cap) = cap {
                *x = cap * (*x / cap).tanh();
            }
        }
        Ok(())
    }

    fn sample(
        &mut self,
        shape: &StepShape,
        n_vocab: usize,
        n_embd: usize,
        logits: &mut Vec<f32>,
        outputs: &Vec<f32>,
    ) -> Result<(), BackendError> {
        let logits = &logits[..shape.n_logits * n_vocab];
        self.step.sample(logits, n_vocab, outputs, n_embd);
        Ok(())
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn normalize(norm: &Norm<Vec<f32>>, rows: &mut [f32]) {
    for (run_idx, row) in rows.chunks_exact_mut(norm.width).enumerate() {
        let n = norm.width as f32;
        let mean = match norm.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => row.iter().sum::<f32>() / n,
        };
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
        for (i, x) in row.iter_mut().enumerate() {
            let normalized = (*x - mean) / (variance + norm.eps).sqrt();
            let weight = norm
                .weight
                .as_ref()
                .map_or(1.0, |weight| weight[(run_idx * norm.width + i) % weight.len()]);
            let bias = norm.bias.as_ref().map_or(0.0, |bias| bias[i]);
            *x = weight * normalized + bias;
        }
    }
}
