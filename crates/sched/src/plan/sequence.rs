//! [`Sequence`]: one row of text on its way through the scheduler.
//!
//! Facts about what a sequence still needs are derived here instead of stored. Invariant:
//! `n_committed <= n_planned <= n_inputs()`, and its page tables reach `n_planned`.

use std::{cmp::Reverse, ops::Range, sync::Arc};

use tokenmill_backend::{AdapterId, PAGE_TOKENS, PageGroup, SeqState, StateSave};

use crate::{
    arena::SeqId,
    draft::{answer_cache::AnswerName, drafter::Drafter},
    media::MediaSpan,
    pages::{
        key::{PageKey, PageNaming},
        states::SNAPSHOT_INTERVAL,
    },
    params::{
        context_shift::{ContextShift, Shift},
        sampling_key::SamplingKey,
    },
    plan::step_plan::{PlannedOutput, PlannedRow},
};

/// The purpose of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Sample tokens after the last one, until a stop token or until the sequence is `max_len` tokens long.
    Generate {
        /// Maximum number of tokens of prompt and output together; more than the prompt has.
        max_len: usize,
        /// Tokens that end it and are not part of the output.
        stop_tokens: Arc<[u32]>,
    },
    /// Read the logits of the positions from `from` on.
    Logits {
        /// First position to read.
        from: usize,
    },
    /// Read the hidden states of the positions from `from` on.
    Hidden {
        /// First position to read.
        from: usize,
    },
}

impl Work {
    /// Returns how many of `n_tokens` need not be computed if the prefix cache has them.
    pub(crate) fn n_reusable(&self, n_tokens: usize) -> usize {
        match *self {
            Self::Generate { .. } => n_tokens - 1,
            Self::Logits { from } | Self::Hidden { from } => from.min(n_tokens - 1),
        }
    }
}

/// The specification of a sequence for the scheduler. Times are microseconds of any clock, given as data.
#[derive(Clone, Debug)]
pub struct SeqSpec {
    /// Its initial tokens; at least one.
    pub tokens: Vec<u32>,
    /// Its purpose.
    pub work: Work,
    /// Higher priorities go first, and may preempt lower ones.
    pub priority: i32,
    /// Whether it may use and feed the prefix cache.
    pub uses_prefix_cache: bool,
    /// Separates its cached pages from those of other adapters or tenants.
    pub salt: u64,
    /// The adapter that it is computed with; cached pages are found with the same one only.
    pub adapter: Option<AdapterId>,
    /// Time at which it fails unless it has begun.
    pub queue_deadline_us: Option<u64>,
    /// Time at which it fails unless it has ended.
    pub deadline_us: Option<u64>,
    /// Whether each of its tokens is sampled with a mask, so that it must not run ahead of masks.
    pub is_constrained: bool,
    /// Everything besides its inputs that determines its tokens, if it may draft them from another sequence's
    /// answer; `None` if it may not.
    pub sampling_key: Option<SamplingKey>,
    /// Its non-token inputs, in the order of their places.
    pub media: Arc<[MediaSpan]>,
    /// How it continues when the context is full, and the size of the context; `None` ends it at `max_len`,
    /// which must then fit.
    pub context_shift: Option<(ContextShift, usize)>,
    /// A sequence with the same prompt whose pages it shares: it waits until these are computed.
    pub fork_of: Option<SeqId>,
}

impl SeqSpec {
    /// Returns the inputs of the keys of its pages.
    pub(crate) fn naming(&self) -> PageNaming<'_> {
        PageNaming {
            tokens: &self.tokens,
            media: &self.media,
            salt: self.salt,
            adapter: self.adapter,
        }
    }
}

/// Order of service: higher priority first, then first come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: Reverse<i32>,
    pub(crate) arrival: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Holds no page; in the queue if eligible.
    Waiting,
    /// Holds pages and takes part in steps.
    Running,
    /// Holds pages and takes part in no step, because its consumer is slow.
    Paused,
}

/// Whether masks allow a sequence to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masking {
    /// It samples without masks.
    Off,
    /// It must wait for the mask of its next token.
    Awaited,
    /// The mask is ready.
    Ready,
}

/// The reason why no more of a prompt came from the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissReason {
    /// The cache is off for this request.
    Disabled,
    /// The prompt is too short: only whole pages are cached, and the last token is always computed.
    ShortPrompt,
    /// Its first page was never seen.
    Unseen,
    /// It begins like an earlier prompt and continues differently.
    Diverged,
    /// It was evicted recently.
    Evicted,
}

