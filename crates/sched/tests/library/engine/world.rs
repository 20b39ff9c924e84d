//! [`World`]: the surroundings of a simulation's case: an executor, an engine, a draft model, and their
//! failures.
//!
//! The simulation itself has the callers. Invariant: a world is decided by its numbers alone.

use tokenmill_backend::{ExecutorLimits, WindowGroup};
use tokenmill_testkit::fake_executor::{Faults, limits};

use crate::{
    draft::drafter::Speculation,
    params::{EngineConfig, context_shift::ContextShift},
};

/// Numbers that decide a request or a case. Each feature reads one; 0 is the plainest choice, so that failures shrink.
pub(crate) type Genes = [u16; 16];

pub(crate) fn pick(gene: u16, from: usize, to: usize) -> usize {
    from + gene as usize % (to - from)
}

/// `Some` for one gene in `rarity`.
pub(crate) fn rarely(gene: u16, rarity: u16, from: usize, to: usize) -> Option<usize> {
    (gene % rarity == rarity - 1).then(|| pick(gene / rarity, from, to))
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) limits: ExecutorLimits,
    pub(crate) config: EngineConfig,
    pub(crate) faults: Faults,
    /// Sequences from which on a batch takes another route through the executor.
    pub(crate) threshold: usize,
    /// Steps after which the reader of page events comes again.
    pub(crate) page_events_read_after: usize,
    /// The drafting model, where there is one, and how it fails.
    pub(crate) draft: Option<(ExecutorLimits, Faults)>,
    /// Whether it reads the model's hidden states.
    pub(crate) draft_reads_hidden: bool,
}

impl World {
    pub(crate) fn new(genes: &Genes) -> Self {
        let steps = |gene: u16, rarity| {
            rarely(gene, rarity, 0, 200)
                .map(|at| at as u64)
                .into_iter()
                .collect()
        };
        let max_running = pick(genes[4], 1, 8);
        let window = rarely(genes[2], 2, 1, 70);
        // Half the models with windows have layers without one too.
        let has_groups = genes[2] / 2 % 2 == 1;
        let n_host_pages = rarely(genes[1], 2, 1, 8).unwrap_or(0);
        let context_shift = rarely(genes[4] / 8, 3, 0, 100).map(|keep| ContextShift { keep });
        let n_vocab = [32, 2, 3, 5][pick(genes[7] / 8, 0, 4)];
        let draft_reads_hidden = genes[6] % 8 > 4;
        Self {
            limits: ExecutorLimits {
                // Most prompts and answers are short.
                n_ctx: if context_shift.is_some() {
                    pick(genes[9], 3, 80)
                } else {
                    160
                },
                n_host_pages,
                kv_window: window.filter(|_| !has_groups),
                window_group: window.filter(|_| has_groups).map(|window| WindowGroup {
                    window,
                    n_pages: pick(genes[0] / 32, 1, 16),
                    n_host_pages: n_host_pages / 2,
                }),
                pooling: None,
                is_encoder: false,
                n_states: rarely(genes[3], 2, 1, 20).unwrap_or(0),
                max_logit_rows: max_running + pick(genes[6], 0, 4) + pick(genes[6] / 4, 0, 32),
                // With few tokens to choose from, many drafts are right.
                n_vocab,
                ..limits(pick(genes[0], 1, 30))
            },
            config: EngineConfig {
                max_running,
                max_step_tokens: pick(genes[5], 1, 64),
                stream_buffer: pick(genes[7], 1, 8),
                steps_in_flight: Some(pick(genes[8], 1, 3)),
                uses_prefix_cache: rarely(genes[9], 8, 0, 1).is_none(),
                speculation: match (genes[8] / 2 % 5, pick(genes[8] / 10, 1, 20)) {
                    (0, _) => Speculation::Off,
                    (1, max_draft) => Speculation::Auto { max_draft },
                    (2, max_draft) if draft_reads_hidden => Speculation::Mtp { max_draft },
                    (2, max_draft) => Speculation::Draft { max_draft },
                    (_, max_draft) => Speculation::Ngram { max_draft },
                },
                context_shift,
                ..EngineConfig::default()
            },
            faults: Faults {
                submits: steps(genes[10], 4),
                waits: steps(genes[11], 4),
                rows: steps(genes[12], 4),
                copies: rarely(genes[13], 4, 0, 20)
                    .map(|at| at as u64)
                    .into_iter()
                    .collect(),
                lost_at: rarely(genes[14], 16, 0, 200).map(|at| at as u64),
                panics_at: None,
            },
            threshold: rarely(genes[15], 3, 1, 6).unwrap_or(usize::MAX),
            page_events_read_after: rarely(genes[15] / 32, 4, 2, 30).unwrap_or(1),
            draft: (genes[6] % 8 > 1).then(|| {
                let (limits, faults) = draft_of(genes);
                if !draft_reads_hidden {
                    return (limits, faults);
                }
                // A layer of the model itself has its vocabulary, and keeps keys and values alone.
                let limits = ExecutorLimits {
                    n_vocab,
                    kv_window: None,
                    n_states: 0,
                    ..limits
                };
                (limits, faults)
            }),
            draft_reads_hidden,
        }
    }
}

/// A drafting model: one that knows what the first will say, or sees less of the text, with pages and states of its own.
fn draft_of(genes: &Genes) -> (ExecutorLimits, Faults) {
    let window = rarely(genes[6] / 8, 3, 1, 70);
    let limits = ExecutorLimits {
        n_ctx: pick(genes[6] / 16, 40, 160),
        kv_window: window,
        n_states: rarely(genes[0] / 64, 3, 1, 12).unwrap_or(0),
        n_vocab: [32, 2, 3, 5, 64][pick(genes[7] / 64, 0, 5)],
        max_batch_seqs: pick(genes[4] / 8, 1, 10),
        max_logit_rows: pick(genes[4] / 16, 1, 10),
        ..limits(pick(genes[3] / 32, 1, 30))
    };
    let fails_at = |rarity| rarely(genes[9] / 8, rarity, 0, 100).map(|at| at as u64);
    let faults = Faults {
        waits: fails_at(16).into_iter().collect(),
        rows: fails_at(15).into_iter().collect(),
        lost_at: fails_at(31),
        ..Faults::default()
    };
    (limits, faults)
}
