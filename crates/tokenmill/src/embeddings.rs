//! [`Embeddings`]: the vectors of a request's inputs, in order, each as soon as it is ready.
//!
//! Unlike in generations, nothing is sampled. Invariant: a vector is the network's pooled output, or the mean
//! of the final hidden states if it does not pool, normalized to length 1; the vectors have the order of the
//! inputs.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use tokenmill_sched::{Engine, ForwardParams, ForwardRows};

use crate::{Error, forward_passes::ForwardPasses, wait::wait};

/// The vectors of a request's inputs: an iterator that waits for each. Dropping it cancels unfinished work.
#[derive(Debug)]
pub struct Embeddings {
    passes: ForwardPasses,
    pool: MeanPool,
}

impl Embeddings {
    pub(crate) fn start(
        engine: &Engine,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        cache_salt: u64,
    ) -> Result<Self, Error> {
        let pools = engine.limits().pooling.is_some();
        let params_of = move |tokens: &[u32]| ForwardParams {
            cache_salt,
            // A network that pools gives the vector with the last token; of others all tokens are read.
            ..ForwardParams::new(
                ForwardRows::Hidden,
                if pools { tokens.len().saturating_sub(1) } else { 0 },
            )
        };
        Ok(Self {
            passes: ForwardPasses::start(engine, inputs, deadline, params_of)?,
            pool: MeanPool::default(),
        })
    }

    /// The vector of the next input, without blocking a thread; `None` after the last.
    pub async fn next_vector(&mut self) -> Option<Result<Vec<f32>, Error>> {
        std::future::poll_fn(|context| self.poll_vector(context)).await
    }

    pub(crate) fn poll_vector(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, Error>>> {
        let pool = &mut self.pool;
        let done = ready!(self.passes.poll(context, |row| pool.add(row)));
        Poll::Ready(done.map(|done| done.map(|()| std::mem::take(&mut self.pool).normalized())))
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
