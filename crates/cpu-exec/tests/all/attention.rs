//! Attention over pages against a naive twin, for every KV type, mask and grouping.

use tokenmill_backend::{Attention, AttentionShape, KvLayerShape, KvType, PAGE_TOKENS};
use tokenmill_cpu_exec::{
    AttentionBatch, Host, KvStore, Matrix, StepSizes, Workspace, WorkspaceSizes, attention, linear,
};
use tokenmill_gguf::TensorType;
use tokenmill_quant::e4m3;
use tokenmill_quant::{CpuFeatures, Format, dequantize_row, quantize_row};

struct Values(u64);

impl Values {
    fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| {
                self.0 = self
                    .0
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }
}

/// Sequences in a store, with a copy of every key and value.
#[derive(Clone)]
struct Scene {
    shape: KvLayerShape,
    n_heads: usize,
    /// Context lengths.
    lens: Vec<usize>,
    /// Page tables: pages are dealt round robin, last page first.
    pages: Vec<Vec<u32>>,
    /// For each sequence `[len, n_kv_heads, dim]`.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    queries: Vec<Vec<f32>>,
}

impl Scene {
    fn new(shape: KvLayerShape, n_heads: usize, lens: &[usize]) -> Self {
        let mut values = Values(5);
        let n_pages: usize = lens.iter().map(|len| len.div_ceil(PAGE_TOKENS)).sum();
        let mut free = (0..n_pages as u32).rev();
        let mut pages = vec![Vec::new(); lens.len()];
        while pages
            .iter()
            .zip(lens)
            .any(|(pages, len)| pages.len() < len.div_ceil(PAGE_TOKENS))
        {
            for (pages, len) in pages.iter_mut().zip(lens) {
                if pages.len() < len.div_ceil(PAGE_TOKENS) {
                    pages.push(free.next().unwrap());
                }
            }
        }
        let mut rows = |width: usize| {
            lens.iter()
                .map(|len| values.take(len * width))
                .collect::<Vec<_>>()
        };
        let keys = rows(shape.n_kv_heads * shape.head_dim_k);
        let beginnings = |keys: &Vec<f32>| -> Vec<f32> {
            let heads = keys.chunks_exact(shape.head_dim_k);
            heads.flat_map(|key| &key[..shape.head_dim_v]).copied().collect()
        };
        let values = if shape.has_values_in_keys {
            keys.iter().map(beginnings).collect()
        } else {
            rows(shape.n_kv_heads * shape.head_dim_v)
        };
        Self {
            keys,
            values,
            queries: rows(n_heads * shape.head_dim_k),
            shape,
            n_heads,
            lens: lens.to_vec(),
            pages,
        }
    }

    /// Does the same with keys and values of E4M3 for those of this type.
    fn rounded(&self, types: [KvType; 2]) -> Self {
        let mut rounded = self.clone();
        for (ty, rows) in types.into_iter().zip([&mut rounded.keys, &mut rounded.values]) {
            if ty == KvType::E4M3 {
                rows.iter_mut()
                    .flatten()
                    .for_each(|x| *x = e4m3::decode(e4m3::encode(*x)));
            }
        }
        rounded
    }

    fn store(&self, host: &Host, ty: KvType) -> KvStore {
        self.store_as(host, [ty, ty])
    }

    /// A store of keys and values in a type each.
    fn store_as(&self, host: &Host, [key_type, value_type]: [KvType; 2]) -> KvStore {
        let n_pages = self.pages.iter().map(Vec::len).sum();
        let mut store = KvStore::new(&[self.shape], n_pages, key_type, value_type).unwrap();
        for (seq_idx, &len) in self.lens.iter().enumerate() {
            let slots: Vec<u32> = (0..len)
                .map(|i| self.pages[seq_idx][i / PAGE_TOKENS] * PAGE_TOKENS as u32 + (i % PAGE_TOKENS) as u32)
                .collect();
            if self.shape.has_values_in_keys {
                store.store_keys(host, 0, &slots, &self.keys[seq_idx]);
            } else {
                store.store(host, 0, &slots, &self.keys[seq_idx], &self.values[seq_idx]);
            }
        }
        store
    }

    /// Attends with the last `n_new` tokens of each sequence.
    fn attend(&self, host: &Host, store: &KvStore, params: &Attention<&[f32]>, n_new: &[usize]) -> Vec<f32> {
        self.attend_in(&mut Workspace::new(host), host, store, params, n_new)
    }

