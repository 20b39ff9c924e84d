//! [`ForwardPasses`]: the output rows of a request's inputs, in the order of the inputs.
//!
//! Embedding and reranking both read them. Invariants: inputs are submitted as long as the engine's queue
//! takes them, so that they share steps, and the others as earlier ones end; while some are left, one is in
//! the engine, which ends it at the deadline; a failure cancels unfinished inputs.

use std::{
    collections::VecDeque,
    fmt,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokenmill_sched::{Engine, EngineError, Event, ForwardParams, Generation};

use crate::Error;

/// Forward passes over known tokens. Dropping them cancels unfinished work.
pub(crate) struct ForwardPasses {
    engine: Engine,
    params_of: Box<dyn Fn(usize) -> ForwardParams + Send + Sync>,
    /// When all of them fail that have not ended, those that wait for room too.
    deadline: Option<Instant>,
    passes: VecDeque<Generation>,
    /// Inputs that the queue had no room for.
    rest: VecDeque<Vec<u32>>,
    /// Whether the queue took one.
    is_begun: bool,
}

impl fmt::Debug for ForwardPasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardPasses")
            .field("n_begun", &self.passes.len())
            .field("n_waiting", &self.rest.len())
            .finish_non_exhaustive()
    }
}

impl ForwardPasses {
    /// Submits the inputs with the parameters that `params_of` gives for their number of tokens.
    pub(crate) fn start(
        engine: &Engine,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        params_of: impl Fn(usize) -> ForwardParams + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let mut passes = Self {
            engine: engine.clone(),
            params_of: Box::new(params_of),
            deadline: deadline.and_then(|deadline| Instant::now().checked_add(deadline)),
            passes: VecDeque::new(),
            rest: inputs.into(),
            is_begun: false,
        };
        passes.submit()?;
        Ok(passes)
    }

    /// Submits what the queue has room for, and one in any case once the request is begun: other requests may have taken all the room
    /// that its own inputs left.
    fn submit(&mut self) -> Result<(), EngineError> {
        while let Some(tokens) = self.rest.front() {
            let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            let params = ForwardParams {
                deadline: self.deadline.map(left),
                ..(self.params_of)(tokens.len())
            };
            let pass = match self.engine.submit_forward(tokens.clone(), params.clone()) {
                Err(EngineError::QueueFull { .. } | EngineError::QueueTokensFull { .. })
                    if !self.passes.is_empty() =>
                {
                    break;
                }
                Err(EngineError::QueueFull { .. } | EngineError::QueueTokensFull { .. }) if self.is_begun => {
                    self.engine.submit_further_forward(tokens.clone(), params)
                }
                asked => asked,
            };
            self.passes.push_back(pass?);
            self.is_begun = true;
            self.rest.pop_front();
        }
        Ok(())
    }

    /// Gives the rows of the next input to `on_row`, one by one, and says when it is done; `None` after the last.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut on_row: impl FnMut(&[f32]),
    ) -> Poll<Option<Result<(), Error>>> {
        if let Err(error) = self.submit() {
            self.passes.clear();
            self.rest.clear();
            return Poll::Ready(Some(Err(error.into())));
        }
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
                    self.rest.clear();
                    return Poll::Ready(Some(Err(error.into())));
                }
                Poll::Ready(Some(Event::Prefill(_) | Event::Token(_) | Event::Finished(_))) => {}
                Poll::Ready(None) => {
                    self.passes.pop_front();
                    return Poll::Ready(Some(Ok(())));
                }
            }
        }
    }
}
