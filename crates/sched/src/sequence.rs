//! [`Sequence`]: one row of text on its way through the scheduler.
//!
//! Separate from the scheduler so that what a sequence still needs is derived in one place instead of stored.
//! Invariant: `n_committed <= n_planned <= n_inputs()`, and its page tables reach `n_planned`.

use std::{cmp::Reverse, ops::Range, sync::Arc};

use tokenmill_backend::{AdapterId, PAGE_TOKENS, PageGroup, SeqState, StateSave};

use crate::{
    answers::AnswerName,
    arena::SeqId,
    context_shift::{ContextShift, Shift},
    drafting::Drafter,
    manner::Manner,
    media::MediaSpan,
    plan::{PlannedOutput, PlannedRow},
    prefix::PageKey,
    states::SNAPSHOT_INTERVAL,
};

/// What a sequence is computed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// To sample a token after the last one, until a stop token or until the sequence is `max_len` tokens long.
    Generate {
        /// Tokens of prompt and output together at which it ends; more than the prompt has.
        max_len: usize,
        /// Tokens that end it and are not part of the output.
        stop_tokens: Arc<[u32]>,
    },
    /// To read the logits of the positions from `from` on.
    Logits {
        /// First position wanted.
        from: usize,
    },
    /// To read the hidden states of the positions from `from` on.
    Hidden {
        /// First position wanted.
        from: usize,
    },
}

impl Work {
    /// Of `n_tokens`, those that need not be computed where the prefix cache has them.
    pub(crate) fn n_reusable(&self, n_tokens: usize) -> usize {
        match *self {
            Self::Generate { .. } => n_tokens - 1,
            Self::Logits { from } | Self::Hidden { from } => from.min(n_tokens - 1),
        }
    }
}

/// A sequence as it is handed to the scheduler. Times are microseconds of any clock, given as data.
#[derive(Clone, Debug)]
pub struct SeqSpec {
    /// Its tokens so far; at least one.
    pub tokens: Vec<u32>,
    /// What it is computed for.
    pub work: Work,
    /// Higher goes first, and may take the place of lower.
    pub priority: i32,
    /// Whether it may use and feed the prefix cache.
    pub uses_prefix_cache: bool,
    /// Keeps its cached pages apart from those of other adapters or tenants.
    pub salt: u64,
    /// What it is computed with; its cached pages are found with the same only.
    pub adapter: Option<AdapterId>,
    /// When it gives up unless it has begun.
    pub queue_deadline_us: Option<u64>,
    /// When it gives up unless it has ended.
    pub deadline_us: Option<u64>,
    /// Whether each of its tokens is sampled with a mask, so that it must not run ahead of them.
    pub is_constrained: bool,
    /// What its tokens depend on besides its inputs, where it may guess them by another sequence of the same; `None` where it may not.
    pub manner: Option<Manner>,
    /// Its inputs that are no tokens, in the order of their places.
    pub media: Arc<[MediaSpan]>,
    /// How it continues where the context is full, and how many tokens that holds; `None` ends it at `max_len`, which the
    /// context then holds.
    pub context_shift: Option<(ContextShift, usize)>,
    /// A sequence of the same prompt whose pages it shares: it waits until that one has computed them.
    pub fork_of: Option<SeqId>,
}

/// Order of service: higher priority first, then first come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: Reverse<i32>,
    pub(crate) arrival: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Holds no page; in the queue if it is eligible.
    Waiting,
    /// Holds pages and takes part in steps.
    Running,
    /// Holds pages and takes part in no step, because its consumer is slow.
    Paused,
}

/// Whether a sequence may sample as far as masks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masking {
    /// It samples without masks.
    Off,
    /// It may not, until the mask of its next token is known.
    Awaited,
    /// It may: the mask is known.
    Ready,
}