    fn attend_in(
        &self,
        workspace: &mut Workspace,
        host: &Host,
        store: &KvStore,
        params: &Attention<&[f32]>,
        n_new: &[usize],
    ) -> Vec<f32> {
        let (mut positions, mut seq_starts, mut page_starts) = (Vec::new(), vec![0], vec![0]);
        let (mut pages, mut q) = (Vec::new(), Vec::new());
        for (seq_idx, &len) in self.lens.iter().enumerate() {
            let first = len - n_new[seq_idx];
            positions.extend(first as u32..len as u32);
            q.extend(&self.queries[seq_idx][first * self.n_heads * self.shape.head_dim_k..]);
            pages.extend(&self.pages[seq_idx]);
            seq_starts.push(positions.len() as u32);
            page_starts.push(pages.len() as u32);
        }
        let batch = AttentionBatch {
            last_seen: &[],
            window_seen: &[],
            positions: &positions,
            seq_starts: &seq_starts,
            page_starts: &page_starts,
            pages: &pages,
        };
        let mut out = vec![f32::NAN; positions.len() * self.n_heads * self.shape.head_dim_v];
        attention(host, workspace, store, &q, &batch, params, &mut out);
        out
    }

    /// Computes the same in f64, from the keys and values before they were stored.
    fn exact(&self, params: &Attention<&[f32]>, n_new: &[usize]) -> Vec<f64> {
        let KvLayerShape {
            n_kv_heads,
            head_dim_k,
            head_dim_v,
            ..
        } = self.shape;
        let mut out = Vec::new();
        for (seq_idx, &len) in self.lens.iter().enumerate() {
            for position in len - n_new[seq_idx]..len {
                for head_idx in 0..self.n_heads {
                    let kv_head = head_idx * n_kv_heads / self.n_heads;
                    let query = &self.queries[seq_idx][(position * self.n_heads + head_idx) * head_dim_k..]
                        [..head_dim_k];
                    let score = |i: usize| {
                        let key =
                            &self.keys[seq_idx][(i * n_kv_heads + kv_head) * head_dim_k..][..head_dim_k];
                        let product: f64 = query
                            .iter()
                            .zip(key)
                            .map(|(q, k)| f64::from(*q) * f64::from(*k))
                            .sum();
                        let slope = params.slopes.map_or(0.0, |slopes| f64::from(slopes[head_idx]));
                        let distance = position.abs_diff(i) as f64;
                        let score = product * f64::from(params.scale) - slope * distance;
                        params
                            .softcap
                            .map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                    };
                    let is_seen = |i: usize| {
                        (i <= position || !params.is_causal)
                            && params.window.is_none_or(|window| {
                                if params.is_chunked {
                                    i / window == position / window
                                } else {
                                    i.abs_diff(position) < window
                                }
                            })
                    };
                    let weights: Vec<f64> = (0..len)
                        .map(|i| if is_seen(i) { score(i).exp() } else { 0.0 })
                        .collect();
                    let sink = params.sinks.map_or(0.0, |sinks| f64::from(sinks[head_idx]).exp());
                    let sum = weights.iter().sum::<f64>() + sink;
                    out.extend((0..head_dim_v).map(|d| {
                        let value =
                            |i: usize| self.values[seq_idx][(i * n_kv_heads + kv_head) * head_dim_v + d];
                        weights
                            .iter()
                            .enumerate()
                            .map(|(i, w)| w * f64::from(value(i)))
                            .sum::<f64>()
                            / sum
                    }));
                }
            }
        }
        out
    }
}

const SHAPE: KvLayerShape = KvLayerShape {
    n_kv_heads: 2,
    head_dim_k: 64,
    head_dim_v: 64,
    has_values_in_keys: false,
};

fn causal(n_heads: usize) -> Attention<&'static [f32]> {
    Attention {
        layer_idx: 0,
        n_heads,
        scale: 0.3,
        is_causal: true,
        window: None,
        is_chunked: false,
        softcap: None,
        sinks: None,
        slopes: None,
    }
}

