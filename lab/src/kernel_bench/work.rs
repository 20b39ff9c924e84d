//! [`Workshop`]: makes the launches of a row, each with its own buffers.
//!
//! Products, attention and sampling have files of their own. Invariant: the copies of a launch's inputs are more than [`ROTATED_BYTES`]
//! together, as far as there are launches.

use std::{cell::RefCell, rc::Rc};

use anyhow::Context;
use tokenmill_backend::{Norm, NormKind};
use tokenmill_cuda_exec::{
    Buffer, CudaExecError, Device, LinearInput, Matrix, MatrixLayout, MatrixUse, Ops, QuantizedRows, Uploader,
};
use tokenmill_gguf::TensorType;
use tokenmill_testkit::Random;

use super::{
    rows::What,
    twin::{self, Checked},
};
use crate::synth::weights::{RandomBlocks, Stream};

pub(crate) const N_EMBD: usize = 4096;
pub(crate) const N_FF: usize = 14336;
/// Heads of queries, and of keys and values.
pub(crate) const HEADS: [usize; 2] = [32, 8];
pub(super) const HEAD_DIM: usize = 128;
pub(super) const N_VOCAB: usize = 128_256;
/// More than caches hold.
const ROTATED_BYTES: usize = 200 << 20;
/// Standard deviation of weights: about that of a model.
const WEIGHT_STD: f32 = 0.02;

/// A launch that is ready to be queued, with its shape and costs.
pub(crate) struct Work<'a> {
    pub(crate) shape: String,
    /// Bytes that a launch has to read and write.
    pub(super) n_bytes: usize,
    pub(crate) n_flops: usize,
    /// Queues the launch of this number.
    pub(crate) launch: Box<dyn FnMut(usize) -> Result<(), CudaExecError> + 'a>,
    /// Compares the results of launch 0 with a plain loop; to be called after only that launch. `None` for launches that are only counted.
    pub(super) check: Option<Box<dyn FnOnce() -> anyhow::Result<Checked> + 'a>>,
}

/// The contents of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Random numbers.
    Made,
    /// Zeros, which take no memory on a device that estimates.
    Zeros,
}

/// Makes launches and their buffers.
pub(crate) struct Workshop {
    pub(super) device: Device,
    pub(super) ops: Ops,
    uploader: Uploader,
    pub(super) slice: usize,
    max_copies: usize,
    pub(super) data: Data,
}

/// A result that launches write and a check reads.
pub(super) type Shared<T> = Rc<RefCell<T>>;

pub(super) fn shared<T>(value: T) -> Shared<T> {
    Rc::new(RefCell::new(value))
}

/// Rows that a product multiplies.
#[expect(
    clippy::struct_field_names,
    reason = "the number of rows is `n_rows` everywhere"
)]
pub(super) struct Rows {
    pub(super) n_rows: usize,
    pub(super) host: Vec<f32>,
    pub(super) floats: Buffer<f32>,
    pub(super) quantized: QuantizedRows,
}

impl Rows {
    pub(super) fn input(&self) -> LinearInput<'_> {
        LinearInput {
            n_rows: self.n_rows,
            floats: self.floats.view(),
            quantized: Some(self.quantized.view()),
        }
    }
}

/// Copies of one matrix.
pub(super) struct Weights {
    pub(super) ty: TensorType,
    /// `[n_out, n_in]`.
    pub(super) shape: [usize; 2],
    copies: Vec<Matrix>,
    /// Its bytes in a file.
    bytes: Vec<u8>,
}

impl Weights {
    pub(super) fn copy(&self, index: usize) -> &Matrix {
        &self.copies[index % self.copies.len()]
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.copies[0].layout().bytes()
    }

    /// Returns the products of some rows by some outputs, by a plain loop.
    pub(super) fn products(&self, rows: &Rows, sample: [&[usize]; 2]) -> anyhow::Result<Vec<f64>> {
        twin::products(self.ty, &self.bytes, self.shape[1], &rows.host, sample)
    }
}

