//! Attention of one token over one page with numbers at the limits of f16: stale scales in pages, and queries, including those of prompts.
//! The other cases have only small numbers.

use half::f16;
use tokenmill_backend::{KvLayerShape, KvType};
use tokenmill_cuda_exec::{DecodePlan, PrefillTiles, Visible};
use tokenmill_ptx_sim::Arguments;
use tokenmill_quant::e4m3;

use crate::kernels::bench::{NULL, Sim, assert_close};

const DIM: usize = 32;
const PAGE: usize = 16;

/// Returns the attention of a single token's head that sees the first `n_seen` positions of a page.
fn attend(types: [KvType; 2], module: &str, q: &[f32], pages: [&[u8]; 2], n_seen: u32) -> Vec<f32> {
    let shape = KvLayerShape {
        n_kv_heads: 1,
        head_dim_k: DIM,
        head_dim_v: DIM,
        has_values_in_keys: false,
    };
    let plan = DecodePlan::of(1, shape, types, Visible::causal(n_seen as usize));
    let mut sim = Sim::new();
    let out = sim.room(4 * DIM);
    let mut arguments = Arguments::new().ptr(sim.f32s(q)).ptr(out).ptr(NULL).ptr(NULL);
    for word in [n_seen - 1, 0] {
        arguments = arguments.ptr(sim.u32s(&[word]));
    }
    arguments = arguments
        .ptr(NULL)
        .ptr(sim.u32s(&[0, 1]))
        .ptr(sim.u32s(&[0]))
        .ptr(sim.bytes(pages[0]))
        .ptr(sim.bytes(pages[1]))
        .ptr(NULL)
        .ptr(NULL)
        .f32(1.0)
        .f32(0.0);
    let [columns_k, columns_v] = plan.columns;
    let numbers = [
        0,
        1,
        1,
        DIM,
        DIM,
        DIM,
        0,
        plan.heads,
        plan.split_bits as usize,
        columns_k,
        columns_v,
    ];
    for n in numbers.into_iter().chain([plan.n_stages, plan.warp_tokens]) {
        arguments = arguments.i32(n as i32);
    }
    let arguments = (arguments.ptr(sim.room(4 * plan.partial_len(1, DIM)))).ptr(sim.u32s(&[0]));
    let grid = [plan.n_blocks_x, plan.n_splits, 1];
    let threads = DecodePlan::THREADS as usize;
    sim.launch(
        module,
        &plan.kernel(types),
        grid,
        threads,
        plan.shared_bytes,
        &arguments,
    );
    sim.read_f32s(out, DIM)
}

/// Returns the same for a run of one token, by a kernel for f16 stores.
fn attend_by_run(tiles: PrefillTiles, q: &[f32], pages: [&[u8]; 2], n_seen: u32) -> Vec<f32> {
    let [module, kernel] = tiles.names();
    let mut sim = Sim::new();
    let out = sim.room(4 * DIM);
    let mut arguments = Arguments::new().ptr(sim.f32s(q)).ptr(out);
    for words in [&[n_seen - 1][..], &[0, 1], &[0, 1], &[0]] {
        arguments = arguments.ptr(sim.u32s(words));
    }
    arguments = arguments
        .ptr(sim.bytes(pages[0]))
        .ptr(sim.bytes(pages[1]))
        .ptr(NULL)
        .ptr(NULL)
        .f32(1.0)
        .f32(0.0);
    for n in [0, 0, 0, 1, 1, DIM, DIM] {
        arguments = arguments.i32(n as i32);
    }
    sim.launch(&module, &kernel, [1, 1, 1], 256, tiles.shared_bytes(), &arguments);
    sim.read_f32s(out, DIM)
}

/// Returns the sums of values weighted by the softmax of scores.
fn expected(scores: &[f64], value: impl Fn(usize, usize) -> f64) -> Vec<(f64, f64)> {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..DIM)
        .map(|d| {
            let values = weights.iter().enumerate().map(|(j, weight)| weight * value(j, d));
            (values.sum::<f64>() / sum, 1.0)
        })
        .collect()
}

#[test]
fn places_that_are_not_seen_may_have_infinite_scales() {
    let n_seen = 5;
    let byte = |j: usize, d: usize| (j * 7 + d * 3) as i32 % 100 - 50;
    let page = |scale: f32| -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..PAGE * DIM)
            .map(|at| byte(at / DIM, at % DIM) as i8 as u8)
            .collect();
        for place in 0..PAGE {
            let scale = if place < n_seen {
                f16::from_f32(scale)
            } else {
                f16::INFINITY
            };
            bytes.extend(scale.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(256), 0);
        bytes
    };
    let q: Vec<f32> = (0..DIM).map(|d| (d % 5) as f32 / 8.0 - 0.25).collect();
    let (of_keys, of_values) = (1.0 / 256.0, 1.0 / 64.0);
    let scores: Vec<f64> = (0..n_seen)
        .map(|j| {
            (0..DIM)
                .map(|d| f64::from(q[d]) * f64::from(byte(j, d)) * of_keys)
                .sum()
        })
        .collect();
    let expected = expected(&scores, |j, d| f64::from(byte(j, d)) * of_values);
    let found = attend(
        [KvType::Q8_0; 2],
        "attention_decode_q8_0_q8_0",
        &q,
        [&page(of_keys as f32), &page(of_values as f32)],
        n_seen as u32,
    );
    assert_close(&found, &expected, 1e-5, "values of q8_0");
}

