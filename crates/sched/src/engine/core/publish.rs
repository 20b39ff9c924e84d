//! Publishes events to callers about their requests, and the state of the engine to its readers.
//!
//! Part of [`Core`]; only this file sends events. Invariant: a sequence's events are sent in the order in which
//! they happened, and its end is the last of them; a caller with an event sees counts that are not older.

use tokenmill_backend::RowError;

use crate::{
    arena::SeqId,
    engine::core::{Core, cause::Cause},
    error::EngineError,
    masks::next_mask::LaneMask,
    pages::events::PageEventSender,
    plan::{
        outcome::{End, Outcome, SeqSummary},
        step_plan::{PlannedOutput, StepPlan},
    },
    queue::event::{Event, FinishReason, Finished, RequestId, Rows, Token, Usage},
};

impl Core {
    /// Sends changes of the prefix cache to `to` from now on.
    pub(crate) fn send_page_events(&mut self, to: PageEventSender) {
        self.scheduler.tell_page_events();
        self.page_events = Some(to);
    }

    /// Publishes the state after a step.
    pub(crate) fn publish(&mut self) {
        self.queue.flush();
        self.let_adapters_go();
        self.publish_adapters();
        self.publish_stats();
        if let Some(sender) = &mut self.page_events {
            let events = if sender.begins_again() {
                self.scheduler.restate_page_events()
            } else {
                self.scheduler.take_page_events()
            };
            sender.send(events);
        }
    }

    pub(crate) fn publish_stats(&mut self) {
        self.tally.n_parked = self.queue.n_parked();
        self.tally.n_fetching = self.n_fetching();
        self.drafts.count_failures(&mut self.tally);
        self.board.publish(&self.scheduler, self.tally);
    }

    pub(super) fn note_beginning(&mut self, seq: SeqId, now_us: u64) {
        let lane = self.lanes.get_mut(seq);
        let lane = lane.expect("an admitted sequence has a lane");
        lane.stopwatch.begin(now_us);
        self.queue.leave(&mut lane.place, lane.n_queued_tokens);
        let (request, sample) = (lane.request, lane.sample);
        let (queued, _) = lane.stopwatch.since_start(now_us);
        let Some(watch) = &mut lane.prefill else { return };
        if let Some(report) = watch.begin(sample, self.scheduler.n_cached(seq), queued) {
            self.send(request, Event::Prefill(report));
        }
    }

    /// Reports the parts of prompts that a step has computed.
    pub(super) fn send_prefills(&mut self, plan: &StepPlan, now_us: u64) {
        for row in &plan.rows {
            let Some(lane) = self.lanes.get_mut(row.seq) else {
                continue;
            };
            let (request, sample) = (lane.request, lane.sample);
            let (queued, elapsed) = lane.stopwatch.since_start(now_us);
            let n_done = row.sure_end() as usize;
            let watch = lane.prefill.as_mut();
            if let Some(report) = watch.and_then(|watch| watch.advance(sample, n_done, queued, elapsed)) {
                self.send(request, Event::Prefill(report));
            }
        }
    }

    /// Sends events for the scheduler's outcomes.
    pub(super) fn publish_outcomes(&mut self, cause: Cause<'_>, now_us: u64) {
        if self.outcomes.is_empty() {
            return;
        }
        // Count and publish before sending: a caller that has seen the end of its request finds the request's
        // pages free and its tokens counted.
        for outcome in &self.outcomes {
            match outcome {
                Outcome::Token { .. } => self.tally.generated_tokens += 1,
                Outcome::Shifted { .. } => {}
                Outcome::Ended { end, .. } if end.is_finish() => self.tally.finished += 1,
                Outcome::Ended { .. } => self.tally.failed += 1,
            }
        }
        self.publish_stats();
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in outcomes.drain(..) {
            match outcome {
                Outcome::Token { seq, logit_row, id } => {
                    self.send_token(seq, logit_row as usize, id, now_us);
                }
                Outcome::Shifted { seq, n_dropped } => {
                    if let Some(lane) = self.lanes.get_mut(seq) {
                        lane.shift(n_dropped);
                    }
                    // From here on its draws have other keys.
                    self.drafts.forget(seq);
                }
                Outcome::Ended { seq, end, summary } => self.send_end(seq, end, summary, cause, now_us),
            }
        }
        self.outcomes = outcomes;
    }

    fn send_token(&mut self, seq: SeqId, logit_row: usize, id: u32, now_us: u64) {
        let sampled = self.output.sampled[logit_row].and_then(Result::ok);
        let lane = self
            .lanes
            .get_mut(seq)
            .expect("a sequence with a token has a lane");
        let time = lane.stopwatch.token(now_us);
        let (request, sample) = (lane.request, lane.sample);
        let wants_top = lane
            .sampling
            .as_ref()
            .is_some_and(|params| params.n_logprobs.is_some_and(|n| n > 0));
        let top = if wants_top {
            self.output.top_of(logit_row).to_vec()
        } else {
            Vec::new()
        };
        self.send(
            request,
            Event::Token(Token {
                sample,
                id,
                logprob: sampled.and_then(|sampled| sampled.logprob),
                top,
                time,
            }),
        );
    }

