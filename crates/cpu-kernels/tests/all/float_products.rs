//! Products of float tiles that are added to existing values.

use tokenmill_cpu_kernels::{Activations, PAIR_ROWS, TILE_ROWS, TileOps};
use tokenmill_gguf::TensorType;
use tokenmill_quant::CpuFeatures;

/// Checks that tiles of F32 with `n_cols` columns add their product times a scale to existing values, to the bit.
fn check(features: CpuFeatures, n_tiles: usize, n_rows: usize, n_cols: usize) {
    let ops = TileOps::of(TensorType::F32).unwrap();
    let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 17.0 - 3.0;
    let mut tiles = vec![0; n_tiles * ops.tile_bytes(n_cols)];
    for (tile_idx, tile) in tiles.chunks_exact_mut(ops.tile_bytes(n_cols)).enumerate() {
        let rows: [Vec<u8>; TILE_ROWS] = std::array::from_fn(|row| {
            (0..n_cols)
                .flat_map(|col| value(tile_idx * 7 + row * n_cols + col).to_le_bytes())
                .collect()
        });
        ops.pack(&rows.each_ref().map(Vec::as_slice), n_cols, tile);
    }
    let x: Vec<f32> = (0..n_rows * n_cols).map(value).collect();
    let activations = Activations {
        x: &x,
        sub_blocks: &[],
        span_blocks: &[],
        n_tokens: n_rows,
        n_cols,
    };
    // As `TileOps::products` lays out its sums.
    let stride = if n_tiles > 2 {
        n_tiles * TILE_ROWS
    } else {
        PAIR_ROWS
    };
    let before: Vec<f32> = (0..n_rows * stride).map(|i| value(3 * i)).collect();
    let (mut products, mut sums) = (vec![0.0; n_rows * stride], before.clone());
    ops.products(features, &tiles, &activations, 0, n_rows, &mut products);
    TileOps::prefetch(features, &tiles);
    ops.add_products(features, &tiles, &activations, 0.3, &mut sums);
    for (i, ((sum, before), product)) in sums.iter().zip(&before).zip(&products).enumerate() {
        let is_written = i % stride < n_tiles * TILE_ROWS;
        let expected = if is_written {
            before + 0.3 * product
        } else {
            *before
        };
        assert_eq!(
            sum.to_bits(),
            expected.to_bits(),
            "{features:?} {n_tiles} {n_rows} {n_cols} {i}"
        );
    }
}

#[test]
fn products_are_added_as_they_are_written() {
    for features in CpuFeatures::each_path() {
        for (n_tiles, n_rows, n_cols) in [(1, 1, 1), (1, 2, 16), (2, 3, 8), (2, 9, 17), (3, 5, 6)] {
            check(features, n_tiles, n_rows, n_cols);
        }
    }
}
