//! Streams of text: asynchronous streams, the events below them, and the results gathered from events.
//!
//! [`TextStream`], [`Embeddings`] and [`Scores`] are iterators, which block the calling thread. Their asynchronous forms are separate
//! types, because `Iterator` and `futures::StreamExt` both have a method `next`. Invariant: no runtime is needed, and dropping a stream
//! cancels unfinished requests.
//!
//! ```
//! use futures_util::StreamExt; // the same as `futures::StreamExt`
//! use tokenmill::prelude::*;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tokenmill::Error> {
//! let model = Model::open("demo")?;
//! let params = TextParams::new().max_tokens(16);
//! let mut stream = model.stream_async("Once upon a time", &params).await?;
//! while let Some(piece) = stream.next().await {
//!     print!("{}", piece?.text);
//! }
//! # Ok(())
//! # }
//! ```

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
pub use tokenmill_sched::{Canceller, Prefill, Timings};

use crate::{Delta, Error, TextStream, embeddings::Embeddings, rerank::Scores};
pub use crate::{
    answer::{Gathered, Sample},
    text_stream::{ScoredToken, TextEnd, TextEvent},
};

/// The pieces of a [`TextStream`], for `futures::StreamExt` and any runtime. It ends after the first error.
#[derive(Debug)]
pub struct PieceStream(TextStream);

/// The vectors of [`Embeddings`], for `futures::StreamExt` and any runtime.
#[derive(Debug)]
pub struct VectorStream(Embeddings);

/// The scores of [`Scores`], for `futures::StreamExt` and any runtime.
#[derive(Debug)]
pub struct ScoreStream(Scores);

impl TextStream {
    /// Turns the stream into an asynchronous one of the same pieces.
    pub fn into_stream(self) -> PieceStream {
        PieceStream(self)
    }
}

impl PieceStream {
    /// Turns it back into a stream of text, for [`TextStream::answers`] and its other methods.
    pub fn into_inner(self) -> TextStream {
        self.0
    }
}

impl Embeddings {
    /// Turns the iterator into an asynchronous stream of the same vectors.
    pub fn into_stream(self) -> VectorStream {
        VectorStream(self)
    }
}

impl Scores {
    /// Turns the iterator into an asynchronous stream of the same scores.
    pub fn into_stream(self) -> ScoreStream {
        ScoreStream(self)
    }
}

impl Stream for PieceStream {
    type Item = Result<Delta, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_piece(context)
    }
}

impl Stream for VectorStream {
    type Item = Result<Vec<f32>, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_vector(context)
    }
}

impl Stream for ScoreStream {
    type Item = Result<f32, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_score(context)
    }
}
