//! [`linear_group`] and its relatives: products of activations and weights.
//!
//! A group is the matrices that read one input (q, k, v): the input is quantized once and all of them run as
//! one job. Invariant: an output element is a function of its weight row and its activation row, reduced in
//! one order.

use std::ops::Range;

use tokenmill_backend::Activation;
use tokenmill_cpu_kernels::{Activations, PAIR_ROWS, ScaleSpan, TILE_ROWS, n_spans};

use crate::{
    Host, Matrix, Workspace,
    activations::quantize,
    adapt::{Adapting, Adding},
    ops::activation::activation_ops,
    pool::{Columns, Few, Patch},
    thread_scratch::{SUMS_LEN, TOKEN_BLOCK, ThreadScratch, grown},
};

/// The bias of a linear map's outputs: one value for each weight row, `[n_rows]`.
pub type Bias<'a> = Option<&'a [f32]>;

/// A matrix of a group and the destination of its product.
#[derive(Debug)]
pub struct LinearTarget<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// The bias of the product.
    pub bias: Bias<'a>,
    /// The product, `[n_tokens, n_rows]`.
    pub out: &'a mut [f32],
}

impl<'a> LinearTarget<'a> {
    /// Creates a target without bias.
    pub fn new(matrix: &'a Matrix, out: &'a mut [f32]) -> Self {
        Self {
            matrix,
            bias: None,
            out,
        }
    }
}

/// Writes `x` times the transpose of `matrix` to `out`: `x`: `[n_tokens, n_cols]`, `out`:
/// `[n_tokens, n_rows]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn linear(host: &Host, workspace: &mut Workspace, x: &[f32], matrix: &Matrix, out: &mut [f32]) {
    linear_group(host, workspace, x, &mut [LinearTarget::new(matrix, out)]);
}

/// Multiplies one input with several matrices of the same `n_cols`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn linear_group(host: &Host, workspace: &mut Workspace, x: &[f32], targets: &mut [LinearTarget<'_>]) {
    // Groups are small; a longer one is computed in parts, so that nothing is allocated.
    for targets in targets.chunks_mut(MAX_GROUP) {
        linear_few(host, workspace, x, targets, None);
    }
}

/// Does the same as [`linear_group`] for at most [`MAX_GROUP`] matrices, with the changes of adapters.
pub(crate) fn linear_few(
    host: &Host,
    workspace: &mut Workspace,
    x: &[f32],
    targets: &mut [LinearTarget<'_>],
    adapting: Option<Adapting<'_>>,
) {
    let n_cols = targets[0].matrix.n_cols();
    let n_tokens = n_tokens(x, n_cols);
    let mut n_tiles = 0;
    for target in &*targets {
        let n_rows = target.matrix.n_rows();
        assert_eq!(
            target.matrix.n_cols(),
            n_cols,
            "inputs of the matrices of a group"
        );
        assert_eq!(target.out.len(), n_tokens * n_rows, "outputs of a product");
        check_bias(target.bias, n_rows);
        n_tiles += target.matrix.n_tiles();
    }
    if n_tokens == 0 {
        return;
    }
    let matrices = targets.iter().map(|target| target.matrix);
    let (activations, scratch) = quantize_for(host, workspace, x, n_cols, matrices);
    let width_of = |target_idx: usize| targets[target_idx].matrix.n_rows();
    let adding = adapting.map(|adapting| adapting.begin(host, scratch, x, n_cols, width_of));
    let mut products = [None; MAX_GROUP];
    for (target_idx, (product, target)) in products.iter_mut().zip(&*targets).enumerate() {
        let adding = adding.as_ref().map(|adding| (adding, target_idx));
        *product = Some(Product {
            adding,
            ..Product::new(target.matrix, target.bias)
        });
    }
    let chunk_tiles = chunk_tiles(host, n_tiles);
    let outs = Few::<_, MAX_GROUP>::new(
        (targets.iter_mut())
            .map(|target| Columns::new(target.out, target.matrix.n_rows(), chunk_tiles * TILE_ROWS)),
    );
    host.pool()
        .for_each_part_with(scratch, outs, |scratch, _, (target_idx, chunk_idx, mut out)| {
            let product = products[target_idx].expect("each output is a product's");
            let tiles = chunk_of(chunk_idx, chunk_tiles, product.matrix.n_tiles());
            product.compute(host, scratch, &activations, 0..n_tokens, tiles, &mut out);
        });
}

/// A matrix or the matrix of one of its experts, with its bias.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    matrix: &'a Matrix,
    expert: usize,
    bias: Bias<'a>,
    /// The changes of adapters, and the index of this product in its group.
    adding: Option<(&'a Adding<'a>, usize)>,
}

