//! Attention of decode steps together with the operations before it: norm and rotation of queries and keys, and the storing of keys and values.
//! Kernels: `turn_attention_*` of `attention_decode.cu`.
//!
//! Invariant: the bits are those of [`Ops::rope_kv`] followed by [`Ops::attention`].

use tokenmill_backend::{Attention, KvLayerShape, KvType, Rope};

use super::{
    AttentionScratch, AttentionStep, Ops, QuantizedMut,
    attention::{visible_of, window_of},
    attention_decode::{DecodePlan, THREADS, partial_len},
    check_multiple,
    rope_kv::{code, values_in_keys},
};
use crate::{
    Args, Buffer, LaunchShape, View, ViewMut,
    error::Result,
    kv::{KvLayerMut, check_head_dims},
};

/// Holds the outputs of the projections for the tokens of a step.
#[derive(Clone, Copy, Debug)]
pub struct NewRows<'a> {
    /// `[T, n_heads, dim_k]`.
    pub q: View<'a, f32>,
    /// `[T, n_kv_heads, dim_k]`.
    pub k: View<'a, f32>,
    /// `[T, n_kv_heads, dim_v]`.
    pub v: View<'a, f32>,
    /// Slot of each token in the KV store, `[T]`; `u32::MAX` stores nothing.
    pub slots: View<'a, u32>,
    /// RMS norm of each query and key head before the rotation, `[dim_k]` each.
    pub norms: [Option<View<'a, f32>>; 2],
    /// Epsilon of those norms.
    pub eps: f32,
}

impl Ops {
    /// Returns whether [`Self::turn_attention`] supports a step: each token is its sequence's only one in the step and sees nothing after it, keys
    /// and values are f16, and heads have at most 256 values.
    pub fn can_turn(
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        shape: KvLayerShape,
        types: [KvType; 2],
    ) -> bool {
        let plan = || DecodePlan::of(attention.n_heads, shape, types, visible_of(attention, step));
        step.is_one_each
            && step.runs.is_none()
            && attention.is_causal
            && types == [KvType::F16; 2]
            && !shape.has_values_in_keys
            && plan().columns[0] >= shape.head_dim_k
            && plan().columns[1] >= shape.head_dim_v
    }