impl MissReason {
    /// Every reason, in the order of [`Self::index`].
    pub const ALL: [Self; 5] = [
        Self::Disabled,
        Self::ShortPrompt,
        Self::Unseen,
        Self::Diverged,
        Self::Evicted,
    ];

    /// Returns a short name for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::ShortPrompt => "short_prompt",
            Self::Unseen => "unseen",
            Self::Diverged => "diverged",
            Self::Evicted => "evicted",
        }
    }

    /// Returns its index in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what a sequence may do and what it waits for are told apart"
)]
pub(crate) struct Sequence {
    /// Known tokens: the prompt and the sampled and committed ones.
    pub(crate) tokens: Vec<u32>,
    /// Number of tokens computed as a prompt; after a context shift, all remaining ones.
    pub(crate) n_prompt: usize,
    /// Number of tokens of the prompt as submitted.
    pub(crate) n_given: usize,
    pub(crate) shift: Option<Shift>,
    /// Number of tokens no longer in `tokens`.
    pub(crate) n_dropped: usize,
    pub(crate) work: Work,
    pub(crate) rank: Rank,
    pub(crate) uses_prefix_cache: bool,
    pub(crate) salt: u64,
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) sampling_key: Option<SamplingKey>,
    /// The name under which its answer is kept.
    pub(crate) answer_name: Option<AnswerName>,
    pub(crate) media: Arc<[MediaSpan]>,
    pub(crate) queue_deadline_us: Option<u64>,
    pub(crate) deadline_us: Option<u64>,
    pub(crate) fork_of: Option<SeqId>,
    pub(crate) masking: Masking,
    /// Sequences that wait for this one's prompt to be computed.
    pub(crate) followers: Vec<SeqId>,

    pub(crate) stage: Stage,
    /// Number of its admissions.
    pub(crate) stay: u32,
    /// It must take part in no step until its consumer has caught up.
    pub(crate) wants_pause: bool,
    /// The previous step had no room for its next inputs, which attend to each other.
    pub(crate) waits_for_step: bool,
    /// It waits for the sequence that it was forked from.
    pub(crate) is_held: bool,
    /// Its page table in each group.
    pub(crate) tables: [Vec<u32>; PageGroup::ALL.len()],
    /// Keys of its first whole pages, as far as needed so far.
    pub(crate) page_keys: Vec<PageKey>,
    /// Number of leading pages that need no further registration.
    pub(crate) n_registered: usize,
    /// Number of tokens whose K and V will be in the pages when all submitted steps are done.
    pub(crate) n_planned: usize,
    /// Number of tokens whose K and V are in the pages.
    pub(crate) n_committed: usize,
    /// The slot of its recurrent state, if the model has one.
    pub(crate) state: Option<u32>,
    /// The snapshot that its first row of this stay reads, until that row is done.
    pub(crate) state_from: Option<u32>,
    /// Number of inputs before that row.
    pub(crate) n_restored: usize,
    /// The slot for the state after a draft in flight. Its own slot stays unchanged until the draft is known
    /// to be right.
    pub(crate) spare: Option<u32>,
    /// Slots that rows in flight fill with snapshots.
    pub(crate) saves: Vec<u32>,
    /// The newest snapshot taken while it decodes; the next one replaces it.
    pub(crate) rolling: Option<PageKey>,
    /// Number of sampled tokens not known yet.
    pub(crate) n_pending: usize,
    /// The logit row, in the newest step, that samples the newest of them.
    pub(crate) pending_row: u32,
    /// Number of tokens that came from the prefix cache when it began.
    pub(crate) n_cached: usize,
    pub(crate) miss: Option<MissReason>,
    /// Drafts its next tokens, if it may have drafts.
    pub(crate) drafter: Option<Drafter>,
    /// It never runs ahead of sampled tokens, so that each of its steps may have a draft.
    pub(crate) waits_for_newest: bool,
    /// A draft of it is in flight.
    pub(crate) has_draft: bool,
    /// Number of its draft tokens.
    pub(crate) n_drafted: usize,
    /// Number of accepted draft tokens.
    pub(crate) n_accepted: usize,
}