impl<'a> Product<'a> {
    pub(crate) fn new(matrix: &'a Matrix, bias: Bias<'a>) -> Self {
        Self {
            matrix,
            expert: 0,
            bias,
            adding: None,
        }
    }

    /// Creates the product of one expert; `biases` are those of all experts.
    pub(crate) fn of_expert(matrix: &'a Matrix, biases: Bias<'a>, expert: usize) -> Self {
        let n_rows = matrix.n_rows();
        Self {
            matrix,
            expert,
            bias: biases.map(|biases| &biases[expert * n_rows..][..n_rows]),
            adding: None,
        }
    }

    /// Computes the rows of some tiles for some rows of the activations; `out` is their part of the output.
    pub(crate) fn compute(
        &self,
        host: &Host,
        scratch: &mut ThreadScratch,
        activations: &Activations<'_>,
        inputs: Range<usize>,
        tiles: Range<usize>,
        out: &mut Patch<'_, f32>,
    ) {
        let sums = grown(&mut scratch.sums, SUMS_LEN);
        let first_row = tiles.start * TILE_ROWS;
        for_each_pair(inputs.len(), tiles, |pair, tokens| {
            let rows = self.sums(host, activations, inputs.start, pair, tokens, sums);
            for (i, sums) in sums.chunks_exact(PAIR_ROWS).take(tokens.1).enumerate() {
                out.row(tokens.0 + i)[rows.start - first_row..rows.end - first_row]
                    .copy_from_slice(&sums[..rows.len()]);
            }
        });
    }

    /// Multiplies a pair of tiles with some rows of the activations, starting at `first_input`. Adds the bias
    /// and the changes of adapters. Returns the rows of the matrix that the tiles hold.
    fn sums(
        &self,
        host: &Host,
        activations: &Activations<'_>,
        first_input: usize,
        pair: (usize, usize),
        tokens: (usize, usize),
        sums: &mut [f32],
    ) -> Range<usize> {
        let rows = pair_rows(self.matrix, pair);
        let tiles = (self.expert * self.matrix.n_tiles() + pair.0, pair.1);
        let inputs = (first_input + tokens.0, tokens.1);
        if let Some((adding, target_idx)) = self.adding {
            adding.prefetch(host, target_idx, pair, inputs);
        }
        self.matrix
            .products(host.features(), tiles, activations, inputs, sums);
        for sums in sums.chunks_exact_mut(PAIR_ROWS).take(tokens.1) {
            add_bias(&mut sums[..rows.len()], self.bias, &rows);
        }
        if let Some((adding, target_idx)) = self.adding {
            adding.add(host, target_idx, pair, inputs, sums);
        }
        rows
    }
}

/// The product of a gate, and the product that its activation is multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct GatedProducts<'a> {
    pub(crate) gate: Product<'a>,
    pub(crate) up: Product<'a>,
    pub(crate) activation: Activation,
}

