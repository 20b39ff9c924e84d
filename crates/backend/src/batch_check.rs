//! [`ForwardBatch::validate`]: checks whether a batch may reach a device.
//!
//! Only executors check batches. Invariant: no number of a valid batch can make a backend read or write out
//! of bounds, and this is the only check.

use crate::{
    BatchError, ExecutorLimits, ForwardBatch, PAGE_TOKENS, RowMask, RowOutput, SeqState, TokenSource,
};

impl ForwardBatch {
    /// Checks everything that a backend relies on, so that no number of a batch can make it read or write out
    /// of bounds.
    ///
    /// That no two tokens share a slot is the caller's duty. It is not checked, because a check would need a
    /// table of all slots in every step. Sequences may share pages that they only read, but a page that a
    /// step writes belongs to one of them. If two tokens do share a slot, one is read in place of the other;
    /// nothing else is harmed.
    ///
    /// `n_sampled_before` is the number of logit rows of the previous step, to which
    /// [`TokenSource::SampledRow`] refers.
    ///
    /// # Errors
    /// The first [`BatchError`] found.
    pub fn validate(&self, limits: &ExecutorLimits, n_sampled_before: usize) -> Result<(), BatchError> {
        let n_tokens = self.tokens.len();
        let check_count = |what, found: usize, maximum: usize| {
            if found > maximum {
                Err(BatchError::TooMany { what, found, maximum })
            } else {
                Ok(())
            }
        };
        check_count("tokens", n_tokens, limits.max_batch_tokens)?;
        check_count("sequences", self.n_seqs(), limits.max_batch_seqs)?;
        check_count("logit rows", self.logit_rows.len(), limits.max_logit_rows)?;
        check_count("adapters", self.adapters.len(), self.n_seqs())?;
        check_count("hidden rows", self.hidden_rows.len(), limits.max_batch_tokens)?;

        let same_len = |what, found: usize, expected: usize| {
            if found == expected {
                Ok(())
            } else {
                Err(BatchError::Length {
                    what,
                    expected,
                    found,
                })
            }
        };
        same_len("positions", self.positions.len(), n_tokens)?;
        same_len("slots", self.slots.len(), n_tokens)?;
        let n_in_window = |n: usize| limits.window_group.map_or(0, |_| n);
        same_len("window_slots", self.window_slots.len(), n_in_window(n_tokens))?;
        same_len(
            "window_pages",
            self.window_pages.len(),
            n_in_window(self.pages.len()),
        )?;
        for (what, found) in self.lengths_of_places().into_iter().filter(|(_, n)| *n > 0) {
            same_len(what, found, n_tokens)?;
        }
        same_len("outputs", self.outputs.len(), self.logit_rows.len())?;
        same_len("page_starts", self.page_starts.len(), self.seq_starts.len())?;
        check_offsets("seq_starts", &self.seq_starts, n_tokens)?;
        check_offsets("page_starts", &self.page_starts, self.pages.len())?;
        // Rows are searched below.
        for (what, rows) in [
            ("logit_rows", &self.logit_rows),
            ("hidden_rows", &self.hidden_rows),
        ] {
            let is_ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
            let is_in_range = rows.last().is_none_or(|&row| (row as usize) < n_tokens);
            if !(is_ascending && is_in_range) {
                return Err(BatchError::Rows { what });
            }
        }

        for (index, token) in self.tokens.iter().enumerate() {
            match *token {
                TokenSource::Id(id) if id as usize >= limits.n_vocab => {
                    return Err(BatchError::TokenOutOfRange {
                        index,
                        id,
                        n_vocab: limits.n_vocab,
                    });
                }
                TokenSource::SampledRow(row) if row as usize >= n_sampled_before => {
                    return Err(BatchError::SampledRowOutOfRange {
                        index,
                        row,
                        n_rows: n_sampled_before,
                    });
                }
                _ => {}
            }
        }
        for seq_idx in 0..self.n_seqs() {
            self.validate_sequence(seq_idx, limits)?;
        }
        if limits.is_encoder {
            self.validate_whole_sequences(limits)?;
        }
        self.validate_states(limits)?;
        self.outputs
            .iter()
            .enumerate()
            .try_for_each(|(row, output)| self.validate_output(row, output, limits))
    }

