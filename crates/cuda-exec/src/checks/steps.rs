//! Compares steps of the model: the GPU's with the CPU's, and the GPU's with each other under other ways of launching.
//!
//! Invariant: the steps write to the first pages and the first state, so they must run before a sequence uses them.

use tokenmill_backend::{
    Executor, ForwardBatch, PAGE_TOKENS, RowOutput, SeqState, StepError, StepOutput, TokenSource,
};

use super::{Finding, StepDown};
use crate::Launches;

/// Length of the prompt, in tokens.
const N_PROMPT: usize = 8;
/// Decode steps that are compared with the CPU's.
const N_COMPARED: usize = 4;
/// Tokens that are computed in each way of launching.
const N_REPEATED: usize = 40;
/// Distance between the ids of neighbouring tokens, which spreads them over the vocabulary.
const ID_STRIDE: usize = 7919;
/// Largest distance of the GPU's logits from the CPU's, as a share of their spread. Both round rows to bytes and to f16, but in different
/// places.
const LIMIT: f64 = 0.15;

/// Tokens that the context must have room for; they fill the first pages.
pub const CHECKED_TOKENS: usize = N_REPEATED + PAGE_TOKENS;

/// Holds one sequence, which uses the first pages.
struct Sequence {
    tokens: Vec<u32>,
    n_stored: usize,
}

impl Sequence {
    fn new(n_vocab: usize) -> Self {
        Self {
            tokens: (0..N_PROMPT)
                .map(|idx| ((idx + 1) * ID_STRIDE % n_vocab) as u32)
                .collect(),
            n_stored: 0,
        }
    }

    /// Computes the tokens that are not stored yet; returns the logits after the last token.
    fn advance(&mut self, executor: &mut (impl Executor + ?Sized)) -> Result<Vec<f32>, StepError> {
        let limits = executor.limits();
        let n_pages = (CHECKED_TOKENS.min(limits.n_ctx)).div_ceil(PAGE_TOKENS) as u32;
        let pages: Vec<u32> = (0..n_pages).collect();
        let mut batch = ForwardBatch::default();
        let new = self.tokens[self.n_stored..].iter().map(|&id| TokenSource::Id(id));
        batch.push_sequence(new, self.n_stored as u32, &pages);
        if limits.window_group.is_some() {
            batch.push_window_pages(&pages);
        }
        if limits.n_states > 0 {
            batch.states.push(SeqState::own(0));
        }
        batch.want_last(RowOutput::Logits);
        let ticket = executor.submit(&batch)?;
        let mut output = StepOutput::default();
        executor.wait(ticket, &mut output)?;
        self.n_stored = self.tokens.len();
        Ok(output.logits)
    }
}

/// Returns the index of the largest number; 0 if all are NaN.
fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (place, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || logits[best].is_nan() {
            best = place;
        }
    }
    best as u32
}

fn finding(check: &str, reason: String, remedy: Option<StepDown>, is_lost: bool) -> Finding {
    Finding {
        check: check.to_owned(),
        kernel: String::new(),
        reason,
        remedy,
        is_lost,
    }
}

/// Describes a step that failed.
fn failed(check: &str, error: &StepError, remedy: Option<StepDown>) -> Finding {
    let is_lost = matches!(error, StepError::DeviceLost { .. });
    finding(check, error.to_string(), remedy, is_lost)
}

/// Compares a prompt and the decode steps after it; both executors get the CPU's likeliest tokens.
///
/// # Errors
/// Fails if the logits are too far apart or a step fails on the GPU. A step that fails on the CPU is ignored.
pub fn compare_steps(gpu: &mut dyn Executor, cpu: &mut dyn Executor) -> Result<(), Finding> {
    const CHECK: &str = "steps of the model against the CPU's";
    let [mut on_gpu, mut on_cpu] = [gpu.limits(), cpu.limits()].map(|limits| Sequence::new(limits.n_vocab));
    for step in 0..=N_COMPARED {
        let Ok(expected) = on_cpu.advance(cpu) else {
            return Ok(());
        };
        let found = match on_gpu.advance(gpu) {
            Err(StepError::InvalidBatch(_)) => return Ok(()),
            found => found.map_err(|error| failed(CHECK, &error, None))?,
        };
        let mean = expected.iter().copied().map(f64::from).sum::<f64>() / expected.len().max(1) as f64;
        let spread: f64 = expected.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        let apart: f64 = (found.iter().zip(&expected))
            .map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2))
            .sum();
        let share = (apart / spread).sqrt();
        let is_near = found.len() == expected.len() && (share <= LIMIT || apart == 0.0);
        if !is_near {
            let reason = format!(
                "the logits of step {step} differ by {share:.3} of their spread (limit {LIMIT}); token {} instead of {}",
                best(&found),
                best(&expected)
            );
            return Err(finding(CHECK, reason, None, false));
        }
        for sequence in [&mut on_gpu, &mut on_cpu] {
            sequence.tokens.push(best(&expected));
        }
    }
    Ok(())
}

