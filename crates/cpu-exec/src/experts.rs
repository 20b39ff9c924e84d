//! [`experts_linear`] and its relatives: products of rows with the matrices of their experts.
//!
//! All experts in use are one job. An expert's rows are adjacent in the input, so its weights are read once
//! for all of them, as in a product with one matrix, and experts without rows are not read. Invariant: an
//! output element is a function of its weight row and its activation row, reduced in the order of
//! [`linear`](crate::linear).

mod heads;

pub use heads::heads_linear;

use std::ops::Range;

use tokenmill_backend::{Activation, Carried, ExpertInput, ExpertsShape};
use tokenmill_cpu_kernels::{ActivationBlock, Activations, TILE_ROWS, n_spans};

use crate::{
    Bias, CpuExecError, Host, Matrix, Routes, Workspace,
    linear::{GatedProducts, Product, chunk_tiles, quantize_for},
    pool::{Columns, Patch, Patches, Rect},
    thread_scratch::{ThreadScratch, grown},
    workspace::{WorkspaceSizes, reserve},
};

/// The inputs of the experts, each expert's rows next to each other, and the pieces of their work.
#[derive(Debug, Default)]
pub(crate) struct ExpertScratch {
    /// Quantized rows; see [`Workspace`].
    sub_blocks: Vec<ActivationBlock>,
    span_blocks: Vec<ActivationBlock>,
    /// Rows for matrices that read f32.
    x: Vec<f32>,
    items: Vec<Item>,
    /// The rectangle that each item writes to.
    outs: Vec<Rect>,
}

/// A run of tiles of an expert.
#[derive(Clone, Debug)]
struct Item {
    expert: usize,
    tiles: Range<usize>,
    /// The rows of the activations that the tiles are multiplied with.
    inputs: Range<usize>,
}

impl ExpertScratch {
    /// Returns the largest sizes that `n_choices` rows need.
    pub(crate) fn sizes(n_choices: usize, n_embd: usize, experts: &ExpertsShape) -> WorkspaceSizes {
        let n_tiles = experts.n_ff.max(n_embd).div_ceil(TILE_ROWS);
        WorkspaceSizes {
            expert_blocks: n_choices.saturating_mul(n_spans(n_embd)),
            expert_values: n_choices.saturating_mul(n_embd),
            // An item has at least two tiles, except the last item of an expert.
            expert_items: (experts.n_experts.min(n_choices)).saturating_mul(n_tiles.div_ceil(2)),
            ..WorkspaceSizes::default()
        }
    }

    /// The size in bytes of an item and of the rectangle that it writes to.
    pub(crate) const ITEM_BYTES: usize = size_of::<Item>() + size_of::<Rect>();

    /// Reserves memory so that no later step allocates.
    pub(crate) fn reserve(&mut self, sizes: &WorkspaceSizes) -> Result<(), CpuExecError> {
        reserve(&mut self.sub_blocks, sizes.expert_blocks)?;
        reserve(&mut self.span_blocks, sizes.expert_blocks)?;
        reserve(&mut self.x, sizes.expert_values)?;
        reserve(&mut self.items, sizes.expert_items)?;
        reserve(&mut self.outs, sizes.expert_items)
    }

    /// Returns the number of bytes reserved.
    pub(crate) fn n_bytes(&self) -> usize {
        (self.sub_blocks.capacity() + self.span_blocks.capacity()) * size_of::<ActivationBlock>()
            + self.x.capacity() * size_of::<f32>()
            + self.items.capacity() * size_of::<Item>()
            + self.outs.capacity() * size_of::<Rect>()
    }
}

/// Multiplies the row of each choice by the matrix of its expert. `out`: `[n_choices, n_rows]`, sorted by
/// expert, as is an input of choices. `biases`: `[n_experts, n_rows]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn experts_linear(
    host: &Host,
    workspace: &mut Workspace,
    routes: &Routes,
    input: ExpertInput<'_, [f32]>,
    (matrix, biases): (&Matrix, Bias<'_>),
    out: &mut [f32],
) {
    check_biases(matrix, biases);
    run(host, workspace, routes, input, &[matrix], out, |expert| {
        let product = Product::of_expert(matrix, biases, expert);
        move |scratch: &mut ThreadScratch,
              activations: &Activations<'_>,
              item: &Item,
              out: &mut Patch<'_, f32>| {
            product.compute(
                host,
                scratch,
                activations,
                item.inputs.clone(),
                item.tiles.clone(),
                out,
            );
        }
    });
}

