//! [`Workshop`]: the launches of a step of an 8B model, each with buffers of its own.
//!
//! Separate from measuring. Shapes are those of Llama 3 8B in Q4_K_M: 4,096 wide, 14,336 in between, 32 query and 8 KV heads of 128,
//! 128,256 tokens; rows that say so have other types, or heads of 256. Invariant: the copies of what a launch reads are more than [`ROTATED_BYTES`] together, as far as there are launches.

use anyhow::{Context, bail};
use tokenmill_backend::{
    Activation, Attention, KvLayerShape, KvLayout, KvType, Norm, NormKind, PAGE_TOKENS, PageGroup,
};
use tokenmill_cuda_exec::{
    ArgmaxScratch, AttentionScratch, AttentionStep, BandHeight, Bands, Buffer, CudaExecError, DecodePlan,
    Device, FewRows, GatedProduct, HalfBands, KvStore, LinearInput, ManyRows, Matrix, MatrixLayout,
    MatrixUse, Ops, PrefillTiles, Product, ProductRoom, QuantizedRows, SampleInputs, SampleOutputs,
    SamplePlan, SampleRecord, SampleScratch, ScratchNeeds, TokenRuns, Uploader, Visible, Wide,
    modules::type_suffix,
};
use tokenmill_gguf::TensorType;

const N_EMBD: usize = 4096;
const N_FF: usize = 14336;
const N_HEADS: usize = 32;
const N_KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const N_VOCAB: usize = 128_256;
/// More than caches hold.
const ROTATED_BYTES: usize = 200 << 20;

/// A kernel with all that a launch needs.
pub(super) struct Work<'a> {
    /// Module and name, for its resources.
    pub(super) kernel: (String, String),
    pub(super) shape: String,
    /// Bytes that a launch has to read and write.
    pub(super) n_bytes: usize,
    pub(super) n_flops: usize,
    pub(super) n_threads: u32,
    pub(super) shared_bytes: usize,
    /// Queues the launch of this number.
    pub(super) launch: Box<dyn FnMut(usize) -> Result<(), CudaExecError> + 'a>,
}

/// Makes what is launched.
pub(super) struct Workshop {
    device: Device,
    ops: Ops,
    uploader: Uploader,
    slice: usize,
    max_copies: usize,
}

/// What a product multiplies.
#[expect(
    clippy::struct_field_names,
    reason = "the number of rows is `n_rows` everywhere"
)]
struct Rows {
    n_rows: usize,
    floats: Buffer<f32>,
    quantized: QuantizedRows,
}

impl Rows {
    fn input(&self) -> LinearInput<'_> {
        LinearInput {
            n_rows: self.n_rows,
            floats: self.floats.view(),
            quantized: Some(self.quantized.view()),
        }
    }
}

/// The module and the kernel of a product as [`Ops::linear`] launches it, and its dynamic shared memory.
fn product_kernel(
    ty: TensorType,
    [n_out, n_in]: [usize; 2],
    n_rows: usize,
    room: ProductRoom,
) -> anyhow::Result<((String, String), usize)> {
    let suffix = type_suffix(ty).context("a type without kernels")?;
    let few = FewRows::of(ty);
    let of_few = |variant: usize| (format!("matvec_{suffix}"), format!("matvec_m{variant}"));
    if n_rows <= 8 {
        return Ok((of_few(n_rows.next_power_of_two()), few.shared_bytes(n_rows)));
    }
    let bands = || Bands::of(ty).context("a type without bands");
    Ok(match ManyRows::of(ty, &[n_out], n_in, n_rows, room) {
        ManyRows::Strips => (of_few(16), few.sixteen_shared_bytes()),
        ManyRows::Bands(height) => {
            let columns = height.columns()[height.variant_of(n_rows)];
            let kernel = (format!("matmul_{suffix}"), height.kernel(columns));
            (kernel, bands()?.shared_bytes(height, columns))
        }
        ManyRows::Splits(_) => {
            let kernel = (format!("matmul_{suffix}"), "matmul_split_n64".to_owned());
            (kernel, bands()?.shared_bytes(BandHeight::High, 64))
        }
        ManyRows::Halves(n_splits) => {
            let halves = HalfBands::of(ty).context("a type without products in f16")?;
            let name = if n_splits > 1 {
                "half_split_n64"
            } else {
                "half_band_n64"
            };
            let kernel = (format!("matmul_halves_{suffix}"), name.to_owned());
            (kernel, halves.shared_bytes())
        }
        ManyRows::Wide(cut) => {
            let kernel = (
                format!("matmul_wide_{suffix}"),
                format!("wide_band_n{}", cut.columns),
            );
            (kernel, Wide::shared_bytes(cut.columns))
        }
        ManyRows::Tiles => bail!("{} by {n_rows} rows is in tiles, which are not timed", ty.name()),
    })
}

