//! [`add`], [`add_scaled`], [`scale`], [`soft_cap`]: one value in, one value out.
//!
//! Fused operations exist to avoid these passes over memory.

use crate::Host;

/// The number of values per chunk; below it, starting another thread costs more than it saves.
const CHUNK_LEN: usize = 16_384;

/// `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add(host: &Host, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "lengths of a sum");
    host.pool().for_each_chunk(x, CHUNK_LEN, |chunk_idx, chunk| {
        for (x, y) in chunk.iter_mut().zip(&y[chunk_idx * CHUNK_LEN..]) {
            *x += y;
        }
    });
}

/// `x += factor * y`, rounded after each of the two operations.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(host: &Host, x: &mut [f32], y: &[f32], factor: f32) {
    assert_eq!(x.len(), y.len(), "lengths of a sum");
    host.pool().for_each_chunk(x, CHUNK_LEN, |chunk_idx, chunk| {
        for (x, y) in chunk.iter_mut().zip(&y[chunk_idx * CHUNK_LEN..]) {
            *x += factor * y;
        }
    });
}

/// `x *= factor`.
pub fn scale(host: &Host, x: &mut [f32], factor: f32) {
    host.pool().for_each_chunk(x, CHUNK_LEN, |_, chunk| {
        for x in chunk {
            *x *= factor;
        }
    });
}

/// `x = cap * tanh(x / cap)`: bounds logits smoothly.
pub fn soft_cap(host: &Host, x: &mut [f32], cap: f32) {
    host.pool().for_each_chunk(x, CHUNK_LEN, |_, chunk| {
        tokenmill_cpu_kernels::soft_cap(host.features(), chunk, cap);
    });
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    #[test]
    fn every_value_is_touched_once() {
        let host = Host::new(3, CpuFeatures::detect()).unwrap();
        for len in [0, 1, CHUNK_LEN - 1, CHUNK_LEN + 1, 5 * CHUNK_LEN] {
            let mut x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let y: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
            add(&host, &mut x, &y);
            add_scaled(&host, &mut x, &y, -2.0);
            scale(&host, &mut x, 0.5);
            assert!((0..len).all(|i| x[i] == (i as f32 - (i % 7) as f32) * 0.5));
        }
    }

    #[test]
    fn soft_cap_bounds_and_keeps_small_values() {
        let host = Host::new(1, CpuFeatures::detect()).unwrap();
        let mut x = [0.01, 1e9, -1e9];
        soft_cap(&host, &mut x, 30.0);
        assert!((x[0] - 0.01).abs() < 1e-6 && x[1] == 30.0 && x[2] == -30.0);
    }
}