    fn validate_sequence(&self, seq_idx: usize, limits: &ExecutorLimits) -> Result<(), BatchError> {
        let tokens = self.tokens_of(seq_idx);
        if tokens.is_empty() {
            return Err(BatchError::EmptySequence { seq_idx });
        }
        let first_position = self.positions[tokens.start] as usize;
        let context_len = first_position.saturating_add(tokens.len());
        if context_len > limits.n_ctx {
            return Err(BatchError::ContextExceeded {
                seq_idx,
                provided: context_len,
                maximum: limits.n_ctx,
            });
        }
        for (group, group_limits) in limits.groups() {
            let pages = self.table_of(seq_idx, group);
            // The oldest position that any of the step's tokens may still see.
            let oldest_visible =
                (group_limits.window).map_or(0, |window| (first_position + 1).saturating_sub(window));
            for page_idx in oldest_visible / PAGE_TOKENS..context_len.div_ceil(PAGE_TOKENS) {
                match pages.get(page_idx) {
                    Some(&page) if (page as usize) < group_limits.n_pages => {}
                    found => {
                        return Err(BatchError::Page {
                            seq_idx,
                            page_idx,
                            found: found.copied(),
                        });
                    }
                }
            }
            let slots = self.slots_in(group);
            for (offset, token_idx) in tokens.clone().enumerate() {
                let position = first_position + offset;
                let slot = pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS;
                if self.positions[token_idx] as usize != position || slots[token_idx] as usize != slot {
                    return Err(BatchError::Placement { token_idx });
                }
            }
        }
        self.validate_last_seen(tokens, context_len)?;
        Ok(())
    }

    /// Checks that every sequence begins with its first token, and that there are no logits. One that is pooled has one hidden row;
    /// others have that of their last token, and may have more.
    fn validate_whole_sequences(&self, limits: &ExecutorLimits) -> Result<(), BatchError> {
        let n_rows = self.logit_rows.len() + self.hidden_rows.len();
        let n_checked = match limits.pooling {
            Some(_) => self.n_seqs().max(n_rows),
            None => self.n_seqs() + self.logit_rows.len(),
        };
        for seq_idx in 0..n_checked {
            let ends = (self.seq_starts.get(seq_idx)).zip(self.seq_starts.get(seq_idx + 1));
            let is_whole = ends.is_some_and(|(&start, &end)| {
                let has_row = match limits.pooling {
                    Some(_) => self.hidden_rows.get(seq_idx) == Some(&limits.pooled_row(start, end - 1)),
                    None => self.hidden_rows.binary_search(&(end - 1)).is_ok(),
                };
                self.positions[start as usize] == 0 && has_row
            });
            if !is_whole {
                return Err(BatchError::NotWhole { seq_idx });
            }
        }
        Ok(())
    }