impl Workshop {
    /// The rows, in the order of a step.
    pub(super) const NAMES: [&str; 26] = [
        "q, k, v",
        "attention, context 512",
        "attention, context 8192",
        "o",
        "add, norm",
        "gate, up",
        "down",
        "head",
        "argmax",
        "sample top-k, top-p",
        "sample top-p",
        "o, 4 rows",
        "o, 8 rows",
        "o, 16 rows",
        "o, 16 rows, BF16",
        "o, 64 rows",
        "o, 512 rows",
        "gate, up, 8 rows",
        "gate, 512 rows",
        "down, 8 rows",
        "down, 64 rows",
        "down, 512 rows",
        "add, norm, 64 rows",
        "attention of a prompt of 512",
        "attention of a prompt of 512, q8_0",
        "attention of a prompt of 512, heads of 256",
    ];

    pub(super) fn new(device: &Device, slice: usize, max_copies: usize) -> anyhow::Result<Self> {
        let mut ops = Ops::load(device)?;
        ops.load_pair([TensorType::Q4_K, TensorType::Q6_K])?;
        ops.allow_splits()?;
        ops.allow_halves(512, N_FF)?;
        Ok(Self {
            device: device.clone(),
            ops,
            uploader: Uploader::new(device),
            slice,
            max_copies,
        })
    }