impl Sequence {
    pub(crate) fn new(spec: SeqSpec, arrival: u64) -> Self {
        Self {
            n_prompt: spec.tokens.len(),
            n_given: spec.tokens.len(),
            shift: (spec.context_shift).and_then(|(shift, n_ctx)| shift.rule(spec.tokens.len(), n_ctx)),
            n_dropped: 0,
            tokens: spec.tokens,
            work: spec.work,
            rank: Rank {
                priority: Reverse(spec.priority),
                arrival,
            },
            uses_prefix_cache: spec.uses_prefix_cache,
            salt: spec.salt,
            adapter: spec.adapter,
            sampling_key: spec.sampling_key,
            answer_name: None,
            media: spec.media,
            queue_deadline_us: spec.queue_deadline_us,
            deadline_us: spec.deadline_us,
            fork_of: spec.fork_of,
            masking: if spec.is_constrained {
                Masking::Awaited
            } else {
                Masking::Off
            },
            followers: Vec::new(),
            stage: Stage::Waiting,
            stay: 0,
            wants_pause: false,
            waits_for_step: false,
            is_held: false,
            tables: Default::default(),
            page_keys: Vec::new(),
            n_registered: 0,
            n_planned: 0,
            n_committed: 0,
            state: None,
            state_from: None,
            n_restored: 0,
            spare: None,
            saves: Vec::new(),
            rolling: None,
            n_pending: 0,
            pending_row: 0,
            n_cached: 0,
            miss: None,
            drafter: None,
            waits_for_newest: false,
            has_draft: false,
            n_drafted: 0,
            n_accepted: 0,
        }
    }

    /// Returns the number of inputs, known or in flight.
    pub(crate) fn n_inputs(&self) -> usize {
        self.tokens.len() + self.n_pending
    }

    /// Makes it wait as if it had never begun; its pages are released.
    pub(crate) fn let_go(&mut self) {
        self.stage = Stage::Waiting;
        self.n_planned = 0;
        self.n_committed = 0;
        self.n_registered = 0;
    }

    /// Returns the number of inputs still to be planned: 1 when decoding, more in a prefill, 0 when its end
    /// or its mask is pending.
    pub(crate) fn n_to_plan(&self) -> usize {
        match self.work {
            Work::Generate { .. } if self.n_inputs() >= self.end_len() => 0,
            // A draft must begin after a known token, and it is unknown how far its step gets.
            _ if self.n_pending > 0 && (self.waits_for_newest || self.has_draft) => 0,
            // The last input is the one that samples.
            _ if self.masking == Masking::Awaited => (self.n_inputs() - self.n_planned).saturating_sub(1),
            _ => self.n_inputs() - self.n_planned,
        }
    }

    /// Returns whether it would sample in the next step if its next mask were ready.
    pub(crate) fn only_misses_mask(&self) -> bool {
        self.masking == Masking::Awaited && self.n_pending == 0 && self.n_inputs() == self.n_planned + 1
    }

    /// Returns whether a draft model may make drafts for it.
    pub(crate) fn may_ask_model(&self) -> bool {
        self.drafter.is_some()
    }

    /// Returns whether tokens follow its prompt.
    pub(crate) fn has_generated(&self) -> bool {
        self.tokens.len() > self.n_prompt
    }

    /// Returns the number of its generated tokens, including those that a context shift dropped.
    pub(crate) fn n_generated(&self) -> usize {
        (self.tokens.len() + self.n_dropped).saturating_sub(self.n_given)
    }

    /// Returns whether it may be in the queue.
    pub(crate) fn is_eligible(&self) -> bool {
        self.stage == Stage::Waiting && !self.wants_pause && !self.is_held && self.n_pending == 0
    }

    /// Returns the number of whole pages that may come from the prefix cache; the remaining tokens must be
    /// computed.
    pub(crate) fn n_reusable(&self) -> usize {
        self.work.n_reusable(self.tokens.len())
    }

    /// Returns where a row of inputs `first..end` should leave a snapshot. In a prompt that is after the last
    /// whole page of the known tokens, or after the one before if a token must be left to compute; a prompt
    /// with the same beginning looks there. Long prompts also leave one at intervals, and decoding leaves one
    /// at every page.
    pub(crate) fn snapshot_in(&self, first: usize, end: usize) -> Option<usize> {
        let floor = |position: usize, unit: usize| position / unit * unit;
        let candidates = [
            floor(self.tokens.len() - 1, PAGE_TOKENS),
            floor(self.tokens.len(), PAGE_TOKENS),
            if first >= self.n_prompt {
                floor(end, PAGE_TOKENS)
            } else {
                0
            },
            floor(end, SNAPSHOT_INTERVAL),
        ];
        let is_inside = |at: &usize| (first + 1..=end).contains(at);
        candidates
            .into_iter()
            .find(is_inside)
            .filter(|_| self.uses_prefix_cache)
    }