/// Why no more of a prompt came from the prefix cache.
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
    /// It was cached not long ago and had to make room.
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

    /// A short name for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::ShortPrompt => "short_prompt",
            Self::Unseen => "unseen",
            Self::Diverged => "diverged",
            Self::Evicted => "evicted",
        }
    }

    /// Its place in [`Self::ALL`].
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
    /// Known tokens: the prompt and what was sampled and committed.
    pub(crate) tokens: Vec<u32>,
    /// Those that are computed as a prompt: of a sequence that was shifted, what was left.
    pub(crate) n_prompt: usize,
    /// Tokens of the prompt as it was submitted.
    pub(crate) n_given: usize,
    pub(crate) shift: Option<Shift>,
    /// Tokens that are no more in `tokens`.
    pub(crate) n_dropped: usize,
    pub(crate) work: Work,
    pub(crate) rank: Rank,
    pub(crate) uses_prefix_cache: bool,
    pub(crate) salt: u64,
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) manner: Option<Manner>,
    /// What its answer is kept by.
    pub(crate) answer_name: Option<AnswerName>,
    pub(crate) media: Arc<[MediaSpan]>,
    pub(crate) queue_deadline_us: Option<u64>,
    pub(crate) deadline_us: Option<u64>,
    pub(crate) fork_of: Option<SeqId>,
    pub(crate) masking: Masking,
    /// Sequences that wait for this one's prompt to be computed.
    pub(crate) followers: Vec<SeqId>,

    pub(crate) stage: Stage,
    /// Times it was admitted.
    pub(crate) stay: u32,
    /// It is to take part in no step until its consumer has caught up.
    pub(crate) wants_pause: bool,
    /// The step before had no room for its next inputs, which see each other.
    pub(crate) waits_for_step: bool,
    /// It waits for the sequence it is a fork of.
    pub(crate) is_held: bool,
    /// Its page table in each group.
    pub(crate) tables: [Vec<u32>; PageGroup::ALL.len()],
    /// Keys of its first whole pages, as far as they were needed.
    pub(crate) page_keys: Vec<PageKey>,
    /// Leading pages that need no registration any more.
    pub(crate) n_registered: usize,
    /// Tokens whose K and V are in the pages once all submitted steps are done.
    pub(crate) n_planned: usize,
    /// Tokens whose K and V are in the pages.
    pub(crate) n_committed: usize,
    /// The slot that holds its recurrent state, where the model has one.
    pub(crate) state: Option<u32>,
    /// The snapshot that its first row of this stay reads, until that row is done.
    pub(crate) state_from: Option<u32>,
    /// Inputs before that row.
    pub(crate) n_restored: usize,
    /// The slot that takes the state after a draft on its way: the own slot stays as it is until the draft is known to be right.
    pub(crate) spare: Option<u32>,
    /// Slots that rows on their way fill with snapshots.
    pub(crate) saves: Vec<u32>,
    /// The newest snapshot taken while it decodes; the next one takes its place.
    pub(crate) rolling: Option<PageKey>,
    /// Sampled tokens that are not known yet.
    pub(crate) n_pending: usize,
    /// Logit row of the newest step that samples the newest of them.
    pub(crate) pending_row: u32,
    /// Tokens that came from the prefix cache when it began.
    pub(crate) n_cached: usize,
    pub(crate) miss: Option<MissReason>,
    /// Guesses its next tokens, where it may.
    pub(crate) drafter: Option<Drafter>,
    /// It never runs ahead of what is sampled, so that each of its steps may have a draft.
    pub(crate) waits_for_newest: bool,
    /// A draft of it is on its way.
    pub(crate) has_draft: bool,
    /// Tokens of its drafts.
    pub(crate) n_drafted: usize,
    /// Those among them that were accepted.
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
            manner: spec.manner,
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

    /// Inputs there are, known or on their way.
    pub(crate) fn n_inputs(&self) -> usize {
        self.tokens.len() + self.n_pending
    }

    /// Lets it wait as if it had never begun; its pages are released.
    pub(crate) fn let_go(&mut self) {
        self.stage = Stage::Waiting;
        self.n_planned = 0;
        self.n_committed = 0;
        self.n_registered = 0;
    }

    /// Inputs still to be planned: 1 when decoding, more in a prefill, 0 when its end or its mask is on the way.
    pub(crate) fn n_to_plan(&self) -> usize {
        match self.work {
            Work::Generate { .. } if self.n_inputs() >= self.end_len() => 0,
            // A draft begins with a token that is known, and how far its step gets is not.
            _ if self.n_pending > 0 && (self.waits_for_newest || self.has_draft) => 0,
            // The last input is that which samples.
            _ if self.masking == Masking::Awaited => (self.n_inputs() - self.n_planned).saturating_sub(1),
            _ => self.n_inputs() - self.n_planned,
        }
    }

    /// Whether it would sample in the next step if the mask of its next token were known.
    pub(crate) fn only_misses_mask(&self) -> bool {
        self.masking == Masking::Awaited && self.n_pending == 0 && self.n_inputs() == self.n_planned + 1
    }

    /// Whether a drafting model may guess for it.
    pub(crate) fn may_ask_model(&self) -> bool {
        self.drafter.is_some()
    }

    /// Whether tokens follow its prompt.
    pub(crate) fn has_generated(&self) -> bool {
        self.tokens.len() > self.n_prompt
    }

    /// Counts its generated tokens, including those that a shift of the context dropped.
    pub(crate) fn n_generated(&self) -> usize {
        (self.tokens.len() + self.n_dropped).saturating_sub(self.n_given)
    }

    /// Whether the queue may hold it.
    pub(crate) fn is_eligible(&self) -> bool {
        self.stage == Stage::Waiting && !self.wants_pause && !self.is_held && self.n_pending == 0
    }

    /// Whole pages that may come from the prefix cache: what is left is what it is computed for.
    pub(crate) fn n_reusable(&self) -> usize {
        self.work.n_reusable(self.tokens.len())
    }

    /// Where a row of inputs `first..end` should leave a snapshot: behind the last whole page of what is known, or behind the last
    /// but one where a token must be left to compute, which is where a prompt that begins like this one will look; at every page
    /// while it decodes; and every so often in a long prompt.
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

    /// How many of the next `want` inputs a row computes. A row leaves one snapshot. The last of a prompt that fills its pages
    /// leaves it behind the prompt, where a conversation continues; so the row before ends a page earlier, with the one that
    /// the same prompt finds, since its last token is always computed.
    ///
    /// Rows of recurrent layers that do not reach the end of the inputs end with a page where they can: a device may take the
    /// tokens of a page at once, and what it makes of them must not depend on the room that other sequences leave.
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

    /// How many of the next `n` inputs, if not all, a row computes that parts none that see each other; 0 where these come first.
    pub(crate) fn before_cut(&self, n: usize) -> usize {
        match self.cut_by(n) {
            Some(span) => span.start.saturating_sub(self.n_planned),
            None => n,
        }
    }

    /// How many inputs a row computes that has the next `n`, and with them all that they see.
    pub(crate) fn beyond_cut(&self, n: usize) -> usize {
        match self.cut_by(n) {
            Some(span) if n > 0 => span.end - self.n_planned,
            _ => n,
        }
    }

    /// The inputs that a row of the next `n` would part.
    fn cut_by(&self, n: usize) -> Option<&MediaSpan> {
        let end = self.n_planned + n;
        self.media.iter().find(|span| span.is_cut_at(end))
    }

    /// What is read of inputs `first..end`.
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

    /// Plans the next `n_tokens` inputs and the guesses of `draft` behind them.
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
            // A row that is on its way is not asked for again, should the sequence be preempted.
            Work::Logits { from } | Work::Hidden { from } => *from = end.max(*from),
        }
        self.n_planned = end;
        row
    }
}
