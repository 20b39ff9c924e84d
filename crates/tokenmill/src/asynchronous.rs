//! The blocking calls of a [`Model`] as futures, for any runtime.
//!
//! The engine computes on its own threads, so only the steps before a request can take long: encoding images
//! and compiling constraints. Invariant: these steps run on a separate thread and never block the thread that
//! polls the future.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
    thread,
};

use crate::{
    Answer, Conversation, Error, Model, TextParams, TextStream, model::check_single, stream::PieceStream,
};

impl Model {
    /// As [`Self::complete`], without blocking a thread. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub async fn complete_async(&self, prompt: &str, params: &TextParams) -> Result<Answer, Error> {
        single(self.stream_async(prompt, params).await?.into_inner()).await
    }

    /// As [`Self::samples`], without blocking a thread. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Self::samples`].
    pub async fn samples_async(&self, prompt: &str, params: &TextParams) -> Result<Vec<Answer>, Error> {
        self.stream_async(prompt, params)
            .await?
            .into_inner()
            .answers()
            .await
    }

    /// As [`Self::stream`], for `futures::StreamExt`: the stream begins once a constraint is compiled.
    ///
    /// # Errors
    /// As [`Self::stream`].
    pub async fn stream_async(&self, prompt: &str, params: &TextParams) -> Result<PieceStream, Error> {
        let stream = if params.constraint.is_none() {
            self.stream(prompt, params)?
        } else {
            let (model, prompt, params) = (self.clone(), prompt.to_owned(), params.clone());
            apart(move || model.stream(&prompt, &params)).await?
        };
        Ok(stream.into_stream())
    }

    /// As [`Self::chat`], without blocking a thread. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub async fn chat_async(
        &self,
        conversation: impl Into<Conversation>,
        params: &TextParams,
    ) -> Result<Answer, Error> {
        single(self.chat_stream_async(conversation, params).await?.into_inner()).await
    }

    /// As [`Self::chat_stream`], for `futures::StreamExt`: the stream begins once images are encoded and a constraint is compiled.
    ///
    /// # Errors
    /// As [`Self::chat_stream`].
    pub async fn chat_stream_async(
        &self,
        conversation: impl Into<Conversation>,
        params: &TextParams,
    ) -> Result<PieceStream, Error> {
        let conversation = conversation.into();
        let is_quick = params.constraint.is_none() && conversation.tools.is_none() && !self.sees();
        let stream = if is_quick && params.thinking_budget.is_none() {
            self.chat_stream(conversation, params)?
        } else {
            let (model, params) = (self.clone(), params.clone());
            apart(move || model.chat_stream(conversation, &params)).await?
        };
        Ok(stream.into_stream())
    }

    /// As [`Self::embed`], without blocking a thread. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub async fn embed_async(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut embeddings = self.start_embedding(texts)?;
        while let Some(vector) = embeddings.next_vector().await {
            vectors.push(vector?);
        }
        Ok(vectors)
    }

    /// As [`Self::rerank`], without blocking a thread. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Self::rerank`].
    pub async fn rerank_async(&self, query: &str, documents: &[impl AsRef<str>]) -> Result<Vec<f32>, Error> {
        let mut found = Vec::with_capacity(documents.len());
        let mut scores = self.start_ranking(query, documents)?;
        while let Some(score) = scores.next_score().await {
            found.push(score?);
        }
        Ok(found)
    }
}

/// Waits for the answer of a request of one sample, without blocking a thread.
async fn single(stream: TextStream) -> Result<Answer, Error> {
    check_single(&stream)?;
    let mut answers = stream.answers().await?;
    Ok(answers.pop().expect("one sample has one answer"))
}

/// Shares the result of work between its thread and the future that waits for it.
struct Apart<T> {
    done: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

/// Runs `work` on a new thread and returns its result. The work runs to its end even if the future is dropped.
///
/// # Errors
/// [`Error::Thread`], and those of the work.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    apart_by(thread::Builder::new(), work).await
}

async fn apart_by<T: Send + 'static>(
    thread: thread::Builder,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let shared = Arc::new(Mutex::new(Apart {
        done: None,
        waker: None,
    }));
    let at_work = Arc::clone(&shared);
    let started = thread.spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        let mut apart = at_work.lock().unwrap_or_else(PoisonError::into_inner);
        apart.done = Some(done);
        if let Some(waker) = apart.waker.take() {
            waker.wake();
        }
    });
    started.map_err(|source| Error::Thread { source })?;
    let done = std::future::poll_fn(|context| {
        let mut apart = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(done) = apart.done.take() {
            return Poll::Ready(done);
        }
        apart.waker = Some(context.waker().clone());
        Poll::Pending
    });
    done.await.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_is_an_error() {
        // More than any machine can map.
        let thread = thread::Builder::new().stack_size(1 << 62);
        let mut context = std::task::Context::from_waker(Waker::noop());
        let polled = pin!(apart_by(thread, || Ok(()))).poll(&mut context);
        let Poll::Ready(Err(error)) = polled else {
            panic!("{polled:?}");
        };
        assert!(
            error.to_string().starts_with("cannot start a thread: "),
            "{error}"
        );
    }
}