    /// Norms and rotates queries and keys, stores keys and values, and attends, as [`Self::rope_kv`] and [`Self::attention`] do, for tokens that
    /// [`Self::can_turn`] accepts. In contrast to these, it leaves queries and keys unchanged.
    ///
    /// # Errors
    /// As those.
    pub fn turn_attention(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        rope: Option<&Rope<Buffer<f32>>>,
        rows: NewRows<'_>,
        kv: KvLayerMut<'_>,
        mut output: ViewMut<'_, f32>,
        mut quantized: Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let KvLayerMut {
            types,
            shape,
            mut k,
            v,
        } = kv;
        let mut v = v.ok_or_else(values_in_keys)?;
        let (dim_k, dim_v, n_kv_heads) = (shape.head_dim_k, shape.head_dim_v, shape.n_kv_heads);
        let n_heads = attention.n_heads;
        check_head_dims(dim_k, dim_v)?;
        check_multiple("the number of heads", n_heads, n_kv_heads)?;
        for of_heads in [&attention.sinks, &attention.slopes].into_iter().flatten() {
            of_heads.view().range(0..n_heads)?;
        }
        for norm in rows.norms.into_iter().flatten() {
            norm.range(0..dim_k)?;
        }
        let inv_freqs = rope
            .map(|rope| rope.inv_freqs.view().range(0..rope.n_dims / 2))
            .transpose()?;
        let plan = DecodePlan::of(n_heads, shape, types, visible_of(attention, step));
        let kernel = self.store_kernels(types)?.turned[plan.variant];
        let token_len = partial_len(n_heads, plan.n_splits, dim_v);
        let n_at_once = (scratch.partial.len() / token_len).clamp(1, self.max_grid_rows);
        let [q_width, k_width, v_width, out_width] = [
            n_heads * dim_k,
            n_kv_heads * dim_k,
            n_kv_heads * dim_v,
            n_heads * dim_v,
        ];
        let n_tokens = step.positions.len();
        for first in (0..n_tokens).step_by(n_at_once) {
            let end = (first + n_at_once).min(n_tokens);
            let n_here = end - first;
            let quantized_here = match &mut quantized {
                Some(rows) => Some(rows.reborrow().rows(first, n_here, out_width)?),
                None => None,
            };
            let (bytes, scales) = QuantizedMut::split(quantized_here);
            let args = Args::new()
                .read(rows.q.range(first * q_width..end * q_width)?)
                .write(output.reborrow().range(first * out_width..end * out_width)?)
                .write_or_null(bytes)
                .write_or_null(scales)
                .read(step.positions.range(first..end)?)
                .read(step.seq_of.range(first..end)?)
                .read(step.page_starts)
                .read(step.pages)
                .write(k.reborrow())
                .write(v.reborrow())
                .read_or_null(attention.sinks.as_ref().map(Buffer::view))
                .read_or_null(attention.slopes.as_ref().map(Buffer::view))
                .float(attention.scale)
                .float(attention.softcap.unwrap_or(0.0))
                .count(window_of(attention))
                .count(n_heads)
                .count(n_kv_heads)
                .count(dim_k)
                .count(dim_v)
                .count(usize::from(attention.is_chunked))
                .count(plan.heads.min(n_heads / n_kv_heads))
                .count(plan.split_bits as usize)
                .count(plan.columns[0])
                .count(plan.columns[1])
                .count(plan.n_stages)
                .count(plan.warp_tokens)
                .write(scratch.partial.view_mut().range(0..n_here * token_len)?)
                .write((scratch.counters.view_mut()).range(0..n_here * plan.n_blocks_x)?)
                .read(rows.k.range(first * k_width..end * k_width)?)
                .read(rows.v.range(first * v_width..end * v_width)?)
                .read(rows.slots.range(first..end)?)
                .count(plan.n_splits)
                .read_or_null(inv_freqs)
                .float(rope.map_or(1.0, |rope| rope.magnitude))
                .count(rope.map_or(0, |rope| rope.n_dims))
                .count(rope.map_or(0, |rope| code(rope.style)))
                .read_or_null(rows.norms[0])
                .read_or_null(rows.norms[1])
                .float(rows.eps);
            let (n_blocks_y, shared_bytes) = plan.turned(n_here, self.multiprocessors);
            let shape = LaunchShape::new([plan.n_blocks_x, n_blocks_y, n_here], THREADS)
                .with_shared_bytes(shared_bytes);
            self.device.launch(kernel, shape, &args)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{AttentionShape, KvLayout, PAGE_TOKENS, PageGroup, RopeAxes, RopeStyle};
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::{super::attention_decode::Multiprocessors, *};
    use crate::{KvStore, QuantizedRows, RopeTargets, ScratchNeeds, StepPlaces, driver::simulated};

    fn values(seed: usize, len: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 131 + i / 97 * 17) % 1009) as f32 / 504.5 - 1.0;
        (0..len).map(value).collect()
    }

    struct Case {
        n_heads: usize,
        n_kv_heads: usize,
        dims: [usize; 2],
        rope: Option<(RopeStyle, usize)>,
        has_norms: bool,
        window: Option<usize>,
        /// Position of the longest sequence.
        longest: u32,
    }

    impl Case {
        /// Tokens of a step, the last of them padding, with the positions that their sequences have.
        fn positions(&self) -> [u32; 7] {
            [0, 15, 16, 63, 64, self.longest, u32::MAX]
        }
    }

    const N_TOKENS: usize = 7;
    const H200: Multiprocessors = Multiprocessors {
        n: 132,
        shared_bytes: 228 << 10,
    };

    /// Selects the launches of [`run`].
    #[derive(Clone, Copy)]
    enum How {
        Two,
        /// One launch, with this number of multiprocessors.
        One(usize),
    }

