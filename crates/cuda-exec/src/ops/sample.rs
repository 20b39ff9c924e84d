//! Sampling of rows of logits, and log-probabilities. Kernels: `sample.cu`.
//!
//! A record ([`SampleRecord`]) holds a row's sampling parameters. Its offsets point into one array of words,
//! so that a captured launch finds the values of every later step there.

use bytemuck::{Pod, Zeroable};

use super::{Ops, check_multiple};
use crate::{
    Args, Buffer, Device, LaunchShape, View, ViewMut,
    error::{CudaExecError, Result},
};

/// Vocabularies above this could overflow the kernel's sums of weights.
pub const MAX_SAMPLED_VOCAB: usize = (1 << 18) - 1;

/// Threads of the one thread block that samples a row.
const N_THREADS: u32 = 1024;

/// Number of logits of a part of a row, and the threads of its thread block.
const PART_LOGITS: usize = 2048;
const PART_THREADS: u32 = 256;
/// Largest number of tokens of a row that a part keeps.
const FEW: usize = 64;

/// The memory through which the launches of sampling pass on their results: logits with bias, mask and penalties; the results of
/// parts of rows; and the sums and lists of rows with many candidate tokens.
#[derive(Debug)]
pub struct SampleScratch {
    adjusted: Buffer<f32>,
    parts: Buffer<u64>,
    manys: Buffer<u64>,
}

/// Describes how the kernels of sampling divide a row, and the results that they pass on, for code that launches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SamplePlan {
    /// Number of parts of a row, a thread block each.
    pub n_parts: usize,
}

impl SamplePlan {
    /// Threads of a part's thread block.
    pub const PART_THREADS: u32 = PART_THREADS;
    /// Threads of the one thread block that picks a row's token.
    pub const ROW_THREADS: u32 = N_THREADS;
    /// The 64-bit words of a part's result: 3 of its own, the tokens that it keeps, and the tokens to report.
    pub const PART_WORDS: usize = 3 + FEW + 32;
    /// The 64-bit words that the launches pass on for a row with many candidate tokens: sums of 512 buckets,
    /// a winner of each part, 4,096 listed tokens, counts of the buckets, and the cut.
    pub const MANY_WORDS: usize = 512 + 128 + 4096 + 256 + 5;

    /// Plans rows of `n_vocab` logits.
    pub fn of(n_vocab: usize) -> Self {
        Self {
            n_parts: n_vocab.div_ceil(PART_LOGITS).max(1),
        }
    }

    /// Returns the words of the results of a row's parts.
    pub fn part_words(self, n_rows: usize) -> usize {
        n_rows * self.n_parts * Self::PART_WORDS
    }
}

impl SampleScratch {
    /// Allocates for up to `max_rows` rows.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`].
    pub fn new(device: &Device, max_rows: usize, n_vocab: usize) -> Result<Self> {
        Ok(Self {
            adjusted: device.alloc("sampling", max_rows * n_vocab)?,
            parts: device.alloc("sampling", SamplePlan::of(n_vocab).part_words(max_rows))?,
            manys: device.alloc("sampling", max_rows * SamplePlan::MANY_WORDS)?,
        })
    }

    /// Returns the device memory of such scratch.
    pub fn device_bytes(max_rows: usize, n_vocab: usize) -> usize {
        crate::driver::buffer_bytes::<f32>(max_rows * n_vocab)
            + crate::driver::buffer_bytes::<u64>(SamplePlan::of(n_vocab).part_words(max_rows))
            + crate::driver::buffer_bytes::<u64>(max_rows * SamplePlan::MANY_WORDS)
    }
}

/// The sampling parameters of one row, in the layout of `sample.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct SampleRecord {
    /// Seed of the generator.
    pub seed: u64,
    /// The position of the token in its sequence.
    pub position: u32,
    /// The sum of the constants below.
    pub flags: u32,
    /// Divides the logits.
    pub temperature: f32,
    /// Likeliest tokens kept; 0 keeps all.
    pub top_k: u32,
    /// Probability kept; 1 keeps all.
    pub top_p: f32,
    /// Logarithm of the likelihood relative to the likeliest token; negative infinity keeps all.
    pub ln_min_p: f32,
    /// Repetition penalty; 1 does nothing.
    pub repeat_penalty: f32,
    /// Presence penalty.
    pub presence_penalty: f32,
    /// Frequency penalty.
    pub frequency_penalty: f32,
    /// First word of the tokens that penalties count; other tokens are excluded.
    pub history_start: u32,
    /// The word after the last of them.
    pub history_end: u32,
    /// Row of the previous step whose token follows the history, or [`Self::NONE`].
    pub newest: u32,
    /// First word of the mask of allowed tokens, or [`Self::NONE`].
    pub mask_start: u32,
    /// First word of the ids with a bias.
    pub bias_start: u32,
    /// The word after the last of them.
    pub bias_end: u32,
    /// First word of their biases.
    pub biases_start: u32,
    /// Number of likeliest tokens to report.
    pub n_top: u32,
    /// Where they are reported.
    pub top_start: u32,
}

impl SampleRecord {
    /// Words of a record.
    pub const WORDS: usize = size_of::<Self>() / 4;
    /// No row, or no mask.
    pub const NONE: u32 = u32::MAX;
    /// The likeliest token is taken.
    pub const GREEDY: u32 = 1;
    /// Bias, mask or penalties apply.
    pub const ADJUSTS: u32 = 2;
    /// Log-probabilities are reported.
    pub const LOGPROBS: u32 = 4;
    /// The row is not sampled.
    pub const RAW: u32 = 8;

