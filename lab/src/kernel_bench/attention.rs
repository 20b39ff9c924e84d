//! Launches of attention: of decode steps, with and without the operations before it, and of prompts.

use std::rc::Rc;

use tokenmill_backend::{
    Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageGroup, Rope, RopeAxes,
    RopeStyle,
};
use tokenmill_cuda_exec::{
    AttentionScratch, AttentionStep, Buffer, KvStore, NewRows, QuantizedRows, ScratchNeeds, StepPlaces,
    TokenRuns,
};

use super::{
    twin::{self, Checked, MOST_HEADS, spread},
    work::{Data, HEAD_DIM, N_HEADS, N_KV_HEADS, Work, Workshop, shared},
};

/// Query heads that share a KV head.
const GROUP: usize = N_HEADS / N_KV_HEADS;
/// Largest number of sequences on a simulated device.
const FEW_SEQS: usize = 3;
/// Tokens of a prompt.
const N_PROMPT: usize = 512;

/// Keys and values of sequences of equal length, in as many copies as are rotated over.
struct Context {
    store: KvStore,
    ty: KvType,
    head_dim: usize,
    n_seqs: usize,
    n_ctx: usize,
    /// Keys and values before they are stored: `[n_seqs, n_ctx, N_KV_HEADS, head_dim]`.
    host: [Vec<f32>; 2],
    /// The pages of all sequences, of each copy.
    tables: Vec<Buffer<u32>>,
    page_starts: Buffer<u32>,
    /// Slots of the last token of each sequence, of each copy.
    last_slots: Vec<Buffer<u32>>,
    n_bytes: usize,
}

impl Context {
    fn new(
        workshop: &mut Workshop,
        ty: KvType,
        head_dim: usize,
        [n_seqs, n_ctx]: [usize; 2],
    ) -> anyhow::Result<Self> {
        let types = [ty; 2];
        workshop.ops.load_store(types)?;
        workshop.ops.load_runs(types)?;
        // Bytes of 32 numbers.
        let block_bytes = match ty {
            KvType::F32 => 128,
            KvType::F16 => 64,
            KvType::Q8_0 => 34,
            KvType::E4M3 | KvType::Q4_0 => 32,
        };
        let width = N_KV_HEADS * head_dim;
        let n_bytes = 2 * n_seqs * n_ctx * width / 32 * block_bytes;
        let n_copies = workshop.n_copies(n_bytes)?;
        let pages_of_one = n_ctx / PAGE_TOKENS;
        let n_pages = n_copies * n_seqs * pages_of_one;
        let layout = KvLayout {
            layers: vec![shape(head_dim)],
            groups: vec![PageGroup::Main],
            n_pages,
            n_host_pages: 0,
            n_window_pages: 0,
            n_window_host_pages: 0,
            key_type: ty,
            value_type: ty,
        };
        let device = &workshop.device;
        let mut store = KvStore::new(device, &layout)?;
        let n_slots = n_seqs * n_ctx;
        let host = [11, 12].map(|seed| workshop.values(seed, n_slots * width));
        if workshop.data == Data::Made {
            let k = device.upload("keys", &host[0])?;
            let v = device.upload("values", &host[1])?;
            for copy in 0..n_copies {
                let first = (copy * n_slots) as u32;
                let slots: Vec<u32> = (first..first + n_slots as u32).collect();
                let slots = device.upload("slots", &slots)?;
                let places = StepPlaces {
                    positions: slots.view(),
                    slots: slots.view(),
                };
                workshop
                    .ops
                    .store_kv(places, [k.view(), v.view()], store.layer_mut(0))?;
            }
        }
        let (mut tables, mut last_slots) = (Vec::new(), Vec::new());
        for copy in 0..n_copies {
            let first = (copy * n_seqs * pages_of_one) as u32;
            let pages: Vec<u32> = (first..first + (n_seqs * pages_of_one) as u32).collect();
            tables.push(device.upload("page tables", &pages)?);
            let last = |seq: usize| (copy * n_slots + (seq + 1) * n_ctx - 1) as u32;
            let slots: Vec<u32> = (0..n_seqs).map(last).collect();
            last_slots.push(device.upload("slots", &slots)?);
        }
        let starts: Vec<u32> = (0..=n_seqs).map(|seq| (seq * pages_of_one) as u32).collect();
        Ok(Self {
            page_starts: device.upload("page tables", &starts)?,
            store,
            ty,
            head_dim,
            n_seqs,
            n_ctx,
            host,
            tables,
            last_slots,
            n_bytes,
        })
    }