    /// Sends the rows that a step read for forward passes, and passes hidden states on to the draft model.
    pub(super) fn send_rows(&mut self, plan: &StepPlan) {
        let limits = &self.scheduler.config().limits;
        let (n_vocab, n_embd) = (limits.n_vocab, limits.n_embd);
        let (mut logits_start, mut hidden_start) = (0, 0);
        for row in &plan.rows {
            if row.gives_hidden {
                let start = hidden_start;
                hidden_start += row.n_tokens as usize * n_embd;
                if self.lanes.get(row.seq).is_some() {
                    let states = &self.output.hidden[start..hidden_start];
                    self.drafts
                        .take_hidden(row.seq, row.first_position as usize, states);
                }
            }
            let (n_rows, width, values) = match row.output {
                PlannedOutput::Nothing | PlannedOutput::Sample => continue,
                PlannedOutput::Logits { n_rows } => {
                    let start = logits_start;
                    logits_start += n_rows as usize * n_vocab;
                    (n_rows, n_vocab, &self.output.logits[start..logits_start])
                }
                PlannedOutput::Hidden { n_rows } => {
                    let start = hidden_start;
                    hidden_start += n_rows as usize * n_embd;
                    (n_rows, n_embd, &self.output.hidden[start..hidden_start])
                }
            };
            let event = Event::Rows(Rows {
                first_position: (row.end() - n_rows) as usize,
                width,
                values: values.to_vec(),
            });
            if let Some(request) = self.lanes.get(row.seq).map(|lane| lane.request) {
                self.send(request, event);
            }
        }
    }

    fn send_end(&mut self, seq: SeqId, end: End, summary: SeqSummary, cause: Cause<'_>, now_us: u64) {
        let mut lane = self.lanes.close(seq);
        self.drafts.forget(seq);
        self.queue.leave(&mut lane.place, lane.n_queued_tokens);
        let elapsed = lane.stopwatch.elapsed(now_us);
        let finished = |reason| {
            Ok(Finished {
                sample: lane.sample,
                reason,
                usage: Usage {
                    prompt_tokens: summary.n_prompt,
                    cached_tokens: summary.n_cached,
                    cache_miss: summary.miss,
                    completion_tokens: summary.n_generated,
                    dropped_tokens: summary.n_dropped,
                    drafted_tokens: summary.n_drafted,
                    accepted_tokens: summary.n_accepted,
                },
                timings: lane.stopwatch.finish(now_us),
            })
        };
        let end = match end {
            End::Stop => finished(FinishReason::Stop),
            End::Length => finished(FinishReason::Length),
            End::Cancelled => finished(FinishReason::Cancelled),
            End::QueueTimeout => Err(EngineError::QueueTimeout { waited: elapsed }),
            End::DeadlineExceeded => Err(EngineError::DeadlineExceeded { elapsed }),
            End::RowFailed => Err(EngineError::Row(self.row_error(seq, cause))),
            End::StepFailed => Err(cause.step_error()),
            End::ConstraintFailed => match lane.mask.take() {
                Some(LaneMask::Failed(failure)) => Err(EngineError::Constraint(failure)),
                _ => unreachable!("a constraint fails for a reason"),
            },
        };
        let event = match end {
            Ok(finished) => Event::Finished(finished),
            Err(error) => Event::Failed {
                sample: lane.sample,
                error,
            },
        };
        self.send(lane.request, event);
        self.lanes.note_end(lane.request);
    }

    /// Returns the reason why a row has no token.
    fn row_error(&self, seq: SeqId, cause: Cause<'_>) -> RowError {
        let Cause::Step(plan) = cause else {
            unreachable!("rows belong to a step that is done");
        };
        let row = plan
            .rows
            .iter()
            .find(|row| row.seq == seq)
            .expect("the row that failed");
        // In a draft, the first failed row is the one that was reached.
        let first = row.first_logit_row as usize;
        let of_row = &self.output.sampled[first..first + row.n_logit_rows() as usize];
        (of_row.iter())
            .find_map(|sampled| sampled.and_then(Result::err))
            .expect("the row failed for a reason")
    }

    /// Sends an event, and pauses its request if the consumer is behind.
    fn send(&mut self, request: RequestId, event: Event) {
        if self.queue.flush() {
            // Sequences that have begun are counted as running from here on.
            self.publish_stats();
        }
        if self.lanes.send(request, event) {
            self.set_paused(request, true);
        }
    }
}