    /// Returns the record of a row that is not sampled.
    pub fn raw() -> Self {
        Self {
            flags: Self::RAW,
            ..Self::zeroed()
        }
    }

    /// Returns whether more tokens may be drawn than the parts of a row keep, which takes two more launches.
    pub fn draws_many(&self, n_vocab: usize) -> bool {
        let top_k = self.top_k as usize;
        let keeps_few = (1..=FEW).contains(&top_k) && top_k < n_vocab;
        self.flags & (Self::GREEDY | Self::RAW) == 0 && !keeps_few
    }

    /// Returns the record as words.
    pub fn to_words(&self) -> [u32; Self::WORDS] {
        bytemuck::cast(*self)
    }
}

/// The sampling parameters of a launch's rows.
#[derive(Clone, Copy, Debug)]
pub struct SampleInputs<'a> {
    /// The records, [`SampleRecord::WORDS`] words each.
    pub records: View<'a, u32>,
    /// The array into which the offsets of the records point.
    pub words: View<'a, u32>,
    /// Tokens sampled by the step before.
    pub previous: View<'a, u32>,
    /// Whether one of the records [draws many](SampleRecord::draws_many). If not, the launches for it are left out; a record that
    /// does nevertheless is sampled correctly but slowly.
    pub has_many: bool,
}

/// The outputs of the launch.
#[derive(Debug)]
pub struct SampleOutputs<'a> {
    /// The memory through which the launches pass on their results.
    pub scratch: &'a mut SampleScratch,
    /// Tokens, `[n_rows]`; [`NO_TOKEN`](crate::NO_TOKEN) if there is none.
    pub tokens: ViewMut<'a, u32>,
    /// Whether there is a token, `[n_rows]`: 0 if so, 1 if logits are not finite, 2 if no token is allowed.
    pub status: ViewMut<'a, u32>,
    /// Log-probabilities of the tokens, `[n_rows]`, as the bits of f32.
    pub logprobs: ViewMut<'a, u32>,
    /// The likeliest tokens of all rows that request them.
    pub top_ids: ViewMut<'a, u32>,
    /// Their log-probabilities, as the bits of f32.
    pub top_logprobs: ViewMut<'a, u32>,
}

impl Ops {
    /// Samples rows: `logits: [n_rows, n_vocab]`. The token is the one that the host's sampler picks from the same logits.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] above [`MAX_SAMPLED_VOCAB`], [`CudaExecError::Bounds`], or the driver's.
    pub fn sample(
        &self,
        [n_rows, n_vocab]: [usize; 2],
        logits: View<'_, f32>,
        inputs: &SampleInputs<'_>,
        outputs: SampleOutputs<'_>,
    ) -> Result<()> {
        if n_vocab > MAX_SAMPLED_VOCAB {
            return Err(CudaExecError::Unsupported {
                feature: format!("sampling from {n_vocab} tokens (at most {MAX_SAMPLED_VOCAB})"),
            });
        }
        check_multiple(
            "the words of sampling records",
            inputs.records.len(),
            SampleRecord::WORDS,
        )?;
        let plan = SamplePlan::of(n_vocab);
        let n_parts = plan.n_parts;
        let SampleScratch {
            adjusted,
            parts,
            manys,
        } = outputs.scratch;
        let (n_logits, n_words) = (n_rows * n_vocab, plan.part_words(n_rows));
        let n_many_words = n_rows * SamplePlan::MANY_WORDS;
        let records = inputs.records.range(0..n_rows * SampleRecord::WORDS)?;
        let args = Args::new()
            .read(logits.range(0..n_logits)?)
            .write(adjusted.view_mut().range(0..n_logits)?)
            .count(n_vocab)
            .read(records)
            .read(inputs.words)
            .read(inputs.words)
            .read(inputs.words)
            .read(inputs.words)
            .read(inputs.previous)
            .write(parts.view_mut().range(0..n_words)?)
            .write(manys.view_mut().range(0..n_many_words)?);
        let shape = LaunchShape::new([n_parts, n_rows, 1], PART_THREADS);
        self.device.launch(self.sample_parts, shape, &args)?;
        if inputs.has_many {
            let args = Args::new()
                .read(logits.range(0..n_logits)?)
                .read(adjusted.view().range(0..n_logits)?)
                .count(n_vocab)
                .read(records)
                .read(parts.view().range(0..n_words)?)
                .write(manys.view_mut().range(0..n_many_words)?);
            self.device.launch(self.sample_weights, shape, &args)?;
            self.device.launch(self.sample_candidates, shape, &args)?;
        }
        let args = Args::new()
            .read(logits.range(0..n_logits)?)
            .read(adjusted.view().range(0..n_logits)?)
            .count(n_vocab)
            .count(n_parts)
            .read(records)
            .read(parts.view().range(0..n_words)?)
            .read(manys.view().range(0..n_many_words)?)
            .count(usize::from(inputs.has_many))
            .write(outputs.tokens.range(0..n_rows)?)
            .write(outputs.status.range(0..n_rows)?)
            .write(outputs.logprobs.range(0..n_rows)?)
            .write(outputs.top_ids)
            .write(outputs.top_logprobs);
        let shape = LaunchShape::new([n_rows, 1, 1], N_THREADS);
        self.device.launch(self.sample_rows, shape, &args)
    }
}

const _: () = assert!(size_of::<SampleRecord>() == 80);
