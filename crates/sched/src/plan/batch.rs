//! Turns a [`StepPlan`] into a [`ForwardBatch`]: the only place where integers become a batch.
//!
//! The scheduler knows no sampling parameters, and the engine's loop knows no positions. Invariant: the batch
//! passes [`ForwardBatch::validate`] for the limits that the plan was made for.

use std::{ops::Range, sync::Arc};

use tokenmill_backend::{
    ForwardBatch, PAGE_TOKENS, PageGroup, RowMask, RowOutput, SampleRow, SamplingParams, TokenSource,
};

use crate::{
    masks::next_mask::{ArrivalBehind, NextMask},
    media::{Media, MediaPlaces, rope_position},
    plan::{
        scheduler::Scheduler,
        step_plan::{PlannedOutput, PlannedRow, StepPlan},
    },
    sync,
};

/// Writes the batch of `plan` into `batch`. `params_of` returns the sampling parameters of a row that samples
/// after a number of inputs. `mask_of` returns its mask after a number of draft tokens, if it is constrained;
/// the words are copied. `media_of` returns its non-token inputs.
pub(crate) fn build_batch<'m>(
    scheduler: &Scheduler,
    plan: &StepPlan,
    params_of: impl Fn(&PlannedRow, u32) -> Arc<SamplingParams>,
    mask_of: impl Fn(&PlannedRow, usize) -> Option<NextMask<'m>>,
    media_of: impl Fn(&PlannedRow) -> &'m [Media],
    batch: &mut ForwardBatch,
) {
    let limits = &scheduler.config().limits;
    batch.clear();
    for row in &plan.rows {
        let tokens = scheduler.tokens_of(row.seq).expect("a planned sequence is alive");
        let (first, end) = (row.first_position as usize, row.end() as usize);
        let (draft, sure_end) = (plan.draft_of(row), row.sure_end());
        let pages = |group| {
            let pages = (scheduler.pages_of(row.seq, group)).expect("a planned sequence is alive");
            &pages[..end.div_ceil(PAGE_TOKENS)]
        };
        let known = tokens[first..(sure_end as usize).min(tokens.len())]
            .iter()
            .copied()
            .map(TokenSource::Id);
        let pending = row.pending_row.map(TokenSource::SampledRow);
        let drafted = draft.iter().copied().map(TokenSource::Id);
        let inputs = known.chain(pending).chain(drafted);
        batch.push_sequence(inputs, row.first_position, pages(PageGroup::Main));
        for media in media_of(row) {
            put_media(media, first..end, batch);
        }
        let media = media_of(row);
        if media.iter().any(|media| media.span.places != MediaPlaces::Line) {
            batch.turn_by(|position| rope_position(media, position as usize));
        }
        if limits.window_group.is_some() {
            batch.push_window_pages(pages(PageGroup::Window));
        }
        batch.states.extend(row.state);
        batch.set_adapter(scheduler.adapter_of(row.seq));
        let n_tokens = batch.n_tokens() as u32;
        if row.gives_hidden {
            batch.hidden_rows.extend(n_tokens - row.n_tokens..n_tokens);
        }
        match row.output {
            PlannedOutput::Nothing => {}
            PlannedOutput::Sample => {
                for n_drafted in 0..=draft.len() {
                    let params = params_of(row, sure_end + n_drafted as u32);
                    let mask = mask_of(row, n_drafted);
                    let n_generated = scheduler.n_generated(row.seq);
                    let text = (tokens, n_generated);
                    let sample = sample_row(params, text, media, &draft[..n_drafted], mask.as_ref(), batch);
                    batch
                        .logit_rows
                        .push(n_tokens - 1 - (draft.len() - n_drafted) as u32);
                    batch.outputs.push(RowOutput::Sample(sample));
                }
            }
            PlannedOutput::Logits { n_rows } => {
                batch.logit_rows.extend(n_tokens - n_rows..n_tokens);
                batch.outputs.resize(batch.logit_rows.len(), RowOutput::Logits);
            }
            PlannedOutput::Hidden { .. } if limits.pools_whole_sequences() => {
                let row = limits.pooled_row(n_tokens - row.n_tokens, n_tokens - 1);
                batch.hidden_rows.push(row);
            }
            PlannedOutput::Hidden { n_rows } => batch.hidden_rows.extend(n_tokens - n_rows..n_tokens),
        }
    }
}

