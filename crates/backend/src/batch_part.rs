//! Splits a batch into parts that are computed one after the other.
//!
//! Few executors need it. Invariant: the parts of a batch, in order, compute the same as the batch, if no
//! token sees later ones and no token refers to a row of the previous step.

use std::ops::Range;

use crate::{ForwardBatch, PAGE_TOKENS, RowOutput, SeqState, TokenSource};

impl ForwardBatch {
    /// Becomes the part of `whole` with a range of its tokens, and keeps its memory. A sequence may be in two
    /// parts: the later one continues from the keys and values, or the state, that the earlier one stored.
    ///
    /// # Panics
    /// If tokens see later ones ([`Self::last_seen`], [`Self::window_seen`]): such tokens come in one step.
    /// In debug builds also if a token refers to a row of the previous step.
    pub fn take_part(&mut self, whole: &Self, tokens: Range<usize>) {
        assert!(
            whole.last_seen.is_empty() && whole.window_seen.is_empty(),
            "tokens that see later ones"
        );
        debug_assert!(
            !(whole.tokens.iter()).any(|token| matches!(token, TokenSource::SampledRow(_))),
            "tokens that are known"
        );
        self.clear();
        self.tokens.extend_from_slice(&whole.tokens[tokens.clone()]);
        self.positions.extend_from_slice(&whole.positions[tokens.clone()]);
        self.slots.extend_from_slice(&whole.slots[tokens.clone()]);
        if !whole.window_slots.is_empty() {
            (self.window_slots).extend_from_slice(&whole.window_slots[tokens.clone()]);
        }
        if !whole.rope_positions.is_empty() {
            (self.rope_positions).extend_from_slice(&whole.rope_positions[tokens.clone()]);
        }
        let hidden_width = whole.hidden_inputs.len() / whole.n_tokens().max(1);
        (self.hidden_inputs)
            .extend_from_slice(&whole.hidden_inputs[tokens.start * hidden_width..tokens.end * hidden_width]);
        self.input_width = whole.input_width;
        if (self.tokens.iter()).any(|token| matches!(token, TokenSource::Row(_))) {
            self.input_rows.extend_from_slice(&whole.input_rows);
        }
        self.take_sequences(whole, &tokens);
        self.take_outputs(whole, &tokens);
    }

    fn take_sequences(&mut self, whole: &Self, tokens: &Range<usize>) {
        self.seq_starts.push(0);
        self.page_starts.push(0);
        for seq_idx in 0..whole.n_seqs() {
            let all = whole.tokens_of(seq_idx);
            let own = all.start.max(tokens.start)..all.end.min(tokens.end);
            if own.is_empty() {
                continue;
            }
            self.seq_starts.push((own.end - tokens.start) as u32);
            let last = whole.positions[own.end - 1] as usize;
            let start = whole.page_starts[seq_idx] as usize;
            // The pages up to the last token, or all of them if there are fewer.
            let end = (whole.page_starts[seq_idx + 1] as usize).min(start + last / PAGE_TOKENS + 1);
            self.pages.extend_from_slice(&whole.pages[start..end]);
            if !whole.window_pages.is_empty() {
                (self.window_pages).extend_from_slice(&whole.window_pages[start..end]);
            }
            self.page_starts.push(self.pages.len() as u32);
            if let Some(&state) = whole.states.get(seq_idx) {
                let is_in_part = |n_tokens: u32| {
                    let first = whole.positions[own.start];
                    (first + 1..=last as u32 + 1).contains(&n_tokens)
                };
                self.states.push(SeqState {
                    from: if own.start > all.start {
                        state.to
                    } else {
                        state.from
                    },
                    to: state.to,
                    save: state.save.filter(|save| is_in_part(save.n_tokens)),
                });
            }
            if !whole.adapters.is_empty() {
                (self.adapters).push(whole.adapters.get(seq_idx).copied().flatten());
            }
        }
    }

    fn take_outputs(&mut self, whole: &Self, tokens: &Range<usize>) {
        let in_part = |rows: &[u32]| {
            let place = |token_idx: usize| rows.partition_point(|&row| (row as usize) < token_idx);
            place(tokens.start)..place(tokens.end)
        };
        let of_part = |&row: &u32| row - tokens.start as u32;
        let rows = in_part(&whole.logit_rows);
        (self.logit_rows).extend(whole.logit_rows[rows.clone()].iter().map(of_part));
        self.outputs.extend_from_slice(&whole.outputs[rows]);
        let rows = in_part(&whole.hidden_rows);
        (self.hidden_rows).extend(whole.hidden_rows[rows].iter().map(of_part));
        if (self.outputs.iter()).any(|output| matches!(output, RowOutput::Sample(_))) {
            self.history.extend_from_slice(&whole.history);
            self.mask_words.extend_from_slice(&whole.mask_words);
        }
    }