    fn pages_of_one(&self) -> usize {
        self.n_ctx / PAGE_TOKENS
    }

    /// Returns the first `n` keys (0) or values (1) of a sequence's head, as they are stored.
    fn stored(&self, which: usize, [seq, head, n]: [usize; 3]) -> anyhow::Result<Vec<Vec<f32>>> {
        let row = |position: usize| {
            let first = ((seq * self.n_ctx + position) * N_KV_HEADS + head) * self.head_dim;
            twin::stored(self.ty, &self.host[which][first..first + self.head_dim])
        };
        (0..n).map(row).collect()
    }

    fn scratch(&self, workshop: &Workshop, n_tokens: usize) -> anyhow::Result<AttentionScratch> {
        let attended = AttentionShape {
            n_heads: N_HEADS,
            n_kv_heads: N_KV_HEADS,
            head_dim_k: self.head_dim,
            head_dim_v: self.head_dim,
        };
        let needs = ScratchNeeds::of([(attended, false)].into_iter(), self.pages_of_one());
        Ok(AttentionScratch::new(
            &workshop.device,
            n_tokens,
            self.n_seqs,
            needs,
        )?)
    }
}

fn shape(head_dim: usize) -> KvLayerShape {
    KvLayerShape {
        n_kv_heads: N_KV_HEADS,
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        has_values_in_keys: false,
    }
}

fn attention(head_dim: usize) -> Attention<Buffer<f32>> {
    Attention {
        layer_idx: 0,
        n_heads: N_HEADS,
        scale: (head_dim as f32).powf(-0.5),
        is_causal: true,
        window: None,
        is_chunked: false,
        softcap: None,
        sinks: None,
        slopes: None,
    }
}

/// Compares the heads of some tokens; `expected` takes token and head, in that order.
fn compare(
    found: &[f32],
    [n_tokens, head_dim]: [usize; 2],
    expected: impl Fn(usize, usize) -> anyhow::Result<Vec<f64>>,
) -> anyhow::Result<Checked> {
    let (mut some, mut twins) = (Vec::new(), Vec::new());
    for place in spread(n_tokens * N_HEADS, MOST_HEADS) {
        some.extend(&found[place * head_dim..(place + 1) * head_dim]);
        twins.extend(expected(place / N_HEADS, place % N_HEADS)?);
    }
    twin::compare(&some, &twins)
}

impl Workshop {
    /// Returns the lengths for a GPU, or short ones.
    fn lengths(&self, n_seqs: usize, n_ctx: usize, least: usize) -> [usize; 2] {
        let n_ctx = (n_ctx / self.slice).max(least).next_multiple_of(PAGE_TOKENS);
        let n_seqs = if self.slice > 1 {
            n_seqs.min(FEW_SEQS)
        } else {
            n_seqs
        };
        [n_seqs, n_ctx]
    }

