//! Launches of attention: of decode steps, with and without the operations before it, and of prompts; and of those operations alone.

use std::{ops::Range, rc::Rc};

use tokenmill_backend::{
    Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageGroup, Rope, RopeAxes,
    RopeStyle,
};
use tokenmill_cuda_exec::{
    AttentionScratch, AttentionStep, Buffer, KvStore, NewRows, QuantizedRows, RopeTargets, ScratchNeeds,
    StepPlaces, TokenRuns, View,
};

use super::{
    twin::{self, Checked, MOST_HEADS, spread},
    work::{Data, HEAD_DIM, HEADS, Work, Workshop, shared},
};

/// Largest number of sequences on a simulated device.
const FEW_SEQS: usize = 3;
/// Least tokens of a prompt on a simulated device.
const FEW_TOKENS: usize = 64;

/// Keys and values of sequences of equal length, in as many copies as are rotated over.
struct Context {
    store: KvStore,
    ty: KvType,
    heads: [usize; 2],
    head_dim: usize,
    n_seqs: usize,
    n_ctx: usize,
    /// Keys and values before they are stored: `[n_seqs, n_ctx, n_kv_heads, head_dim]`.
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
        heads: [usize; 2],
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
        let width = heads[1] * head_dim;
        let n_bytes = 2 * n_seqs * n_ctx * width / 32 * block_bytes;
        let n_copies = workshop.n_copies(n_bytes)?;
        let pages_of_one = n_ctx / PAGE_TOKENS;
        let n_pages = n_copies * n_seqs * pages_of_one;
        let layout = KvLayout {
            layers: vec![KvLayerShape {
                n_kv_heads: heads[1],
                head_dim_k: head_dim,
                head_dim_v: head_dim,
                has_values_in_keys: false,
            }],
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
            heads,
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

    /// Returns the keys (0) or values (1) of a sequence at some positions that a query head sees, as they are stored.
    fn stored(
        &self,
        which: usize,
        [seq, query_head]: [usize; 2],
        positions: Range<usize>,
    ) -> anyhow::Result<Vec<Vec<f32>>> {
        let head = query_head / (self.heads[0] / self.heads[1]);
        let row = |position: usize| {
            let first = ((seq * self.n_ctx + position) * self.heads[1] + head) * self.head_dim;
            twin::stored(self.ty, &self.host[which][first..first + self.head_dim])
        };
        positions.map(row).collect()
    }

    /// Describes the heads and the type.
    fn told(&self) -> String {
        let ([n_heads, n_kv_heads], dim) = (self.heads, self.head_dim);
        format!("{n_heads} heads on {n_kv_heads} of {dim}, {}", self.ty)
    }

    /// Returns the inputs of one token of each sequence in the launch of a number.
    fn step<'a>(&'a self, index: usize, [positions, seq_of]: [View<'a, u32>; 2]) -> AttentionStep<'a> {
        AttentionStep {
            positions,
            seq_of,
            page_starts: self.page_starts.view(),
            pages: self.tables[index % self.tables.len()].view(),
            max_pages: self.pages_of_one(),
            is_one_each: true,
            runs: None,
            shared: None,
        }
    }

    fn attention(&self, window: Option<usize>) -> Attention<Buffer<f32>> {
        Attention {
            layer_idx: 0,
            n_heads: self.heads[0],
            scale: (self.head_dim as f32).powf(-0.5),
            is_causal: true,
            window,
            is_chunked: false,
            softcap: None,
            sinks: None,
            slopes: None,
        }
    }

    fn scratch(&self, workshop: &Workshop, n_tokens: usize) -> anyhow::Result<AttentionScratch> {
        let attended = AttentionShape {
            n_heads: self.heads[0],
            n_kv_heads: self.heads[1],
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

/// Compares the heads of some tokens; `expected` takes token and head, in that order.
fn compare(
    found: &[f32],
    [n_tokens, n_heads, head_dim]: [usize; 3],
    expected: impl Fn(usize, usize) -> anyhow::Result<Vec<f64>>,
) -> anyhow::Result<Checked> {
    let (mut some, mut twins) = (Vec::new(), Vec::new());
    for place in spread(n_tokens * n_heads, MOST_HEADS) {
        some.extend(&found[place * head_dim..(place + 1) * head_dim]);
        twins.extend(expected(place / n_heads, place % n_heads)?);
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

    /// Launches a token of each of some sequences, at the end of its context.
    pub(super) fn decode(
        &mut self,
        ty: KvType,
        heads: [usize; 2],
        [n_seqs, n_ctx]: [usize; 2],
        window: Option<usize>,
    ) -> anyhow::Result<Work<'_>> {
        let lengths = self.lengths(n_seqs, n_ctx, 1);
        let context = Context::new(self, ty, heads, HEAD_DIM, lengths)?;
        let tokens = (0..lengths[0]).map(|seq| [seq, lengths[1] - 1]).collect();
        let shape = format!("{} behind {}, {}", lengths[0], lengths[1] - 1, context.told());
        self.attend(context, tokens, window, shape)
    }

    /// Launches tokens of one sequence, after others of it.
    pub(super) fn prompt(
        &mut self,
        ty: KvType,
        head_dim: usize,
        [n_before, n_tokens]: [usize; 2],
    ) -> anyhow::Result<Work<'_>> {
        let [_, n_tokens] = self.lengths(1, n_tokens, FEW_TOKENS.min(n_tokens));
        let n_ctx = n_before + n_tokens;
        let context = Context::new(self, ty, HEADS, head_dim, [1, n_ctx])?;
        let tokens = (n_before..n_ctx).map(|position| [0, position]).collect();
        let behind = if n_before > 0 {
            format!(" behind {n_before}")
        } else {
            String::new()
        };
        let shape = format!("{n_tokens} tokens{behind}, {}", context.told());
        self.attend(context, tokens, None, shape)
    }

    /// Launches tokens, each the `[sequence, position]` of it: one of each sequence, or several of the only one.
    fn attend(
        &mut self,
        context: Context,
        tokens: Vec<[usize; 2]>,
        window: Option<usize>,
        shape: String,
    ) -> anyhow::Result<Work<'_>> {
        let (context, n_tokens) = (Rc::new(context), tokens.len());
        let is_one_each = n_tokens == context.n_seqs;
        let ([n_heads, _], head_dim) = (context.heads, context.head_dim);
        let width = n_heads * head_dim;
        let queries = Rc::new(self.values(13, n_tokens * width));
        let device = &self.device;
        let q = device.upload("queries", &queries)?;
        let column = |of: usize| -> Vec<u32> { tokens.iter().map(|token| token[of] as u32).collect() };
        let positions = device.upload("positions", &column(1))?;
        let seq_of = device.upload("sequences", &column(0))?;
        let seq_starts = device.upload("sequences", &[0, n_tokens as u32])?;
        let mut scratch = context.scratch(self, n_tokens)?;
        let output = shared(self.room(n_tokens * width)?);
        let attention = context.attention(window);
        let ops = &self.ops;
        let (of_launch, written) = (Rc::clone(&context), Rc::clone(&output));
        let seen =
            move |position: usize| (position + 1).saturating_sub(window.unwrap_or(usize::MAX))..position + 1;
        let n_seen: usize = tokens.iter().map(|&[_, position]| seen(position).len()).sum();
        Ok(Work {
            shape,
            n_bytes: context.n_bytes + 8 * n_tokens * width,
            n_flops: 4 * width * n_seen,
            launch: Box::new(move |index| {
                let runs = TokenRuns {
                    seq_starts: seq_starts.view(),
                    longest: n_tokens,
                    has_single: false,
                    n_leading_single: 0,
                };
                let step = AttentionStep {
                    is_one_each,
                    runs: (!is_one_each).then_some(runs),
                    ..of_launch.step(index, [positions.view(), seq_of.view()])
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
                compare(&found, [n_tokens, n_heads, head_dim], |token, head| {
                    let first = (token * n_heads + head) * head_dim;
                    let [seq, position] = tokens[token];
                    let of = |which| context.stored(which, [seq, head], seen(position));
                    Ok(twin::attend(&queries[first..first + head_dim], &of(0)?, &of(1)?))
                })
            })),
        })
    }

    pub(super) fn turn(&mut self, n_seqs: usize, n_ctx: usize) -> anyhow::Result<Work<'_>> {
        let lengths = self.lengths(n_seqs, n_ctx, 1);
        let context = shared(Context::new(self, KvType::F16, HEADS, HEAD_DIM, lengths)?);
        let [n_seqs, n_ctx] = lengths;
        let [width, kv_width] = HEADS.map(|n_heads| n_heads * HEAD_DIM);
        let new = [
            self.values(13, n_seqs * width),
            self.values(14, n_seqs * kv_width),
            self.values(15, n_seqs * kv_width),
        ];
        let device = &self.device;
        let inv_freqs = inv_freqs();
        let rope = rope(device.upload("frequencies", &inv_freqs)?);
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
        let attention = context.borrow().attention(None);
        let ops = &self.ops;
        let n_bytes = context.borrow().n_bytes + 8 * n_seqs * (width + kv_width);
        let (of_launch, written) = (Rc::clone(&context), Rc::clone(&output));
        Ok(Work {
            shape: format!("{n_seqs} behind {}, {}", n_ctx - 1, context.borrow().told()),
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
                let [n_heads, n_kv_heads] = HEADS;
                compare(&found, [n_seqs, n_heads, HEAD_DIM], |seq, head| {
                    let query = row_of(&new[0], seq * n_heads + head);
                    let place = seq * n_kv_heads + head / (n_heads / n_kv_heads);
                    let mut keys = context.stored(0, [seq, head], 0..last)?;
                    let mut values = context.stored(1, [seq, head], 0..last)?;
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

    /// Launches the rotation and the store of one token, as steps do whose attention does not contain them.
    pub(super) fn rope_kv(&mut self) -> anyhow::Result<Work<'_>> {
        const POSITION: u32 = 5;
        let mut context = Context::new(self, KvType::F16, HEADS, HEAD_DIM, [1, PAGE_TOKENS])?;
        let [width, kv_width] = HEADS.map(|n_heads| n_heads * HEAD_DIM);
        let device = &self.device;
        let rope = rope(device.upload("frequencies", &inv_freqs())?);
        let mut q = device.upload("queries", &self.values(13, width))?;
        let mut k = device.upload("keys", &self.values(14, kv_width))?;
        let v = device.upload("values", &self.values(15, kv_width))?;
        let place = device.upload("positions", &[POSITION])?;
        let ops = &self.ops;
        Ok(Work {
            shape: format!("1 token, {}", context.told()),
            n_bytes: 8 * width + 16 * kv_width,
            n_flops: 3 * (width + kv_width),
            launch: Box::new(move |_| {
                let places = StepPlaces {
                    positions: place.view(),
                    slots: place.view(),
                };
                let targets = RopeTargets {
                    q: q.view_mut(),
                    k: k.view_mut(),
                    v: v.view(),
                    norms: [None, None],
                    eps: 0.0,
                };
                ops.rope_kv(Some(&rope), HEADS[0], places, targets, context.store.layer_mut(0))
            }),
            check: None,
        })
    }
}

/// Returns the frequencies of the rotation.
fn inv_freqs() -> Vec<f32> {
    (0..HEAD_DIM / 2)
        .map(|pair| 500_000f32.powf(-2.0 * pair as f32 / HEAD_DIM as f32))
        .collect()
}

fn rope(inv_freqs: Buffer<f32>) -> Rope<Buffer<f32>> {
    Rope {
        style: RopeStyle::Norm,
        head_dim: HEAD_DIM,
        n_dims: HEAD_DIM,
        inv_freqs,
        magnitude: 1.0,
        axes: RopeAxes::One,
    }
}

/// Returns a head of the model's own width among many.
fn row_of(all: &[f32], place: usize) -> &[f32] {
    &all[place * HEAD_DIM..(place + 1) * HEAD_DIM]
}