/// Compares every path with the exact result. Keys and values are below 1; f16 keeps 11 bits of them, q8_0 is off by at
/// most 1/254 (and may round queries alike), which moves a score of standard deviation 0.3 * sqrt(64) / 3 by as much. With E4M3
/// the result is that of the rounded numbers.
#[track_caller]
fn check(scene: &Scene, params: &Attention<&[f32]>, n_new: &[usize]) {
    println!("paths: {:?}", CpuFeatures::each_path().collect::<Vec<_>>());
    let exact = scene.exact(params, n_new);
    for features in CpuFeatures::each_path() {
        for (types, tolerance) in [
            ([KvType::F32, KvType::F32], 5e-6),
            ([KvType::F16, KvType::F16], 1e-3),
            ([KvType::Q8_0, KvType::Q8_0], 2e-2),
            ([KvType::Q8_0, KvType::F16], 2e-2),
            ([KvType::F16, KvType::Q8_0], 2e-2),
            ([KvType::E4M3, KvType::E4M3], 5e-6),
            ([KvType::F16, KvType::E4M3], 1e-3),
            ([KvType::E4M3, KvType::Q8_0], 2e-2),
        ] {
            if scene.shape.has_values_in_keys && types[0] != types[1] {
                continue;
            }
            let exact = if types.contains(&KvType::E4M3) {
                scene.rounded(types).exact(params, n_new)
            } else {
                exact.clone()
            };
            let host = Host::new(2, features).unwrap();
            let out = scene.attend(&host, &scene.store_as(&host, types), params, n_new);
            assert_eq!(out.len(), exact.len());
            for (i, (out, exact)) in out.iter().zip(&exact).enumerate() {
                assert!(
                    (f64::from(*out) - exact).abs() < tolerance,
                    "{types:?} {features} at {i}: {out} vs {exact}"
                );
            }
        }
    }
}