impl GatedProducts<'_> {
    /// Computes both products, as [`Product::compute`] does.
    pub(crate) fn compute(
        &self,
        host: &Host,
        scratch: &mut ThreadScratch,
        activations: &Activations<'_>,
        inputs: Range<usize>,
        tiles: Range<usize>,
        out: &mut Patch<'_, f32>,
    ) {
        let (gate_sums, up_sums) = grown(&mut scratch.sums, SUMS_LEN).split_at_mut(SUMS_LEN / 2);
        let first_row = tiles.start * TILE_ROWS;
        for_each_pair(inputs.len(), tiles, |pair, tokens| {
            let rows = (self.gate).sums(host, activations, inputs.start, pair, tokens, gate_sums);
            (self.up).sums(host, activations, inputs.start, pair, tokens, up_sums);
            let len = tokens.1 * PAIR_ROWS;
            let gated = &mut gate_sums[..len];
            activation_ops(self.activation).apply(host.features(), gated, Some(&up_sums[..len]));
            for (i, sums) in gated.chunks_exact(PAIR_ROWS).enumerate() {
                let out = &mut out.row(tokens.0 + i)[rows.start - first_row..rows.end - first_row];
                out.copy_from_slice(&sums[..rows.len()]);
            }
        });
    }
}

/// Computes the first half of a gated feed-forward layer: `out = activation(x gateᵀ) * (x upᵀ)`,
/// `[n_tokens, n_rows]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn linear_gated(
    host: &Host,
    workspace: &mut Workspace,
    x: &[f32],
    (gate, gate_bias): (&Matrix, Bias<'_>),
    (up, up_bias): (&Matrix, Bias<'_>),
    activation: Activation,
    out: &mut [f32],
) {
    linear_gated_adapted(
        host,
        workspace,
        x,
        (gate, gate_bias),
        (up, up_bias),
        activation,
        out,
        None,
    );
}

/// Does the same as [`linear_gated`], with the changes of adapters; the gate is the first of two products,
/// `up` the second.
#[expect(clippy::too_many_arguments, reason = "those of `linear_gated` and one more")]
pub(crate) fn linear_gated_adapted(
    host: &Host,
    workspace: &mut Workspace,
    x: &[f32],
    (gate, gate_bias): (&Matrix, Bias<'_>),
    (up, up_bias): (&Matrix, Bias<'_>),
    activation: Activation,
    out: &mut [f32],
    adapting: Option<Adapting<'_>>,
) {
    let (n_rows, n_cols) = (gate.n_rows(), gate.n_cols());
    assert_eq!(
        (n_rows, n_cols),
        (up.n_rows(), up.n_cols()),
        "shapes of gate and up"
    );
    let n_tokens = n_tokens(x, n_cols);
    assert_eq!(out.len(), n_tokens * n_rows, "outputs of a product");
    check_bias(gate_bias, n_rows);
    check_bias(up_bias, n_rows);
    if n_tokens == 0 {
        return;
    }
    let (activations, scratch) = quantize_for(host, workspace, x, n_cols, [gate, up].into_iter());
    let adding = adapting.map(|adapting| adapting.begin(host, scratch, x, n_cols, |_| n_rows));
    let n_tiles = gate.n_tiles();
    let chunk_tiles = chunk_tiles(host, n_tiles);
    let outs = Columns::new(out, n_rows, chunk_tiles * TILE_ROWS);
    let product = |target_idx, matrix, bias| Product {
        adding: adding.as_ref().map(|adding| (adding, target_idx)),
        ..Product::new(matrix, bias)
    };
    let products = GatedProducts {
        gate: product(0, gate, gate_bias),
        up: product(1, up, up_bias),
        activation,
    };
    host.pool()
        .for_each_part_with(scratch, outs, |scratch, chunk_idx, mut out| {
            let tiles = chunk_of(chunk_idx, chunk_tiles, n_tiles);
            products.compute(host, scratch, &activations, 0..n_tokens, tiles, &mut out);
        });
}

/// The maximum number of matrices that run as one job.
pub(crate) const MAX_GROUP: usize = 8;

/// Calls `f((first tile, 1 or 2 tiles), (first token, tokens))`. The outer loop is over blocks of tokens,
/// whose activations stay in the second-level cache while the chunk's tiles are read.
fn for_each_pair(n_tokens: usize, tiles: Range<usize>, mut f: impl FnMut((usize, usize), (usize, usize))) {
    for first_token in (0..n_tokens).step_by(TOKEN_BLOCK) {
        for first_tile in tiles.clone().step_by(2) {
            let n_tiles = (tiles.end - first_tile).min(2);
            f(
                (first_tile, n_tiles),
                (first_token, (n_tokens - first_token).min(TOKEN_BLOCK)),
            );
        }
    }
}

/// Returns the rows of the matrix that one or two tiles hold.
fn pair_rows(matrix: &Matrix, (first_tile, n_tiles): (usize, usize)) -> Range<usize> {
    first_tile * TILE_ROWS..matrix.n_rows().min((first_tile + n_tiles) * TILE_ROWS)
}

/// Returns the tiles of a chunk.
pub(crate) fn chunk_of(chunk_idx: usize, chunk_tiles: usize, n_tiles: usize) -> Range<usize> {
    chunk_idx * chunk_tiles..n_tiles.min((chunk_idx + 1) * chunk_tiles)
}

/// Returns the number of tiles per chunk. It is even, large enough that claiming a chunk costs nothing, and
/// small enough that threads end together.
pub(crate) fn chunk_tiles(host: &Host, n_tiles: usize) -> usize {
    const CHUNKS_PER_THREAD: usize = 16;
    let even = n_tiles
        .div_ceil(host.pool().n_threads() * CHUNKS_PER_THREAD)
        .next_multiple_of(2);
    even.clamp(2, 16)
}

fn add_bias(sums: &mut [f32], bias: Bias<'_>, rows: &Range<usize>) {
    if let Some(bias) = bias {
        for (sum, bias) in sums.iter_mut().zip(&bias[rows.clone()]) {
            *sum += bias;
        }
    }
}

fn check_bias(bias: Bias<'_>, n_rows: usize) {
    if let Some(bias) = bias {
        assert_eq!(bias.len(), n_rows, "length of a bias");
    }
}

pub(crate) fn n_tokens(x: &[f32], n_cols: usize) -> usize {
    if n_cols == 0 {
        return 0;
    }
    assert_eq!(x.len() % n_cols, 0, "activations are whole rows of {n_cols}");
    x.len() / n_cols
}

/// Quantizes `x` in every form that one of the matrices reads.
pub(crate) fn quantize_for<'w>(
    host: &Host,
    workspace: &'w mut Workspace,
    x: &'w [f32],
    n_cols: usize,
    matrices: impl Iterator<Item = &'w Matrix>,
) -> (Activations<'w>, &'w mut [ThreadScratch]) {
    let n_tokens = x.len() / n_cols;
    let n_blocks = n_spans(n_cols) * n_tokens;
    let (mut needs_sub, mut needs_span) = (false, false);
    for matrix in matrices {
        needs_sub |= matrix.activation_scales() == Some(ScaleSpan::Sub);
        needs_span |= matrix.activation_scales() == Some(ScaleSpan::Span);
    }
    let sub_blocks = grown(&mut workspace.sub_blocks, if needs_sub { n_blocks } else { 0 });
    let span_blocks = grown(&mut workspace.span_blocks, if needs_span { n_blocks } else { 0 });
    if needs_sub {
        quantize(host, ScaleSpan::Sub, x, n_cols, sub_blocks);
    }
    if needs_span {
        quantize(host, ScaleSpan::Span, x, n_cols, span_blocks);
    }
    let activations = Activations {
        x,
        sub_blocks,
        span_blocks,
        n_tokens,
        n_cols,
    };
    (activations, &mut workspace.per_thread)
}
