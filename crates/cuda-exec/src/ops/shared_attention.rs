//! Attention of a decode step whose sequences begin with the same pages: the shared pages once for many tokens, then the rest for each token.
//! Kernels: `attention_shared.cu`, and `attention_rest_*` of `attention_decode.cu`.
//!
//! The results differ from those of attention token by token only by rounding, because sums are made in another order. Invariant: batch-invariant
//! steps never use this.

use tokenmill_backend::{Attention, KvLayerShape, KvType, PAGE_TOKENS};

use super::{
    AttentionScratch, AttentionStep, Ops, QuantizedMut,
    attention_decode::{DecodePlan, MAX_SHARED_BYTES, THREADS, Visible, partial_len},
};
use crate::{Args, Buffer, Device, Kernel, LaunchShape, View, ViewMut, error::Result, kv::KvLayer};

/// Head widths that there are kernels for.
const DIMS: [usize; 2] = [64, 128];
/// Query heads of tokens that a thread block takes.
const ROWS: usize = 64;
/// Number of tiles of a page in shared memory.
const TILES: usize = 12;

/// The kernels, in the order of [`DIMS`].
#[derive(Clone, Debug)]
pub(super) struct SharedKernels {
    shared: [Kernel; DIMS.len()],
    rest: [Kernel; DIMS.len()],
}

/// The pages that tokens of a decode step share.
#[derive(Clone, Copy, Debug)]
pub struct SharedPages<'a> {
    /// Groups of tokens and pages, in the layout of `attention_shared.cu`, `[items, ITEM_WORDS]`.
    pub items: View<'a, u32>,
    /// The tokens that they name.
    pub rows: View<'a, u32>,
    /// Number of each token's positions that the items compute, `[T]`: whole pages, and not all that it sees.
    pub tokens: View<'a, u32>,
    /// Number of each token's records of them, `[T]`.
    pub n_records_of: View<'a, u32>,
    /// Largest number of tokens of an item.
    pub longest: usize,
    /// Largest number of records of a token.
    pub n_records: usize,
    /// Largest number of pages of a token after those that the items compute.
    pub max_rest_pages: usize,
}

impl SharedPages<'_> {
    /// Number of words of an item.
    pub const ITEM_WORDS: usize = 5;
}

fn shared_bytes(dim: usize) -> usize {
    TILES * PAGE_TOKENS * ((dim / 8) | 1) * 16
}

impl Ops {
    /// Returns whether heads of this shape can share pages: f16 keys and values, both of 64 or 128 numbers.
    pub fn can_share(shape: KvLayerShape, types: [KvType; 2]) -> bool {
        types == [KvType::F16; 2]
            && !shape.has_values_in_keys
            && shape.head_dim_k == shape.head_dim_v
            && DIMS.contains(&shape.head_dim_k)
    }

    /// Loads the kernels for pages that tokens share, if that was not done yet. Without them tokens attend one by one.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`](crate::CudaExecError::DriverTooOld), or the driver's.
    pub fn load_shared(&mut self) -> Result<()> {
        if self.shared.is_none() {
            let load = |device: &Device, module: &str, bytes: [usize; 2]| -> Result<[Kernel; 2]> {
                let kernel = |i: usize| {
                    let name = format!("{module}_f16_d{}", DIMS[i]);
                    device.kernel_with_shared_bytes(module, &name, bytes[i])
                };
                Ok([kernel(0)?, kernel(1)?])
            };
            self.shared = Some(SharedKernels {
                shared: load(&self.device, "attention_shared", DIMS.map(shared_bytes))?,
                rest: load(&self.device, "attention_rest", [MAX_SHARED_BYTES; 2])?,
            });
        }
        Ok(())
    }

    /// Returns whether steps may share pages: the kernels are loaded, and sums may depend on the batch.
    pub fn shares_pages(&self) -> bool {
        self.shared.is_some() && !self.is_batch_invariant
    }

    /// Returns the splits of the rest, and the numbers of a token's partial results, if this attention of the step shares pages.
    pub(super) fn shared_plan(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        shape: KvLayerShape,
        types: [KvType; 2],
        scratch: &AttentionScratch,
    ) -> Option<(DecodePlan, usize)> {
        let shared = step.shared.as_ref().filter(|_| self.shares_pages())?;
        let is_plain = attention.is_causal && attention.window.is_none() && attention.slopes.is_none();
        if !is_plain || !step.is_one_each || !Self::can_share(shape, types) {
            return None;
        }
        let visible = Visible::causal(shared.max_rest_pages * PAGE_TOKENS);
        let plan = DecodePlan::of(attention.n_heads, shape, types, visible);
        let n_splits = shared.n_records + plan.n_splits;
        let n_tokens = step.positions.len();
        let len = partial_len(attention.n_heads, n_splits, shape.head_dim_v);
        let fits = n_tokens * len <= scratch.partial.len() && n_tokens <= self.max_grid_rows;
        fits.then_some((plan, n_splits))
    }