/// Multiplies each `block` numbers of `row` by the Hadamard matrix, entry by entry.
fn rotated(row: &[f32], block: usize) -> Vec<f32> {
    let entry = |i: usize, j: usize| {
        if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    (row.chunks_exact(block))
        .flat_map(|row| {
            (0..block).map(move |i| {
                let sum: f64 = row
                    .iter()
                    .enumerate()
                    .map(|(j, &x)| entry(i, j) * f64::from(x))
                    .sum();
                (sum / (block as f64).sqrt()) as f32
            })
        })
        .collect()
}

/// Quantizes heads to 4 bits and back, rotated in blocks.
fn in_four_bits(rows: &[f32], block: usize) -> Vec<f32> {
    let mut bytes = vec![0; rows.len() / 32 * 18];
    quantize_row(TensorType::Q4_0, &rotated(rows, block), &mut bytes).unwrap();
    let mut back = vec![0.0; rows.len()];
    dequantize_row(TensorType::Q4_0, &bytes, &mut back).unwrap();
    rotated(&back, block)
}

/// Keys and values in 4 bits: the exact attention over the rotated heads as GGUF's quantizer rounds them. A rotation in another order of sums
/// could round a number to the next step, which is far more than the tolerance; with these rows none does.
#[test]
fn four_bits_are_those_of_the_format_behind_a_rotation() {
    let of = |head_dim_k, head_dim_v, has_values_in_keys| KvLayerShape {
        n_kv_heads: if has_values_in_keys { 1 } else { 2 },
        head_dim_k,
        head_dim_v,
        has_values_in_keys,
    };
    for shape in [
        of(64, 64, false),
        of(96, 32, false),
        of(32, 160, false),
        of(512, 64, false),
        of(96, 64, true),
        of(64, 32, true),
    ] {
        let scene = Scene::new(shape, 4, &[1, 40, 300]);
        let mut rounded = Scene::new(shape, 4, &[1, 40, 300]);
        for (keys, values) in rounded.keys.iter_mut().zip(&mut rounded.values) {
            *keys = in_four_bits(keys, shape.key_rotation());
            *values = if shape.has_values_in_keys {
                let heads = keys.chunks_exact(shape.head_dim_k);
                heads.flat_map(|key| &key[..shape.head_dim_v]).copied().collect()
            } else {
                in_four_bits(values, shape.value_rotation())
            };
        }
        for n_new in [[1, 1, 1], [1, 30, 9]] {
            let exact = rounded.exact(&causal(4), &n_new);
            let unrounded = scene.exact(&causal(4), &n_new);
            for features in CpuFeatures::each_path() {
                let host = Host::new(2, features).unwrap();
                let out = scene.attend(&host, &scene.store(&host, KvType::Q4_0), &causal(4), &n_new);
                for (i, (out, exact)) in out.iter().zip(&exact).enumerate() {
                    assert!(
                        (f64::from(*out) - exact).abs() < 2e-5,
                        "{shape:?} {features} at {i}: {out} vs {exact}"
                    );
                }
                let error: f64 = (out.iter().zip(&unrounded))
                    .map(|(a, b)| (f64::from(*a) - b).powi(2))
                    .sum();
                let size: f64 = unrounded.iter().map(|b| b.powi(2)).sum();
                assert!(error < 0.03 * size, "{shape:?}: {error} of {size}");
            }
        }
    }
}

#[test]
fn decode_and_prefill_match_the_exact_result() {
    let scene = Scene::new(SHAPE, 8, &[1, 16, 17, 40, 700]);
    check(&scene, &causal(8), &[1, 1, 1, 1, 1]);
    check(&scene, &causal(8), &[1, 16, 2, 30, 5]);
}

#[test]
fn any_grouping_of_heads_works() {
    for n_heads in [2, 6, 14, 18] {
        check(&Scene::new(SHAPE, n_heads, &[33]), &causal(n_heads), &[3]);
    }
}

#[test]
fn keys_and_values_may_differ_in_width() {
    for (head_dim_k, head_dim_v) in [(96, 32), (32, 128), (192, 160)] {
        let shape = KvLayerShape {
            head_dim_k,
            head_dim_v,
            ..SHAPE
        };
        check(&Scene::new(shape, 4, &[50]), &causal(4), &[20]);
    }
}

#[test]
fn values_may_be_the_beginnings_of_keys() {
    for (n_kv_heads, head_dim_k, head_dim_v) in [(1, 96, 64), (1, 160, 128), (2, 64, 64), (2, 64, 30)] {
        let shape = KvLayerShape {
            n_kv_heads,
            head_dim_k,
            head_dim_v,
            has_values_in_keys: true,
        };
        let scene = Scene::new(shape, 6, &[1, 50, 300]);
        check(&scene, &causal(6), &[1, 20, 1]);
        check(&scene, &causal(6), &[1, 1, 30]);
    }
}

#[test]
fn heads_that_share_one_key_head_match_the_exact_result() {
    let sinks: Vec<f32> = (0..24).map(|head| head as f32 * 0.2 - 2.0).collect();
    for (n_kv_heads, n_heads, has_values_in_keys) in [(1, 16, true), (1, 20, false), (2, 24, false)] {
        let shape = KvLayerShape {
            n_kv_heads,
            has_values_in_keys,
            ..SHAPE
        };
        let scene = Scene::new(shape, n_heads, &[1, 50, 300]);
        let params = Attention {
            sinks: Some(&sinks[..n_heads]),
            ..causal(n_heads)
        };
        check(&scene, &params, &[1, 20, 1]);
        check(&scene, &params, &[1, 1, 30]);
    }
}

#[test]
fn windows_caps_and_sinks_match_the_exact_result() {
    let scene = Scene::new(SHAPE, 4, &[30, 100]);
    let sinks = [0.5, -1.0, 3.0, 0.0f32];
    for window in [None, Some(1), Some(20)] {
        let params = Attention { window, ..causal(4) };
        check(&scene, &params, &[30, 50]);
        let params = Attention {
            is_chunked: window.is_some(),
            ..params
        };
        check(&scene, &params, &[30, 50]);
        check(&scene, &params, &[1, 2]);
    }
    let params = Attention {
        softcap: Some(2.0),
        sinks: Some(sinks.as_slice()),
        ..causal(4)
    };
    check(&scene, &params, &[7, 3]);
    let slopes = [0.5, 0.25, 0.125, 0.0625f32];
    let params = Attention {
        slopes: Some(slopes.as_slice()),
        ..causal(4)
    };
    check(&scene, &params, &[7, 30]);
}

#[test]
fn both_directions_match_the_exact_result() {
    let scene = Scene::new(SHAPE, 4, &[1, 30, 300]);
    for window in [None, Some(1), Some(9), Some(280)] {
        let params = Attention {
            is_causal: false,
            window,
            ..causal(4)
        };
        check(&scene, &params, &[1, 30, 300]);
    }
}

#[test]
fn results_do_not_depend_on_threads_chunking_or_company() {
    let scene = Scene::new(SHAPE, 8, &[600, 90]);
    let row_len = 8 * SHAPE.head_dim_v;
    let mixed = [
        [KvType::Q8_0, KvType::F16],
        [KvType::F32, KvType::Q8_0],
        [KvType::Q8_0, KvType::Q4_0],
        [KvType::F16, KvType::E4M3],
    ];
    for types in KvType::ALL.map(|ty| [ty, ty]).into_iter().chain(mixed) {
        for features in CpuFeatures::each_path() {
            let host = Host::new(1, features).unwrap();
            let store = scene.store_as(&host, types);
            let together = scene.attend(&host, &store, &causal(8), &[90, 90]);
            for n_threads in [1, 3] {
                let host = Host::new(n_threads, features).unwrap();
                for n_new in [1, 2, 7] {
                    let few = scene.attend(&host, &store, &causal(8), &[n_new, n_new]);
                    let (first, second) = few.split_at(n_new * row_len);
                    assert!(
                        first == &together[(90 - n_new) * row_len..90 * row_len],
                        "{types:?} {features}"
                    );
                    assert!(
                        second == &together[(180 - n_new) * row_len..],
                        "{types:?} {features}"
                    );
                }
            }
        }
    }
}

#[test]
fn pages_outside_the_window_are_never_read() {
    let mut scene = Scene::new(SHAPE, 4, &[100]);
    let host = Host::new(2, CpuFeatures::detect()).unwrap();
    let store = scene.store(&host, KvType::F16);
    let params = Attention {
        window: Some(30),
        ..causal(4)
    };
    let expected = scene.attend(&host, &store, &params, &[1]);
    scene.pages[0][..4].fill(u32::MAX);
    assert_eq!(scene.attend(&host, &store, &params, &[1]), expected);
}

#[test]
fn a_step_with_too_many_splits_gives_the_bits_of_one_with_few() {
    let shape = KvLayerShape {
        n_kv_heads: 1,
        head_dim_k: 16,
        head_dim_v: 16,
        has_values_in_keys: false,
    };
    // 257 splits of 32 heads: those of 7 tokens may wait in memory to be combined, those of 8 may not.
    let scene = Scene::new(shape, 32, &[256 * 257]);
    let host = Host::new(2, CpuFeatures::detect()).unwrap();
    let store = scene.store(&host, KvType::F16);
    let together = scene.attend(&host, &store, &causal(32), &[8]);
    let few = scene.attend(&host, &store, &causal(32), &[7]);
    assert!(together[32 * 16..] == few);
}

#[test]
fn no_step_takes_more_memory_than_was_planned() {
    let step = StepSizes {
        max_tokens: 40,
        max_seqs: 5,
        n_ctx: 700,
    };
    let n_cols = 512;
    let attention = AttentionShape {
        n_heads: 8,
        n_kv_heads: 2,
        head_dim_k: 64,
        head_dim_v: 64,
    };
    let sizes =
        WorkspaceSizes::of_matrices(&step, n_cols).max(WorkspaceSizes::of_attention(&step, &attention));
    let scene = Scene::new(SHAPE, 8, &[700; 5]);
    for n_threads in [1, 3] {
        let host = Host::new(n_threads, CpuFeatures::detect()).unwrap();
        let store = scene.store(&host, KvType::F16);
        let run = |workspace: &mut Workspace| {
            for n_new in [[8; 5], [1; 5], [40, 0, 0, 0, 0], [9, 9, 9, 9, 4]] {
                scene.attend_in(workspace, &host, &store, &causal(8), &n_new);
            }
            // The last has no tiles, so its rows are dequantized.
            for ty in [TensorType::Q4_0, TensorType::Q4_K, TensorType::IQ4_NL] {
                let row_bytes = Format::of(ty).unwrap().row_bytes(n_cols).unwrap();
                let matrix = Matrix::pack(&host, ty, 33, n_cols, &vec![0; 33 * row_bytes]).unwrap();
                let mut out = vec![0.0; 40 * 33];
                linear(&host, workspace, &vec![0.5; 40 * n_cols], &matrix, &mut out);
            }
        };
        let planned = sizes.n_bytes(n_threads);
        let mut reserved = Workspace::new(&host);
        reserved.reserve(&sizes).unwrap();
        assert_eq!(reserved.n_bytes(), planned);
        run(&mut reserved);
        assert_eq!(reserved.n_bytes(), planned);
        if n_threads == 1 {
            // The plan is not far above the need of these steps; lists that grow by pushing hold more than they need.
            let mut grown = Workspace::new(&host);
            run(&mut grown);
            assert!(
                planned * 3 / 4 < grown.n_bytes(),
                "{planned} planned, {} taken",
                grown.n_bytes()
            );
        }
    }
}