    /// Replaces tokens that refer to rows of the previous step by their ids, from `id_of`, also in the
    /// histories of sampling rows. If `id_of` returns `None`, so does this, and the batch's contents are
    /// unspecified.
    pub fn name_tokens(&mut self, id_of: impl Fn(u32) -> Option<u32>) -> Option<()> {
        let is_named = |token: &TokenSource| matches!(token, TokenSource::SampledRow(_));
        let named: Vec<bool> = self.tokens.iter().map(is_named).collect();
        for token in &mut self.tokens {
            if let TokenSource::SampledRow(row) = *token {
                *token = TokenSource::Id(id_of(row)?);
            }
        }
        let known = std::mem::take(&mut self.history);
        for (&row, output) in self.logit_rows.iter().zip(&mut self.outputs) {
            let RowOutput::Sample(sample) = output else {
                continue;
            };
            let seq_idx = self.seq_starts.partition_point(|&start| start <= row) - 1;
            let start = self.history.len() as u32;
            (self.history)
                .extend_from_slice(&known[sample.history.start as usize..sample.history.end as usize]);
            let seen = self.seq_starts[seq_idx] as usize..row as usize + 1;
            for (token, _) in
                (self.tokens[seen.clone()].iter().zip(&named[seen])).filter(|(_, named)| **named)
            {
                if let TokenSource::Id(id) = *token {
                    self.history.push(id);
                }
            }
            sample.history = start..self.history.len() as u32;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{RowMask, SampleRow, SamplingParams, StateSave};

    fn sample(history: Range<u32>) -> RowOutput {
        RowOutput::Sample(SampleRow {
            params: Arc::new(SamplingParams::default()),
            history,
            n_prompt: 0,
            mask: RowMask::Any,
        })
    }

    /// Two sequences: 20 tokens from position 30 on, and 5 tokens.
    fn whole() -> ForwardBatch {
        let mut batch = ForwardBatch::default();
        batch.push_sequence((0..20).map(TokenSource::Id), 30, &[4, 5, 6, 7]);
        batch.push_window_pages(&[ForwardBatch::UNMAPPED_PAGE, 1, 2, 3]);
        batch.want_last(sample(0..2));
        batch.push_sequence((50..55).map(TokenSource::Id), 0, &[9]);
        batch.push_window_pages(&[8]);
        batch.want_last(sample(2..3));
        batch.hidden_rows = vec![3, 12, 24];
        batch.history = vec![70, 71, 72];
        batch.states = vec![
            SeqState {
                from: 11,
                to: 12,
                save: Some(StateSave {
                    n_tokens: 40,
                    slot: 13,
                }),
            },
            SeqState::own(14),
        ];
        batch
    }

    #[test]
    fn a_sequence_continues_in_the_second_part() {
        let whole = whole();
        let mut parts = [ForwardBatch::default(), ForwardBatch::default()];
        parts[0].take_part(&whole, 0..10);
        parts[1].take_part(&whole, 10..25);
        let [first, second] = &parts;
        assert_eq!(
            (first.seq_starts.clone(), first.page_starts.clone()),
            (vec![0, 10], vec![0, 3])
        );
        assert_eq!((first.pages.clone(), first.window_pages[2]), (vec![4, 5, 6], 2));
        assert_eq!(
            first.states,
            [SeqState {
                from: 11,
                to: 12,
                save: whole.states[0].save
            }]
        );
        assert_eq!((first.logit_rows.len(), first.hidden_rows.clone()), (0, vec![3]));
        assert!(first.history.is_empty());
        assert_eq!(
            (second.seq_starts.clone(), second.page_starts.clone()),
            (vec![0, 10, 15], vec![0, 4, 5])
        );
        assert_eq!(
            (second.pages.clone(), second.window_pages[4]),
            (vec![4, 5, 6, 7, 9], 8)
        );
        assert_eq!(second.states, [SeqState::own(12), SeqState::own(14)]);
        assert_eq!(
            (second.logit_rows.clone(), second.hidden_rows.clone()),
            (vec![9, 14], vec![2, 14])
        );
        assert_eq!(second.history, whole.history);
        let joined = |of: fn(&ForwardBatch) -> &Vec<u32>| [of(first).as_slice(), of(second)].concat();
        assert_eq!(joined(|batch| &batch.positions), whole.positions);
        assert_eq!(joined(|batch| &batch.slots), whole.slots);
        assert_eq!(joined(|batch| &batch.window_slots), whole.window_slots);
        assert_eq!([&first.tokens[..], &second.tokens].concat(), whole.tokens);
    }

    #[test]
    fn a_snapshot_is_taken_in_the_part_that_has_its_token() {
        let whole = whole();
        let save_of = |cut: usize| {
            let mut part = ForwardBatch::default();
            part.take_part(&whole, 0..cut);
            let first = part.states[0].save.is_some();
            part.take_part(&whole, cut..25);
            (first, part.states[0].save.is_some())
        };
        // The token at position 39 is the tenth.
        assert_eq!(save_of(9), (false, true));
        assert_eq!(save_of(10), (true, false));
    }

    #[test]
    fn tokens_of_the_step_before_go_to_the_histories_of_rows_at_and_behind_them() {
        let mut batch = whole();
        batch.tokens[0] = TokenSource::SampledRow(1);
        batch.tokens[20] = TokenSource::SampledRow(0);
        batch.tokens[21] = TokenSource::SampledRow(2);
        assert_eq!(batch.clone().name_tokens(|row| (row < 2).then_some(row)), None);
        batch.name_tokens(|row| Some(90 + row)).unwrap();
        assert_eq!(batch.tokens[20..22], [TokenSource::Id(90), TokenSource::Id(92)]);
        assert_eq!(batch.history, [70, 71, 91, 72, 90, 92]);
        let ranges = batch.outputs.iter().map(|output| match output {
            RowOutput::Sample(sample) => sample.history.clone(),
            RowOutput::Logits => 0..0,
        });
        assert_eq!(ranges.collect::<Vec<_>>(), [0..3, 3..6]);
    }
}