    /// Returns how many of the next `want` inputs a row computes. A row leaves one snapshot. The last row of
    /// a prompt that fills its pages leaves it after the prompt, where a conversation continues. The row
    /// before therefore ends a page earlier, with the snapshot that the same prompt finds, since its last
    /// token is always computed.
    ///
    /// Rows of recurrent layers end at a page border if possible, unless they reach the end of the inputs: a
    /// device may process the tokens of a page at once, and the result must not depend on the room that other
    /// sequences leave.
    pub(crate) fn cut_row(&self, want: usize) -> usize {
        let end = self.n_planned + want;
        let last_border = end - end % PAGE_TOKENS;
        if self.state.is_some() && end < self.n_inputs() && last_border > self.n_planned {
            return last_border - self.n_planned;
        }
        let is_whole_prompt = end == self.tokens.len() && end.is_multiple_of(PAGE_TOKENS);
        if self.state.is_some() && self.uses_prefix_cache && is_whole_prompt && want > PAGE_TOKENS {
            want - PAGE_TOKENS
        } else {
            want
        }
    }

    /// Returns the largest number of inputs below `n` that a row can compute without separating inputs that
    /// attend to each other; 0 if these come first.
    pub(crate) fn before_cut(&self, n: usize) -> usize {
        match self.cut_by(n) {
            Some(span) => span.start.saturating_sub(self.n_planned),
            None => n,
        }
    }

    /// Returns the number of inputs of a row that includes the next `n` and everything that they attend to.
    pub(crate) fn beyond_cut(&self, n: usize) -> usize {
        match self.cut_by(n) {
            Some(span) if n > 0 => span.end - self.n_planned,
            _ => n,
        }
    }

    /// Returns the medium that a row of the next `n` inputs would split.
    fn cut_by(&self, n: usize) -> Option<&MediaSpan> {
        let end = self.n_planned + n;
        self.media.iter().find(|span| span.is_cut_at(end))
    }

    /// Returns the output to read of inputs `first..end`.
    fn output_of(&self, first: usize, end: usize) -> PlannedOutput {
        let rows_from = |from: usize| end.saturating_sub(first.max(from)) as u32;
        match self.work {
            Work::Generate { .. } if end == self.n_inputs() => PlannedOutput::Sample,
            Work::Logits { from } if end > from => PlannedOutput::Logits {
                n_rows: rows_from(from),
            },
            Work::Hidden { from } if end > from => PlannedOutput::Hidden {
                n_rows: rows_from(from),
            },
            _ => PlannedOutput::Nothing,
        }
    }

    /// Plans the next `n_tokens` inputs, followed by the tokens of `draft`.
    pub(crate) fn plan_row(
        &mut self,
        id: SeqId,
        n_tokens: usize,
        draft: Range<u32>,
        first_logit_row: u32,
        save: Option<StateSave>,
    ) -> PlannedRow {
        let first = self.n_planned;
        let end = first + n_tokens;
        let output = self.output_of(first, end);
        self.has_draft = !draft.is_empty();
        let row = PlannedRow {
            seq: id,
            stay: self.stay,
            first_position: first as u32,
            n_tokens: (n_tokens + draft.len()) as u32,
            pending_row: (end > self.tokens.len()).then_some(self.pending_row),
            draft,
            output,
            first_logit_row,
            gives_hidden: false,
            state: self.state.map(|own| SeqState {
                from: self
                    .state_from
                    .filter(|_| first == self.n_restored)
                    .unwrap_or(own),
                to: self.spare.unwrap_or(own),
                save,
            }),
        };
        match &mut self.work {
            Work::Generate { .. } if output == PlannedOutput::Sample => {
                self.n_pending += 1;
                self.pending_row = first_logit_row;
                if self.masking == Masking::Ready {
                    self.masking = Masking::Awaited;
                }
            }
            Work::Generate { .. } => {}
            // A row in flight is not read again if the sequence is preempted.
            Work::Logits { from } | Work::Hidden { from } => *from = end.max(*from),
        }
        self.n_planned = end;
        row
    }
}