/// Computes the first half of gated experts, `out = activation(gate x) * (up x)`, with the shapes of
/// [`experts_linear`].
///
/// # Panics
/// If the shapes contradict each other.
pub fn experts_gated(
    host: &Host,
    workspace: &mut Workspace,
    routes: &Routes,
    input: ExpertInput<'_, [f32]>,
    (gate, gate_biases): (&Matrix, Bias<'_>),
    (up, up_biases): (&Matrix, Bias<'_>),
    activation: Activation,
    out: &mut [f32],
) {
    let shape = |matrix: &Matrix| (matrix.n_experts(), matrix.n_rows(), matrix.n_cols());
    assert_eq!(shape(gate), shape(up), "shapes of gate and up");
    check_biases(gate, gate_biases);
    check_biases(up, up_biases);
    run(host, workspace, routes, input, &[gate, up], out, |expert| {
        let products = GatedProducts {
            gate: Product::of_expert(gate, gate_biases, expert),
            up: Product::of_expert(up, up_biases, expert),
            activation,
        };
        move |scratch: &mut ThreadScratch,
              activations: &Activations<'_>,
              item: &Item,
              out: &mut Patch<'_, f32>| {
            products.compute(
                host,
                scratch,
                activations,
                item.inputs.clone(),
                item.tiles.clone(),
                out,
            );
        }
    });
}

/// Runs `compute(expert)(scratch, activations, item, out)` for all pieces of work; `matrices` are all
/// matrices that read the input.
fn run<C>(
    host: &Host,
    workspace: &mut Workspace,
    routes: &Routes,
    input: ExpertInput<'_, [f32]>,
    matrices: &[&Matrix],
    out: &mut [f32],
    compute: impl Fn(usize) -> C + Sync,
) where
    C: Fn(&mut ThreadScratch, &Activations<'_>, &Item, &mut Patch<'_, f32>),
{
    let (n_rows, n_cols) = (matrices[0].n_rows(), matrices[0].n_cols());
    assert_eq!(out.len(), routes.n_choices() * n_rows, "outputs of experts");
    if out.is_empty() {
        return;
    }
    let x = match input {
        ExpertInput::Rows(x) => {
            assert_eq!(x.len(), routes.n_rows() * n_cols, "rows of experts' input");
            x
        }
        ExpertInput::Choices(x) => {
            assert_eq!(x.len(), routes.n_choices() * n_cols, "choices of experts' input");
            x
        }
    };
    let mut experts = std::mem::take(&mut workspace.experts);
    let (activations, scratch) = quantize_for(host, workspace, x, n_cols, matrices.iter().copied());
    // A single row is the input of every choice without a copy; several rows are copied so that each expert's
    // rows are adjacent.
    let is_one_row = matches!(input, ExpertInput::Rows(_)) && routes.n_rows() == 1;
    let gathers = matches!(input, ExpertInput::Rows(_)) && !is_one_row;
    plan(host, &mut experts, routes, matrices[0], is_one_row);
    let ExpertScratch {
        sub_blocks,
        span_blocks,
        x: rows,
        items,
        outs,
    } = &mut experts;
    let activations = if gathers {
        let n_blocks = |from: &[ActivationBlock]| from.len() / routes.n_rows() * routes.n_choices();
        let sub_blocks = grown(sub_blocks, n_blocks(activations.sub_blocks));
        let span_blocks = grown(span_blocks, n_blocks(activations.span_blocks));
        gather_blocks(host, routes, activations.sub_blocks, sub_blocks);
        gather_blocks(host, routes, activations.span_blocks, span_blocks);
        let is_float = matrices.iter().any(|matrix| matrix.activation_scales().is_none());
        let n_values = if is_float { routes.n_choices() * n_cols } else { 0 };
        let rows = grown(rows, n_values);
        for (row, &from) in rows.chunks_exact_mut(n_cols).zip(routes.rows()) {
            row.copy_from_slice(&x[from as usize * n_cols..][..n_cols]);
        }
        Activations {
            x: rows,
            sub_blocks,
            span_blocks,
            n_tokens: routes.n_choices(),
            n_cols,
        }
    } else {
        activations
    };
    let parts = Patches::new(out, n_rows, outs);
    host.pool()
        .for_each_part_with(scratch, parts, |scratch, item_idx, mut out| {
            let item = &items[item_idx];
            compute(item.expert)(scratch, &activations, item, &mut out);
        });
    workspace.experts = experts;
}

/// Cuts the work into runs of tiles of the experts in use.
fn plan(host: &Host, scratch: &mut ExpertScratch, routes: &Routes, matrix: &Matrix, is_one_row: bool) {
    let ExpertScratch { items, outs, .. } = scratch;
    items.clear();
    outs.clear();
    let n_tiles = matrix.n_tiles();
    let chunk_tiles = chunk_tiles(host, n_tiles * routes.in_use().count());
    for (expert, choices) in routes.in_use() {
        assert!(
            expert < matrix.n_experts(),
            "expert {expert} of {}",
            matrix.n_experts()
        );
        for first in (0..n_tiles).step_by(chunk_tiles) {
            let tiles = first..n_tiles.min(first + chunk_tiles);
            outs.push(Rect {
                rows: choices.clone(),
                cols: tiles.start * TILE_ROWS..matrix.n_rows().min(tiles.end * TILE_ROWS),
            });
            items.push(Item {
                expert,
                tiles,
                inputs: if is_one_row { 0..1 } else { choices.clone() },
            });
        }
    }
}

/// Copies blocks `[n_spans, n_rows]` to `[n_spans, n_choices]`.
fn gather_blocks(host: &Host, routes: &Routes, from: &[ActivationBlock], to: &mut [ActivationBlock]) {
    let (n_rows, n_choices) = (routes.n_rows(), routes.n_choices());
    host.pool().for_each_chunk(to, n_choices, |span_idx, to| {
        let from = &from[span_idx * n_rows..][..n_rows];
        for (to, &row) in to.iter_mut().zip(routes.rows()) {
            *to = from[row as usize];
        }
    });
}

/// Sums the choices of each row in the order of their rank; see
/// [`ExpertOperations::combine`](tokenmill_backend::ExpertOperations::combine). `choices`:
/// `[n_choices, width]`, sorted by expert; `out`: `[n_rows, width]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn combine(
    host: &Host,
    routes: &Routes,
    width: usize,
    choices: &[f32],
    carried: &Carried<'_, [f32]>,
    out: &mut [f32],
) {
    assert_eq!(choices.len(), routes.n_choices() * width, "choices to combine");
    assert_eq!(out.len(), routes.n_rows() * width, "combined rows");
    let parts = Columns::new(out, width, COMBINE_COLS);
    host.pool().for_each_part(parts, |chunk_idx, mut out| {
        let first = chunk_idx * COMBINE_COLS;
        for row_idx in 0..routes.n_rows() {
            let out = out.row(row_idx);
            match carried {
                Carried::Nothing => out.fill(0.0),
                Carried::Whole => {}
                Carried::Gated(gates) => {
                    let gate = 1.0 / (1.0 + (-gates[row_idx]).exp());
                    for x in &mut *out {
                        *x *= gate;
                    }
                }
            }
            for (place, weight) in routes.of_row(row_idx) {
                let choice = &choices[place * width + first..][..out.len()];
                for (x, choice) in out.iter_mut().zip(choice) {
                    *x += weight * choice;
                }
            }
        }
    });
}

/// Multiplies the row of each choice by its weight: `choices: [n_choices, width]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn weigh_choices(host: &Host, routes: &Routes, width: usize, choices: &mut [f32]) {
    assert_eq!(choices.len(), routes.n_choices() * width, "choices to weigh");
    let parts = Columns::new(choices, width, COMBINE_COLS);
    host.pool().for_each_part(parts, |_, mut choices| {
        for row_idx in 0..routes.n_rows() {
            for (place, weight) in routes.of_row(row_idx) {
                for x in choices.row(place) {
                    *x *= weight;
                }
            }
        }
    });
}

/// The number of columns that one thread sums at a time.
const COMBINE_COLS: usize = 1024;

fn check_biases(matrix: &Matrix, biases: Bias<'_>) {
    if let Some(biases) = biases {
        let n_values = matrix.n_experts() * matrix.n_rows();
        assert_eq!(biases.len(), n_values, "length of the experts' biases");
    }
}