    fn validate_states(&self, limits: &ExecutorLimits) -> Result<(), BatchError> {
        let expected = if limits.n_states > 0 { self.n_seqs() } else { 0 };
        if self.states.len() != expected {
            return Err(BatchError::Length {
                what: "states",
                expected,
                found: self.states.len(),
            });
        }
        let save_of = |state: &SeqState| state.save.map(|save| save.slot);
        for (seq_idx, state) in self.states.iter().enumerate() {
            let wrong = |slot| Err(BatchError::State { seq_idx, slot });
            let slots = [Some(state.from), Some(state.to), save_of(state)];
            if let Some(slot) = (slots.into_iter().flatten()).find(|&slot| slot as usize >= limits.n_states) {
                return wrong(slot);
            }
            if let Some(save) = state.save {
                let first = self.positions[self.tokens_of(seq_idx).start] as usize;
                let is_inside = (first + 1..=self.context_len(seq_idx)).contains(&(save.n_tokens as usize));
                if !is_inside || save.slot == state.to || save.slot == state.from {
                    return wrong(save.slot);
                }
            }
            // No slot that this sequence writes may be read or written by another. There are few sequences,
            // so no table is needed.
            for (other_idx, other) in self.states.iter().enumerate() {
                let touched = [Some(other.from), Some(other.to), save_of(other)];
                let written = [Some(state.to), save_of(state)];
                let clash = written
                    .into_iter()
                    .flatten()
                    .find(|slot| touched.contains(&Some(*slot)));
                if other_idx != seq_idx
                    && let Some(slot) = clash
                {
                    return wrong(slot);
                }
            }
        }
        Ok(())
    }

    fn validate_output(
        &self,
        row: usize,
        output: &RowOutput,
        limits: &ExecutorLimits,
    ) -> Result<(), BatchError> {
        let RowOutput::Sample(sample) = output else {
            return Ok(());
        };
        let history_fits =
            sample.history.start <= sample.history.end && sample.history.end as usize <= self.history.len();
        let n_mask_words = limits.n_vocab.div_ceil(32);
        let mask_fits = match sample.mask {
            RowMask::Any | RowMask::Late(_) => true,
            RowMask::Words(start) => (start as usize).saturating_add(n_mask_words) <= self.mask_words.len(),
        };
        if history_fits && mask_fits {
            Ok(())
        } else {
            Err(BatchError::SampleRange { row })
        }
    }
}

