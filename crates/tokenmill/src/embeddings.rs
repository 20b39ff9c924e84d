//! [`Embeddings`]: the vectors of a request's inputs, as they are ready.
//!
//! Separate from generations because nothing is sampled. Invariant: a vector is the mean of the final hidden states, of
//! length 1, and the vectors come in the order of the inputs.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
    time::Duration,
};

use tokenmill_sched::{Engine, Event, ForwardParams, ForwardRows, Generation};

use crate::{Error, wait::wait};

/// The vectors of a request's inputs: an iterator that waits for each. Dropping it cancels what is not finished.
#[derive(Debug)]
pub struct Embeddings {
    /// All are submitted before the first is read, so that they share the engine's steps.
    passes: VecDeque<Generation>,
    pool: MeanPool,
}

impl Embeddings {
    pub(crate) fn start(
        engine: &Engine,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        cache_salt: u64,
    ) -> Result<Self, Error> {
        let params = ForwardParams {
            deadline,
            cache_salt,
            ..ForwardParams::new(ForwardRows::Hidden, 0)
        };
        let submit = |tokens| engine.submit_forward(tokens, params.clone());
        Ok(Self {
            passes: inputs.into_iter().map(submit).collect::<Result<_, _>>()?,
            pool: MeanPool::default(),
        })
    }

    /// The vector of the next input, without blocking a thread; `None` after the last.
    pub async fn next_vector(&mut self) -> Option<Result<Vec<f32>, Error>> {
        std::future::poll_fn(|context| self.poll_vector(context)).await
    }

    fn poll_vector(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, Error>>> {
        let Some(pass) = self.passes.front_mut() else {
            return Poll::Ready(None);
        };
        loop {
            match pass.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Event::Rows(rows))) => {
                    (rows.values.chunks_exact(rows.width)).for_each(|row| self.pool.add(row));
                }
                Poll::Ready(Some(Event::Failed { error, .. })) => {
                    self.passes.clear();
                    return Poll::Ready(Some(Err(error.into())));
                }
                Poll::Ready(Some(Event::Token(_) | Event::Finished(_))) => {}
                Poll::Ready(None) => {
                    self.passes.pop_front();
                    let pool = std::mem::take(&mut self.pool);
                    return Poll::Ready(Some(Ok(pool.normalized())));
                }
            }
        }
    }
}

impl Iterator for Embeddings {
    type Item = Result<Vec<f32>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(|context| self.poll_vector(context))
    }
}

/// The mean of rows, in f64 so that long inputs lose nothing.
#[derive(Debug, Default)]
struct MeanPool {
    sum: Vec<f64>,
}

impl MeanPool {
    fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        self.sum
            .iter_mut()
            .zip(row)
            .for_each(|(sum, &value)| *sum += f64::from(value));
    }

    /// The direction of the mean; its length, and so the number of rows, does not matter.
    fn normalized(&self) -> Vec<f32> {
        let norm = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        self.sum.iter().map(|value| (value * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_is_the_normalized_mean() {
        let mut pool = MeanPool::default();
        pool.add(&[3.0, 0.0]);
        pool.add(&[3.0, 8.0]);
        assert_eq!(pool.normalized(), [0.6, 0.8]);
    }
}