/// Which kernels the weights of a product and of experts need.
pub(super) const FACTOR: MatrixUse = MatrixUse {
    is_table: false,
    is_factor: true,
    is_of_experts: false,
};
pub(super) const OF_EXPERTS: MatrixUse = MatrixUse {
    is_table: false,
    is_factor: false,
    is_of_experts: true,
};

impl Workshop {
    pub(crate) fn new(device: &Device, slice: usize, max_copies: usize, data: Data) -> anyhow::Result<Self> {
        let mut ops = Ops::load(device)?;
        ops.allow_splits()?;
        Ok(Self {
            device: device.clone(),
            ops,
            uploader: Uploader::new(device),
            slice,
            max_copies,
            data,
        })
    }

    /// Makes launches.
    pub(crate) fn make(&mut self, what: What) -> anyhow::Result<Work<'_>> {
        match what {
            What::Qkv {
                types: types @ [first, second],
                n_outs: [n_q, n_kv],
                n_rows,
            } => {
                self.ops.load_pair(types)?;
                self.products(&[(first, n_q), (first, n_kv), (second, n_kv)], N_EMBD, n_rows)
            }
            What::Product {
                ty,
                shape: [n_out, n_in],
                n_rows,
            } => self.products(&[(ty, n_out)], n_in, n_rows),
            What::Gated { ty, n_out, n_rows } => self.gated(ty, n_out, n_rows),
            What::Experts { of, n_rows } => self.experts(of, n_rows),
            What::AddNorm { n_rows } => self.add_norm(n_rows),
            What::Embed { ty } => self.embed(ty),
            What::RopeKv => self.rope_kv(),
            What::Decode {
                ty,
                heads,
                n_seqs,
                n_ctx,
                window,
            } => self.decode(ty, heads, [n_seqs, n_ctx], window),
            What::Turn { n_seqs, n_ctx } => self.turn(n_seqs, n_ctx),
            What::Prompt {
                ty,
                head_dim,
                n_before,
                n_tokens,
            } => self.prompt(ty, head_dim, [n_before, n_tokens]),
            What::Argmax => self.argmax(),
            What::Sample { flags, top_k, top_p } => self.sample(flags, top_k, top_p),
        }
    }

    /// Returns how many copies of so many bytes to make, as far as they fit into a quarter of the free memory.
    pub(super) fn n_copies(&self, n_bytes: usize) -> anyhow::Result<usize> {
        let room = self.device.free_bytes()? as usize / 4 / n_bytes.max(1);
        let wanted = ROTATED_BYTES / n_bytes.max(1) + 1;
        Ok(wanted.min(self.max_copies).min(room).max(1))
    }

    pub(super) fn n_out(&self, n_out: usize) -> usize {
        (n_out / self.slice).next_multiple_of(32).max(32)
    }

    /// Returns random numbers between -1 and 1, or zeros.
    pub(super) fn values(&self, seed: u64, len: usize) -> Vec<f32> {
        match self.data {
            Data::Made => Random::new(seed).values(len),
            Data::Zeros => vec![0.0; len],
        }
    }

    /// Makes copies of a matrix.
    pub(super) fn weights(
        &mut self,
        ty: TensorType,
        [n_out, n_in]: [usize; 2],
        seed: u64,
        usage: MatrixUse,
    ) -> anyhow::Result<Weights> {
        let layout = MatrixLayout::of(ty, n_out, n_in)?;
        let mut bytes = vec![0; layout.file_row_bytes() * n_out];
        if self.data == Data::Made {
            let blocks = RandomBlocks::new(ty, WEIGHT_STD).context("no random weights of this type")?;
            blocks.fill(Stream::new(seed, 0), 0, &mut bytes);
        }
        let n_copies = self.n_copies(layout.bytes())?;
        let copies = (0..n_copies).map(|_| {
            self.uploader
                .upload(ty, [n_out, n_in], bytes.as_slice(), usage)
                .map_err(anyhow::Error::from)
        });
        let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
        self.uploader.finish()?;
        Ok(Weights {
            ty,
            shape: [n_out, n_in],
            copies,
            bytes,
        })
    }

    /// Uploads the rows of products, and makes exactly the memory that they take in f16. With less, products by many rows would be in int8.
    /// With more, the timing model would count too many bytes: it knows the size of a buffer, and not how much of it a launch reads.
    pub(super) fn product_rows(&mut self, n_rows: usize, width: usize) -> anyhow::Result<Rows> {
        self.ops.allow_halves(n_rows, width)?;
        self.rows(n_rows, width)
    }

    pub(super) fn rows(&self, n_rows: usize, width: usize) -> anyhow::Result<Rows> {
        let host = self.values(7, n_rows * width);
        let floats = self.device.upload("rows", &host)?;
        let mut quantized = QuantizedRows::new(&self.device, n_rows, width)?;
        self.ops
            .quantize(n_rows, width, floats.view(), quantized.view_mut())?;
        Ok(Rows {
            n_rows,
            host,
            floats,
            quantized,
        })
    }

    /// Allocates memory for results.
    pub(super) fn room(&self, len: usize) -> anyhow::Result<Buffer<f32>> {
        Ok(self.device.upload("results", &vec![0.0f32; len])?)
    }

    fn add_norm(&self, n_rows: usize) -> anyhow::Result<Work<'_>> {
        const EPS: f32 = 1e-5;
        // The rows stay in caches, as in a step; the weights do not.
        let n_copies = self.n_copies(4 * N_EMBD)?.min(4096);
        let weight = self.values(3, N_EMBD);
        let norms = (0..n_copies).map(|_| -> anyhow::Result<_> {
            Ok(Norm {
                kind: NormKind::Rms,
                width: N_EMBD,
                weight: Some(self.device.upload("weights", &weight)?),
                bias: None,
                eps: EPS,
            })
        });
        let norms = norms.collect::<anyhow::Result<Vec<_>>>()?;
        let [delta, hidden] = [1, 2].map(|seed| self.values(seed, n_rows * N_EMBD));
        let delta_there = self.device.upload("rows", &delta)?;
        let mut hidden_there = self.device.upload("rows", &hidden)?;
        let output = shared(self.room(n_rows * N_EMBD)?);
        let mut quantized = QuantizedRows::new(&self.device, n_rows, N_EMBD)?;
        let ops = &self.ops;
        let written = Rc::clone(&output);
        Ok(Work {
            shape: format!("{n_rows} x {N_EMBD}"),
            n_bytes: 4 * N_EMBD + n_rows * N_EMBD * 17,
            n_flops: n_rows * N_EMBD * 6,
            launch: Box::new(move |index| {
                ops.add_norm(
                    &norms[index % norms.len()],
                    n_rows,
                    (1.0, delta_there.view()),
                    hidden_there.view_mut(),
                    written.borrow_mut().view_mut(),
                    Some(quantized.view_mut()),
                )
            }),
            check: Some(Box::new(move || {
                let found = self.device.download(output.borrow().view())?;
                let mut expected = Vec::with_capacity(found.len());
                for (hidden, delta) in hidden.chunks(N_EMBD).zip(delta.chunks(N_EMBD)) {
                    let sums: Vec<f64> = (hidden.iter().zip(delta))
                        .map(|(&a, &b)| f64::from(a) + f64::from(b))
                        .collect();
                    let squares: f64 = sums.iter().map(|sum| sum * sum).sum();
                    let root = (squares / N_EMBD as f64 + f64::from(EPS)).sqrt();
                    expected.extend(
                        sums.iter()
                            .zip(&weight)
                            .map(|(sum, &weight)| sum / root * f64::from(weight)),
                    );
                }
                twin::compare(&found, &expected)
            })),
        })
    }
}
