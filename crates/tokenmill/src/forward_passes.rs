//! [`ForwardPasses`]: the rows of a request's inputs, input after input.
//!
//! Separate because embedding and ranking read them alike. Invariant: all inputs are submitted before the first is read, so
//! that they share the engine's steps; a failure cancels those not finished.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use tokenmill_sched::{Engine, Event, ForwardParams, Generation};

use crate::Error;

/// Forward passes over known tokens. Dropping them cancels what is not finished.
#[derive(Debug)]
pub(crate) struct ForwardPasses {
    passes: VecDeque<Generation>,
}

impl ForwardPasses {
    /// Submits every input with the parameters that `params_of` gives for its number of tokens.
    pub(crate) fn start(
        engine: &Engine,
        inputs: Vec<Vec<u32>>,
        params_of: impl Fn(usize) -> ForwardParams,
    ) -> Result<Self, Error> {
        let submit = |tokens: Vec<u32>| {
            let params = params_of(tokens.len());
            engine.submit_forward(tokens, params)
        };
        Ok(Self {
            passes: inputs.into_iter().map(submit).collect::<Result<_, _>>()?,
        })
    }

    /// Gives the rows of the next input to `on_row`, one by one, and says when it is done; `None` after the last.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut on_row: impl FnMut(&[f32]),
    ) -> Poll<Option<Result<(), Error>>> {
        let Some(pass) = self.passes.front_mut() else {
            return Poll::Ready(None);
        };
        loop {
            match pass.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Event::Rows(rows))) => {
                    rows.values.chunks_exact(rows.width).for_each(&mut on_row);
                }
                Poll::Ready(Some(Event::Failed { error, .. })) => {
                    self.passes.clear();
                    return Poll::Ready(Some(Err(error.into())));
                }
                Poll::Ready(Some(Event::Token(_) | Event::Finished(_))) => {}
                Poll::Ready(None) => {
                    self.passes.pop_front();
                    return Poll::Ready(Some(Ok(())));
                }
            }
        }
    }
}
