//! Attention over pages of signed bytes against naive twins, bit by bit.

use std::ops::Range;

use half::f16;
use tokenmill_cpu_kernels::{Q8_0_PAGES, SPLIT_PAGES, SPLIT_TOKENS, SplitPages};
use tokenmill_quant::CpuFeatures;

/// Positions of a page.
const PAGE_LEN: usize = SPLIT_TOKENS / SPLIT_PAGES;
/// Columns that share a scale for each position.
const BLOCK_COLS: usize = 32;
/// Bytes of the scales of a block; its numbers follow them.
const SCALE_BYTES: usize = 2 * PAGE_LEN;
const BLOCK_BYTES: usize = SCALE_BYTES + PAGE_LEN * BLOCK_COLS;

struct Numbers(u64);

impl Numbers {
    /// At least 0 and below 1.
    fn take(&mut self) -> f32 {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// A page: its bytes, and its quants and scales by token and column.
struct Page {
    bytes: Vec<u8>,
    quants: Vec<[i32; PAGE_LEN]>,
    scales: Vec<[f32; PAGE_LEN]>,
}

fn page(numbers: &mut Numbers, dim: usize, index: impl Fn(usize, usize) -> usize, bias: i32) -> Page {
    let mut page = Page {
        bytes: vec![0; dim / BLOCK_COLS * BLOCK_BYTES],
        quants: vec![[0; PAGE_LEN]; dim],
        scales: vec![[0.0; PAGE_LEN]; dim / BLOCK_COLS],
    };
    for (block, bytes) in page.bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let (scales, quants) = bytes.split_at_mut(SCALE_BYTES);
        for lane in 0..PAGE_LEN {
            let scale = f16::from_f32(numbers.take() * 0.02);
            scales[2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
            page.scales[block][lane] = scale.to_f32();
            for col in 0..BLOCK_COLS {
                let quant = (numbers.take() * 255.0) as i32 - 127;
                page.quants[block * BLOCK_COLS + col][lane] = quant;
                quants[index(lane, col)] = (quant + bias) as u8;
            }
        }
    }
    page
}

fn key_page(numbers: &mut Numbers, dim: usize) -> Page {
    page(numbers, dim, |lane, col| col / 4 * 64 + lane * 4 + col % 4, 128)
}

fn value_page(numbers: &mut Numbers, dim: usize) -> Page {
    page(numbers, dim, |lane, col| lane / 2 * 64 + col * 2 + lane % 2, 0)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Computes a score by the module's definition, number by number.
fn naive_score(q: &[f32], page: &Page, lane: usize) -> f32 {
    let mut score = 0.0f32;
    for (block, q) in q.chunks_exact(BLOCK_COLS).enumerate() {
        let largest = q.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let quants = q.iter().map(|x| (x * inverse).round_ties_even() as i32);
        let sum: i32 = quants
            .enumerate()
            .map(|(col, quant)| quant * page.quants[block * BLOCK_COLS + col][lane])
            .sum();
        score = (sum as f32).mul_add(page.scales[block][lane] * (largest / 127.0), score);
    }
    score
}

#[test]
fn scores_are_those_of_the_naive_twin() {
    let mut numbers = Numbers(1);
    for (key_dim, n_rows, n_pages) in [
        (32, 1, 1),
        (64, 4, 16),
        (96, 7, 3),
        (128, 3, 2),
        (256, 2, 5),
        (64, 0, 1),
        (64, 2, 0),
    ] {
        let pages: Vec<Page> = (0..n_pages).map(|_| key_page(&mut numbers, key_dim)).collect();
        let keys: Vec<&[u8]> = pages.iter().map(|page| &*page.bytes).collect();
        let mut q: Vec<f32> = (0..n_rows * key_dim)
            .map(|_| numbers.take() * 8.0 - 4.0)
            .collect();
        // A block of zeros has no scale.
        q.iter_mut().take(BLOCK_COLS).for_each(|x| *x = 0.0);
        for features in CpuFeatures::each_path() {
            let mut out = vec![f32::NAN; n_rows * SPLIT_TOKENS];
            let mut prepared = q.clone();
            Q8_0_PAGES.prepare_queries(features, &mut prepared, key_dim);
            Q8_0_PAGES.scores(features, &prepared, key_dim, SplitPages::only(&keys), &mut out);
            for (q, out) in q.chunks_exact(key_dim).zip(out.chunks_exact(SPLIT_TOKENS)) {
                let expected: Vec<f32> = (0..n_pages * PAGE_LEN)
                    .map(|token| naive_score(q, &pages[token / PAGE_LEN], token % PAGE_LEN))
                    .collect();
                assert_eq!(
                    bits(&out[..n_pages * PAGE_LEN]),
                    bits(&expected),
                    "{features} {key_dim}"
                );
            }
        }
    }
}

/// Computes a row's sums of values by the module's definition, number by number.
fn naive_values(weights: &[f32], pages: &[Page], seen: Range<usize>, out: &mut [f32]) {
    for (col, out) in out.iter_mut().enumerate() {
        let scale = |token: usize| pages[token / PAGE_LEN].scales[col / BLOCK_COLS][token % PAGE_LEN];
        let scaled = |token: usize| weights[token] * scale(token);
        let largest = seen.clone().map(scaled).fold(0.0, f32::max);
        let inverse = if largest > 0.0 { 32767.0 / largest } else { 0.0 };
        let products = seen.clone().map(|token| {
            let weight = (scaled(token) * inverse).round_ties_even() as i64;
            weight * i64::from(pages[token / PAGE_LEN].quants[col][token % PAGE_LEN])
        });
        let sum: i64 = products.sum();
        *out = (sum as f32).mul_add(largest / 32767.0, *out);
    }
}

#[test]
fn values_are_those_of_the_naive_twin_and_what_is_not_seen_is_not_looked_at() {
    let mut numbers = Numbers(2);
    for (dim, n_pages, seen) in [
        (32, 1, std::iter::once(0..1).collect()),
        (64, SPLIT_PAGES, vec![0..256; 4]),
        (64, 3, vec![0..40, 0..41, 7..42, 0..0, 20..48, 17..18, 40..41]),
        (128, 2, vec![5..20, 5..21, 9..10]),
        (96, 2, vec![0..0, 32..32]),
    ] {
        let mut pages: Vec<Page> = (0..n_pages).map(|_| value_page(&mut numbers, dim)).collect();
        let is_seen = |token: usize| seen.iter().any(|seen| seen.contains(&token));
        for token in (0..n_pages * PAGE_LEN).filter(|&token| !is_seen(token)) {
            let bytes = &mut pages[token / PAGE_LEN].bytes;
            bytes[2 * (token % PAGE_LEN)..][..2].copy_from_slice(&f16::NAN.to_le_bytes());
        }
        let values: Vec<&[u8]> = pages.iter().map(|page| &*page.bytes).collect();
        let mut weights: Vec<f32> = (0..seen.len() * SPLIT_TOKENS)
            .map(|_| numbers.take().powi(9))
            .collect();
        for (weights, seen) in weights.chunks_exact_mut(SPLIT_TOKENS).zip(&seen) {
            weights[..seen.start].fill(0.0);
            weights[seen.end..].fill(0.0);
            // If a row sees nothing, its scores were not made weights.
            if seen.is_empty() {
                weights.fill(f32::NAN);
            }
        }
        let stride = dim + 2;
        let before: Vec<f32> = (0..seen.len() * stride).map(|_| numbers.take()).collect();
        let mut expected = before.clone();
        for ((weights, seen), out) in weights
            .chunks_exact(SPLIT_TOKENS)
            .zip(&seen)
            .zip(expected.chunks_exact_mut(stride))
        {
            naive_values(weights, &pages, seen.clone(), &mut out[..dim]);
        }
        for features in CpuFeatures::each_path() {
            let mut out = before.clone();
            Q8_0_PAGES.add_values(
                features,
                &weights,
                SplitPages::only(&values),
                &seen,
                [dim, dim],
                &mut out,
                stride,
            );
            assert_eq!(bits(&out), bits(&expected), "{features} {dim} {seen:?}");
        }
    }
}

/// Sums values whose position 53 has a tiny weight and a scale `ratio` times as large as the largest of the others. Returns the
/// error of each column, over half a step of the integers for each position, with a step of the largest weight times scale.
fn errors_beside(features: CpuFeatures, ratio: f32) -> Vec<f64> {
    let mut numbers = Numbers(4);
    let mut pages: Vec<Page> = (0..SPLIT_PAGES).map(|_| value_page(&mut numbers, 32)).collect();
    let scale = f16::from_f32(0.02 * ratio);
    pages[3].scales[0][5] = scale.to_f32();
    pages[3].bytes[2 * 5..][..2].copy_from_slice(&scale.to_le_bytes());
    let mut weights: Vec<f32> = (0..SPLIT_TOKENS).map(|_| numbers.take().powi(9)).collect();
    weights[3 * PAGE_LEN + 5] = 1e-13;
    let values: Vec<&[u8]> = pages.iter().map(|page| &*page.bytes).collect();
    let mut out = [0.0f32; 32];
    let seen = 0..SPLIT_TOKENS;
    Q8_0_PAGES.add_values(
        features,
        &weights,
        SplitPages::only(&values),
        std::slice::from_ref(&seen),
        [32, 32],
        &mut out,
        32,
    );
    let errors = out.iter().enumerate().map(|(col, out)| {
        let (mut exact, mut quants, mut largest) = (0.0f64, 0.0f64, 0.0f64);
        for (token, weight) in weights.iter().enumerate() {
            let page = &pages[token / PAGE_LEN];
            let quant = f64::from(page.quants[col][token % PAGE_LEN]);
            let scaled = f64::from(*weight) * f64::from(page.scales[0][token % PAGE_LEN]);
            exact += scaled * quant;
            quants += quant.abs();
            largest = largest.max(scaled);
        }
        (f64::from(*out) - exact).abs() / (0.5 * largest / 32767.0 * quants)
    });
    errors.collect()
}

#[test]
fn a_large_scale_that_weighs_nothing_takes_no_bits_from_the_others() {
    for features in CpuFeatures::each_path() {
        for ratio in [1.0, 10.0, 100.0, 1000.0, 1e6] {
            for error in errors_beside(features, ratio) {
                // A little more than half a step for the rounding of f32.
                assert!(error <= 1.02, "{features} {ratio}: {error}");
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_not_hidden() {
    let mut numbers = Numbers(3);
    let keys = key_page(&mut numbers, 32);
    let mut values = value_page(&mut numbers, 32);
    values.bytes[2 * 3..][..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    for features in CpuFeatures::each_path() {
        let mut q = [1.0; 32];
        q[5] = f32::NAN;
        let mut scores = [0.0; SPLIT_TOKENS];
        Q8_0_PAGES.prepare_queries(features, &mut q, 32);
        Q8_0_PAGES.scores(features, &q, 32, SplitPages::only(&[&keys.bytes]), &mut scores);
        assert!(scores[..PAGE_LEN].iter().all(|score| score.is_nan()));
        let (weights, mut out) = ([0.5; SPLIT_TOKENS], [0.0; 32]);
        Q8_0_PAGES.add_values(
            features,
            &weights,
            SplitPages::only(&[&values.bytes]),
            std::slice::from_ref(&(0..16)),
            [32, 32],
            &mut out,
            32,
        );
        assert!(out.iter().all(|x| x.is_nan()), "{features}");
    }
}