    /// Makes the launches of a row.
    pub(super) fn make(&mut self, name: &str) -> anyhow::Result<Work<'_>> {
        let rows = |name: &str| -> anyhow::Result<usize> {
            let words = name.split(", ").find_map(|part| part.strip_suffix(" rows"));
            words.map_or(Ok(1), |n| n.parse().context("a number of rows"))
        };
        let n_rows = rows(name)?;
        match name.split(", ").next().unwrap_or(name) {
            "q" => self.qkv(),
            "o" if name.ends_with("BF16") => self.product(TensorType::BF16, [n_rows, N_EMBD, N_EMBD]),
            "o" => self.product(TensorType::Q4_K, [n_rows, N_EMBD, N_EMBD]),
            "down" => self.product(TensorType::Q6_K, [n_rows, N_EMBD, N_FF]),
            "head" => self.product(TensorType::Q6_K, [1, N_VOCAB, N_EMBD]),
            "gate" if name == "gate, 512 rows" => self.product(TensorType::Q4_K, [n_rows, N_FF, N_EMBD]),
            "gate" => self.gated(n_rows),
            "add" => self.add_norm(n_rows),
            "attention" if name.ends_with("512") => self.attention([1, 512], KvType::F16, HEAD_DIM),
            "attention" => self.attention([1, 8192], KvType::F16, HEAD_DIM),
            "attention of a prompt of 512" if name.ends_with("q8_0") => {
                self.attention([512, 512], KvType::Q8_0, HEAD_DIM)
            }
            "attention of a prompt of 512" if name.ends_with("256") => {
                self.attention([512, 512], KvType::F16, 2 * HEAD_DIM)
            }
            "attention of a prompt of 512" => self.attention([512, 512], KvType::F16, HEAD_DIM),
            "argmax" => self.argmax(),
            "sample top-k" => self.sample(40),
            "sample top-p" => self.sample(0),
            _ => bail!("there is no such row"),
        }
    }

    /// How many copies of so many bytes there should be, as far as they fit into a quarter of the free memory.
    fn n_copies(&self, n_bytes: usize) -> anyhow::Result<usize> {
        let room = self.device.free_bytes()? as usize / 4 / n_bytes.max(1);
        let wanted = ROTATED_BYTES / n_bytes.max(1) + 1;
        Ok(wanted.min(self.max_copies).min(room).max(1))
    }

    fn n_out(&self, n_out: usize) -> usize {
        (n_out / self.slice).next_multiple_of(32).max(32)
    }

    /// Copies of a matrix of numbers that are no zeros: a GPU that multiplies zeros draws less power and runs faster.
    fn matrices(&mut self, ty: TensorType, [n_out, n_in]: [usize; 2]) -> anyhow::Result<Vec<Matrix>> {
        let layout = MatrixLayout::of(ty, n_out, n_in)?;
        let mut state = 1u64;
        let mut bytes: Vec<u8> = (0..layout.file_row_bytes() * n_out)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                // Scales in half precision stay finite.
                (state >> 40) as u8 & 0x3b
            })
            .collect();
        if let Some(wide) = Wide::of(ty) {
            // Small enough for matrix operations of warpgroups, as those of models are.
            let n_bytes = layout.file_row_bytes() * ty.block_len() / n_in;
            for block in bytes.chunks_exact_mut(n_bytes) {
                wide.limits().for_each(|(at, _)| block[at + 1] &= 0x23);
            }
        }
        let usage = MatrixUse {
            is_table: false,
            is_factor: true,
            is_of_experts: false,
        };
        let n_copies = self.n_copies(layout.bytes())?;
        let matrices = (0..n_copies).map(|_| {
            self.uploader
                .upload(ty, [n_out, n_in], bytes.as_slice(), usage)
                .map_err(anyhow::Error::from)
        });
        let matrices = matrices.collect::<anyhow::Result<Vec<_>>>()?;
        self.uploader.finish()?;
        Ok(matrices)
    }

    fn rows(&self, n_rows: usize, width: usize) -> anyhow::Result<Rows> {
        let values: Vec<f32> = (0..n_rows * width)
            .map(|i| (i % 251) as f32 / 125.0 - 1.0)
            .collect();
        let floats = self.device.upload("rows", &values)?;
        let mut quantized = QuantizedRows::new(&self.device, n_rows, width)?;
        self.ops
            .quantize(n_rows, width, floats.view(), quantized.view_mut())?;
        Ok(Rows {
            n_rows,
            floats,
            quantized,
        })
    }

    fn floats(&self, len: usize) -> anyhow::Result<Buffer<f32>> {
        Ok(self.device.upload("values", &vec![0.5f32; len])?)
    }

    fn product(&mut self, ty: TensorType, [n_rows, n_out, n_in]: [usize; 3]) -> anyhow::Result<Work<'_>> {
        let n_out = self.n_out(n_out);
        let matrices = self.matrices(ty, [n_out, n_in])?;
        let rows = self.rows(n_rows, n_in)?;
        let mut output = self.floats(n_rows * n_out)?;
        let mut room = self.ops.room_for(n_rows, n_in);
        room.has_tiles &= matrices[0].is_wide();
        let (kernel, shared_bytes) = product_kernel(ty, [n_out, n_in], n_rows, room)?;
        let n_threads = if kernel.1.starts_with("wide") { 256 } else { 128 };
        let ops = &self.ops;
        Ok(Work {
            kernel,
            shape: format!("{n_out} x {n_in} by {n_rows}, {}", ty.name()),
            n_bytes: matrices[0].layout().bytes() + 4 * n_rows * n_out + n_rows * n_in * 5 / 4,
            n_flops: 2 * n_rows * n_out * n_in,
            n_threads,
            shared_bytes,
            launch: Box::new(move |index| {
                let matrix = &matrices[index % matrices.len()];
                let product = Product {
                    matrix,
                    bias: None,
                    output: output.view_mut(),
                };
                ops.linear(&rows.input(), &mut [product])
            }),
        })
    }

    fn qkv(&mut self) -> anyhow::Result<Work<'_>> {
        let (n_q, n_kv) = (self.n_out(N_EMBD), self.n_out(N_KV_HEADS * HEAD_DIM));
        let q = self.matrices(TensorType::Q4_K, [n_q, N_EMBD])?;
        let k = self.matrices(TensorType::Q4_K, [n_kv, N_EMBD])?;
        let v = self.matrices(TensorType::Q6_K, [n_kv, N_EMBD])?;
        let rows = self.rows(1, N_EMBD)?;
        let mut outputs = [self.floats(n_q)?, self.floats(n_kv)?, self.floats(n_kv)?];
        let n_bytes = [&q, &k, &v].iter().map(|copies| copies[0].layout().bytes()).sum();
        let ops = &self.ops;
        Ok(Work {
            kernel: ("matvec_q4_k_q6_k".to_owned(), "matvec_pair_m1".to_owned()),
            shape: format!("{n_q} + 2 x {n_kv} x {N_EMBD} by 1, Q4_K and Q6_K"),
            n_bytes,
            n_flops: 2 * (n_q + 2 * n_kv) * N_EMBD,
            n_threads: 128,
            shared_bytes: 0,
            launch: Box::new(move |index| {
                let [a, b, c] = &mut outputs;
                ops.linear(
                    &rows.input(),
                    &mut [
                        Product {
                            matrix: &q[index % q.len()],
                            bias: None,
                            output: a.view_mut(),
                        },
                        Product {
                            matrix: &k[index % k.len()],
                            bias: None,
                            output: b.view_mut(),
                        },
                        Product {
                            matrix: &v[index % v.len()],
                            bias: None,
                            output: c.view_mut(),
                        },
                    ],
                )
            }),
        })
    }

    fn gated(&mut self, n_rows: usize) -> anyhow::Result<Work<'_>> {
        let n_out = self.n_out(N_FF);
        let gates = self.matrices(TensorType::Q4_K, [n_out, N_EMBD])?;
        let ups = self.matrices(TensorType::Q4_K, [n_out, N_EMBD])?;
        let rows = self.rows(n_rows, N_EMBD)?;
        let mut output = self.floats(n_rows * n_out)?;
        let mut quantized = QuantizedRows::new(&self.device, n_rows, n_out)?;
        let ops = &self.ops;
        Ok(Work {
            kernel: ("matvec_q4_k".to_owned(), format!("matvec_gated_m{n_rows}")),
            shape: format!("2 x {n_out} x {N_EMBD} by {n_rows}, Q4_K"),
            n_bytes: 2 * gates[0].layout().bytes() + 4 * n_rows * n_out,
            n_flops: 4 * n_rows * n_out * N_EMBD,
            n_threads: 256,
            shared_bytes: 0,
            launch: Box::new(move |index| {
                let product = GatedProduct {
                    matrices: [&gates[index % gates.len()], &ups[index % ups.len()]],
                    biases: [None, None],
                    activation: Activation::Silu,
                    output: output.view_mut(),
                    quantized: Some(quantized.view_mut()),
                };
                ops.matvec_gated(&rows.input(), product)
            }),
        })
    }

    fn add_norm(&mut self, n_rows: usize) -> anyhow::Result<Work<'_>> {
        // The rows stay in caches, as in a step; the weight does not.
        let n_copies = self.n_copies(4 * N_EMBD)?.min(4096);
        let norms = (0..n_copies).map(|_| -> anyhow::Result<_> {
            Ok(Norm {
                kind: NormKind::Rms,
                width: N_EMBD,
                weight: Some(self.floats(N_EMBD)?),
                bias: None,
                eps: 1e-5,
            })
        });
        let norms = norms.collect::<anyhow::Result<Vec<_>>>()?;
        let (delta, mut hidden) = (self.floats(n_rows * N_EMBD)?, self.floats(n_rows * N_EMBD)?);
        let mut output = self.floats(n_rows * N_EMBD)?;
        let mut quantized = QuantizedRows::new(&self.device, n_rows, N_EMBD)?;
        let ops = &self.ops;
        Ok(Work {
            kernel: ("norm".to_owned(), "add_norm".to_owned()),
            shape: format!("{n_rows} x {N_EMBD}"),
            n_bytes: 4 * N_EMBD + n_rows * N_EMBD * 17,
            n_flops: n_rows * N_EMBD * 6,
            n_threads: 256,
            shared_bytes: 0,
            launch: Box::new(move |index| {
                ops.add_norm(
                    &norms[index % norms.len()],
                    n_rows,
                    (1.0, delta.view()),
                    hidden.view_mut(),
                    output.view_mut(),
                    Some(quantized.view_mut()),
                )
            }),
        })
    }

    /// Attention of a sequence's last `n_tokens` of `n_ctx`, over keys and values of a type.
    fn attention(
        &mut self,
        [n_tokens, n_ctx]: [usize; 2],
        ty: KvType,
        head_dim: usize,
    ) -> anyhow::Result<Work<'_>> {
        let types = [ty; 2];
        self.ops.load_store(types)?;
        self.ops.load_runs(types)?;
        let n_ctx = (n_ctx / self.slice)
            .max(n_tokens.min(64))
            .next_multiple_of(PAGE_TOKENS);
        let n_tokens = n_tokens.min(n_ctx);
        let pages_of_one = n_ctx / PAGE_TOKENS;
        let shape = KvLayerShape {
            n_kv_heads: N_KV_HEADS,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            has_values_in_keys: false,
        };
        // Of 32 numbers.
        let block_bytes = if ty == KvType::Q8_0 { 34 } else { 64 };
        let kv_bytes = 2 * n_ctx * N_KV_HEADS * head_dim / 32 * block_bytes;
        let n_copies = self.n_copies(kv_bytes)?;
        let layout = KvLayout {
            layers: vec![shape],
            groups: vec![PageGroup::Main],
            n_pages: n_copies * pages_of_one,
            n_host_pages: 0,
            n_window_pages: 0,
            n_window_host_pages: 0,
            key_type: ty,
            value_type: ty,
        };
        let store = KvStore::new(&self.device, &layout)?;
        let first = n_ctx - n_tokens;
        let positions: Vec<u32> = (first..n_ctx).map(|position| position as u32).collect();
        let tables = (0..n_copies).map(|copy| {
            let pages: Vec<u32> = (copy * pages_of_one..(copy + 1) * pages_of_one)
                .map(|page| page as u32)
                .collect();
            self.device.upload("page tables", &pages)
        });
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let device = &self.device;
        let positions = device.upload("positions", &positions)?;
        let seq_of = device.upload("sequences", &vec![0u32; n_tokens])?;
        let seq_starts = device.upload("sequences", &[0, n_tokens as u32])?;
        let page_starts = device.upload("page tables", &[0, pages_of_one as u32])?;
        let attention = Attention {
            layer_idx: 0,
            n_heads: N_HEADS,
            scale: (head_dim as f32).powf(-0.5),
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: None,
            sinks: None,
            slopes: None,
        };
        let attended = tokenmill_backend::AttentionShape {
            n_heads: N_HEADS,
            n_kv_heads: N_KV_HEADS,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
        };
        let needs = ScratchNeeds::of([(attended, false)].into_iter(), pages_of_one);
        let mut scratch = AttentionScratch::new(device, n_tokens, 1, needs)?;
        let width = N_HEADS * head_dim;
        let (q, mut output) = (self.floats(n_tokens * width)?, self.floats(n_tokens * width)?);
        let is_prompt = n_tokens > 1;
        let (kernel, n_threads, shared_bytes) = if is_prompt {
            let tiles = PrefillTiles::of(types, head_dim).context("heads that no kernel takes")?;
            let [module, kernel] = tiles.names();
            ((module, kernel), 256, tiles.shared_bytes())
        } else {
            let plan = DecodePlan::of(N_HEADS, shape, types, Visible::causal(n_ctx));
            let kernel = ("attention_decode".to_owned(), plan.kernel(types));
            (kernel, DecodePlan::THREADS, plan.shared_bytes)
        };
        let n_seen: usize = (first + 1..=n_ctx).sum();
        let ops = &self.ops;
        Ok(Work {
            kernel,
            shape: format!("{n_tokens} behind {first}, {N_HEADS} heads on {N_KV_HEADS} of {head_dim}, {ty}"),
            n_bytes: kv_bytes + 8 * n_tokens * width,
            n_flops: 4 * N_HEADS * head_dim * n_seen,
            n_threads,
            shared_bytes,
            launch: Box::new(move |index| {
                let step = AttentionStep {
                    positions: positions.view(),
                    seq_of: seq_of.view(),
                    page_starts: page_starts.view(),
                    pages: tables[index % tables.len()].view(),
                    max_pages: pages_of_one,
                    is_one_each: !is_prompt,
                    runs: is_prompt.then(|| TokenRuns {
                        seq_starts: seq_starts.view(),
                        longest: n_tokens,
                        has_single: false,
                        n_leading_single: 0,
                    }),
                };
                ops.attention(
                    &attention,
                    &step,
                    store.layer(0),
                    q.view(),
                    output.view_mut(),
                    None,
                    &mut scratch,
                )
            }),
        })
    }

    fn argmax(&mut self) -> anyhow::Result<Work<'_>> {
        let n_vocab = self.n_out(N_VOCAB);
        let logits = self.floats(n_vocab)?;
        let mut tokens = self.device.upload("tokens", &[0u32])?;
        let mut scratch = ArgmaxScratch::new(&self.device, 1, n_vocab)?;
        let ops = &self.ops;
        Ok(Work {
            kernel: ("argmax".to_owned(), "argmax_partial".to_owned()),
            shape: format!("1 x {n_vocab}"),
            n_bytes: 4 * n_vocab,
            n_flops: n_vocab,
            n_threads: 256,
            shared_bytes: 0,
            launch: Box::new(move |_| {
                ops.argmax([1, n_vocab], logits.view(), tokens.view_mut(), &mut scratch)
            }),
        })
    }

    /// A draw by top-p, from among the best `top_k` where that is not 0.
    fn sample(&mut self, top_k: u32) -> anyhow::Result<Work<'_>> {
        let n_vocab = self.n_out(N_VOCAB);
        let values: Vec<f32> = (0..n_vocab).map(|i| (i * 7919 % 10_007) as f32 / 700.0).collect();
        let device = &self.device;
        let logits = device.upload("logits", &values)?;
        let record = SampleRecord {
            flags: 0,
            temperature: 0.8,
            top_k,
            top_p: 0.95,
            ln_min_p: f32::NEG_INFINITY,
            repeat_penalty: 1.0,
            newest: SampleRecord::NONE,
            mask_start: SampleRecord::NONE,
            ..SampleRecord::raw()
        };
        let records = device.upload("records", &record.to_words())?;
        let words = device.upload("words", &[0u32])?;
        let mut scratch = SampleScratch::new(&self.device, 1, n_vocab)?;
        let has_many = record.draws_many(n_vocab);
        let (kernel, n_threads) = if has_many {
            ("sample_candidates", SamplePlan::PART_THREADS)
        } else {
            ("sample_rows", SamplePlan::ROW_THREADS)
        };
        let zeros = || device.upload("results", &[0u32; 1]);
        let mut outputs = [zeros()?, zeros()?, zeros()?, zeros()?, zeros()?];
        let ops = &self.ops;
        Ok(Work {
            kernel: ("sample".to_owned(), kernel.to_owned()),
            shape: format!("1 x {n_vocab}, top-k {top_k}, top-p 0.95"),
            n_bytes: 4 * n_vocab,
            n_flops: n_vocab,
            n_threads,
            shared_bytes: 0,
            launch: Box::new(move |_| {
                let [tokens, status, logprobs, top_ids, top_logprobs] = &mut outputs;
                ops.sample(
                    [1, n_vocab],
                    logits.view(),
                    &SampleInputs {
                        records: records.view(),
                        words: words.view(),
                        previous: words.view(),
                        has_many,
                    },
                    SampleOutputs {
                        scratch: &mut scratch,
                        tokens: tokens.view_mut(),
                        status: status.view_mut(),
                        logprobs: logprobs.view_mut(),
                        top_ids: top_ids.view_mut(),
                        top_logprobs: top_logprobs.view_mut(),
                    },
                )
            }),
        })
    }
}