/// Replaces the newest sequence's tokens at `positions` with non-token inputs.
fn put_media(media: &Media, positions: Range<usize>, batch: &mut ForwardBatch) {
    let Some(inputs) = media.span.within(&positions) else {
        return;
    };
    let width = media.rows.len() / media.span.n_inputs();
    let first_row = batch.input_rows.len() / width;
    let start = inputs.start - media.span.start;
    batch.input_width = width;
    (batch.input_rows).extend_from_slice(&media.rows[start * width..(start + inputs.len()) * width]);
    let first_token = batch.n_tokens() - positions.len() + (inputs.start - positions.start);
    for (token, row) in batch.tokens[first_token..]
        .iter_mut()
        .zip(first_row..first_row + inputs.len())
    {
        *token = TokenSource::Row(row as u32);
    }
    if media.span.sees_itself {
        batch.see_each_other(inputs.start as u32..inputs.end as u32);
    }
}

/// Builds the record of a sampling row: after a text that ends with generated tokens and contains `media`,
/// and after the draft tokens in `draft`.
fn sample_row(
    params: Arc<SamplingParams>,
    (tokens, n_generated): (&[u32], usize),
    media: &[Media],
    draft: &[u32],
    mask: Option<&NextMask<'_>>,
    batch: &mut ForwardBatch,
) -> SampleRow {
    let mask = match mask {
        None => RowMask::Any,
        Some(NextMask::Words(words)) => {
            let start = batch.mask_words.len() as u32;
            batch.mask_words.extend_from_slice(words);
            RowMask::Words(start)
        }
        Some(NextMask::Late(arrival, 0)) => RowMask::Late(Arc::clone(arrival) as _),
        Some(NextMask::Late(arrival, n_drafted)) => RowMask::Late(Arc::new(ArrivalBehind {
            arrival: sync::Arc::clone(arrival),
            n_drafted: *n_drafted,
        })),
    };
    let n_drafted = params.history_len().min(draft.len());
    let start = batch.history.len() as u32;
    extend_history(
        tokens,
        media,
        params.history_len() - n_drafted,
        &mut batch.history,
    );
    let n_known = batch.history.len() as u32 - start;
    batch.history.extend_from_slice(&draft[draft.len() - n_drafted..]);
    SampleRow {
        params,
        history: start..batch.history.len() as u32,
        n_prompt: n_known.saturating_sub(n_generated as u32),
        mask,
    }
}

/// Appends the newest `n_tokens` of a text, or fewer if it is shorter. Tokens in the places of `media` do not
/// count as text.
fn extend_history(tokens: &[u32], media: &[Media], n_tokens: usize, history: &mut Vec<u32>) {
    let (mut first, mut n_left) = (tokens.len(), n_tokens);
    for Media { span, .. } in media.iter().rev() {
        let n_behind = first - span.end.min(first);
        if n_behind >= n_left {
            break;
        }
        n_left -= n_behind;
        first = first.min(span.start);
    }
    first -= n_left.min(first);
    for Media { span, .. } in media {
        if span.start >= first {
            history.extend_from_slice(&tokens[first..span.start.min(tokens.len())]);
        }
        first = first.max(span.end.min(tokens.len()));
    }
    history.extend_from_slice(&tokens[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::MediaSpan;

    #[test]
    fn history_is_text_alone() {
        let tokens: Vec<u32> = (0..20).collect();
        let medium = |start, end| Media {
            span: MediaSpan {
                start,
                end,
                content: 0,
                sees_itself: true,
                places: MediaPlaces::Line,
            },
            rows: Arc::from([]),
        };
        let media = [medium(2, 5), medium(5, 8), medium(12, 15)];
        let check = |media: &[Media], n_tokens: usize, expected: &[u32]| {
            let mut history = vec![77];
            extend_history(&tokens, media, n_tokens, &mut history);
            assert_eq!(history[1..], *expected, "the newest {n_tokens}");
        };
        check(&[], 3, &[17, 18, 19]);
        check(&media, 0, &[]);
        check(&media, 5, &[15, 16, 17, 18, 19]);
        check(&media, 6, &[11, 15, 16, 17, 18, 19]);
        check(&media, 9, &[8, 9, 10, 11, 15, 16, 17, 18, 19]);
        check(&media, 10, &[1, 8, 9, 10, 11, 15, 16, 17, 18, 19]);
        check(&media, usize::MAX, &[0, 1, 8, 9, 10, 11, 15, 16, 17, 18, 19]);
        // At the end of the known tokens.
        check(&[medium(17, 20)], 2, &[15, 16]);
    }
}