    /// Runs it; returns the output, its quantized form, and the stored keys and values.
    fn run(case: &Case, how: How, n_scratch_tokens: usize) -> (Vec<f32>, Vec<u8>) {
        let &Case {
            n_heads,
            n_kv_heads,
            dims: [dim_k, dim_v],
            ..
        } = case;
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let mut ops = Ops::load(&device).unwrap();
        if let How::One(n_multiprocessors) = how {
            ops.multiprocessors = Multiprocessors {
                n: n_multiprocessors,
                ..H200
            };
        }
        let n_longest = case.longest as usize / PAGE_TOKENS + 1;
        let shape = KvLayerShape {
            n_kv_heads,
            head_dim_k: dim_k,
            head_dim_v: dim_v,
            has_values_in_keys: false,
        };
        let n_pages_of = |position: u32| position.wrapping_add(1).div_ceil(PAGE_TOKENS as u32);
        let n_pages = case.positions().into_iter().map(n_pages_of).sum::<u32>() as usize;
        let layout = KvLayout {
            layers: vec![shape],
            groups: vec![PageGroup::Main],
            n_pages,
            n_host_pages: 0,
            n_window_pages: 0,
            n_window_host_pages: 0,
            key_type: KvType::F16,
            value_type: KvType::F16,
        };
        let mut kv = KvStore::new(&device, &layout).unwrap();
        let upload = |values: &[u32]| device.upload("step inputs", values).unwrap();
        let floats = |seed, len| device.upload("rows", &values(seed, len)).unwrap();
        let n_slots = n_pages * PAGE_TOKENS;
        let all: Vec<u32> = (0..n_slots as u32).collect();
        let all = upload(&all);
        let places = StepPlaces {
            positions: all.view(),
            slots: all.view(),
        };
        let k = floats(1, n_slots * n_kv_heads * dim_k);
        let v = floats(2, n_slots * n_kv_heads * dim_v);
        ops.store_kv(places, [k.view(), v.view()], kv.layer_mut(0))
            .unwrap();

        let mut starts = vec![0];
        let mut slots = Vec::new();
        for position in case.positions() {
            let first = *starts.last().unwrap();
            starts.push(first + n_pages_of(position));
            // Pages are handed out from the last one on.
            let page = n_pages as u32
                - 1
                - (first + position.min(4096) / PAGE_TOKENS as u32).min(n_pages as u32 - 1);
            slots.push(if position == u32::MAX {
                u32::MAX
            } else {
                page * PAGE_TOKENS as u32 + position % PAGE_TOKENS as u32
            });
        }
        let n_tokens = N_TOKENS;
        let (positions, slots) = (upload(&case.positions()), upload(&slots));
        let seq_of = upload(&(0..n_tokens as u32).collect::<Vec<_>>());
        let page_starts = upload(&starts);
        let pages = upload(&(0..n_pages as u32).rev().collect::<Vec<_>>());
        let step = AttentionStep {
            positions: positions.view(),
            seq_of: seq_of.view(),
            page_starts: page_starts.view(),
            pages: pages.view(),
            max_pages: n_longest + 3,
            is_one_each: true,
            runs: None,
            shared: None,
        };
        let attention = Attention {
            layer_idx: 0,
            n_heads,
            scale: 0.2,
            is_causal: true,
            window: case.window,
            is_chunked: false,
            softcap: None,
            sinks: Some(floats(3, n_heads)),
            slopes: None,
        };
        let rope = case.rope.map(|(style, n_dims)| Rope {
            style,
            head_dim: dim_k,
            n_dims,
            inv_freqs: device
                .upload(
                    "frequencies",
                    &(0..n_dims / 2)
                        .map(|i| 0.93f32.powi(i as i32))
                        .collect::<Vec<_>>(),
                )
                .unwrap(),
            magnitude: 1.1,
            axes: RopeAxes::One,
        });
        let widths = AttentionShape {
            n_heads,
            n_kv_heads,
            head_dim_k: dim_k,
            head_dim_v: dim_v,
        };
        let needs = ScratchNeeds::of([(widths, false)].into_iter(), step.max_pages);
        let mut scratch = AttentionScratch::new(&device, n_scratch_tokens, n_scratch_tokens, needs).unwrap();
        let mut q = floats(4, n_tokens * n_heads * dim_k);
        let mut k = floats(5, n_tokens * n_kv_heads * dim_k);
        let v = floats(6, n_tokens * n_kv_heads * dim_v);
        let weights = [floats(7, dim_k), floats(8, dim_k)];
        let norms = weights.each_ref().map(|norm| case.has_norms.then(|| norm.view()));
        let width = n_heads * dim_v;
        let mut output = device.alloc("output", n_tokens * width).unwrap();
        let mut quantized = QuantizedRows::new(&device, n_tokens, width).unwrap();
        let form = dim_v.is_multiple_of(32);
        assert!(Ops::can_turn(&attention, &step, shape, [KvType::F16; 2]));
        let before = device.n_launches();
        if let How::One(_) = how {
            let rows = NewRows {
                q: q.view(),
                k: k.view(),
                v: v.view(),
                slots: slots.view(),
                norms,
                eps: 1e-5,
            };
            let form = form.then(|| quantized.view_mut());
            ops.turn_attention(
                &attention,
                &step,
                rope.as_ref(),
                rows,
                kv.layer_mut(0),
                output.view_mut(),
                form,
                &mut scratch,
            )
            .unwrap();
            assert_eq!(
                device.n_launches() - before,
                n_tokens.div_ceil(n_scratch_tokens) as u64
            );
        } else {
            let places = StepPlaces {
                positions: positions.view(),
                slots: slots.view(),
            };
            let targets = RopeTargets {
                q: q.view_mut(),
                k: k.view_mut(),
                v: v.view(),
                norms,
                eps: 1e-5,
            };
            ops.rope_kv(rope.as_ref(), n_heads, places, targets, kv.layer_mut(0))
                .unwrap();
            let form = form.then(|| quantized.view_mut());
            ops.attention(
                &attention,
                &step,
                kv.layer(0),
                q.view(),
                output.view_mut(),
                form,
                &mut scratch,
            )
            .unwrap();
        }
        let mut bytes = Vec::new();
        let layer = kv.layer(0);
        bytes.extend(device.download(layer.k).unwrap());
        bytes.extend(device.download(layer.v).unwrap());
        if form {
            let rows = quantized.view();
            bytes.extend(
                device
                    .download(rows.bytes)
                    .unwrap()
                    .into_iter()
                    .map(|byte| byte as u8),
            );
            let scales = device.download(rows.scales).unwrap();
            bytes.extend(scales.iter().flat_map(|scale| scale.scale.to_le_bytes()));
        }
        (device.download(output.view()).unwrap(), bytes)
    }