#[test]
fn codes_of_no_number_stay_none_and_what_is_not_seen_of_them_does_not_count() {
    let n_seen = 5;
    let code = |j: usize, d: usize| (j * 7 + d * 3) as u8 % 0x38;
    // Position `place_of_none` holds a NaN, and so do all positions after the visible ones.
    let page = |place_of_none: Option<usize>| -> Vec<u8> {
        let at = |at: usize| match at / DIM {
            place if place >= n_seen => 0xff,
            place if Some(place) == place_of_none && at % DIM == 3 => 0x7f,
            place => code(place, at % DIM),
        };
        (0..PAGE * DIM).map(at).collect()
    };
    let q: Vec<f32> = (0..DIM).map(|d| (d % 5) as f32 / 8.0 - 0.25).collect();
    let value = |j: usize, d: usize| f64::from(e4m3::decode(code(j, d)));
    let scores: Vec<f64> = (0..n_seen)
        .map(|j| (0..DIM).map(|d| f64::from(q[d]) * value(j, d)).sum())
        .collect();
    let expected = expected(&scores, value);
    let found = |keys: Option<usize>, values: Option<usize>| {
        let pages = [&page(keys)[..], &page(values)];
        attend(
            [KvType::E4M3; 2],
            "attention_decode_e4m3_e4m3",
            &q,
            pages,
            n_seen as u32,
        )
    };
    assert_close(&found(None, None), &expected, 1e-5, "e4m3");
    assert!(found(Some(2), None).iter().all(|x| x.is_nan()));
    let of_values = found(None, Some(4));
    let is_none = |d: usize| of_values[d].is_nan();
    assert!((0..DIM).all(|d| is_none(d) == (d == 3)), "{of_values:?}");
}

/// Keys so small that scores stay in range for queries beyond f16.
fn small_key(j: usize, d: usize) -> f32 {
    if d == 0 {
        (j * 16) as f32 / 1_048_576.0
    } else {
        0.0
    }
}

fn value_below_one(j: usize, d: usize) -> f32 {
    ((j * 5 + d) % 16) as f32 / 16.0
}

/// Makes a page of such keys, and one of such values.
fn pages_of_halves() -> [Vec<u8>; 2] {
    [small_key, value_below_one].map(|number| {
        (0..PAGE * DIM)
            .flat_map(|at| f16::from_f32(number(at / DIM, at % DIM)).to_le_bytes())
            .collect()
    })
}

#[test]
fn a_query_beyond_f16_is_its_largest_number_for_warpgroups() {
    let n_seen = 6;
    let pages = pages_of_halves();
    let largest = f64::from(f16::MAX) * std::f64::consts::LN_2;
    for (size, scaled) in [
        // A number that is in the range of f16 after scaling, and is off by 2^-11.
        (40_000.0, 40_000.0),
        (-40_000.0, -40_000.0),
        (65_000.0, largest),
        (-131_000.0, -largest),
        (1e30, largest),
    ] {
        let mut q = vec![0.0; DIM];
        q[0] = size;
        let scores: Vec<f64> = (0..n_seen).map(|j| scaled * f64::from(small_key(j, 0))).collect();
        let expected = expected(&scores, |j, d| f64::from(value_below_one(j, d)));
        for tiles in PrefillTiles::wide() {
            let found = attend_by_run(tiles, &q, [&pages[0], &pages[1]], n_seen as u32);
            // Scores of up to 4 and weights, both rounded by 2^-11, times values below 1.
            assert_close(
                &found,
                &expected,
                5.0 / 2048.0,
                &format!("a query of {size}, {tiles:?}"),
            );
        }
    }
}

#[test]
fn queries_beyond_f16_keep_their_size() {
    let n_seen = 6;
    // Both parts of the number count.
    let (key, value) = (small_key, value_below_one);
    let pages = pages_of_halves();
    let ways = |q: &[f32]| -> Vec<(String, Vec<f32>)> {
        let pages = [&pages[0][..], &pages[1]];
        let single = attend([KvType::F16; 2], "attention_decode", q, pages, n_seen as u32);
        let of_runs = [64, 128, 192, 256].map(|dim| {
            let tiles = PrefillTiles::of([KvType::F16; 2], dim).unwrap();
            let found = attend_by_run(tiles, q, pages, n_seen as u32);
            (format!("runs, up to {dim} values"), found)
        });
        std::iter::once(("a single token".to_owned(), single))
            .chain(of_runs)
            .collect()
    };
    for size in [65_000.0, 70_000.0, -100_000.0, 131_000.0] {
        let mut q = vec![0.0; DIM];
        q[0] = size;
        let scores: Vec<f64> = (0..n_seen)
            .map(|j| f64::from(size) * f64::from(key(j, 0)))
            .collect();
        let expected = expected(&scores, |j, d| f64::from(value(j, d)));
        for (way, found) in ways(&q) {
            // The rest of such a number has 11 bits: 16 of 131,000, times scores of up to 10.
            assert_close(&found, &expected, 2e-3, &format!("a query of {size}, {way}"));
        }
    }
    // A value beyond twice the range saturates at the largest one.
    let mut q = vec![0.0; DIM];
    q[0] = 1e30;
    for (way, found) in ways(&q) {
        assert!(found.iter().all(|x| x.is_finite()), "{way}: {found:?}");
    }
}
