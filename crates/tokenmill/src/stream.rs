//! Streams of text: the events below them, and the results gathered from events.

pub use tokenmill_sched::{Canceller, Timings};

pub use crate::{
    answer::{Gathered, Sample},
    text_stream::{ScoredToken, TextEnd, TextEvent},
};