/// Checks that `offsets` increases from 0 to `end` (or is empty if `end` is 0).
fn check_offsets(what: &'static str, offsets: &[u32], end: usize) -> Result<(), BatchError> {
    let is_empty = offsets.is_empty() && end == 0;
    let rises = offsets.first() == Some(&0)
        && offsets.windows(2).all(|pair| pair[0] <= pair[1])
        && offsets.last().is_some_and(|&last| last as usize == end);
    if is_empty || rises {
        Ok(())
    } else {
        Err(BatchError::Offsets { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pooling, StateSave, WindowGroup};

    fn limits() -> ExecutorLimits {
        ExecutorLimits {
            n_vocab: 100,
            n_embd: 8,
            n_ctx: 64,
            n_pages: 8,
            n_host_pages: 0,
            max_batch_tokens: 32,
            max_batch_seqs: 4,
            max_logit_rows: 4,
            kv_window: None,
            window_group: None,
            pooling: None,
            is_encoder: false,
            n_states: 0,
        }
    }

    fn two_sequences() -> ForwardBatch {
        let mut batch = ForwardBatch::default();
        batch.push_sequence((0..18).map(TokenSource::Id), 0, &[3, 5]);
        batch.want_last(RowOutput::Logits);
        batch.push_sequence([TokenSource::Id(7)], 16, &[1, 2]);
        batch.want_last(RowOutput::Logits);
        batch
    }

    #[track_caller]
    fn check(expected: &Result<(), BatchError>, change: impl FnOnce(&mut ForwardBatch)) {
        let mut batch = two_sequences();
        change(&mut batch);
        assert_eq!(&batch.validate(&limits(), 0), expected);
    }

    #[test]
    fn validate_accepts_what_push_sequence_builds() {
        check(&Ok(()), |_| {});
        check(&Ok(()), ForwardBatch::clear);
    }

    #[test]
    fn validate_names_what_is_wrong() {
        check(
            &Err(BatchError::TokenOutOfRange {
                index: 2,
                id: 100,
                n_vocab: 100,
            }),
            |batch| {
                batch.tokens[2] = TokenSource::Id(100);
            },
        );
        check(
            &Err(BatchError::SampledRowOutOfRange {
                index: 18,
                row: 0,
                n_rows: 0,
            }),
            |batch| {
                batch.tokens[18] = TokenSource::SampledRow(0);
            },
        );
        check(
            &Err(BatchError::Page {
                seq_idx: 0,
                page_idx: 1,
                found: Some(8),
            }),
            |batch| batch.pages[1] = 8,
        );
        check(&Err(BatchError::Placement { token_idx: 4 }), |batch| {
            batch.slots[4] += 1;
        });
        check(&Err(BatchError::Rows { what: "logit_rows" }), |batch| {
            batch.logit_rows.swap(0, 1);
        });
        check(
            &Err(BatchError::Length {
                what: "positions",
                expected: 19,
                found: 18,
            }),
            |batch| {
                batch.positions.pop();
            },
        );
        check(&Err(BatchError::Offsets { what: "seq_starts" }), |batch| {
            batch.seq_starts[2] = 18;
        });
    }

    #[test]
    fn validate_allows_freed_pages_only_outside_the_window() {
        let mut batch = ForwardBatch::default();
        batch.push_sequence([TokenSource::Id(1)], 40, &[ForwardBatch::UNMAPPED_PAGE, 0, 1]);
        assert!(batch.validate(&limits(), 0).is_err());
        assert_eq!(
            batch.validate(
                &ExecutorLimits {
                    kv_window: Some(20),
                    ..limits()
                },
                0
            ),
            Ok(())
        );
    }

    #[test]
    fn a_group_of_windowed_layers_has_tables_of_its_own() {
        let limits = ExecutorLimits {
            window_group: Some(WindowGroup {
                window: 20,
                n_pages: 3,
                n_host_pages: 0,
            }),
            ..limits()
        };
        let batch = |main: &[u32], window: &[u32]| {
            let mut batch = ForwardBatch::default();
            batch.push_sequence([TokenSource::Id(1)], 40, main);
            batch.push_window_pages(window);
            batch
        };
        let unmapped = ForwardBatch::UNMAPPED_PAGE;
        assert_eq!(batch(&[5, 6, 7], &[unmapped, 2, 0]).validate(&limits, 0), Ok(()));
        let page = |page_idx, found| {
            Err(BatchError::Page {
                seq_idx: 0,
                page_idx,
                found: Some(found),
            })
        };
        // The other layers still see the first page, and the small pool has no page 3.
        let found = batch(&[unmapped, 6, 7], &[unmapped, 2, 0]).validate(&limits, 0);
        assert_eq!(found, page(0, unmapped));
        let found = batch(&[5, 6, 7], &[unmapped, 3, 0]).validate(&limits, 0);
        assert_eq!(found, page(1, 3));
        let mut moved = batch(&[5, 6, 7], &[unmapped, 2, 0]);
        moved.window_slots[0] += 1;
        assert_eq!(
            moved.validate(&limits, 0),
            Err(BatchError::Placement { token_idx: 0 })
        );
        let mut without = batch(&[5, 6, 7], &[unmapped, 2, 0]);
        without.window_slots.clear();
        assert!(matches!(
            without.validate(&limits, 0),
            Err(BatchError::Length {
                what: "window_slots",
                ..
            })
        ));
    }

    #[test]
    fn an_encoder_takes_whole_sequences_with_one_row_each() {
        let limits = |pooling| ExecutorLimits {
            pooling: Some(pooling),
            is_encoder: true,
            ..limits()
        };
        let mut batch = ForwardBatch::default();
        batch.push_sequence([4, 5, 6].map(TokenSource::Id), 0, &[0]);
        batch.push_sequence([7, 8].map(TokenSource::Id), 0, &[1]);
        batch.hidden_rows = vec![0, 3];
        assert_eq!(batch.validate(&limits(Pooling::First), 0), Ok(()));
        let refused = |seq_idx| Err(BatchError::NotWhole { seq_idx });
        assert_eq!(batch.validate(&limits(Pooling::Last), 0), refused(0));
        batch.hidden_rows = vec![2, 4];
        assert_eq!(batch.validate(&limits(Pooling::Mean), 0), Ok(()));
        batch.hidden_rows.pop();
        assert_eq!(batch.validate(&limits(Pooling::Mean), 0), refused(1));
        batch.hidden_rows = vec![2, 4];
        batch.want_last(RowOutput::Logits);
        assert_eq!(batch.validate(&limits(Pooling::Mean), 0), refused(2));
        batch.clear();
        batch.push_sequence([9].map(TokenSource::Id), 1, &[0]);
        batch.hidden_rows = vec![0];
        assert_eq!(batch.validate(&limits(Pooling::Last), 0), refused(0));
    }

    #[test]
    fn an_encoder_that_does_not_pool_gives_several_rows_of_whole_sequences() {
        let limits = ExecutorLimits {
            is_encoder: true,
            ..limits()
        };
        let mut batch = ForwardBatch::default();
        batch.push_sequence([4, 5, 6].map(TokenSource::Id), 0, &[0]);
        batch.push_sequence([7, 8].map(TokenSource::Id), 0, &[1]);
        let refused = |seq_idx| Err(BatchError::NotWhole { seq_idx });
        for (rows, expected) in [
            (vec![1, 2, 3, 4], Ok(())),
            (vec![2, 4], Ok(())),
            (vec![0, 1, 4], refused(0)),
            (vec![1, 2, 3], refused(1)),
        ] {
            batch.hidden_rows = rows;
            assert_eq!(batch.validate(&limits, 0), expected, "{:?}", batch.hidden_rows);
        }
        // A search in rows that do not ascend finds nothing.
        batch.hidden_rows = vec![4, 2];
        let unordered = BatchError::Rows { what: "hidden_rows" };
        assert_eq!(batch.validate(&limits, 0), Err(unordered));
        batch.hidden_rows = vec![2];
        batch.want_last(RowOutput::Logits);
        assert!(batch.validate(&limits, 0).is_err());
    }

    #[test]
    fn validate_keeps_states_apart() {
        let limits = ExecutorLimits {
            n_states: 4,
            ..limits()
        };
        let state = |from, to, save: Option<(u32, u32)>| SeqState {
            from,
            to,
            save: save.map(|(n_tokens, slot)| StateSave { n_tokens, slot }),
        };
        let check = |states: &[SeqState], expected: Option<(usize, u32)>| {
            let mut batch = two_sequences();
            batch.states = states.to_vec();
            let expected =
                expected.map_or(Ok(()), |(seq_idx, slot)| Err(BatchError::State { seq_idx, slot }));
            assert_eq!(batch.validate(&limits, 0), expected, "{states:?}");
        };
        check(&[state(0, 0, None), state(1, 1, None)], None);
        // Two sequences may read one snapshot.
        check(&[state(2, 0, Some((16, 3))), state(2, 1, None)], None);
        check(&[state(0, 4, None), state(1, 1, None)], Some((0, 4)));
        check(&[state(0, 0, None), state(1, 0, None)], Some((0, 0)));
        check(&[state(0, 1, None), state(1, 2, None)], Some((0, 1)));
        check(&[state(0, 0, Some((16, 1))), state(1, 1, None)], Some((0, 1)));
        check(&[state(0, 0, Some((16, 0))), state(1, 1, None)], Some((0, 0)));
        check(&[state(0, 0, Some((19, 2))), state(1, 1, None)], Some((0, 2)));
        check(&[state(0, 0, None), state(1, 1, Some((16, 2)))], Some((1, 2)));
        let mut batch = two_sequences();
        batch.states = vec![state(0, 0, None)];
        assert!(batch.validate(&limits, 0).is_err(), "a state is missing");
    }
}
