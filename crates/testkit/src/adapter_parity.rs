//! The parity check of adapters: a base with an adapter on a device against reference data.
//!
//! Invariant: both forms of an adapter are checked on both forms of its base, and every sequence of a check has the adapter.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use tokenmill_backend::{
    Adapter, AdapterError, AdapterId, Executor, ExecutorLimits, ForwardBatch, KvType, PageCopy, PageGroup,
    StepError, StepOutput, Ticket,
};
use tokenmill_model::{Model, ModelOptions};

use crate::{
    Reference,
    generate::all_logits,
    parity::{Comparison, Difference, ParityDevice, ParityError, argmax},
};

/// An adapter of a fixture on a base.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterCase {
    /// Name in a table.
    pub label: String,
    /// A GGUF file, or a folder.
    pub base: PathBuf,
    /// A GGUF file, or a folder.
    pub adapter: PathBuf,
    /// Prefix of the reference's tensors.
    stem: &'static str,
    /// Multiplies the adapter's changes.
    strength: f32,
}

/// The adapter's file in GGUF form.
const GGUF_FILE: &str = "adapter-F32.gguf";

/// Returns the comparisons for the adapter of a fixture's folder; `base` is the folder of its base.
///
/// # Errors
/// [`ParityError::Reference`].
pub fn adapter_cases(
    reference: &Reference,
    folder: &Path,
    base: &Path,
) -> Result<Vec<AdapterCase>, ParityError> {
    // If the file drops a flag of the folder, it means something else.
    let has_own = reference.has("gguf.p0.logits_last")?;
    let mut cases = Vec::new();
    for (base_label, base) in [("F32", base.join("model-F32.gguf")), ("hf", base.join("hf"))] {
        if !base.exists() {
            continue;
        }
        for (form, adapter) in [("gguf", folder.join(GGUF_FILE)), ("peft", folder.to_owned())] {
            let mut add = |what: &str, stem, strength| {
                cases.push(AdapterCase {
                    label: format!("{base_label}+{form}{what}"),
                    base: base.clone(),
                    adapter: adapter.clone(),
                    stem,
                    strength,
                });
            };
            if form == "gguf" && has_own {
                add("", "gguf", 1.0);
            } else {
                add("", "lora", 1.0);
                add("/2", "scale0.5", 0.5);
            }
        }
    }
    Ok(cases)
}

/// Compares a base with an adapter on one device with the reference: the rows stored in f32, and the log-sum-exp of all others.
///
/// # Errors
/// [`ParityError`].
pub fn compare_adapter(
    reference: &Reference,
    case: &AdapterCase,
    device: &ParityDevice,
) -> Result<Comparison, ParityError> {
    let prompts = &reference.facts.prompts;
    let n_longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let model = Model::open(&case.base)?;
    let options = ModelOptions {
        n_ctx: Some(n_longest),
        max_batch_tokens: n_longest,
        max_batch_seqs: 1,
        max_logit_rows: n_longest,
        kv_type: KvType::F32,
        ..Default::default()
    };
    let adapter = model.adapter_reader().read(&case.adapter)?;
    let mut executor = Adapted::new((device.load)(&model, &options)?, &adapter, case.strength)?;
    let mut difference = Difference::default();
    let (mut n_equal_top, mut n_positions) = (0, 0);
    for (prompt_idx, prompt) in prompts.iter().enumerate() {
        let found = all_logits(&mut executor, prompt)?;
        let n_vocab = found.len() / prompt.len();
        let name = |what| format!("{}.p{prompt_idx}.{what}", case.stem);
        let last = &found[found.len() - n_vocab..];
        let expected = reference.numbers(&name("logits_last"))?;
        difference.add_row(&expected, last);
        n_equal_top += usize::from(argmax(&expected) == argmax(last));
        n_positions += 1;
        if reference.has(&name("lse"))? {
            let best = reference.numbers(&name("argmax"))?;
            let rows = found.chunks_exact(n_vocab).zip(reference.numbers(&name("lse"))?);
            for ((row, lse), best) in rows.zip(best) {
                difference.add_lse(lse, row);
                n_equal_top += usize::from(argmax(row) == best as usize);
                n_positions += 1;
            }
        }
    }
    let limits = reference.facts.tolerance.f32_compute;
    Ok(difference.judged(limits, n_equal_top, n_positions))
}

/// An executor whose sequences all have one adapter.
pub struct Adapted {
    inner: Box<dyn Executor>,
    adapter: AdapterId,
}

impl Adapted {
    /// Adds an adapter to an executor that has none.
    ///
    /// # Errors
    /// [`AdapterError`].
    pub fn new(mut inner: Box<dyn Executor>, adapter: &Adapter, strength: f32) -> Result<Self, AdapterError> {
        let id = AdapterId::new(NonZeroU32::MIN);
        inner.add_adapter(id, adapter, strength)?;
        Ok(Self { inner, adapter: id })
    }
}

impl Executor for Adapted {
    fn limits(&self) -> &ExecutorLimits {
        self.inner.limits()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        let mut batch = batch.clone();
        batch.adapters = vec![Some(self.adapter); batch.n_seqs()];
        self.inner.submit(&batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        self.inner.wait(ticket, output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        self.inner.copy_pages(group, copies)
    }
}