/// Says how the launches of steps are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Whether decode steps are captured as graphs and replayed.
    pub uses_graphs: bool,
    /// When launches begin.
    pub launches: Launches,
}

/// Computes the same tokens in each way of launching and compares the bits of the logits, which must be equal. `set` changes the way of
/// launching. `capture_failure` says why a step could not be captured since then: its launches are queued one by one, which the bits do not
/// show.
///
/// # Errors
/// Fails if the bits differ, or if a step fails or cannot be captured, and names the feature to turn off.
pub fn compare_ways<E: Executor + ?Sized>(
    executor: &mut E,
    [has_graphs, begins_early]: [bool; 2],
    mut set: impl FnMut(&mut E, Way),
    capture_failure: impl Fn(&E) -> Option<String>,
) -> Result<(), Finding> {
    let way = |uses_graphs, launches| Way {
        uses_graphs,
        launches,
    };
    let mut ways = vec![(
        way(false, Launches::InOrder),
        "launched one after the other",
        None,
    )];
    if has_graphs {
        ways.push((
            way(true, Launches::InOrder),
            "captured and replayed",
            Some(StepDown::Eager),
        ));
    }
    if begins_early {
        ways.push((
            way(false, Launches::Early),
            "launched early",
            Some(StepDown::InOrder),
        ));
    }
    if has_graphs && begins_early {
        ways.push((
            way(true, Launches::Early),
            "captured, replayed and launched early",
            Some(StepDown::InOrder),
        ));
    }
    let mut first = None;
    let mut result = Ok(());
    for (way, name, remedy) in ways {
        set(executor, way);
        let check = format!("{N_REPEATED} tokens {name}");
        let found = match repeat(executor) {
            // The context is too short, or the model gives no logits.
            Err(StepError::InvalidBatch(_)) => break,
            found => found.map_err(|error| failed(&check, &error, remedy)),
        };
        let not_captured = capture_failure(executor).filter(|_| way.uses_graphs && found.is_ok());
        if let Some(reason) = not_captured {
            let reason = format!("a step cannot be captured: {reason}");
            result = Err(finding(&check, reason, remedy, false));
            break;
        }
        match (found, &first) {
            (Err(finding), _) => result = Err(finding),
            (Ok(found), None) => first = Some(found),
            (Ok(found), Some(expected)) => {
                let apart = (found.iter().zip(expected)).position(|(a, b)| a != b);
                if let Some(step) = apart {
                    let reason = format!("other bits than with launches in order, from step {step} on");
                    result = Err(finding(&check, reason, remedy, false));
                }
            }
        }
        if result.is_err() {
            break;
        }
    }
    let launches = if begins_early {
        Launches::Early
    } else {
        Launches::InOrder
    };
    set(executor, way(has_graphs, launches));
    result
}

/// Decodes greedily and returns a hash of each step's logits.
fn repeat(executor: &mut (impl Executor + ?Sized)) -> Result<Vec<u64>, StepError> {
    let limits = executor.limits();
    let (n_tokens, mut sequence) = (N_REPEATED.min(limits.n_ctx), Sequence::new(limits.n_vocab));
    let mut hashes = Vec::new();
    while sequence.tokens.len() < n_tokens {
        let logits = sequence.advance(executor)?;
        sequence.tokens.push(best(&logits));
        // FNV-1a over the bits.
        let hash = logits.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, logit| {
            (hash ^ u64::from(logit.to_bits())).wrapping_mul(0x0100_0000_01b3)
        });
        hashes.push(hash);
    }
    Ok(hashes)
}