    /// Returns whether attention of this step and layer shares pages, and so needs a separate launch.
    pub fn attends_shared(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        shape: KvLayerShape,
        types: [KvType; 2],
        scratch: &AttentionScratch,
    ) -> bool {
        (self.shared_plan(attention, step, shape, types, scratch)).is_some()
    }

    /// Attends as [`Ops::attention`] does, with [`Self::shared_plan`].
    pub(super) fn shared_attention(
        &self,
        (plan, n_splits): (DecodePlan, usize),
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        shared: &SharedPages<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        output: ViewMut<'_, f32>,
        quantized: Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let KvLayer { shape, k, v, .. } = kv;
        let (n_heads, n_kv_heads, dim) = (attention.n_heads, shape.n_kv_heads, shape.head_dim_k);
        let n_tokens = step.positions.len();
        let kernels = self.shared.as_ref().expect("a plan is made with kernels");
        let variant = usize::from(dim != DIMS[0]);
        let width = n_heads * dim;
        let n_partial = n_tokens * partial_len(n_heads, n_splits, dim);
        let n_items = shared.items.len() / SharedPages::ITEM_WORDS;
        let cap = attention.softcap.unwrap_or(0.0);
        let args = Args::new()
            .read(q.range(0..n_tokens * width)?)
            .read(shared.items)
            .read(shared.rows)
            .read(step.pages)
            .read(k)
            .read(v)
            .float(attention.scale)
            .float(cap)
            .count(n_heads)
            .count(n_kv_heads)
            .count(n_splits)
            .write(scratch.partial.view_mut().range(0..n_partial)?);
        let n_tiles = (shared.longest * (n_heads / n_kv_heads)).div_ceil(ROWS);
        let grid =
            LaunchShape::new([n_kv_heads, n_items, n_tiles], THREADS).with_shared_bytes(shared_bytes(dim));
        self.device.launch(kernels.shared[variant], grid, &args)?;

        let (bytes, scales) = QuantizedMut::split(match quantized {
            Some(rows) => Some(rows.rows(0, n_tokens, width)?),
            None => None,
        });
        let args = Args::new()
            .read(q.range(0..n_tokens * width)?)
            .write(output.range(0..n_tokens * width)?)
            .write_or_null(bytes)
            .write_or_null(scales)
            .read(step.positions)
            .read(step.seq_of)
            .read(step.page_starts)
            .read(step.pages)
            .read(k)
            .read(v)
            .read_or_null(attention.sinks.as_ref().map(Buffer::view))
            .float(attention.scale)
            .float(cap)
            .count(n_heads)
            .count(n_kv_heads)
            .count(dim)
            .count(plan.heads)
            .count(plan.split_bits as usize)
            .count(plan.n_stages)
            .count(plan.warp_tokens)
            .write(scratch.partial.view_mut().range(0..n_partial)?)
            .write((scratch.counters.view_mut()).range(0..n_tokens * plan.n_blocks_x)?)
            .read(shared.tokens.range(0..n_tokens)?)
            .read(shared.n_records_of.range(0..n_tokens)?)
            .count(n_splits);
        let grid = LaunchShape::new([plan.n_blocks_x, plan.n_splits, n_tokens], THREADS)
            .with_shared_bytes(plan.shared_bytes);
        self.device.launch(kernels.rest[variant], grid, &args)
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{AttentionShape, KvLayout, PageGroup};
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::{KvStore, QuantizedRows, ScratchNeeds, StepPlaces, driver::simulated};

    const N_KV_HEADS: usize = 2;
    const N_SHARED: usize = 8;

    struct Case {
        dim: usize,
        group: usize,
        softcap: Option<f32>,
        has_sinks: bool,
        /// Tokens of the group, between one that shares nothing and one that pads.
        n_sharing: usize,
    }

    fn values(seed: usize, len: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 131 + i / 97 * 17) % 1009) as f32 / 504.5 - 1.0;
        (0..len).map(value).collect()
    }

    /// Returns the outputs of attention one by one, and of shared pages with this many tokens marked as done, and whether the latter was used.
    fn run(case: &Case, n_done: u32, is_batch_invariant: bool) -> [(Vec<f32>, u64); 2] {
        let &Case { dim, group, .. } = case;
        let n_heads = N_KV_HEADS * group;
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let mut ops = Ops::load(&device).unwrap();
        ops.load_shared().unwrap();
        ops.set_batch_invariance(is_batch_invariant);
        let shape = KvLayerShape {
            n_kv_heads: N_KV_HEADS,
            head_dim_k: dim,
            head_dim_v: dim,
            has_values_in_keys: false,
        };
        // Own pages after the shared ones: 1 to 6, the last one partial.
        let n_own = |row: usize| 1 + row % 6;
        let n_tokens = case.n_sharing + 2;
        let (mut pages, mut starts, mut positions, mut next) =
            (Vec::new(), vec![0], Vec::new(), N_SHARED as u32);
        for row in 0..n_tokens {
            let is_sharing = row > 0 && row <= case.n_sharing;
            let n_shared = if is_sharing { N_SHARED } else { 0 };
            if row + 1 == n_tokens {
                positions.push(u32::MAX);
            } else {
                pages.extend((0..n_shared as u32).rev());
                pages.extend(next..next + n_own(row) as u32);
                next += n_own(row) as u32;
                positions.push(((n_shared + n_own(row)) * PAGE_TOKENS - 1 - row % 16) as u32);
            }
            starts.push(pages.len() as u32);
        }
        let n_pages = next as usize;
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
        let all = upload(&(0..n_slots as u32).collect::<Vec<_>>());
        let places = StepPlaces {
            positions: all.view(),
            slots: all.view(),
        };
        let [k, v] = [1, 2].map(|seed| floats(seed, n_slots * N_KV_HEADS * dim));
        ops.store_kv(places, [k.view(), v.view()], kv.layer_mut(0))
            .unwrap();
        let attention = Attention {
            layer_idx: 0,
            n_heads,
            scale: 0.3,
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: case.softcap,
            sinks: case.has_sinks.then(|| floats(3, n_heads)),
            slopes: None,
        };
        let widths = AttentionShape {
            n_heads,
            n_kv_heads: N_KV_HEADS,
            head_dim_k: dim,
            head_dim_v: dim,
        };
        let needs = ScratchNeeds::of([(widths, false)].into_iter(), 64);
        let mut scratch = AttentionScratch::new(&device, n_tokens, n_tokens, needs).unwrap();
        let q = floats(4, n_tokens * n_heads * dim);
        let n = case.n_sharing as u32;
        // Two items of unequal length, and an empty one.
        let first = starts[1];
        let items = upload(&[0, n, first, 6, 0, 0, n, first + 6, 2, 1, 0, 0, 0, 0, 0]);
        let is_of_group = |row: usize| row > 0 && row <= case.n_sharing;
        let of_tokens = |value: u32| -> Vec<u32> {
            (0..n_tokens)
                .map(|row| if is_of_group(row) { value } else { 0 })
                .collect()
        };
        let (tokens, n_records_of) = (upload(&of_tokens(n_done)), upload(&of_tokens(2)));
        let rows = upload(&(1..=n).collect::<Vec<_>>());
        let (positions, page_starts, pages) = (upload(&positions), upload(&starts), upload(&pages));
        let seq_of = upload(&(0..n_tokens as u32).collect::<Vec<_>>());
        let shared = SharedPages {
            items: items.view(),
            rows: rows.view(),
            tokens: tokens.view(),
            n_records_of: n_records_of.view(),
            longest: case.n_sharing,
            n_records: 2,
            max_rest_pages: 8,
        };
        [None, Some(shared)].map(|shared| {
            let step = AttentionStep {
                positions: positions.view(),
                seq_of: seq_of.view(),
                page_starts: page_starts.view(),
                pages: pages.view(),
                max_pages: N_SHARED + 8,
                is_one_each: true,
                runs: None,
                shared,
            };
            let width = n_heads * dim;
            let mut output = device.alloc("output", n_tokens * width).unwrap();
            let mut quantized = QuantizedRows::new(&device, n_tokens, width).unwrap();
            let before = device.n_launches();
            // The counters are zero again after each launch.
            for _ in 0..2 {
                ops.attention(
                    &attention,
                    &step,
                    kv.layer(0),
                    q.view(),
                    output.view_mut(),
                    Some(quantized.view_mut()),
                    &mut scratch,
                )
                .unwrap();
            }
            let n_launches = (device.n_launches() - before) / 2;
            (device.download(output.view()).unwrap(), n_launches)
        })
    }

    fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
        assert!(a.iter().chain(b).all(|x| x.is_finite()));
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn shared_pages_give_what_tokens_one_by_one_give() {
        let cases = [
            Case {
                dim: 64,
                group: 4,
                softcap: None,
                has_sinks: true,
                n_sharing: 19,
            },
            Case {
                dim: 128,
                group: 3,
                softcap: Some(2.0),
                has_sinks: false,
                n_sharing: 5,
            },
            Case {
                dim: 64,
                group: 1,
                softcap: None,
                has_sinks: false,
                n_sharing: 4,
            },
        ];
        for case in cases {
            let [(alone, n_alone), (shared, n_shared)] = run(&case, 128, false);
            assert_eq!((n_alone, n_shared), (1, 2));
            let difference = largest_difference(&alone, &shared);
            assert!(difference < 2e-5, "{} {}: {difference}", case.dim, case.group);
            assert!(alone.iter().any(|x| x.abs() > 0.02));
        }
    }

    #[test]
    fn a_wrong_plan_is_seen() {
        let case = Case {
            dim: 64,
            group: 2,
            softcap: None,
            has_sinks: false,
            n_sharing: 4,
        };
        // Two pages are counted twice.
        let [(alone, _), (shared, _)] = run(&case, 96, false);
        assert!(largest_difference(&alone, &shared) > 1e-3);
    }

    #[test]
    fn batch_invariant_steps_share_nothing() {
        let case = Case {
            dim: 64,
            group: 2,
            softcap: None,
            has_sinks: false,
            n_sharing: 4,
        };
        let [(alone, n_alone), (shared, n_shared)] = run(&case, 128, true);
        assert_eq!((n_alone, n_shared), (1, 1));
        assert_eq!(alone, shared);
    }
}