    fn check(case: &Case) {
        check_with(case, H200.n);
    }

    #[track_caller]
    fn check_with(case: &Case, n_multiprocessors: usize) {
        let (two, two_bytes) = run(case, How::Two, N_TOKENS);
        let (one, one_bytes) = run(case, How::One(n_multiprocessors), N_TOKENS);
        assert!(two.iter().all(|x| x.is_finite()));
        let bits = |rows: &[f32]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&one), bits(&two));
        assert!(one_bytes == two_bytes, "what is stored or quantized differs");
    }

    fn llama() -> Case {
        Case {
            n_heads: 8,
            n_kv_heads: 2,
            dims: [64, 64],
            rope: Some((RopeStyle::Norm, 64)),
            has_norms: false,
            window: None,
            longest: 333,
        }
    }

    #[test]
    fn multiprocessors_are_those_that_the_driver_tells_of() {
        // The simulated GPU has the limits of an H200.
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let expected = Multiprocessors {
            n: 132,
            shared_bytes: 228 << 10,
        };
        assert_eq!(Ops::load(&device).unwrap().multiprocessors, expected);
    }

    #[test]
    fn one_launch_gives_the_bits_of_two() {
        check(&llama());
        // More query heads than a thread block has; only one thread block stores.
        check(&Case {
            n_heads: 12,
            n_kv_heads: 1,
            dims: [128, 128],
            rope: Some((RopeStyle::Neox, 128)),
            has_norms: true,
            ..llama()
        });
        check(&Case {
            n_heads: 2,
            dims: [256, 256],
            rope: Some((RopeStyle::Neox, 256)),
            has_norms: true,
            window: Some(70),
            ..llama()
        });
        check(&Case {
            dims: [20, 72],
            rope: Some((RopeStyle::Neox, 12)),
            window: Some(1),
            ..llama()
        });
        check(&Case {
            rope: None,
            ..llama()
        });
    }

    #[test]
    fn splits_in_a_row_give_the_bits_of_splits_apart() {
        // All six splits of the longest sequence, and three of them.
        check_with(&llama(), 1);
        check_with(&llama(), N_TOKENS);
        check_with(
            &Case {
                n_heads: 12,
                n_kv_heads: 1,
                dims: [128, 128],
                has_norms: true,
                window: Some(150),
                ..llama()
            },
            1,
        );
        check_with(
            &Case {
                n_heads: 2,
                dims: [256, 256],
                ..llama()
            },
            1,
        );
        // Splits of two pages a warp, the longest sequence in two and a half thread blocks.
        check_with(
            &Case {
                n_heads: 16,
                n_kv_heads: 16,
                dims: [24, 16],
                rope: Some((RopeStyle::Neox, 12)),
                longest: 1230,
                ..llama()
            },
            1,
        );
    }

    #[test]
    fn tokens_beyond_the_scratch_turn_too() {
        let case = Case {
            n_heads: 4,
            n_kv_heads: 2,
            dims: [32, 32],
            rope: Some((RopeStyle::Norm, 32)),
            has_norms: true,
            window: None,
            longest: 333,
        };
        let (whole, bytes) = run(&case, How::One(H200.n), N_TOKENS);
        assert_eq!(run(&case, How::One(H200.n), 2), (whole, bytes));
    }
}
