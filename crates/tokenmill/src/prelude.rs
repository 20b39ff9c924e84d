//! The types of nearly every program: `use tokenmill::prelude::*;`.
//!
//! [`Error`](crate::Error) is left out, since most programs have one of their own.

pub use crate::{
    Answer, Constraint, Conversation, Device, LoadOptions, Message, Model, SamplingParams, TextParams,
    ToolCall,
};