    pub(super) fn decode(&mut self, ty: KvType, n_seqs: usize, n_ctx: usize) -> anyhow::Result<Work<'_>> {
        let lengths = self.lengths(n_seqs, n_ctx, 1);
        let context = Rc::new(Context::new(self, ty, HEAD_DIM, lengths)?);
        let [n_seqs, n_ctx] = lengths;
        let width = N_HEADS * HEAD_DIM;
        let queries = Rc::new(self.values(13, n_seqs * width));
        let device = &self.device;
        let q = device.upload("queries", &queries)?;
        let positions = device.upload("positions", &vec![n_ctx as u32 - 1; n_seqs])?;
        let seq_of = device.upload("sequences", &(0..n_seqs as u32).collect::<Vec<_>>())?;
        let mut scratch = context.scratch(self, n_seqs)?;
        let output = shared(self.room(n_seqs * width)?);
        let attention = attention(HEAD_DIM);
        let ops = &self.ops;
        let (of_launch, written) = (Rc::clone(&context), Rc::clone(&output));
        Ok(Work {
            shape: format!(
                "{n_seqs} behind {}, {N_HEADS} heads on {N_KV_HEADS} of {HEAD_DIM}, {ty}",
                n_ctx - 1
            ),
            n_bytes: context.n_bytes + 8 * n_seqs * width,
            n_flops: 4 * n_seqs * width * n_ctx,
            launch: Box::new(move |index| {
                let step = AttentionStep {
                    positions: positions.view(),
                    seq_of: seq_of.view(),
                    page_starts: of_launch.page_starts.view(),
                    pages: of_launch.tables[index % of_launch.tables.len()].view(),
                    max_pages: of_launch.pages_of_one(),
                    is_one_each: true,
                    runs: None,
                    shared: None,
                };
                let mut written = written.borrow_mut();
                ops.attention(
                    &attention,
                    &step,
                    of_launch.store.layer(0),
                    q.view(),
                    written.view_mut(),
                    None,
                    &mut scratch,
                )
            }),
            check: Some(Box::new(move || {
                let found = device.download(output.borrow().view())?;
                compare(&found, [n_seqs, HEAD_DIM], |seq, head| {
                    let first = (seq * N_HEADS + head) * HEAD_DIM;
                    let of = |which| context.stored(which, [seq, head / GROUP, n_ctx]);
                    Ok(twin::attend(&queries[first..first + HEAD_DIM], &of(0)?, &of(1)?))
                })
            })),
        })
    }

    pub(super) fn turn(&mut self, n_seqs: usize, n_ctx: usize) -> anyhow::Result<Work<'_>> {
        let lengths = self.lengths(n_seqs, n_ctx, 1);
        let context = shared(Context::new(self, KvType::F16, HEAD_DIM, lengths)?);
        let [n_seqs, n_ctx] = lengths;
        let (width, kv_width) = (N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM);
        let new = [
            self.values(13, n_seqs * width),
            self.values(14, n_seqs * kv_width),
            self.values(15, n_seqs * kv_width),
        ];
        let device = &self.device;
        let inv_freqs: Vec<f32> = (0..HEAD_DIM / 2)
            .map(|pair| 500_000f32.powf(-2.0 * pair as f32 / HEAD_DIM as f32))
            .collect();
        let rope = Rope {
            style: RopeStyle::Norm,
            head_dim: HEAD_DIM,
            n_dims: HEAD_DIM,
            inv_freqs: device.upload("frequencies", &inv_freqs)?,
            magnitude: 1.0,
            axes: RopeAxes::One,
        };
        let there = [
            device.upload("queries", &new[0])?,
            device.upload("keys", &new[1])?,
            device.upload("values", &new[2])?,
        ];
        let positions = device.upload("positions", &vec![n_ctx as u32 - 1; n_seqs])?;
        let seq_of = device.upload("sequences", &(0..n_seqs as u32).collect::<Vec<_>>())?;
        let mut scratch = context.borrow().scratch(self, n_seqs)?;
        let output = shared(self.room(n_seqs * width)?);
        let mut quantized = QuantizedRows::new(device, n_seqs, width)?;
        let attention = attention(HEAD_DIM);
        let ops = &self.ops;
        let n_bytes = context.borrow().n_bytes + 8 * n_seqs * (width + kv_width);
        let (of_launch, written) = (Rc::clone(&context), Rc::clone(&output));
        Ok(Work {
            shape: format!(
                "{n_seqs} behind {}, {N_HEADS} heads on {N_KV_HEADS} of {HEAD_DIM}, f16",
                n_ctx - 1
            ),
            n_bytes,
            n_flops: 4 * n_seqs * width * n_ctx,
            launch: Box::new(move |index| {
                let mut context = of_launch.borrow_mut();
                let Context {
                    store,
                    tables,
                    last_slots,
                    page_starts,
                    ..
                } = &mut *context;
                let step = AttentionStep {
                    positions: positions.view(),
                    seq_of: seq_of.view(),
                    page_starts: page_starts.view(),
                    pages: tables[index % tables.len()].view(),
                    max_pages: n_ctx / PAGE_TOKENS,
                    is_one_each: true,
                    runs: None,
                    shared: None,
                };
                let rows = NewRows {
                    q: there[0].view(),
                    k: there[1].view(),
                    v: there[2].view(),
                    slots: last_slots[index % last_slots.len()].view(),
                    norms: [None, None],
                    eps: 0.0,
                };
                let mut written = written.borrow_mut();
                ops.turn_attention(
                    &attention,
                    &step,
                    Some(&rope),
                    rows,
                    store.layer_mut(0),
                    written.view_mut(),
                    Some(quantized.view_mut()),
                    &mut scratch,
                )
            }),
            check: Some(Box::new(move || {
                let found = device.download(output.borrow().view())?;
                let context = context.borrow();
                let last = n_ctx - 1;
                compare(&found, [n_seqs, HEAD_DIM], |seq, head| {
                    let query = row_of(&new[0], seq * N_HEADS + head);
                    let place = seq * N_KV_HEADS + head / GROUP;
                    let mut keys = context.stored(0, [seq, head / GROUP, last])?;
                    let mut values = context.stored(1, [seq, head / GROUP, last])?;
                    let key = twin::rotated(row_of(&new[1], place), &inv_freqs, last);
                    keys.push(twin::stored(KvType::F16, &key)?);
                    values.push(twin::stored(KvType::F16, row_of(&new[2], place))?);
                    Ok(twin::attend(
                        &twin::rotated(query, &inv_freqs, last),
                        &keys,
                        &values,
                    ))
                })
            })),
        })
    }

    /// Launches a sequence's whole prompt.
    pub(super) fn prompt(&mut self, ty: KvType, head_dim: usize) -> anyhow::Result<Work<'_>> {
        let [_, n_tokens] = self.lengths(1, N_PROMPT, 64);
        let context = Rc::new(Context::new(self, ty, head_dim, [1, n_tokens])?);
        let width = N_HEADS * head_dim;
        let queries = Rc::new(self.values(13, n_tokens * width));
        let device = &self.device;
        let q = device.upload("queries", &queries)?;
        let positions = device.upload("positions", &(0..n_tokens as u32).collect::<Vec<_>>())?;
        let seq_of = device.upload("sequences", &vec![0u32; n_tokens])?;
        let seq_starts = device.upload("sequences", &[0, n_tokens as u32])?;
        let mut scratch = context.scratch(self, n_tokens)?;
        let output = shared(self.room(n_tokens * width)?);
        let attention = attention(head_dim);
        let ops = &self.ops;
        let (of_launch, written) = (Rc::clone(&context), Rc::clone(&output));
        Ok(Work {
            shape: format!("{n_tokens} tokens, {N_HEADS} heads on {N_KV_HEADS} of {head_dim}, {ty}"),
            n_bytes: context.n_bytes + 8 * n_tokens * width,
            n_flops: 4 * width * n_tokens * (n_tokens + 1) / 2,
            launch: Box::new(move |index| {
                let step = AttentionStep {
                    positions: positions.view(),
                    seq_of: seq_of.view(),
                    page_starts: of_launch.page_starts.view(),
                    pages: of_launch.tables[index % of_launch.tables.len()].view(),
                    max_pages: of_launch.pages_of_one(),
                    is_one_each: false,
                    shared: None,
                    runs: Some(TokenRuns {
                        seq_starts: seq_starts.view(),
                        longest: n_tokens,
                        has_single: false,
                        n_leading_single: 0,
                    }),
                };
                let mut written = written.borrow_mut();
                ops.attention(
                    &attention,
                    &step,
                    of_launch.store.layer(0),
                    q.view(),
                    written.view_mut(),
                    None,
                    &mut scratch,
                )
            }),
            check: Some(Box::new(move || {
                let found = device.download(output.borrow().view())?;
                compare(&found, [n_tokens, head_dim], |token, head| {
                    let first = (token * N_HEADS + head) * head_dim;
                    let of = |which| context.stored(which, [0, head / GROUP, token + 1]);
                    Ok(twin::attend(&queries[first..first + head_dim], &of(0)?, &of(1)?))
                })
            })),
        })
    }
}

/// Returns a head of the model's own width among many.
fn row_of(all: &[f32], place: usize) -> &[f32] {
    &all[place * HEAD_DIM..(place + 1) * HEAD_DIM]
}
