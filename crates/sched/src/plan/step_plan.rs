//! [`StepPlan`]: the work of one step, decided in integers.
//!
//! The scheduler writes it; the engine turns it into a [`ForwardBatch`](tokenmill_backend::ForwardBatch) and
//! later commits its results. Invariant: a sequence has at most one row, and rows are in rank order.

use std::{fmt, ops::Range};

use tokenmill_backend::{PageCopy, PageGroup, SeqState};

use crate::arena::SeqId;

/// One step: page copies to make first, then the rows to compute.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Page copies of each group, in order, to make before the step.
    pub copies: [Vec<PageCopy>; PageGroup::ALL.len()],
    /// One row per participating sequence.
    pub rows: Vec<PlannedRow>,
    /// Draft tokens of all rows, see [`PlannedRow::draft`].
    pub drafts: Vec<u32>,
    /// Sequences that began or resumed.
    pub admitted: Vec<SeqId>,
    /// Sequences that were preempted and wait again.
    pub preempted: Vec<SeqId>,
}

/// A sequence's part of a step: `n_tokens` inputs from `first_position` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// The sequence.
    pub seq: SeqId,
    /// The number of the sequence's admission when this was planned; its pages are its own only until the
    /// next preemption.
    pub stay: u32,
    /// Position of the first input token.
    pub first_position: u32,
    /// Number of input tokens, including the draft's.
    pub n_tokens: u32,
    /// The last input is not known yet: it is the token that this logit row of the previous step samples.
    pub pending_row: Option<u32>,
    /// The draft tokens at the end of the inputs, as a range of [`StepPlan::drafts`]. A token is sampled
    /// before each of them too; the result after a draft token counts only if the draft token was right.
    pub draft: Range<u32>,
    /// The rows to read.
    pub output: PlannedOutput,
    /// Index of its first logit row in the step.
    pub first_logit_row: u32,
    /// Whether the hidden states of all its inputs are read, for a draft model.
    pub gives_hidden: bool,
    /// The slot of its recurrent state, if the model has one.
    pub state: Option<SeqState>,
}

/// The output to read of a row's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedOutput {
    /// Nothing: more inputs will follow.
    Nothing,
    /// A token sampled after the last input.
    Sample,
    /// The logits of the last `n_rows` inputs.
    Logits {
        /// Number of rows.
        n_rows: u32,
    },
    /// The hidden states of the last `n_rows` inputs.
    Hidden {
        /// Number of rows.
        n_rows: u32,
    },
}

impl PlannedRow {
    /// Returns the position after the last input token.
    pub fn end(&self) -> u32 {
        self.first_position + self.n_tokens
    }

    /// Returns the number of logit rows that it needs.
    pub fn n_logit_rows(&self) -> u32 {
        match self.output {
            PlannedOutput::Nothing | PlannedOutput::Hidden { .. } => 0,
            PlannedOutput::Sample => 1 + self.draft.len() as u32,
            PlannedOutput::Logits { n_rows } => n_rows,
        }
    }

    /// Returns the position after the last input that is not a draft token.
    pub(crate) fn sure_end(&self) -> u32 {
        self.end() - self.draft.len() as u32
    }
}

impl StepPlan {
    /// Clears the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.copies.iter_mut().for_each(Vec::clear);
        self.rows.clear();
        self.drafts.clear();
        self.admitted.clear();
        self.preempted.clear();
    }

    /// Returns whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns whether there are pages to copy.
    pub fn has_copies(&self) -> bool {
        self.copies.iter().any(|copies| !copies.is_empty())
    }

    /// Returns the number of input tokens of all rows.
    pub fn n_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.n_tokens as usize).sum()
    }

    /// Returns the number of rows with one token, not counting drafts.
    pub fn n_decode_rows(&self) -> usize {
        self.rows
            .iter()
            .filter(|row| row.sure_end() - row.first_position == 1)
            .count()
    }

    /// Returns the draft tokens of a row.
    pub fn draft_of(&self, row: &PlannedRow) -> &[u32] {
        &self.drafts[row.draft.start as usize..row.draft.end as usize]
    }
}

impl fmt::Display for StepPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in &self.preempted {
            writeln!(f, "  preempt {id}")?;
        }
        for id in &self.admitted {
            writeln!(f, "  admit {id}")?;
        }
        for (copies, group) in self.copies.iter().zip(["", " of windows"]) {
            for copy in copies {
                match copy {
                    PageCopy::Duplicate { from, to } => writeln!(f, "  copy page {from} -> {to}{group}")?,
                    PageCopy::Download { page, host_page } => {
                        writeln!(f, "  download page {page} -> host {host_page}{group}")?;
                    }
                    PageCopy::Upload { host_page, page } => {
                        writeln!(f, "  upload host {host_page} -> page {page}{group}")?;
                    }
                }
            }
        }
        for row in &self.rows {
            write!(f, "  {} positions {}..{}", row.seq, row.first_position, row.end())?;
            if let Some(pending) = row.pending_row {
                write!(f, ", last token from row {pending}")?;
            }
            if !row.draft.is_empty() {
                write!(f, ", draft {:?}", self.draft_of(row))?;
            }
            let first = row.first_logit_row;
            match row.output {
                PlannedOutput::Nothing => {}
                PlannedOutput::Sample if row.draft.is_empty() => write!(f, " -> sample in row {first}")?,
                PlannedOutput::Sample => {
                    write!(f, " -> sample in rows {first}..{}", first + row.n_logit_rows())?;
                }
                PlannedOutput::Logits { n_rows } => {
                    write!(f, " -> logits in rows {first}..{}", first + n_rows)?;
                }
                PlannedOutput::Hidden { n_rows } => write!(f, " -> {n_rows} hidden rows")?,
            }
            if let Some(SeqState { from, to, save }) = row.state {
                if from == to {
                    write!(f, ", state {to}")?;
                } else {
                    write!(f, ", state {from} -> {to}")?;
                }
                if let Some(save) = save {
                    write!(f, ", snapshot at {} in {}", save.n_tokens, save.slot)?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
